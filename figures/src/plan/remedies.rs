//! Changes that make a job fit which does not: each is a config of its own that was planned, so that none is a job that would be
//! refused, and none is said to fit that does not.

use super::facts::JobFacts;
use crate::devices::Chosen;
use crate::train_error::Result;
use crossweave_config::Config;
use crossweave_engine::{Prediction, Recompute};
use crossweave_mesh::Axis;
use crossweave_words::Size;
use crossweave_zero::estimate::profiles;
use serde::Serialize;

/// The most that are named.
const MOST: usize = 3;
/// How often the data-parallel ranks are doubled in search of a number that fits.
const DOUBLINGS: u32 = 6;

/// Keys of the config with their values, and ranks where the job takes others.
#[derive(Clone, Default)]
struct Change {
    sets: Vec<(&'static str, String)>,
    ranks: Option<u64>,
    /// What it takes in return, in words.
    cost: Option<String>,
}

impl Change {
    fn set(mut self, key: &'static str, value: impl ToString) -> Change {
        self.sets.push((key, value.to_string()));
        self
    }

    fn at_cost(mut self, cost: String) -> Change {
        self.cost = Some(cost);
        self
    }

    fn on(mut self, ranks: u64) -> Change {
        self.ranks = Some(ranks);
        self
    }

    /// Lays the change over a config; `None` where the config refuses it.
    fn over(&self, config: &Config) -> Option<Config> {
        let mut other = config.clone();
        for (key, value) in &self.sets {
            other.set(key, value).ok()?;
        }
        Some(other)
    }

    fn words(&self) -> String {
        let quoted = |v: &str| match v.parse::<u64>() {
            Ok(_) => v.to_string(),
            Err(_) => format!("{v:?}"),
        };
        let each = self.sets.iter().map(|(k, v)| format!("{k} {}", quoted(v)));
        let keys: Vec<String> = each.collect();
        match self.ranks {
            Some(n) => format!("{} on {n} ranks", keys.join(" with ")),
            None => keys.join(" with "),
        }
    }
}

/// One change that makes a job fit.
#[derive(Clone, Debug)]
pub struct Remedy {
    /// In words.
    pub words: String,
    /// What is changed.
    pub flags: Flags,
}

/// A change as a command line has it.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Flags {
    /// Another config, or other ranks.
    Job {
        /// Keys, as `--set` has them.
        set: Vec<String>,
        /// Ranks, where they are others.
        ranks: Option<u64>,
    },
    /// Another device.
    Device {
        /// No key.
        set: [String; 0],
        /// Its name.
        device: &'static str,
    },
}

/// Kinds of changes, the least costly first; of each kind the alternatives, of which the first that fits is enough.
fn kinds(job: &JobFacts<'_>, ranks: u64) -> Vec<Vec<Change>> {
    let none = Change::default();
    let stage = |s: u8| none.clone().set("zero_optimization.stage", s);
    let mut kinds: Vec<Vec<Change>> = vec![];
    if job.ranks > 1 {
        kinds.push((job.stage as u8 + 1..=3).map(stage).collect());
    }
    let micro_batches = job.accumulation.micro_batches;
    if micro_batches > 1 && !job.accumulation.reduce_each {
        let each = none
            .clone()
            .set("zero_optimization.reduce_gradients", "micro_batch");
        let cost = format!("gradients then travel {micro_batches} times a step");
        kinds.push(vec![each.at_cost(cost)]);
    }
    if job.batch > 1 {
        let more = none
            .clone()
            .set("gradient_accumulation_steps", job.batch * micro_batches);
        let one = |c: Change| c.set("train_micro_batch_size_per_gpu", 1);
        kinds.push(vec![one(none.clone()), one(more)]);
    }
    if job.recompute != Recompute::Full {
        kinds.push(vec![none.clone().set("model.recompute", "full")]);
    }
    let optimizer = |c: Change| c.set("zero_optimization.offload_optimizer.device", "cpu");
    let param = |c: Change| c.set("zero_optimization.offload_param.device", "cpu");
    kinds.push(vec![optimizer(none.clone()), param(optimizer(stage(3)))]);
    // Ranks that are threads of one machine share its memory.
    if job.device.sharing == 1 {
        let dp = u64::from(job.mesh.length(Axis::Dp));
        let more = (1..=DOUBLINGS).flat_map(|k| {
            // Where the config fixes the length of its data axis, that is changed too.
            let fixed = stage(3).set("mesh.dp", dp << k);
            [stage(3), fixed].map(|c| c.on(ranks << k))
        });
        kinds.push(more.collect());
    }
    kinds
}

/// Changes of a job that needs `needed` bytes on its fullest rank, at most three. `plan` says what the fullest rank of another config
/// on so many ranks needs.
pub fn remedies(
    (config, ranks): (&Config, u64),
    job: &JobFacts<'_>,
    needed: u64,
    plan: impl Fn(Config, u64) -> Result<u64>,
) -> Vec<Remedy> {
    let room = job.device.memory.unwrap_or(u64::MAX);
    let tried = |change: &Change| {
        let bytes = plan(change.over(config)?, change.ranks.unwrap_or(ranks)).ok()?;
        (bytes <= room).then_some(bytes)
    };
    let mut ways = vec![];
    for kind in kinds(job, ranks) {
        if ways.len() == MOST {
            return ways;
        }
        let found = kind.into_iter().find_map(|c| Some((tried(&c)?, c)));
        ways.extend(found.map(|(bytes, change)| {
            let sets = change.sets.iter().map(|(k, v)| format!("{k}={v}"));
            Remedy {
                words: match &change.cost {
                    Some(cost) => format!("{} fits ({}; {cost})", change.words(), Size(bytes)),
                    None => format!("{} fits ({})", change.words(), Size(bytes)),
                },
                flags: Flags::Job {
                    set: sets.collect(),
                    ranks: change.ranks,
                },
            }
        }));
    }
    let larger = profiles().iter().filter(|p| p.memory >= needed);
    if let (true, Some(p)) = (ways.len() < MOST, larger.min_by_key(|p| p.memory)) {
        ways.push(Remedy {
            words: format!(
                "a device of {} has the room (--device {})",
                Size(p.memory),
                p.name
            ),
            flags: Flags::Device {
                set: [],
                device: p.name,
            },
        });
    }
    ways
}

/// Bytes of the device that a rank needs: what is pinned on the host counts where that is the same memory.
pub fn needed(counted: &Prediction, device: &Chosen) -> u64 {
    let pinned: u64 = match device.is_host {
        true => counted.steady.host.values().map(|b| b.peak).sum(),
        false => 0,
    };
    counted.steady.total.peak + pinned
}
