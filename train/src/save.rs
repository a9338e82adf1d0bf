//! What a run leaves behind besides metrics and checkpoints: config, ledgers, the model.

use crate::adapter;
use crate::checkpoint_state::STACKED;
use crate::companions::Companions;
use crate::events::Event;
use crate::prepared::Run;
use crate::record;
use crate::stacks;
use crate::stored::{Weights, floats, has_averages, parameters};
use crate::train_error::{Result, TrainError};
use crossweave_checkpoint::{
    Checkpoint, DEFAULT_SHARD_BYTES, Dtype, TensorOut, export_adapter, export_hf, session,
    write_f32,
};
use crossweave_config as config;
use crossweave_engine::RankLedger;
use crossweave_nn::{Tensors, family};
use crossweave_report::{StepTime, whole};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io;
use std::ops::Range;
use std::path::Path;

/// What a rank leaves for `ledger.json`.
#[derive(Serialize, Deserialize)]
pub struct RankEnd {
    /// Memory and collectives.
    #[serde(flatten)]
    pub ledger: RankLedger,
    /// Its mean step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<StepTime>,
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

/// Writes `ledger.json`: both ledgers of every rank.
///
/// # Errors
/// A folder that cannot be written.
pub fn write_ledgers(run: &Run, ledgers: &[RankEnd]) -> Result<()> {
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
        let units: Vec<[u32; 2]> = s.stages.iter().map(|r| [r.start, r.end]).collect();
        ledger["pipeline"] = json!({"units": units, "data_parallel_ranks": run.job.data_ranks(), "schedule": s.order.name()});
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

/// Writes the model of a checkpoint as a Hugging Face folder, chunk by chunk. `extra`: further files of the folder.
///
/// # Errors
/// A damaged checkpoint; the disk. A model that was there before stays whole.
pub fn export(
    checkpoint: &Checkpoint,
    dir: &Path,
    config: &Value,
    dtype: Dtype,
    (extra, weights): (&[(String, Vec<u8>)], Weights),
) -> Result<()> {
    // Of adapters, their own folder.
    let adapter = &checkpoint.state()["adapter_config"];
    let form = match checkpoint.state()[STACKED].as_bool() {
        Some(true) => &Tensors::PLAIN,
        _ => forms(config),
    };
    let mut tensors = vec![];
    for (_, name) in parameters(checkpoint) {
        let logical = weights.logical(checkpoint, name);
        let info = checkpoint.logical_info(&logical)?;
        for part in stacks::parts(form, name, &info.shape) {
            let (logical, Range { start, end }) = (logical.clone(), part.elements);
            let stream = move |out: &mut dyn io::Write| {
                let mut at = start;
                while at < end {
                    let to = end.min(at + CHUNK_ELEMENTS);
                    let values = floats(checkpoint, &logical, at..to)
                        .map_err(|e| io::Error::other(e.to_string()))?;
                    write_f32(out, dtype, &values)?;
                    at = to;
                }
                Ok(())
            };
            let name = match adapter.is_object() {
                true => adapter::file_name(name),
                false => part.name,
            };
            tensors.push(TensorOut::stream(name, dtype, &part.shape, stream));
        }
    }
    if tensors.is_empty() {
        return Err(TrainError::refused(
            format!("{}: holds no parameters", checkpoint.path().display()),
            "name a checkpoint that `crossweave train` wrote",
        ));
    }
    if adapter.is_object() {
        return Ok(export_adapter(dir, adapter, tensors, extra)?);
    }
    let mut config = config.clone();
    config["torch_dtype"] = match dtype {
        Dtype::BF16 => "bfloat16".into(),
        Dtype::F16 => "float16".into(),
        _ => "float32".into(),
    };
    Ok(export_hf(
        dir,
        &config,
        tensors,
        DEFAULT_SHARD_BYTES,
        extra,
    )?)
}

/// What files of the family of a `config.json` hold in parts.
pub fn forms(config: &Value) -> &'static Tensors {
    let name = config["model_type"].as_str().unwrap_or_default();
    family(name).map_or(&Tensors::PLAIN, |f| &f.tensors)
}

/// Elements of a tensor in memory at once.
const CHUNK_ELEMENTS: u64 = 1 << 22;

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
