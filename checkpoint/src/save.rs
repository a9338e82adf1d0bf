//! Writing a training checkpoint from several ranks at once, so that it appears whole or not at all.

use crate::dtype::{Dtype, num_elements};
use crate::error::{CheckpointError, Result};
use crate::files::{TempDir, remove_dir_if_there, sync_dir, write_synced};
use crate::layout::{Logical, Piece, prove};
use crate::load::check_files;
use crate::manifest::{
    FileRecord, MANIFEST, Manifest, clean, hidden, list, rank_file, read_manifest, root_of,
    step_dir,
};
use crate::safewrite::{TensorOut, write_safetensors};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A checkpoint being written. Clone it to every rank's thread; dropped by all without a commit, it leaves nothing.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
}

struct Shared {
    root: PathBuf,
    folder: PathBuf,
    step: u64,
    world_size: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    temp: TempDir,
    ranks: BTreeMap<usize, Finished>,
    committed: bool,
}

struct Finished {
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

impl Writer {
    /// Starts the checkpoint of `step` under `dir/checkpoints`, first clearing what a killed writer left there. One
    /// writer at a time may be open on a directory; one rank begins it and hands clones to the others.
    pub fn begin(dir: impl AsRef<Path>, step: u64, world_size: usize) -> Result<Self> {
        if world_size == 0 {
            return Err(CheckpointError::write(
                "checkpoint",
                "a world of 0 ranks",
                "give at least one rank",
            ));
        }
        let root = root_of(dir.as_ref());
        std::fs::create_dir_all(&root).map_err(CheckpointError::io("create", &root))?;
        clean(&root)?;
        let temp = TempDir::create(root.join(hidden(step, "partial")))?;
        let folder = temp.path().to_path_buf();
        let inner = Mutex::new(Inner {
            temp,
            ranks: BTreeMap::new(),
            committed: false,
        });
        Ok(Self {
            shared: Arc::new(Shared {
                root,
                folder,
                step,
                world_size,
                inner,
            }),
        })
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
        Ok(RankWriter {
            shared: self.shared.clone(),
            rank,
            tensors: Vec::new(),
            layout: BTreeMap::new(),
        })
    }

    /// Makes the checkpoint visible as `checkpoints/step-…`, once every rank has finished: proves that the layout owns
    /// every logical element exactly once, writes the manifest with `state`, syncs, renames. Returns the folder.
    pub fn commit(&self, state: Value) -> Result<PathBuf> {
        let shared = &self.shared;
        let mut inner = shared.lock();
        let missing: Vec<usize> = (0..shared.world_size)
            .filter(|r| !inner.ranks.contains_key(r))
            .collect();
        if !missing.is_empty() || inner.committed {
            let reason = if inner.committed {
                "it was committed before".to_string()
            } else {
                format!("ranks {missing:?} have not finished")
            };
            return Err(CheckpointError::write(
                format!("checkpoint of step {}", shared.step),
                reason,
                "call finish on every rank, then commit once",
            ));
        }
        let mut manifest = Manifest::new(shared.step, shared.world_size, state);
        for finished in inner.ranks.values() {
            manifest.files.push(finished.file.clone());
            for (name, part) in &finished.layout {
                merge(&mut manifest.layout, name, part)?;
            }
        }
        prove(&manifest.layout, |rank, blob| {
            inner.ranks.get(&rank)?.blobs.get(blob).copied()
        })
        .map_err(|(name, reason)| {
            CheckpointError::write(
                name,
                reason,
                "let the ranks' pieces own every element exactly once",
            )
        })?;
        write_synced(
            &shared.folder.join(MANIFEST),
            manifest.to_text()?.as_bytes(),
        )?;
        let place = shared.root.join(step_dir(shared.step));
        inner
            .temp
            .publish(&place, &shared.root.join(hidden(shared.step, "replaced")))?;
        inner.committed = true;
        Ok(place)
    }
}

impl Shared {
    // A rank that panicked holds no half-made state here (records are inserted whole), so a poisoned lock is usable.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One rank's blobs and its part of the layout. Nothing is written before [`RankWriter::finish`].
pub struct RankWriter<'a> {
    shared: Arc<Shared>,
    rank: usize,
    tensors: Vec<TensorOut<'a>>,
    layout: BTreeMap<String, Logical>,
}

impl std::fmt::Debug for RankWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(
            f,
            "RankWriter of rank {}: {} blobs",
            self.rank,
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
            rank: self.rank,
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
        piece.rank = self.rank;
        let part = Logical {
            dtype,
            shape: shape.to_vec(),
            pieces: vec![piece],
        };
        merge(&mut self.layout, logical, &part)?;
        Ok(self)
    }

    /// Writes the rank's file and syncs it.
    pub fn finish(self) -> Result<()> {
        let mut blobs = BTreeMap::new();
        for t in &self.tensors {
            blobs.insert(
                t.name.clone(),
                (t.dtype, num_elements(&t.shape).unwrap_or(0)),
            );
        }
        let name = rank_file(self.rank);
        let taken = || {
            CheckpointError::write(
                format!("rank {}", self.rank),
                "has finished before",
                "finish every rank once",
            )
        };
        let path = self.shared.folder.join(&name);
        // A second writer of the same rank must not touch the first one's finished file.
        if self.shared.lock().ranks.contains_key(&self.rank) {
            return Err(taken());
        }
        let written = write_safetensors(&path, self.tensors, &[])?;
        let finished = Finished {
            file: FileRecord {
                rank: self.rank,
                name,
                bytes: written.bytes,
                sha256: written.sha256,
            },
            blobs,
            layout: self.layout,
        };
        self.shared.lock().ranks.insert(self.rank, finished);
        Ok(())
    }
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
/// does, older ones are kept until one does. Damaged checkpoints are neither counted nor deleted. A folder is renamed
/// before its files go, so that a half-deleted one is never taken for a checkpoint.
pub fn prune(dir: impl AsRef<Path>, keep: usize) -> Result<Vec<u64>> {
    let root = root_of(dir.as_ref());
    let good: Vec<_> = list(&root)?
        .into_iter()
        .filter_map(|f| {
            let manifest = read_manifest(&f.path).ok()?;
            let whole = manifest
                .files
                .iter()
                .all(|r| std::fs::metadata(f.path.join(&r.name)).is_ok_and(|m| m.len() == r.bytes));
            whole.then_some((f, manifest))
        })
        .collect();
    let mut num_old = good.len().saturating_sub(keep.max(1));
    if num_old == 0 {
        return Ok(Vec::new());
    }
    let verified = good
        .iter()
        .rposition(|(f, m)| check_files(&f.path, m).is_ok());
    num_old = num_old.min(verified.unwrap_or(0));
    let mut deleted = Vec::new();
    for (found, _) in good.iter().take(num_old) {
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
