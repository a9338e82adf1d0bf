//! A rank's checkpoints: its part of the state is copied at a step boundary and written while training goes on.
//!
//! At most one save is in flight, so that no more than one copy of the state is ever held. Ranks do not wait for each other here;
//! rank 0's writer waits for the others' files before it commits. A save that fails is reported at the next step boundary, and what
//! was there before it stays.

use crate::gate::Shared;
use crate::prepared::Run;
use crate::start::blob;
use crate::train_error::{Result, TrainError};
use crossweave_checkpoint::{
    Dtype, Patience, Piece, RankWriter, SecretKey, TensorOut, Writer, prune,
};
use crossweave_claim::Claim;
use crossweave_config::OnSaveError;
use crossweave_engine::{Engine, Shard, Snapshot, StateKind};
use crossweave_hal::HostBuffer;
use serde_json::Value;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Elements read from the device at once by a save that keeps no copy.
const STREAM_ELEMENTS: u64 = 1 << 20;
/// Longest wait of rank 0 for the other ranks' files: enough for a large part of a state on a slow disk.
const PATIENCE: Duration = Duration::from_secs(1800);

/// What is the same for every save of a rank.
struct Place {
    out: PathBuf,
    /// Name shared by the ranks of this process or job, see [`crossweave_checkpoint::session`].
    session: String,
    rank: usize,
    world: usize,
    keep: usize,
    /// The checkpoint of the lowest validation loss stays beside the newest.
    keep_best: bool,
    /// Held by rank 0.
    claim: Option<Arc<Claim>>,
    /// Rank 0's, by which manifests are signed.
    key: Option<Arc<SecretKey>>,
}

/// One checkpoint being made.
struct Save {
    step: u64,
    /// What the manifest remembers; rank 0's is written.
    state: Value,
    writer: Writer,
}

struct Pending {
    step: u64,
    thread: JoinHandle<(Option<HostBuffer>, Result<()>)>,
}

/// The saves of one rank.
pub struct Saves {
    place: Arc<Place>,
    shared: Arc<Shared>,
    asynchronous: bool,
    on_error: OnSaveError,
    /// Saves begun and the step of the latest, the same on every rank.
    count: u64,
    begun: Option<u64>,
    pending: Option<Pending>,
    spare: Option<HostBuffer>,
    /// Step of the newest checkpoint that was committed.
    last: Option<u64>,
    warnings: Vec<String>,
}

impl Saves {
    /// For rank `rank` of `job`.
    ///
    /// # Errors
    /// `checkpoint.sign_key` names no secret key.
    pub fn new(run: &Run, shared: &Arc<Shared>, rank: u32, session: String) -> Result<Saves> {
        let settings = &run.job.resolved.settings;
        let key = settings.checkpoint.sign_key.as_ref().filter(|_| rank == 0);
        let key = key.map(|k| SecretKey::read(k.as_ref())).transpose()?;
        Ok(Saves {
            place: Arc::new(Place {
                out: run.out.clone(),
                session,
                rank: rank as usize,
                world: run.job.ranks as usize,
                keep: settings.run.keep_last as usize,
                keep_best: settings.run.keep_best,
                claim: run.claim.clone().filter(|_| rank == 0),
                key: key.map(Arc::new),
            }),
            shared: shared.clone(),
            asynchronous: settings.checkpoint.asynchronous,
            on_error: settings.checkpoint.on_error,
            count: 0,
            begun: None,
            pending: None,
            spare: None,
            last: None,
            warnings: vec![],
        })
    }

    /// Step of the latest save begun; the same on every rank.
    pub fn begun(&self) -> Option<u64> {
        self.begun
    }

