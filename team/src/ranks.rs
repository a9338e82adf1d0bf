//! `--ranks`: how many ranks, and of which back ends. `4` is four of the run's back end; `cpu:2,./libother.so:1` names a back end for each part,
//! by name or by plugin file. Ranks that share a plugin are an island, wherever they stand in the list.

use crate::backend::{self, BackendChoice};
use crate::surroundings::Plugins;
use crate::train_error::{Result, TrainError};
use crossweave_hal::{CheckerState, Device, HostServices, Plugin};
pub use crossweave_mesh::rank_words;
use crossweave_report::listed;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The most ranks that one process starts, each a thread with a device.
const MOST: u32 = 4096;
/// The most ranks of a job that is checked, planned or explained: nothing is started for it.
pub const MOST_PLANNED: i64 = 1 << 20;

/// Ranks of a job as their numbers go.
///
/// # Errors
/// More than can be numbered.
pub fn numbered(ranks: u64) -> Result<u32> {
    let many = |_| TrainError::refused(format!("{ranks} ranks are too many"), "give --ranks N");
    u32::try_from(ranks).map_err(many)
}

/// What `--ranks` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// So many of one back end.
    Count(u32),
    /// So many of each, in the order of the ranks.
    Parts(Vec<Part>),
}

/// Ranks of one back end, one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the back end, or path of its plugin file.
    pub name: String,
    /// Ranks.
    pub count: u32,
}

impl Ranks {
    /// Reads `N` or `NAME[:COUNT][,NAME[:COUNT]]…`.
    ///
    /// # Errors
    /// What is wrong with the text, for clap to show.
    pub fn parse(text: &str) -> std::result::Result<Ranks, String> {
        let bounded = |n: u32| match n {
            1..=MOST => Ok(n),
            _ => Err(format!("{n} ranks: 1 to {MOST} can be started")),
        };
        let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
        let number = |t: &str| {
            let n = t
                .parse::<u32>()
                .map_err(|_| format!("{t} ranks: 1 to {MOST} can be started"))?;
            bounded(n)
        };
        if digits(text.trim()) {
            return number(text.trim()).map(Ranks::Count);
        }
        let mut parts = vec![];
        for part in text.split(',').map(str::trim) {
            let (name, count) = match part.rsplit_once(':') {
                Some((name, count)) if digits(count) => (name, number(count)?),
                // A path may hold a colon; a name may not.
                Some((name, count)) if !is_path(part) => {
                    return Err(format!(
                        "{name}:{count}: {count:?} is not a number of ranks"
                    ));
                }
                _ => (part, 1),
            };
            if name.is_empty() {
                return Err(
                    "a back end without a name; write a number, or e.g. cpu:2,./libother.so:1"
                        .into(),
                );
            }
            parts.push(Part {
                name: name.to_string(),
                count,
            });
        }
        let all: u64 = parts.iter().map(|p| u64::from(p.count)).sum();
        bounded(u32::try_from(all).unwrap_or(u32::MAX))?;
        Ok(Ranks::Parts(parts))
    }

    /// Ranks in all.
    pub fn count(&self) -> u32 {
        match self {
            Ranks::Count(n) => *n,
            Ranks::Parts(parts) => parts.iter().map(|p| p.count).sum(),
        }
    }
}

/// Is it a file rather than a name?
fn is_path(name: &str) -> bool {
    name.contains(std::path::MAIN_SEPARATOR) || name.ends_with(std::env::consts::DLL_SUFFIX)
}

/// Where one rank runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Index into the back ends.
    backend: usize,
    /// Part of `--ranks`.
    part: usize,
    /// Index of its device, before ranks go round the devices there are.
    device: u32,
}

/// The back ends of the ranks of this process.
pub struct LocalRanks {
    backends: Vec<(String, Plugin)>,
    places: Vec<Place>,
    /// The rank of the first place.
    first: u32,
    /// Where their plugins are and what is set for them.
    plugins: Plugins,
}

