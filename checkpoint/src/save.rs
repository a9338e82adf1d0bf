//! Writing a training checkpoint from several ranks at once, so that it appears whole or not at all.
//!
//! Ranks meet in one hidden folder of the file system they share and nowhere else, so they may be threads or processes:
//! each writes its file, makes it durable, and then leaves a record of it there. Rank 0 commits once every record has
//! arrived: it proves that together the pieces own every element once, writes the manifest, and gives the folder its name.

use crate::dtype::{Dtype, num_elements};
use crate::error::{CheckpointError, Result};
use crate::files::{publish_dir, read_json_bytes, remove_dir_if_there, sync_dir, write_synced};
use crate::hash::hex;
use crate::layout::{Logical, Piece, prove};
use crate::load::check_files;
use crate::manifest::{
    FileRecord, MANIFEST, Manifest, clean, hidden, list, partial_dir, point_latest, rank_file,
    read_manifest, root_of, step_dir,
};
use crate::safewrite::{TensorOut, write_safetensors};
use crate::sign::{SIGNATURE, SecretKey};
use crossweave_claim::Claim;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Removes what killed writers left under `dir/checkpoints`, and then draws a name that no other save has, for
/// [`Writer::join`]. The process that begins the job calls this and gives the other ranks the name, so that none of them
/// can have begun a save that would be taken for a killed writer's.
///
/// # Errors
/// A folder that cannot be read or removed.
pub fn session(dir: impl AsRef<Path>) -> Result<String> {
    clean(&root_of(dir.as_ref()))?;
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos());
    let seed = format!("{now} {}", std::process::id());
    Ok(hex(&Sha256::digest(seed.as_bytes())[..8]))
}

/// A checkpoint being written. Clone it to every rank's thread, or [`Writer::join`] it in every process. Unless it is
/// committed, the last clone of its owner leaves nothing.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
    key: Option<Arc<SecretKey>>,
}

struct Shared {
    root: PathBuf,
    folder: PathBuf,
    save: String,
    step: u64,
    world_size: usize,
    owner: bool,
    committed: AtomicBool,
}

/// What a rank leaves beside its file once the file is durable.
#[derive(Serialize, Deserialize)]
struct Record {
    file: FileRecord,
    blobs: BTreeMap<String, (Dtype, u64)>,
    layout: BTreeMap<String, Logical>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(
            f,
            "Writer of step {} in {}",
            self.shared.step,
            self.shared.root.display()
        )
    }
}

/// How long rank 0 waits for the other ranks' files.
pub struct Patience<'a> {
    /// Longest time in all.
    pub timeout: Duration,
    /// Has the job failed elsewhere? Then only ranks that have begun to write are waited for.
    pub failed: &'a dyn Fn() -> bool,
    /// The run's folder, where it is claimed: asked right before the checkpoint gets its name.
    pub claim: Option<&'a Claim>,
}

impl Writer {
    /// Starts the checkpoint of `step` under `dir/checkpoints`, first clearing what a killed writer left there. One
    /// writer at a time may be open on a directory; one rank begins it and hands clones to the others.
    pub fn begin(dir: impl AsRef<Path>, step: u64, world_size: usize) -> Result<Self> {
        let save = session(dir.as_ref())?;
        Self::join(dir, step, world_size, &save, true)
    }

