//! What a run leaves behind besides metrics: config, ledgers, checkpoints, the model.

use super::resume::{blob, state};
use super::setup::Job;
use crate::error::{CliError, Result};
use crate::tokens;
use crossweave_checkpoint::{DEFAULT_SHARD_BYTES, Dtype, TensorOut, Writer, export_hf, prune};
use crossweave_engine::{RankLedger, StateKind, Trainer};
use serde_json::json;
use std::path::Path;

/// Writes `text` beside `path` and moves it there.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let done = std::fs::write(partial, text).and_then(|()| std::fs::rename(partial, path));
    if done.is_err() {
        let _ = std::fs::remove_file(partial);
    }
    done.map_err(CliError::io("write", path))
}

/// Makes the output folder and writes `config.json`.
///
/// # Errors
/// A folder that cannot be written.
pub fn begin(job: &Job) -> Result<()> {
    std::fs::create_dir_all(&job.out).map_err(CliError::io("create", &job.out))?;
    write_whole(&job.out.join("config.json"), &job.resolved.to_json())
}

/// Writes `ledger.json`: both ledgers of every rank.
///
/// # Errors
/// A folder that cannot be written.
pub fn write_ledgers(job: &Job, ledgers: &[RankLedger]) -> Result<()> {
    let reads = job.host.config_reads();
    let settings: serde_json::Map<_, _> = reads
        .into_iter()
        .filter_map(|r| Some((r.key, r.value?.into())))
        .collect();
    let ledger = json!({
        "backend": {"name": job.plugin.name(), "version": job.plugin.version(), "settings": settings},
        "ranks": ledgers,
    });
    write_whole(&job.out.join("ledger.json"), &format!("{ledger:#}\n"))
}

fn shape_of(p: &crossweave_tensor::ParamDecl) -> Vec<usize> {
    p.shape.dims().iter().map(|d| *d as usize).collect()
}

/// Writes the checkpoint of `step` and removes old ones. Every rank holds the same state, so one rank writes it for all.
///
/// # Errors
/// The device; the disk. What was there before stays whole.
pub fn checkpoint(job: &Job, trainer: &Trainer, step: u64) -> Result<()> {
    let writer = Writer::begin(&job.out, step, 1)?;
    let mut rank = writer.rank(0)?;
    for p in trainer.params() {
        let (shape, n) = (shape_of(&p), p.shape.numel());
        for kind in StateKind::ALL {
            let name = blob(kind, &p.name);
            let values = trainer.read(&p.name, kind)?;
            rank.put_tensor(TensorOut::from_f32(&name, Dtype::F32, &shape, values));
            rank.owns(&name, Dtype::F32, &shape, 0, n, &name, 0)?;
        }
    }
    rank.finish()?;
    let fingerprint = job.corpus.fingerprint();
    writer.commit(state(&job.resolved, fingerprint.as_deref(), step))?;
    prune(&job.out, job.resolved.settings.run.keep_last as usize)?;
    Ok(())
}

/// Writes `model/` in Hugging Face layout, with the files its tokenizer needs.
///
/// # Errors
/// The device; the disk. A model that was there before stays whole.
pub fn model(job: &Job, trainer: &Trainer) -> Result<()> {
    let tokenizer = job.corpus.tokenizer();
    let eod = tokenizer.and_then(|t| t.eod());
    let mut extra = match &job.data.tokenizer {
        Some(spec) => tokens::files(spec)?,
        None => vec![],
    };
    if let Some(folder) = &job.source.folder {
        for file in folder.dir.companion_files()? {
            // A tokenizer the config chose replaces the folder's.
            if extra.iter().all(|(name, _)| *name != file.0) {
                extra.push(file);
            }
        }
    }
    let mut tensors = vec![];
    for p in trainer.params() {
        let values = trainer.read(&p.name, StateKind::Value)?;
        tensors.push(TensorOut::from_f32(
            &p.name,
            Dtype::F32,
            &shape_of(&p),
            values,
        ));
    }
    let config = job.source.hf_config(eod);
    Ok(export_hf(
        job.out.join("model"),
        &config,
        tensors,
        DEFAULT_SHARD_BYTES,
        &extra,
    )?)
}
