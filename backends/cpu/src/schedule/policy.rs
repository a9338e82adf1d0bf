//! Who is next: policies, each a function of its seed and of the decisions so far.

use crossweave_plugin::{Code, Error, Result};

/// Decisions over which the changes of priority of `pct` are spread.
const SPAN: u64 = 4096;

/// `cpu.schedule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Each runs until it waits, then the next in order.
    Fifo,
    /// Every decision is drawn; some actors are drawn rarely, so that some are far behind.
    Random(u64),
    /// Priorities by seed that change `depth - 1` times (Burckhardt and others, ASPLOS 2010): finds any bug of that depth with a
    /// probability known beforehand.
    Pct { depth: u32, seed: u64 },
}

impl Policy {
    pub(crate) fn read(text: &str) -> Result<Policy> {
        let mut parts = text.trim().split(':');
        let number = |what: Option<&str>| what.and_then(|t| t.parse::<u64>().ok());
        let policy = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("fifo"), None, None, None) => Some(Policy::Fifo),
            (Some("random"), seed, None, None) => number(seed).map(Policy::Random),
            (Some("pct"), depth, seed, None) => {
                let depth = number(depth).filter(|d| (1..=64).contains(d));
                let seed = number(seed);
                depth.zip(seed).map(|(d, seed)| Policy::Pct {
                    depth: d as u32,
                    seed,
                })
            }
            _ => None,
        };
        policy.ok_or_else(|| {
            Error::new(
                Code::Invalid,
                format!(
                    "cpu.schedule = `{text}`: must be `off`, `fifo`, `random:SEED` or `pct:DEPTH:SEED` (depth 1 to 64)"
                ),
            )
        })
    }

    /// As messages say it.
    pub(crate) fn name(self) -> String {
        match self {
            Policy::Fifo => "schedule fifo".into(),
            Policy::Random(seed) => format!("seed {seed}, schedule random"),
            Policy::Pct { depth, seed } => format!("seed {seed}, schedule pct:{depth}"),
        }
    }

    pub(crate) fn chooser(self) -> Chooser {
        let (seed, depth) = match self {
            Policy::Fifo => (0, 1),
            Policy::Random(seed) => (seed, 1),
            Policy::Pct { depth, seed } => (seed, depth),
        };
        let mut draw = Draw(mixed(seed ^ 0x5eed));
        let changes = (1..depth).map(|_| draw.below(SPAN)).collect();
        Chooser {
            policy: self,
            seed,
            draw,
            weights: vec![],
            changes,
            lowest: u64::MAX / 4,
        }
    }
}

/// A policy on its way.
pub(crate) struct Chooser {
    policy: Policy,
    seed: u64,
    draw: Draw,
    /// By actor: its weight (random) or priority (pct).
    weights: Vec<u64>,
    /// Decisions at which the one who runs falls behind all others.
    changes: Vec<u64>,
    /// Counts down: the next priority below all others.
    lowest: u64,
}

impl Chooser {
    /// A new actor; they come in order.
    pub(crate) fn join(&mut self, actor: usize) {
        let own = mixed(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (actor as u64 + 1));
        let weight = match self.policy {
            Policy::Fifo => 0,
            // One schedule in four draws evenly, the others have actors that are 8, 64 or 512 times as slow.
            Policy::Random(seed) => 512 >> (3 * (own % (seed % 4 + 1))),
            Policy::Pct { .. } => own | 1 << 63,
        };
        self.weights.push(weight);
    }

    /// `actor` only asked whether others have run.
    pub(crate) fn yielded(&mut self, actor: usize) {
        if let Policy::Pct { .. } = self.policy {
            self.lower(actor);
        }
        // `Fifo` runs an actor until it waits, and this is a wait.
        if self.policy == Policy::Fifo {
            self.weights[actor] = 1;
        }
    }

    fn lower(&mut self, actor: usize) {
        self.weights[actor] = self.lowest;
        self.lowest -= 1;
    }

    /// One of `can` (not empty, ascending); `me` is who ran, `at` the number of the decision.
    pub(crate) fn choose(&mut self, can: &[usize], me: Option<usize>, at: u64) -> usize {
        match self.policy {
            Policy::Fifo => {
                let me = me.unwrap_or(usize::MAX);
                let asked = self.weights.get_mut(me).map(std::mem::take);
                if asked != Some(1) && can.contains(&me) {
                    return me;
                }
                let next = can.iter().find(|a| **a > me);
                *next.unwrap_or(&can[0])
            }
            Policy::Random(_) => {
                let total = can.iter().map(|a| self.weights[*a]).sum();
                let mut left = self.draw.below(total);
                for a in can {
                    match left.checked_sub(self.weights[*a]) {
                        Some(rest) => left = rest,
                        None => return *a,
                    }
                }
                can[can.len() - 1]
            }
            Policy::Pct { .. } => {
                let high = |c: &Chooser| can.iter().copied().max_by_key(|a| c.weights[*a]);
                let mut chosen = high(self).unwrap_or(can[0]);
                if self.changes.contains(&at) {
                    self.lower(chosen);
                    chosen = high(self).unwrap_or(chosen);
                }
                chosen
            }
        }
    }
}

/// splitmix64.
struct Draw(u64);

fn mixed(x: u64) -> u64 {
    let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The bias of a remainder does not matter for numbers this small.
        mixed(self.0) % n.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_one_of_four_words() {
        assert_eq!(Policy::read("fifo").unwrap(), Policy::Fifo);
        assert_eq!(Policy::read(" random:7").unwrap(), Policy::Random(7));
        let pct = Policy::Pct { depth: 3, seed: 9 };
        assert_eq!(Policy::read("pct:3:9").unwrap(), pct);
        for bad in [
            "",
            "random",
            "random:x",
            "pct:0:1",
            "pct:3",
            "fifo:1",
            "random:1:2",
        ] {
            let e = Policy::read(bad).unwrap_err();
            assert!(e.to_string().contains("cpu.schedule"), "{bad}");
        }
    }

    #[test]
    fn choices_are_a_function_of_the_seed_and_every_actor_is_chosen() {
        for text in ["fifo", "random:5", "random:6", "pct:4:5"] {
            let run = |text: &str| {
                let mut c = Policy::read(text).unwrap().chooser();
                (0..4).for_each(|a| c.join(a));
                let mut me = None;
                let each = (0..5000u64).map(|at| {
                    if let Some(a) = me {
                        c.yielded(a);
                    }
                    let chosen = c.choose(&[0, 1, 3], me, at);
                    me = Some(chosen);
                    chosen
                });
                each.collect::<Vec<_>>()
            };
            let first = run(text);
            assert_eq!(first, run(text));
            for actor in [0, 1, 3] {
                assert!(first.contains(&actor), "{text}: {actor} never runs");
            }
        }
        let random = |seed: u64| {
            let mut c = Policy::Random(seed).chooser();
            (0..4).for_each(|a| c.join(a));
            (0..64)
                .map(|at| c.choose(&[0, 1, 2, 3], None, at))
                .collect::<Vec<_>>()
        };
        assert_ne!(random(4), random(8));
    }
}
