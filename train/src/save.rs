//! What a run leaves behind besides metrics and checkpoints: config, ledgers, the model.

use crate::companions::Companions;
use crate::events::Event;
use crate::planned::{Planned, timeline};
use crate::prepared::Run;
use crate::record;
use crate::stored::{Weights, has_averages};
use crate::train_error::{Result, TrainError};
use crossweave_checkpoint::{Checkpoint, Dtype, session};
use crossweave_config as config;
use crossweave_engine::RankLedger;
use crossweave_models::export::export;
use crossweave_report::{StepTime, Watched, whole};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// What a rank leaves for `ledger.json`.
#[derive(Serialize, Deserialize)]
pub struct RankEnd {
    /// Memory and collectives.
    #[serde(flatten)]
    pub ledger: RankLedger,
    /// Its mean step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<StepTime>,
    /// What it did in a step, where it is the first of a pipeline stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched: Option<Watched>,
}

/// Makes the output folder, clears what a killed run left unfinished in it, and writes `config.json` and `run.json`. Returns the
/// name under which the ranks meet when they save, see [`session`].
///
/// # Errors
/// A folder that cannot be written.
pub fn begin(run: &Run) -> Result<String> {
    run.check_claim()?;
    std::fs::create_dir_all(&run.out).map_err(TrainError::io("create", &run.out))?;
    let session = session(&run.out)?;
    let path = run.out.join("config.json");
    whole::write(&path, run.job.resolved.to_json()).map_err(TrainError::io("write", &path))?;
    record::begin(run, run.resume.from.as_deref())?;
    Ok(session)
}

/// Writes `ledger.json`: both ledgers of every rank, and of pipeline stages a step as it was planned.
///
/// # Errors
/// A folder that cannot be written.
pub fn write_ledgers(run: &Run, ledgers: &[RankEnd], planned: &[Planned<'_>]) -> Result<()> {
    run.check_claim()?;
    let reads = run.host.config_reads();
    let settings: serde_json::Map<_, _> = reads
        .into_iter()
        .filter_map(|r| Some((r.key, r.value?.into())))
        .collect();
    let first = run.local_ranks.plugin(run.local_ranks.here().start);
    let mut ledger = json!({
        "backend": {"name": first.name(), "version": first.version(), "settings": settings},
        "ranks": ledgers,
    });
    if let Some(rows) = &run.layout.division.rows {
        ledger["micro_batch"] = rows.clone().into();
    }
    if let Some(s) = &run.layout.division.stages {
        let units = s.runs.iter().map(|r| [r.units.start, r.units.end]);
        let units: Vec<[u32; 2]> = units.collect();
        ledger["pipeline"] = json!({"units": units, "data_parallel_ranks": run.job.data_ranks(), "schedule": s.order.name()});
        let watched = ledgers.iter().filter_map(|l| l.watched.as_ref());
        if let Some(planned) = timeline(run, planned, watched) {
            ledger["pipeline"]["planned"] = json!(planned);
        }
    }
    if run.job.tensor_ranks() > 1 {
        ledger["tensor_parallel"] = run.job.tensor_ranks().into();
    }
    if run.computes.len() > 1 {
        ledger["backends"] = json!(run.computes);
    }
    let path = run.out.join("ledger.json");
    whole::write(&path, format!("{ledger:#}\n")).map_err(TrainError::io("write", &path))
}

/// Writes `model/` in Hugging Face layout from a checkpoint of the run, with the files its tokenizer needs, and `model-ema/` of the moving
/// averages of its weights where it holds any.
///
/// # Errors
/// A damaged checkpoint; the disk. A model that was there before stays whole.
pub fn model(run: &Run, checkpoint: &Checkpoint) -> Result<()> {
    let config = run.hf_config();
    let tokenizer = run.reads.corpus.tokenizer().map(|t| &**t);
    let folder = run.job.source.folder.as_ref();
    let extra = Companions {
        tokenizer: run.reads.spec.tokenizer.as_ref().zip(tokenizer),
        folder: folder.map(|f| f.dir.path.as_path()),
        config: &config,
        warn: &|what| run.on(Event::Warning(what)),
    }
    .files()?;
    run.check_claim()?;
    let dir = run.out.join("model");
    let dtype = match run.job.resolved.save_dtype() {
        config::Dtype::F32 => Dtype::F32,
        config::Dtype::Bf16 => Dtype::BF16,
        config::Dtype::F16 => Dtype::F16,
    };
    export(checkpoint, &dir, &config, dtype, (&extra, Weights::Trained))?;
    if has_averages(checkpoint) {
        let dir = run.out.join("model-ema");
        export(
            checkpoint,
            &dir,
            &config,
            dtype,
            (&extra, Weights::Averaged),
        )?;
    }
    Ok(())
}
