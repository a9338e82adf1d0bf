//! Trials of a case, made once and asked of many plugins. Their references in double precision cost far more than their launches, and a sweep
//! over seeded defects asks the same trials of hundreds of plugins; a case of the kit makes them for one.

use super::cell::{About, Gen};
use super::cells;
use super::rig::{Answer, Place, Rig, row};
use super::trial::{Arg, Trial};
use crate::case::Effort;
use crate::child::entry_of;
use crate::ctx::{Rng, case_seed};
use crate::raw::Plugin;
use crossweave_abi::op::{self, OpSpec};
use crossweave_hal::HostServices;
use crossweave_hal::loader::load;
use std::path::Path;
use std::sync::Arc;

/// A plugin in this process, and the services that it was given.
pub struct Loaded {
    plugin: Arc<Plugin>,
    _host: HostServices,
}

impl Loaded {
    /// Loads a file; a plugin keeps the services of the first host, so once in a process.
    ///
    /// # Errors
    /// The loader's, in words.
    pub fn new(path: &Path) -> Result<Loaded, String> {
        let host = HostServices::builder().build();
        let raw = load(path, &host).map_err(|e| e.to_string())?;
        Ok(Loaded {
            plugin: Arc::new(Plugin::new(raw, entry_of(path)?)?),
            _host: host,
        })
    }

    /// An attribute of its first device.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn attr(&self, key: &str) -> Result<Option<Vec<u8>>, String> {
        Ok(self.plugin.open(0)?.attr(key)?)
    }
}

/// The trials of a case, the smallest first.
pub struct Trials {
    spec: &'static OpSpec,
    trials: Vec<Trial>,
}

/// The ids of all cases of trials of an op: the usual ones first, those of large sizes last.
pub fn cases_of(op: &str) -> Vec<String> {
    let id = op::by_name(op).map_or(0, |s| s.id);
    let cells = cells();
    let own = || cells.iter().filter(|c| c.op == id);
    let about = [
        About::Usual,
        About::Models,
        About::Unread,
        About::Parts,
        About::Pairs,
        About::Lists,
        About::Residues,
        About::Sizes,
    ];
    let ids = |about: About| {
        let some = own().filter(move |c| c.is_about(about));
        some.map(move |c| format!("{}{}", c.id, about.suffix()))
    };
    about.into_iter().flat_map(ids).collect()
}

impl Trials {
    /// Those of the case of this id, as a run of the kit with seed 0 has them.
    pub fn of(case: &str, effort: Effort) -> Option<Trials> {
        let about = [
            About::Sizes,
            About::Residues,
            About::Models,
            About::Unread,
            About::Parts,
            About::Pairs,
            About::Launches,
            About::Lists,
            About::Usual,
        ];
        let about = about.into_iter().find(|a| case.ends_with(a.suffix()))?;
        let cell = case.strip_suffix(about.suffix())?;
        let cell = cells().into_iter().find(|c| c.id == cell)?;
        let g = Gen::new(Rng::new(case_seed(0, case)), effort);
        let mut trials = cell.trials(&mut g.about(about));
        if about == About::Usual {
            trials.extend(cell.with_gaps(&trials));
        }
        trials.sort_by_key(Trial::bytes);
        let spec = row(cell.op);
        Some(Trials { spec, trials })
    }

    /// Leaves out what the plugin does not claim.
    ///
    /// # Errors
    /// The plugin's, in words, where it cannot be opened.
    pub fn claimed_by(mut self, of: &Loaded) -> Result<Trials, String> {
        let rig = Rig::new(&of.plugin.open(0)?)?;
        let id = self.spec.id;
        self.trials.retain(|t| rig.prepare(id, t, 0).is_ok());
        Ok(self)
    }

    /// Does the plugin hold the trials, or those of which an operand's shape is such? Answers how many there are.
    ///
    /// # Errors
    /// What the case would say.
    pub fn hold(
        &self,
        of: &Loaded,
        only: Option<(usize, &dyn Fn(&[usize]) -> bool)>,
    ) -> Result<usize, String> {
        let mut rig = Rig::new(&of.plugin.open(0)?)?;
        let mut held = 0;
        for t in &self.trials {
            let meant = only.is_none_or(|(operand, such)| {
                let x = t.args.get(operand).and_then(Arg::tensor);
                x.is_some_and(|x| such(&x.shape))
            });
            if !meant || t.subnormal && rig.flushes() {
                continue;
            }
            match rig.run(self.spec, t, Place::Aligned, 0)? {
                Answer::Held { .. } => held += 1,
                Answer::Refused(_) => {}
            }
        }
        Ok(held)
    }
}