    /// What went wrong since the last call without stopping the run.
    pub fn warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Saves the state behind the steps enqueued so far. In the background only the copy is begun here; an earlier save still in
    /// flight is waited for first.
    ///
    /// # Errors
    /// The device; the disk, of this save or (by `checkpoint.on_error`) of the one before.
    pub fn begin(&mut self, engine: &mut Engine, step: u64, state: Value) -> Result<()> {
        self.finish()?;
        let save = self.open(step, state)?;
        if !self.asynchronous {
            // The spare copy of an earlier save is of no use any more.
            let done = write_streamed(&self.place, &self.shared, save, engine);
            return self.ended(step, done);
        }
        let snapshot = engine.snapshot(self.spare.take())?;
        let (place, shared) = (self.place.clone(), self.shared.clone());
        let thread = std::thread::Builder::new()
            .name(format!("checkpoint {}", place.rank))
            .spawn(move || write_copy(&place, &shared, save, snapshot))
            .map_err(|e| {
                TrainError::refused(
                    format!("cannot start a thread for the checkpoint: {e}"),
                    "set checkpoint.async to false, or raise the limits of the process (ulimit -u of threads, -v of memory)",
                )
            })?;
        self.pending = Some(Pending { step, thread });
        Ok(())
    }

    /// Saves the state and returns when the checkpoint is there: for the end of a run, where there is nothing to go on with.
    ///
    /// # Errors
    /// As [`Saves::begin`]; a failure is never only a warning.
    pub fn now(&mut self, engine: &Engine, step: u64, state: Value) -> Result<()> {
        self.finish()?;
        self.spare = None;
        let save = self.open(step, state)?;
        write_streamed(&self.place, &self.shared, save, engine)?;
        self.last = Some(step);
        Ok(())
    }

    fn open(&mut self, step: u64, state: Value) -> Result<Save> {
        let p = &self.place;
        // Asked again before the commit; a folder that is another's now does not get a partial one either.
        p.claim.as_deref().map_or(Ok(()), Claim::check)?;
        self.count += 1;
        self.begun = Some(step);
        let id = format!("{}-{}", p.session, self.count);
        Ok(Save {
            step,
            state,
            writer: Writer::join(&p.out, step, p.world, &id, p.rank == 0)?.signed(p.key.clone()),
        })
    }

    /// Reports how the save in flight ended, if it has.
    ///
    /// # Errors
    /// It failed, and the run is to stop for that.
    pub fn poll(&mut self) -> Result<()> {
        match &self.pending {
            Some(p) if p.thread.is_finished() => self.finish(),
            _ => Ok(()),
        }
    }

    /// Waits for the save in flight.
    ///
    /// # Errors
    /// As [`Saves::poll`].
    pub fn finish(&mut self) -> Result<()> {
        let Some(Pending { step, thread }) = self.pending.take() else {
            return Ok(());
        };
        let (spare, done) = thread.join().unwrap_or_else(|_| {
            let bug = TrainError::refused(
                format!("the writer of the checkpoint of step {step} panicked; this is a bug"),
                "please report it",
            );
            (None, Err(bug))
        });
        self.spare = spare;
        self.ended(step, done)
    }

    fn ended(&mut self, step: u64, done: Result<()>) -> Result<()> {
        match (done, self.on_error) {
            (Ok(()), _) => self.last = Some(step),
            (Err(e), OnSaveError::Stop) => return Err(e),
            // No later save would be written either.
            (Err(e), OnSaveError::Warn) if e.is_lost_claim() => return Err(e),
            // The commit of rank 0 reports what went wrong on any of them.
            (Err(e), OnSaveError::Warn) if self.place.rank == 0 => {
                let kept = match self.last {
                    Some(s) => format!("the newest checkpoint is of step {s}"),
                    None => "there is none of this run yet".into(),
                };
                self.warnings.push(format!(
                    "the checkpoint of step {step} was not written, {kept}, training goes on: {e}"
                ));
            }
            (Err(_), OnSaveError::Warn) => {}
        }
        Ok(())
    }
}

impl Drop for Saves {
    fn drop(&mut self) {
        // A run that fails still finishes what it was writing; why it failed is already on its way.
        if let Some(p) = self.pending.take() {
            let _ = p.thread.join();
        }
    }
}

