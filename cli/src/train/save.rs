//! What a run leaves behind besides metrics: config, ledgers, checkpoints, the model.

use super::resume::{blob, state};
use super::setup::Job;
use crate::error::{CliError, Result};
use crate::tokens;
use crossweave_checkpoint::{DEFAULT_SHARD_BYTES, Dtype, TensorOut, Writer, export_hf, prune};
use crossweave_engine::{RankLedger, StateKind, Trainer};
use crossweave_tensor::ParamDecl;
use serde_json::json;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

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

fn shape_of(p: &ParamDecl) -> Vec<usize> {
    p.shape.dims().iter().map(|d| *d as usize).collect()
}

/// What a writer asks of the rank whose state it writes: a parameter's state, and where to send it.
type Request = (
    String,
    StateKind,
    Sender<std::result::Result<Vec<f32>, String>>,
);

/// Hands a trainer's state to a file's writer, one tensor at a time, so that a copy of the whole model never exists on the host. A
/// trainer belongs to its thread, so the writer works on another one and asks.
#[derive(Clone)]
struct Feed(Sender<Request>);

impl Feed {
    /// Runs `work` with a feed of `trainer`.
    fn serve<T: Send>(trainer: &Trainer, work: impl FnOnce(Feed) -> Result<T> + Send) -> Result<T> {
        let (ask, asked) = channel::<Request>();
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || work(Feed(ask)));
            for (name, kind, reply) in asked {
                // A writer that has failed does not wait for its answer any more.
                let _ = reply.send(trainer.read(&name, kind).map_err(|e| e.to_string()));
            }
            writer.join().unwrap_or_else(|_| {
                Err(CliError::refused(
                    "the writer of a file panicked; this is a bug",
                    "please report it",
                ))
            })
        })
    }

    /// The tensor `title`, read from the device when its turn comes.
    fn tensor(
        &self,
        title: &str,
        shape: &[usize],
        name: &str,
        kind: StateKind,
    ) -> TensorOut<'static> {
        let (ask, name) = (self.0.clone(), name.to_string());
        TensorOut::stream(title, Dtype::F32, shape, move |out| {
            let gone = || io::Error::other("the rank has ended");
            let (reply, answer) = channel();
            ask.send((name, kind, reply)).map_err(|_| gone())?;
            let values = answer
                .recv()
                .map_err(|_| gone())?
                .map_err(io::Error::other)?;
            for chunk in values.chunks(1 << 16) {
                let bytes: Vec<u8> = chunk.iter().flat_map(|v| v.to_le_bytes()).collect();
                out.write_all(&bytes)?;
            }
            Ok(())
        })
    }
}

/// Writes the checkpoint of `step` and removes old ones. Every rank holds the same state, so one rank writes it for all.
///
/// # Errors
/// The device; the disk. What was there before stays whole.
pub fn checkpoint(job: &Job, trainer: &Trainer, step: u64) -> Result<()> {
    let params = trainer.params();
    Feed::serve(trainer, |feed| {
        let writer = Writer::begin(&job.out, step, 1)?;
        let mut rank = writer.rank(0)?;
        for p in &params {
            let (shape, n) = (shape_of(p), p.shape.numel());
            for kind in StateKind::ALL {
                let name = blob(kind, &p.name);
                rank.put_tensor(feed.tensor(&name, &shape, &p.name, kind));
                rank.owns(&name, Dtype::F32, &shape, 0, n, &name, 0)?;
            }
        }
        rank.finish()?;
        let fingerprint = job.corpus.fingerprint();
        writer.commit(state(&job.resolved, fingerprint.as_deref(), step))?;
        Ok(())
    })?;
    prune(
        &job.out,
        job.resolved.settings.run.keep_last as usize,
        Some(step),
    )?;
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
    let (config, params) = (job.source.hf_config(eod), trainer.params());
    Feed::serve(trainer, |feed| {
        let tensor = |p: &ParamDecl| feed.tensor(&p.name, &shape_of(p), &p.name, StateKind::Value);
        let tensors: Vec<_> = params.iter().map(tensor).collect();
        let dir = job.out.join("model");
        Ok(export_hf(
            dir,
            &config,
            tensors,
            DEFAULT_SHARD_BYTES,
            &extra,
        )?)
    })
}
