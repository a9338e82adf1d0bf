//! Batch arithmetic: train_batch_size = micro-batch × accumulation × data-parallel ranks, solved
//! for whatever is not given.

use crate::resolve::Resolver;
use crate::settings::Data;

/// The four numbers of the equation, all known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Sequences of one optimizer step over all ranks (`train_batch_size`).
    pub global: u64,
    /// Sequences of one forward pass on one rank (`train_micro_batch_size_per_gpu`).
    pub micro: u64,
    /// Forward passes per optimizer step (`gradient_accumulation_steps`).
    pub accumulation: u64,
    /// Data-parallel ranks; logical shards where sums go over those.
    pub ranks: u64,
}

/// The reason for which the equation has no solution: the key to blame, the fault, the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsolved {
    /// Key of the number to change.
    pub key: &'static str,
    /// The equation with the numbers given.
    pub what: String,
    /// Numbers that would do.
    pub fix: String,
}

/// Most tokens of a rank in one step; the host holds all of them, 8 bytes each.
const MOST_TOKENS: u64 = 1 << 28;

const GLOBAL: &str = "train_batch_size";
const MICRO: &str = "train_micro_batch_size_per_gpu";
const STEPS: &str = "gradient_accumulation_steps";

/// Solves for what is `None`. With one of the sizes alone, accumulation is 1, as in DeepSpeed.
///
/// # Errors
/// Numbers that contradict each other or do not divide, or none at all.
pub fn solve(
    global: Option<u64>,
    micro: Option<u64>,
    accumulation: Option<u64>,
    ranks: u64,
) -> Result<Batch, Unsolved> {
    let ranks = ranks.max(1);
    let fail = |key, what, fix| Err(Unsolved { key, what, fix });
    let times = |a: u64, b: u64| {
        a.checked_mul(b).ok_or_else(|| Unsolved {
            key: MICRO,
            what: format!("{a} x {b} does not fit into 64 bits"),
            fix: "use smaller numbers".into(),
        })
    };
    // `by` is the product on the other side of the equation, `of` its text.
    let divide = |total: u64, by: u64, of: String, wanted: &str| {
        if total > 0 && total.is_multiple_of(by) {
            return Ok(total / by);
        }
        let below = (total / by * by).max(by);
        let above = (total / by + 1) * by;
        let near = if below == above || below > total {
            above.min(below).to_string()
        } else {
            format!("{below} or {above}")
        };
        let more = if total < ranks {
            format!("more ranks ({ranks}) than sequences ({total}); ")
        } else {
            String::new()
        };
        Err(Unsolved {
            key: GLOBAL,
            what: format!(
                "{more}{GLOBAL} {total} = {of} has no whole solution for {wanted} ({total} / {by} = {:.3})",
                total as f64 / by as f64
            ),
            fix: format!("set {GLOBAL} to {near}, or change the number of ranks"),
        })
    };
    match (global, micro, accumulation) {
        (Some(g), Some(m), Some(a)) => {
            let product = times(times(m, a)?, ranks)?;
            if g != product {
                return fail(
                    GLOBAL,
                    format!(
                        "{GLOBAL} {g} is not {MICRO} {m} x {STEPS} {a} x {ranks} ranks = {product}"
                    ),
                    format!(
                        "set {GLOBAL} to {product}, or one of the three to \"auto\" to have it solved"
                    ),
                );
            }
            Ok(Batch {
                global: g,
                micro: m,
                accumulation: a,
                ranks,
            })
        }
        (Some(g), Some(m), None) => {
            let of = format!("{MICRO} {m} x {STEPS} ? x {ranks} ranks");
            let accumulation = divide(g, times(m, ranks)?, of, STEPS)?;
            Ok(Batch {
                global: g,
                micro: m,
                accumulation,
                ranks,
            })
        }
        (Some(g), None, a) => {
            let a = a.unwrap_or(1);
            let of = format!("{MICRO} ? x {STEPS} {a} x {ranks} ranks");
            let micro = divide(g, times(a, ranks)?, of, MICRO)?;
            Ok(Batch {
                global: g,
                micro,
                accumulation: a,
                ranks,
            })
        }
        (None, Some(m), a) => {
            let a = a.unwrap_or(1);
            Ok(Batch {
                global: times(times(m, a)?, ranks)?,
                micro: m,
                accumulation: a,
                ranks,
            })
        }
        (None, None, a) => {
            let given = match a {
                Some(a) => format!("only {STEPS} {a} is given"),
                None => format!("none of {GLOBAL}, {MICRO}, {STEPS} is given"),
            };
            fail(
                MICRO,
                format!(
                    "{given}, and {GLOBAL} = {MICRO} x {STEPS} x {ranks} ranks cannot be solved"
                ),
                format!(
                    "add \"{MICRO}\": 8, or \"{GLOBAL}\": {}",
                    8 * ranks.min(1 << 40)
                ),
            )
        }
    }
}

impl Resolver<'_> {
    /// Refuses steps of which a rank would read more than a machine holds.
    pub(crate) fn step_size(&mut self, batch: &Batch, data: Option<&Data>, longest: Option<u64>) {
        let given = match data {
            Some(Data::Text(text)) => text.seq_len.or(longest),
            _ => None,
        };
        let (rows, length) = (batch.global / batch.ranks.max(1), given.unwrap_or(1));
        if rows.saturating_mul(length) <= MOST_TOKENS {
            return;
        }
        let keys = [GLOBAL, MICRO, STEPS];
        let key = keys.into_iter().find(|k| self.is_given(k));
        let what = format!(
            "a rank reads {rows} sequences of {length} tokens a step; {MOST_TOKENS} tokens are the most"
        );
        let fix = "lower it, or shorten data.seq_len";
        self.error(key.unwrap_or(GLOBAL), what, fix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(global: u64, micro: u64, accumulation: u64, ranks: u64) -> Result<Batch, Unsolved> {
        Ok(Batch {
            global,
            micro,
            accumulation,
            ranks,
        })
    }

    #[test]
    fn any_two_give_the_third() {
        assert_eq!(solve(Some(32), Some(4), None, 2), batch(32, 4, 4, 2));
        assert_eq!(solve(Some(32), None, Some(4), 2), batch(32, 4, 4, 2));
        assert_eq!(solve(None, Some(4), Some(4), 2), batch(32, 4, 4, 2));
        assert_eq!(solve(Some(32), Some(4), Some(4), 2), batch(32, 4, 4, 2));
    }

    #[test]
    fn one_size_means_no_accumulation() {
        assert_eq!(solve(Some(32), None, None, 4), batch(32, 8, 1, 4));
        assert_eq!(solve(None, Some(8), None, 4), batch(32, 8, 1, 4));
    }

    #[test]
    fn contradictions_show_the_numbers() {
        let e = solve(Some(10), Some(4), Some(1), 2).unwrap_err();
        assert!(e.what.contains("10") && e.what.contains("= 8"), "{e:?}");
        assert!(e.fix.contains("set train_batch_size to 8"), "{e:?}");
        let e = solve(Some(10), Some(4), None, 1).unwrap_err();
        assert!(e.fix.contains("8 or 12"), "{e:?}");
        let e = solve(Some(3), None, None, 4).unwrap_err();
        assert!(
            e.what.contains("more ranks (4) than sequences (3)"),
            "{e:?}"
        );
        assert!(e.fix.contains("to 4"), "{e:?}");
        assert_eq!(solve(None, None, Some(2), 1).unwrap_err().key, MICRO);
        assert!(solve(None, Some(u64::MAX), Some(2), 1).is_err());
    }
}