    /// Takes part in the save named `save` (letters and digits, the same on every rank, never used before: a
    /// [`session`] and a count). No rank waits for another; who comes first makes the folder. The `owner`, rank 0,
    /// commits, and removes the folder if it does not.
    pub fn join(
        dir: impl AsRef<Path>,
        step: u64,
        world_size: usize,
        save: &str,
        owner: bool,
    ) -> Result<Self> {
        if world_size == 0 {
            return Err(CheckpointError::write(
                "checkpoint",
                "a world of 0 ranks",
                "give at least one rank",
            ));
        }
        if save.is_empty() || !save.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err(CheckpointError::write(
                save,
                "the name of a save is letters, digits and dashes",
                "draw it with `session`",
            ));
        }
        let root = root_of(dir.as_ref());
        let folder = root.join(partial_dir(step, save));
        std::fs::create_dir_all(&folder).map_err(CheckpointError::io("create", &folder))?;
        Ok(Self {
            shared: Arc::new(Shared {
                root,
                folder,
                save: save.into(),
                step,
                world_size,
                owner,
                committed: AtomicBool::new(false),
            }),
            key: None,
        })
    }

    /// The owner's manifest shall be signed with this key.
    pub fn signed(self, key: Option<Arc<SecretKey>>) -> Self {
        Self { key, ..self }
    }

    /// The writer of one rank's file.
    pub fn rank<'a>(&self, rank: usize) -> Result<RankWriter<'a>> {
        if rank >= self.shared.world_size {
            return Err(CheckpointError::write(
                format!("rank {rank}"),
                format!("the world has {} ranks", self.shared.world_size),
                "count ranks from 0",
            ));
        }
        // Made now and renamed later, so that a rank can still say that it failed when the disk has no room for a word.
        let begun = self.shared.mark(rank, BEGUN);
        if self.shared.mark(rank, DONE).exists() {
            return Err(taken(rank));
        }
        match std::fs::File::create_new(&begun) {
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return Err(taken(rank)),
            Err(e) => return Err(self.shared.blame(CheckpointError::io("create", &begun)(e))),
        }
        Ok(RankWriter {
            begun: Begun {
                shared: self.shared.clone(),
                rank,
                open: true,
            },
            tensors: Vec::new(),
            layout: BTreeMap::new(),
        })
    }

    /// The owner gives up: waits a moment for ranks that are still writing, so that what is removed stays removed.
    pub fn abandon(self) {
        let began = Instant::now();
        let writing = |rank: usize| self.shared.mark(rank, BEGUN).exists();
        while (0..self.shared.world_size).any(writing) && began.elapsed() < ABANDON {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// As [`Writer::commit_when`], for when every rank has finished already.
    pub fn commit(&self, state: Value) -> Result<PathBuf> {
        let now = Patience {
            timeout: Duration::ZERO,
            failed: &|| false,
            claim: None,
        };
        self.commit_when(state, &now)
    }

    /// Makes the checkpoint visible as `checkpoints/step-…` once every rank has finished: waits for their records,
    /// proves that the layout owns every logical element exactly once, writes the manifest with `state`, syncs, renames.
    /// Returns the folder.
    pub fn commit_when(&self, state: Value, patience: &Patience<'_>) -> Result<PathBuf> {
        let shared = &self.shared;
        let refuse = |reason: String| {
            CheckpointError::write(
                format!("checkpoint of step {}", shared.step),
                reason,
                "call finish on every rank, then commit once",
            )
        };
        if shared.committed.load(Ordering::SeqCst) {
            return Err(refuse("it was committed before".into()));
        }
        shared.gather(patience)?;
        let mut manifest = Manifest::new(shared.step, shared.world_size, &shared.save, state);
        let mut blobs = Vec::new();
        for rank in 0..shared.world_size {
            let path = shared.mark(rank, DONE);
            let record: Record = serde_json::from_slice(&read_json_bytes(&path)?)
                .map_err(|e| CheckpointError::json(&path, &e, "a rank's record", "save again"))?;
            for (name, part) in &record.layout {
                merge(&mut manifest.layout, name, part)?;
            }
            manifest.files.push(record.file);
            blobs.push(record.blobs);
        }
        prove(&manifest.layout, |rank, blob| {
            blobs.get(rank)?.get(blob).copied()
        })
        .map_err(|(name, reason)| {
            CheckpointError::write(
                name,
                reason,
                "let the ranks' pieces own every element exactly once",
            )
        })?;
        let text = manifest.to_text()?;
        write_synced(&shared.folder.join(MANIFEST), text.as_bytes())?;
        if let Some(key) = &self.key {
            let signature = key.sign(text.as_bytes());
            write_synced(&shared.folder.join(SIGNATURE), signature.as_bytes())?;
        }
        for rank in 0..shared.world_size {
            let path = shared.mark(rank, DONE);
            std::fs::remove_file(&path).map_err(CheckpointError::io("remove", &path))?;
        }
        patience.claim.map_or(Ok(()), Claim::check)?;
        let place = shared.root.join(step_dir(shared.step));
        let aside = shared.root.join(hidden(shared.step, "replaced"));
        publish_dir(&shared.folder, &place, &aside)?;
        shared.committed.store(true, Ordering::SeqCst);
        point_latest(&shared.root, shared.step)?;
        Ok(place)
    }
}

/// Longest wait of an owner that has given up.
const ABANDON: Duration = Duration::from_secs(10);
const BEGUN: &str = "begun";
const DONE: &str = "json";
const FAILED: &str = "failed";

fn taken(rank: usize) -> CheckpointError {
    CheckpointError::write(
        format!("rank {rank}"),
        "has begun before",
        "let every rank write once",
    )
}

impl Shared {
    fn mark(&self, rank: usize, kind: &str) -> PathBuf {
        self.folder.join(format!("rank-{rank:05}.{kind}"))
    }

    /// The cause of a rank's failure to write: where the folder is gone, its owner has removed it.
    fn blame(&self, e: CheckpointError) -> CheckpointError {
        match self.owner || self.folder.exists() {
            true => e,
            false => CheckpointError::GivenUp { step: self.step },
        }
    }

    /// Returns once every rank has left its record.
    fn gather(&self, patience: &Patience<'_>) -> Result<()> {
        // Pauses are counted and not the clock, which goes on while a scheduler has stopped the job.
        let mut waited = Duration::ZERO;
        let mut pause = Duration::from_millis(1);
        let has = |rank: usize, kind: &str| self.mark(rank, kind).exists();
        loop {
            // Looked at before the marks, so that what a rank did before it failed is seen.
            let job_failed = (patience.failed)();
            let ranks = 0..self.world_size;
            let missing: Vec<usize> = ranks.clone().filter(|r| !has(*r, DONE)).collect();
            let failed: Vec<usize> = ranks.filter(|r| has(*r, FAILED)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if failed.len() == missing.len() {
                let said = failed.iter().find_map(|r| {
                    let text =
                        crossweave_files::read_text(&self.mark(*r, FAILED), crossweave_files::TEXT)
                            .ok()?;
                    (!text.is_empty()).then(|| format!("rank {r}: {text}"))
                });
                return Err(self.given_up(
                    said.unwrap_or_else(|| format!("ranks {failed:?} could not write their files")),
                ));
            }
            let late = waited >= patience.timeout;
            let hopeless = job_failed && !missing.iter().any(|r| has(*r, BEGUN));
            if late || hopeless {
                return Err(self.given_up(format!("ranks {missing:?} have not finished")));
            }
            std::thread::sleep(pause);
            waited += pause;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn given_up(&self, reason: String) -> CheckpointError {
        CheckpointError::write(
            format!("checkpoint of step {}", self.step),
            reason,
            "the checkpoints before it are untouched; see to the ranks' disk and resume from the newest one",
        )
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.owner && !self.committed.load(Ordering::SeqCst) {
            // Best effort: an error is already on its way to the caller, and the next run clears what is left.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// A rank that has begun to write; dropped unfinished, it says that it failed.
struct Begun {
    shared: Arc<Shared>,
    rank: usize,
    open: bool,
}

impl Begun {
    fn fail(&mut self, reason: &str) {
        self.open = false;
        // Room first, then the news, which needs no room, then the reason, which may find none.
        let _ = std::fs::remove_file(self.shared.folder.join(rank_file(self.rank)));
        let begun = self.shared.mark(self.rank, BEGUN);
        let _ = std::fs::write(&begun, reason);
        let _ = std::fs::rename(&begun, self.shared.mark(self.rank, FAILED));
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.open {
            self.fail("stopped before its file was written");
        }
    }
}

/// One rank's blobs and its part of the layout. Nothing is written before [`RankWriter::finish`].
pub struct RankWriter<'a> {
    begun: Begun,
    tensors: Vec<TensorOut<'a>>,
    layout: BTreeMap<String, Logical>,
}

impl std::fmt::Debug for RankWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(
            f,
            "RankWriter of rank {}: {} blobs",
            self.begun.rank,
            self.tensors.len()
        )
    }
}

impl<'a> RankWriter<'a> {
    /// Adds a blob of bytes (borrowed or owned). Any type and shape; a flat shard is `[n]`.
    pub fn put(
        &mut self,
        name: impl Into<String>,
        dtype: Dtype,
        shape: &[usize],
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> &mut Self {
        self.put_tensor(TensorOut::bytes(name, dtype, shape, bytes))
    }

    /// Adds a blob whose bytes are provided when it is written, so that device memory need not be copied all at once.
    pub fn put_tensor(&mut self, tensor: TensorOut<'a>) -> &mut Self {
        self.tensors.push(tensor);
        self
    }

    /// Says that this rank owns flat elements `start..start + len` of the logical tensor `logical` (full `shape`), and
    /// that they lie at elements `offset..` of its blob `tensor`. Replicas are not declared: exactly one rank owns an
    /// element.
    #[expect(clippy::too_many_arguments)]
    pub fn owns(
        &mut self,
        logical: &str,
        dtype: Dtype,
        shape: &[usize],
        start: u64,
        len: u64,
        tensor: &str,
        offset: u64,
    ) -> Result<&mut Self> {
        let piece = Piece {
            rank: self.begun.rank,
            tensor: tensor.into(),
            offset,
            start,
            len,
            slice: Vec::new(),
        };
        self.owns_piece(logical, dtype, shape, piece)
    }

    /// As [`RankWriter::owns`], for a piece with a slice. The piece's rank is set to this one.
    pub fn owns_piece(
        &mut self,
        logical: &str,
        dtype: Dtype,
        shape: &[usize],
        mut piece: Piece,
    ) -> Result<&mut Self> {
        piece.rank = self.begun.rank;
        let part = Logical {
            dtype,
            shape: shape.to_vec(),
            pieces: vec![piece],
        };
        merge(&mut self.layout, logical, &part)?;
        Ok(self)
    }

    /// Writes the rank's file, makes it durable, and leaves its record for the commit.
    pub fn finish(self) -> Result<()> {
        let RankWriter {
            mut begun,
            tensors,
            layout,
        } = self;
        let done = write_rank(&begun, tensors, layout).map_err(|e| begun.shared.blame(e));
        match &done {
            Ok(()) => begun.open = false,
            Err(e) => begun.fail(&e.to_string()),
        }
        done
    }
}

fn write_rank(
    begun: &Begun,
    tensors: Vec<TensorOut<'_>>,
    layout: BTreeMap<String, Logical>,
) -> Result<()> {
    let (shared, rank) = (&begun.shared, begun.rank);
    let count = |t: &TensorOut<'_>| {
        let n = num_elements(&t.shape).unwrap_or(0);
        (t.name.clone(), (t.dtype, n))
    };
    let blobs = tensors.iter().map(count).collect();
    let name = rank_file(rank);
    let text = |n: u64| n.to_string();
    let (r, w, s) = (
        text(rank as u64),
        text(shared.world_size as u64),
        text(shared.step),
    );
    // So that a file in the wrong place is distinguished from a damaged one.
    let metadata = [
        ("rank", r.as_str()),
        ("save", &shared.save),
        ("step", &s),
        ("world_size", &w),
    ];
    let written = write_safetensors(&shared.folder.join(&name), tensors, &metadata)?;
    let record = Record {
        file: FileRecord {
            rank,
            name,
            bytes: written.bytes,
            blake3: Some(written.tree),
            sha256: None,
        },
        blobs,
        layout,
    };
    // The mark becomes the record: its name says how far the rank is, at every moment.
    let path = shared.mark(rank, BEGUN);
    let bytes = serde_json::to_vec(&record)
        .map_err(|e| CheckpointError::json(&path, &e, "a rank's record", "report a bug"))?;
    write_synced(&path, &bytes)?;
    // The file's entry must be on disk before the record says so.
    sync_dir(&shared.folder)?;
    std::fs::rename(&path, shared.mark(rank, DONE)).map_err(CheckpointError::io("rename", &path))
}

fn merge(layout: &mut BTreeMap<String, Logical>, name: &str, part: &Logical) -> Result<()> {
    match layout.get_mut(name) {
        None => {
            layout.insert(name.to_string(), part.clone());
        }
        Some(whole) if whole.dtype == part.dtype && whole.shape == part.shape => {
            whole.pieces.extend(part.pieces.iter().cloned());
        }
        Some(whole) => {
            return Err(CheckpointError::write(
                name,
                format!(
                    "declared as {:?} {:?} and as {:?} {:?}",
                    whole.dtype, whole.shape, part.dtype, part.shape
                ),
                "declare the full shape and one type on every rank",
            ));
        }
    }
    Ok(())
}

/// Deletes all but the newest `keep` good checkpoints of a run (at least one is kept) and returns the steps deleted,
/// oldest first. Before anything goes, the files of the newest kept ones are read and hashed until one verifies; if none
/// does, older ones are kept until one does. `written` is a step this process has just committed: what it hashed and
/// synced itself it need not read again. Damaged checkpoints are neither counted nor deleted. A folder is renamed before
/// its files go, so that a half-deleted one is never taken for a checkpoint. The checkpoint of step `best` stays whatever its age.
pub fn prune(
    dir: impl AsRef<Path>,
    keep: usize,
    written: Option<u64>,
    best: Option<u64>,
) -> Result<Vec<u64>> {
    let root = root_of(dir.as_ref());
    let good: Vec<_> = list(&root)?
        .into_iter()
        .filter_map(|f| {
            let manifest = read_manifest(&f.path).ok()?;
            let whole = manifest
                .files
                .iter()
                .all(|r| std::fs::metadata(f.path.join(&r.name)).is_ok_and(|m| m.len() == r.bytes));
            whole.then_some(f)
        })
        .collect();
    let mut num_old = good.len().saturating_sub(keep.max(1));
    if num_old == 0 {
        return Ok(Vec::new());
    }
    let verified = good
        .iter()
        .rposition(|f| written == Some(f.step) || check_files(&f.path).is_ok());
    num_old = num_old.min(verified.unwrap_or(0));
    // Folders numbered past the run's own steps are somebody's copies: what was just written is not older for them.
    if let Some(own) = good.iter().position(|f| written == Some(f.step)) {
        num_old = num_old.min(own);
    }
    let mut deleted = Vec::new();
    let old = good.iter().take(num_old);
    for found in old.filter(|f| best != Some(f.step)) {
        let doomed = root.join(hidden(found.step, "deleting"));
        remove_dir_if_there(&doomed)?;
        std::fs::rename(&found.path, &doomed)
            .map_err(CheckpointError::io("rename", &found.path))?;
        sync_dir(&root)?;
        remove_dir_if_there(&doomed)?;
        deleted.push(found.step);
    }
    Ok(deleted)
}
