//! Many ranks shown as a few rows: equal ones as one row, others by minimum, median and maximum, and which rank is the straggler.

use crate::StepTime;

use super::read::{Memory, Traffic};

/// As many rows as a reader looks at one by one.
const FEW: usize = 3;

/// `rank 3`, `ranks 0-3, 6`; of very many their number.
pub fn named(ranks: &[u64]) -> String {
    const MOST: usize = 40;
    let all: Vec<u32> = ranks
        .iter()
        .map(|r| u32::try_from(*r).unwrap_or(u32::MAX))
        .collect();
    let text = listed(&all);
    match ranks.len() {
        1 => format!("rank {text}"),
        n if text.len() > MOST => format!("{n} ranks"),
        _ => format!("ranks {text}"),
    }
}

/// Values that stand for all: each with its label and the index of the one that is shown.
fn picked<T>(mut order: Vec<(u64, T)>, by: impl Fn(&T) -> f64) -> Vec<(String, T)> {
    order.sort_by(|a, b| by(&a.1).total_cmp(&by(&b.1)).then(a.0.cmp(&b.0)));
    let n = order.len();
    if n <= FEW {
        order.sort_by_key(|(rank, _)| *rank);
        let one = |(rank, v): (u64, T)| (format!("rank {rank}"), v);
        return order.into_iter().map(one).collect();
    }
    let mut out = vec![];
    for (i, (rank, v)) in order.into_iter().enumerate() {
        let word = match i {
            0 => "min",
            _ if i == (n - 1) / 2 => "median",
            _ if i == n - 1 => "max",
            _ => continue,
        };
        out.push((format!("{word} (rank {rank})"), v));
    }
    out
}

/// Measured memory of some ranks.
pub struct Held {
    /// Whose, in words.
    pub label: String,
    /// The ranks it stands for.
    pub ranks: Vec<u64>,
    /// One of them.
    pub memory: Memory,
}

/// The peak of all tags together.
pub fn peak(m: &Memory) -> u64 {
    let tags = || {
        m.tags
            .iter()
            .fold(0u64, |sum, t| sum.saturating_add(t.1.peak))
    };
    m.total.map_or_else(tags, |t| t.peak)
}

/// Memory of the ranks of each home and pipeline stage, alike ones as one.
pub fn memory(all: &[Memory], stage_ranks: Option<u64>) -> Vec<Held> {
    let stage = |m: &Memory| stage_ranks.map_or(0, |n| m.rank / n);
    let mut kinds: Vec<(String, u64)> = vec![];
    for m in all {
        let kind = (m.home.clone(), stage(m));
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
        // A file of a million homes is nobody's.
        if kinds.len() > 64 {
            break;
        }
    }
    let several = kinds.iter().any(|k| k.0 != kinds[0].0);
    let mut out = vec![];
    for (home, at) in kinds {
        let own: Vec<&Memory> = all
            .iter()
            .filter(|m| m.home == home && stage(m) == at)
            .collect();
        let mut alike: Vec<(Vec<u64>, &Memory)> = vec![];
        for m in &own {
            let same = |(_, o): &(Vec<u64>, &Memory)| o.tags == m.tags && o.total == m.total;
            match alike.iter().position(same) {
                Some(i) => alike[i].0.push(m.rank),
                None if alike.len() > FEW => {}
                None => alike.push((vec![m.rank], *m)),
            }
        }
        let mut add = |label: String, ranks: Vec<u64>, m: &Memory| {
            let label = match (several, stage_ranks) {
                (true, Some(_)) => format!("stage {at}, {label}, {home}"),
                (true, None) => format!("{label}, {home}"),
                (false, Some(_)) => format!("stage {at}, {label}"),
                (false, None) => label,
            };
            out.push(Held {
                label,
                ranks,
                memory: m.clone(),
            });
        };
        if alike.len() <= FEW {
            for (ranks, m) in alike {
                add(named(&ranks), ranks, m);
            }
            continue;
        }
        let order = own.iter().map(|m| (m.rank, *m)).collect();
        for (label, m) in picked(order, |m: &&Memory| peak(m) as f64) {
            add(label, vec![m.rank], m);
        }
    }
    out
}

/// The steps of a few ranks that stand for all, and a sentence about the straggler.
pub fn times(all: &[(u64, StepTime)]) -> (Vec<(String, StepTime)>, Option<String>) {
    let busy = |t: &StepTime| t.compute_ms + t.optimizer_ms;
    let straggler = straggler(all, busy);
    (picked(all.to_vec(), busy), straggler)
}

fn straggler(all: &[(u64, StepTime)], busy: impl Fn(&StepTime) -> f64) -> Option<String> {
    let mut order: Vec<(u64, f64)> = all.iter().map(|(r, t)| (*r, busy(t))).collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (rank, most) = *order.last().filter(|_| order.len() > 1)?;
    // The others' median: of two ranks the other one.
    let median = order[(order.len() - 2) / 2].1;
    if median.is_nan() || median <= 0.0 {
        return None;
    }
    let beyond = 100.0 * (most / median - 1.0);
    Some(match beyond >= 5.0 {
        true => format!(
            "Straggler: rank {rank} computes {beyond:.0} % longer than the median of the others, which wait for it in collectives."
        ),
        false => format!(
            "No straggler: the slowest, rank {rank}, computes {beyond:.1} % longer than the median of the others."
        ),
    })
}

/// Traffic of one kind, group and tag over all ranks.
pub struct Moved {
    /// `all_reduce` and so on.
    pub kind: String,
    /// Axes of the group.
    pub group: String,
    /// What was moved.
    pub tag: String,
    /// Ranks that took part.
    pub ranks: u64,
    /// Calls of a rank, least and most.
    pub calls: (u64, u64),
    /// Bytes of a rank: least, median, most.
    pub bytes: [u64; 3],
    /// Bytes of all.
    pub total: u64,
    /// Calls of all.
    pub all_calls: u64,
}

/// Adds up the ranks.
pub fn traffic(all: &[Traffic]) -> Vec<Moved> {
    let mut by = std::collections::BTreeMap::<_, Vec<&Traffic>>::new();
    for t in all {
        by.entry((&t.kind, &t.group, &t.tag)).or_default().push(t);
    }
    let one = |((kind, group, tag), mut own): ((&String, &String, &String), Vec<&Traffic>)| {
        own.sort_by_key(|t| t.bytes);
        let calls = || own.iter().map(|t| t.calls);
        let sum = |each: fn(&Traffic) -> u64| {
            let add = |sum: u64, t: &&Traffic| sum.saturating_add(each(t));
            own.iter().fold(0u64, add)
        };
        Moved {
            kind: kind.clone(),
            group: group.clone(),
            tag: tag.clone(),
            ranks: own.len() as u64,
            calls: (calls().min().unwrap_or(0), calls().max().unwrap_or(0)),
            bytes: [0, (own.len() - 1) / 2, own.len() - 1].map(|i| own[i].bytes),
            total: sum(|t| t.bytes),
            all_calls: sum(|t| t.calls),
        }
    };
    by.into_iter().map(one).collect()
}

/// Any ranks in words: `0-2, 4`.
pub fn listed(ranks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = vec![];
    for &r in ranks {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == r => *end = r,
            _ => runs.push((r, r)),
        }
    }
    let one = |(a, b): &(u32, u32)| {
        if a == b {
            a.to_string()
        } else {
            format!("{a}-{b}")
        }
    };
    runs.iter().map(one).collect::<Vec<_>>().join(", ")
}