impl LocalRanks {
    /// Ranks of one back end: `here` of them in this process, the first on device `device`.
    pub fn alike(
        (plugin, plugins): (Plugin, &Plugins),
        here: Range<u32>,
        device: u32,
    ) -> LocalRanks {
        let place = |r: u32| Place {
            backend: 0,
            part: 0,
            device: device + r - here.start,
        };
        LocalRanks {
            backends: vec![(plugin.name().to_string(), plugin)],
            first: here.start,
            places: here.clone().map(place).collect(),
            plugins: plugins.clone(),
        }
    }

    /// Where their plugins are and what is set for them.
    pub fn plugins(&self) -> &Plugins {
        &self.plugins
    }

    /// Opens what `--ranks` names. `first` is the first rank of this process, `board` where the ranks of all back ends check each other's
    /// collectives, and `before` says how many ranks of a back end of this machine stand in processes before this one.
    ///
    /// # Errors
    /// A back end that cannot be used, with the ranks it was to compute; flags that say which back end a second time.
    pub fn of_parts(
        parts: &[Part],
        args: &BackendChoice,
        (host, plugins): (&HostServices, &Plugins),
        (first, board): (u32, &CheckerState),
        before: impl Fn(&str) -> u32,
    ) -> Result<LocalRanks> {
        if args.plugin.is_some() || args.name.is_some() {
            let flag = if args.plugin.is_some() {
                "--plugin"
            } else {
                "--backend"
            };
            return Err(TrainError::refused(
                format!("--ranks names the back end of each rank, and {flag} names one for all"),
                format!("drop {flag}, or give --ranks a number"),
            ));
        }
        let several = parts.iter().any(|p| p.name != parts[0].name);
        let files = ["record=", "trace="];
        let one_file = |l: &&String| files.iter().any(|f| l.starts_with(f));
        if let Some(layer) = args.layers.iter().find(one_file).filter(|_| several) {
            return Err(TrainError::refused(
                format!("--layer {layer} writes one file, and --ranks names several back ends"),
                "run the job with one back end, or every rank in a process of its own with %p in the file's name",
            ));
        }
        let mut local_ranks = LocalRanks {
            backends: vec![],
            places: vec![],
            first,
            plugins: plugins.clone(),
        };
        let mut keys: Vec<PathBuf> = vec![];
        for (part, p) in parts.iter().enumerate() {
            let start = local_ranks.here().end;
            let ranks = start..start + p.count;
            let key = match is_path(&p.name) {
                true => Path::new(&p.name)
                    .canonicalize()
                    .unwrap_or_else(|_| p.name.clone().into()),
                false => p.name.clone().into(),
            };
            let index = match keys.iter().position(|k| *k == key) {
                Some(i) => i,
                None => {
                    let args = BackendChoice {
                        plugin: is_path(&p.name).then(|| p.name.clone().into()),
                        name: None,
                        layers: args.layers.clone(),
                    };
                    let plugin =
                        backend::choose(&args, &p.name, host, plugins).and_then(|plugin| {
                            backend::count(&plugin)?;
                            Ok(plugin)
                        });
                    let plugin = plugin.map_err(|e| TrainError::Of {
                        whom: format!("{} ({})", rank_words(&ranks), p.name),
                        source: Box::new(e),
                    })?;
                    keys.push(key);
                    local_ranks
                        .backends
                        .push((p.name.clone(), plugin.with_checker(board)));
                    local_ranks.backends.len() - 1
                }
            };
            for _ in ranks {
                let here = local_ranks
                    .places
                    .iter()
                    .filter(|s| s.backend == index)
                    .count() as u32;
                local_ranks.places.push(Place {
                    backend: index,
                    part,
                    device: before(&p.name) + here,
                });
            }
        }
        Ok(local_ranks)
    }

    fn place(&self, rank: u32) -> Place {
        self.places[(rank - self.first) as usize]
    }

    /// The ranks of this process.
    pub fn here(&self) -> Range<u32> {
        self.first..self.first + self.places.len() as u32
    }

    /// The back end of a rank of this process.
    pub fn plugin(&self, rank: u32) -> &Plugin {
        &self.backends[self.place(rank).backend].1
    }

    /// Where the ranks check each other: one for all back ends.
    pub fn checker(&self) -> &CheckerState {
        self.backends[0].1.checker()
    }

