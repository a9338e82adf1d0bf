//! Everything that `train` opens and works out before it claims a folder or starts a rank. `config check` runs the same and begins
//! nothing, so that what the one refuses the other does.

use crate::backend::open_linked;
use crate::folder::may_become;
use crate::found::Found;
use crate::job::open::{OpenCorpus, Opened, Reading, Reads};
use crate::job::{Class, Job, spec};
use crate::layout::{Layout, sized};
use crate::model::OwnUnits;
use crate::surroundings::Caches;
use crate::train_error::{Result, TrainError};
use crossweave_checkpoint::{PublicKey, SecretKey};
use crossweave_config::Config;
use crossweave_data::Remark;
use crossweave_engine::{Engine, rehearsal};
use crossweave_hal::{CheckerState, HostServices, Plugin};

/// A job, and how it lies on its ranks.
pub struct Ready {
    /// What every rank has in common.
    pub job: Job,
    /// What its steps read.
    pub reads: Reads,
    /// What is remarkable about the data.
    pub remarks: Vec<Remark>,
    /// The ranks' shares of the work.
    pub layout: Layout,
}

/// Opens and works out everything, with what a program makes of the model's units. Faults that do not depend on one another are found together;
/// where there is one, or where the text was left unread, there is nothing to begin with.
pub fn ready(
    config: &mut Config,
    ranks: u64,
    host: &HostServices,
    (open, caches, own): (OpenCorpus<'_>, &Caches, Option<OwnUnits>),
    found: &mut Found,
) -> Option<Ready> {
    let mut opened = Opened::open(config, ranks, caches, Reading::Data(open), found)?;
    opened.job.source.own = own;
    let layout = layout(config, &opened.job, host, found);
    Some(Ready {
        job: opened.job,
        reads: opened.reads?,
        remarks: opened.remarks,
        layout: layout?,
    })
}

/// Lays the model over the ranks and plans the step of each class of ranks on the null device.
pub fn layout(
    config: &Config,
    job: &Job,
    host: &HostServices,
    found: &mut Found,
) -> Option<Layout> {
    let resolved = &job.resolved;
    let own = job.units(&job.place(0));
    let own = found.take(config, "optimizer.param_groups", own)?;
    let plugin = found.take(config, "run.backend", open_linked("null", host))?;
    let null = plugin.open(0).map_err(TrainError::from);
    let null = found.take(config, "run.backend", null)?;
    let dry = found.take(config, "model", sized(&null, job, &own))?;
    let layout = found.take(config, "mesh.pp", Layout::even(&null, job, dry))?;
    let offload = &resolved.settings.zero_optimization.offload_optimizer;
    let key = match offload {
        Some(_) => "zero_optimization.offload_optimizer",
        None => "zero_optimization",
    };
    let disk = offload.as_ref().filter(|o| o.device == "nvme");
    if let Some(path) = disk.and_then(|o| o.nvme_path.as_ref()) {
        found.take(
            config,
            &format!("{key}.nvme_path"),
            may_become(path.as_ref()),
        )?;
    }
    let mut plans = vec![];
    for class in &layout.classes {
        let engine = found.take(config, key, rehearsed(&plugin, job, &layout, class))?;
        plans.push((engine.plan().clone(), engine.facts().clone()));
    }
    if job.ranks > 1 {
        let agree = layout.agree(job, &plans);
        found.take(config, "mesh.pp", agree)?;
    }
    Some(layout)
}

/// The engine of a class of ranks on a null device.
///
/// # Errors
/// A step that cannot be planned.
pub fn rehearsed(plugin: &Plugin, job: &Job, layout: &Layout, class: &Class) -> Result<Engine> {
    // A board of its own, so that no class is missed by another.
    let device = plugin.with_checker(&CheckerState::default()).open(0)?;
    let place = job.place(class.first);
    let spec = spec(job, &layout.division, place);
    let units = job.units(&place)?;
    let dry = layout.dry_of(class);
    Ok(rehearsal(&device, units, &spec, dry)?)
}

/// Reads the keys by which checkpoints are signed and trusted.
///
/// # Errors
/// A file that is none.
pub fn keys(config: &Config) -> Result<()> {
    let s = &config.settings.checkpoint;
    if let Some(key) = &s.sign_key {
        SecretKey::read(key.as_ref())?;
    }
    if let Some(key) = &s.trust_key {
        PublicKey::read(key.as_ref())?;
    }
    Ok(())
}