/// Writes a rank's copy, and on rank 0 commits. The copy's memory comes back for the next save.
fn write_copy(
    place: &Place,
    shared: &Arc<Shared>,
    save: Save,
    mut snapshot: Snapshot,
) -> (Option<HostBuffer>, Result<()>) {
    let write = |snapshot: &mut Snapshot| -> Result<()> {
        // Begun first: dropped by any failure below, it notifies the others.
        let mut rank = save.writer.rank(place.rank)?;
        let copied = snapshot.read().map_err(crossweave_engine::Error::from)?;
        // From here on it waits for disks alone, which is worth a while also when the run has failed.
        let _saving = shared.begin_save();
        for (shard, bytes) in copied {
            let n = [shard.numel as usize];
            rank.put(name(shard), Dtype::F32, &n, bytes);
            declare(&mut rank, shard)?;
        }
        Ok(rank.finish()?)
    };
    let written = write(&mut snapshot);
    let buffer = snapshot.into_buffer();
    (Some(buffer), concluded(place, shared, save, written))
}

/// As [`write_copy`], straight from the device: the state is never on the host as a whole.
fn write_streamed(place: &Place, shared: &Shared, save: Save, engine: &Engine) -> Result<()> {
    let shards = engine.shards();
    let write = || -> Result<()> {
        let mut rank = save.writer.rank(place.rank)?;
        for shard in &shards {
            let n = [shard.numel as usize];
            let stream = move |out: &mut dyn io::Write| {
                engine
                    .read_shard(shard, STREAM_ELEMENTS, |bytes| {
                        out.write_all(bytes).map_err(ReadError::Io)
                    })
                    .map_err(|e| match e {
                        ReadError::Io(e) => e,
                        ReadError::Engine(e) => io::Error::other(e),
                    })
            };
            rank.put_tensor(TensorOut::stream(name(shard), Dtype::F32, &n, stream));
            declare(&mut rank, shard)?;
        }
        Ok(rank.finish()?)
    };
    let written = write();
    concluded(place, shared, save, written)
}

enum ReadError {
    Io(io::Error),
    Engine(crossweave_engine::Error),
}

impl From<crossweave_engine::Error> for ReadError {
    fn from(e: crossweave_engine::Error) -> ReadError {
        ReadError::Engine(e)
    }
}

/// Name of a shard's blob in the rank's file. States that are not laid out like the unit have a blob for each parameter.
fn name(shard: &Shard) -> String {
    let (unit, kind) = (shard.unit, shard.kind.name());
    match (shard.kind, shard.parts.first()) {
        (StateKind::Rows | StateKind::Cols, Some(p)) => {
            format!("unit-{unit:05}/{kind}/{}", p.param)
        }
        _ => format!("unit-{unit:05}/{kind}"),
    }
}

fn declare(rank: &mut RankWriter<'_>, shard: &Shard) -> Result<()> {
    for p in &shard.parts {
        let logical = blob(shard.kind, &p.param);
        let piece = Piece {
            rank: 0,
            tensor: name(shard),
            offset: p.at,
            start: p.of_param.start,
            len: p.of_param.end - p.of_param.start,
            slice: p.slice.clone(),
        };
        rank.owns_piece(&logical, Dtype::F32, &p.shape, piece)?;
    }
    Ok(())
}

/// Rank 0 commits what all have written, or gives it up.
fn concluded(place: &Place, shared: &Shared, save: Save, written: Result<()>) -> Result<()> {
    if place.rank != 0 {
        return written;
    }
    if let Err(e) = written {
        save.writer.abandon();
        return Err(e);
    }
    let patience = Patience {
        timeout: PATIENCE,
        failed: &|| shared.has_failed(),
        claim: place.claim.as_deref(),
    };
    let best = save.state["best"]["step"].as_u64();
    let best = best.filter(|_| place.keep_best);
    save.writer.commit_when(save.state, &patience)?;
    prune(&place.out, place.keep, Some(save.step), best)?;
    Ok(())
}