    /// Opens the device of a rank of this process.
    ///
    /// # Errors
    /// When there is none, or it cannot be opened.
    pub fn device(&self, rank: u32) -> Result<Device> {
        backend::open_device(self.plugin(rank), self.place(rank).device)
    }

    /// The same beside the job: its collectives are on no record.
    ///
    /// # Errors
    /// As [`LocalRanks::device`].
    pub fn device_apart(&self, rank: u32) -> Result<Device> {
        let plugin = self.plugin(rank).with_checker(&CheckerState::default());
        backend::open_device(&plugin, self.place(rank).device)
    }

    /// Each back end as `--ranks` named it, with its ranks.
    pub fn backends(&self) -> impl Iterator<Item = (&str, &Plugin, Vec<u32>)> {
        self.backends
            .iter()
            .enumerate()
            .map(move |(i, (name, plugin))| {
                let mine = self.here().filter(move |r| self.place(*r).backend == i);
                (name.as_str(), plugin, mine.collect())
            })
    }

    /// An error of some ranks, where there are several back ends.
    pub fn fault_of(&self, name: &str, ranks: &[u32], e: TrainError) -> TrainError {
        match self.backends.len() {
            1 => e,
            _ => TrainError::Of {
                whom: format!("ranks {} ({name})", listed(ranks)),
                source: Box::new(e),
            },
        }
    }

    /// Does any rank compute on a device that keeps no values?
    pub fn has_null(&self) -> bool {
        self.backends.iter().any(|(_, p)| p.name() == "null")
    }

    /// The island of each rank of this process, by numbers of this process: ranks of one back end whose collectives can be used form one,
    /// any other rank is alone.
    pub fn islands(&self) -> Vec<u32> {
        let ranks = |b: usize| self.places.iter().filter(|s| s.backend == b).count() as u32;
        let own = |(b, (_, plugin)): (usize, &(String, Plugin))| {
            backend::carried(plugin, ranks(b)).is_none()
        };
        let together: Vec<bool> = self.backends.iter().enumerate().map(own).collect();
        let of = |(i, s): (usize, &Place)| {
            let alone = self.backends.len() + i;
            (if together[s.backend] {
                s.backend
            } else {
                alone
            }) as u32
        };
        self.places.iter().enumerate().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(of: &[(&str, u32)]) -> Ranks {
        let part = |&(name, count): &(&str, u32)| Part {
            name: name.into(),
            count,
        };
        Ranks::Parts(of.iter().map(part).collect())
    }

    #[test]
    fn numbers_names_and_paths() {
        assert_eq!(Ranks::parse("4"), Ok(Ranks::Count(4)));
        assert_eq!(Ranks::parse("cpu"), Ok(parts(&[("cpu", 1)])));
        let mixed = parts(&[("cpu", 2), ("./lib/libx.so", 3), ("cpu", 1)]);
        assert_eq!(
            Ranks::parse("cpu:2, ./lib/libx.so:3,cpu"),
            Ok(mixed.clone())
        );
        assert_eq!(mixed.count(), 6);
        let colon = parts(&[("/a:b/libx.so", 1)]);
        assert_eq!(Ranks::parse("/a:b/libx.so"), Ok(colon));
    }

    #[test]
    fn what_is_no_list_of_ranks_is_refused_in_words() {
        for (text, part) in [
            ("0", "0 ranks"),
            ("5000", "5000 ranks"),
            ("99999999999", "99999999999 ranks"),
            ("cpu:0", "0 ranks"),
            ("cpu:two", "\"two\" is not a number"),
            ("cpu:4096,cpu", "4097 ranks"),
            ("", "without a name"),
            ("cpu,,cpu", "without a name"),
            (":2", "without a name"),
        ] {
            let e = Ranks::parse(text).unwrap_err();
            assert!(e.contains(part), "{text}: {e}");
        }
    }

    #[test]
    fn runs_of_ranks_are_told_shortly() {
        assert_eq!(
            (rank_words(&(2..3)), rank_words(&(0..2))),
            ("rank 2".into(), "ranks 0 to 1".into())
        );
    }
}
