//! Opening a training checkpoint: found by scanning, proven by length and hash, read by rank or by logical tensor.

use crate::dtype::{Dtype, num_bytes, num_elements};
use crate::error::{CheckpointError, Result};
use crate::layout::{Logical, runs};
use crate::manifest::{Found, MANIFEST, Manifest, list, read_manifest};
use crate::nearest::nearest;
use crate::safefile::{SafeFile, TensorInfo};
use crate::safewrite::hex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A verified checkpoint. Reads are positional; share it between ranks by reference.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    files: Vec<SafeFile>,
}

impl Checkpoint {
    /// Opens and verifies a checkpoint: `path` is a step's folder, or a run's directory (or its `checkpoints` folder),
    /// whose newest complete checkpoint is then meant. Damage is a [`CheckpointError::Damaged`] that names the file and
    /// the newest older checkpoint that verifies; nothing falls back silently.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if path.join(MANIFEST).is_file() {
            return open_step(path);
        }
        match Self::latest(path)? {
            Some(found) => open_step(&found.path),
            None => Err(CheckpointError::NotFound {
                path: path.to_path_buf(),
                reason: "holds no complete checkpoint (a folder step-… with a manifest.json)"
                    .into(),
                fix: "name a run's directory, or one of the folders in its checkpoints/".into(),
            }),
        }
    }

    /// The newest complete checkpoint of a run, not yet verified.
    pub fn latest(dir: impl AsRef<Path>) -> Result<Option<Found>> {
        Ok(list(dir)?.pop())
    }

    /// The step's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Optimizer steps done.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// Number of ranks that wrote it.
    pub fn world_size(&self) -> usize {
        self.manifest.world_size
    }

    /// What the writer asked to remember, as given to `commit` (f64 values exactly).
    pub fn state(&self) -> &Value {
        &self.manifest.state
    }

    /// A rank's blobs by name.
    pub fn blobs(&self, rank: usize) -> Result<&BTreeMap<String, TensorInfo>> {
        Ok(self.file(rank)?.tensors())
    }

    /// All bytes of a rank's blob.
    pub fn read(&self, rank: usize, name: &str) -> Result<Vec<u8>> {
        self.file(rank)?.read(name)
    }

    /// Fills `out` with a rank's blob from element `start` on.
    pub fn read_into(&self, rank: usize, name: &str, start: u64, out: &mut [u8]) -> Result<()> {
        self.file(rank)?.read_elements_into(name, start, out)
    }

    /// Shape, type and pieces of a logical tensor.
    pub fn logical_info(&self, name: &str) -> Result<&Logical> {
        self.manifest
            .layout
            .get(name)
            .ok_or_else(|| CheckpointError::UnknownTensor {
                path: self.path.join(MANIFEST),
                tensor: name.to_string(),
                nearest: nearest(name, self.manifest.layout.keys().map(String::as_str)),
            })
    }

    /// A logical tensor's bytes, put together from the ranks' pieces.
    pub fn logical(&self, name: &str) -> Result<Vec<u8>> {
        let total = num_elements(&self.logical_info(name)?.shape).unwrap_or(0);
        self.logical_range(name, 0..total)
    }

    /// The bytes of flat elements `elements` of a logical tensor; only those are read.
    pub fn logical_range(&self, name: &str, elements: Range<u64>) -> Result<Vec<u8>> {
        let logical = self.logical_info(name)?;
        let fail = |reason: String| {
            CheckpointError::tensor(
                &self.path.join(MANIFEST),
                name,
                reason,
                "resume from another checkpoint; this one's writer left a wrong layout",
            )
        };
        let total =
            num_elements(&logical.shape).ok_or_else(|| fail("its shape overflows".into()))?;
        if elements.start > elements.end || elements.end > total {
            return Err(fail(format!(
                "elements {}..{} of {total}",
                elements.start, elements.end
            )));
        }
        // No honest tensor is larger than all files together, so no manifest can make this allocate more than that.
        let stored: u64 = self.files.iter().map(SafeFile::len).sum();
        let whole = |n: u64| {
            num_bytes(logical.dtype, n)
                .filter(|&b| b <= stored)
                .and_then(|b| usize::try_from(b).ok())
                .ok_or_else(|| fail(format!("{n} elements are more than the files hold")))
        };
        let mut out = vec![0; whole(elements.end - elements.start)?];
        let mut filled = 0;
        for piece in &logical.pieces {
            let file = self.file(piece.rank)?;
            if file.info(&piece.tensor)?.dtype != logical.dtype {
                return Err(fail(format!(
                    "blob `{}` of rank {} has another type",
                    piece.tensor, piece.rank
                )));
            }
            for run in runs(&logical.shape, piece).map_err(&fail)? {
                let (start, end) = (
                    run.full.max(elements.start),
                    (run.full + run.len).min(elements.end),
                );
                if start >= end {
                    continue;
                }
                let at = whole(start - elements.start)?..whole(end - elements.start)?;
                let from = run.blob.saturating_add(start - run.full);
                file.read_elements_into(&piece.tensor, from, &mut out[at])?;
                filled += end - start;
            }
        }
        if filled != elements.end - elements.start {
            return Err(fail(format!(
                "its pieces give {filled} of {} elements",
                elements.end - elements.start
            )));
        }
        Ok(out)
    }

    /// A logical tensor's element type.
    pub fn logical_dtype(&self, name: &str) -> Result<Dtype> {
        Ok(self.logical_info(name)?.dtype)
    }

    fn file(&self, rank: usize) -> Result<&SafeFile> {
        self.files
            .get(rank)
            .ok_or_else(|| CheckpointError::NotFound {
                path: self.path.clone(),
                reason: format!(
                    "has no rank {rank}: {} ranks wrote it",
                    self.manifest.world_size
                ),
                fix: "read logical tensors to resume on another number of ranks".into(),
            })
    }
}

fn open_step(path: &Path) -> Result<Checkpoint> {
    match open_verified(path) {
        Ok(checkpoint) => Ok(checkpoint),
        Err((file, reason)) => {
            let step = step_of(path);
            let older = path
                .parent()
                .map(list)
                .and_then(Result::ok)
                .unwrap_or_default();
            let good = older
                .into_iter()
                .rev()
                .find(|f| f.step < step && open_verified(&f.path).is_ok());
            Err(CheckpointError::Damaged {
                step,
                path: file,
                reason,
                previous_good: good.as_ref().map(|f| f.step),
                fix: match good {
                    Some(f) => format!(
                        "resume from the good checkpoint of step {}: {}",
                        f.step,
                        f.path.display()
                    ),
                    None => "no older checkpoint verifies: start the run again, or restore the file from a copy".into(),
                },
            })
        }
    }
}

fn step_of(path: &Path) -> u64 {
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    name.trim_start_matches('.')
        .trim_end_matches(".replaced")
        .strip_prefix("step-")
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

fn open_verified(path: &Path) -> std::result::Result<Checkpoint, (PathBuf, String)> {
    let manifest = read_manifest(path).map_err(|e| (path.join(MANIFEST), e))?;
    check_files(path, &manifest)?;
    let mut files = Vec::new();
    for record in &manifest.files {
        let file = path.join(&record.name);
        files.push(SafeFile::open(&file).map_err(|e| (file, e.to_string()))?);
    }
    Ok(Checkpoint {
        path: path.to_path_buf(),
        manifest,
        files,
    })
}

/// Holds every file against its recorded length and hash.
pub(crate) fn check_files(
    path: &Path,
    manifest: &Manifest,
) -> std::result::Result<(), (PathBuf, String)> {
    for record in &manifest.files {
        let file = path.join(&record.name);
        let fail = |reason: String| (file.clone(), reason);
        let mut input = File::open(&file).map_err(|e| fail(format!("cannot be opened: {e}")))?;
        let len = input.metadata().map_err(|e| fail(e.to_string()))?.len();
        if len != record.bytes {
            return Err(fail(format!(
                "{len} bytes long, was written with {}",
                record.bytes
            )));
        }
        let mut hash = Sha256::new();
        let mut buf = vec![0; 1 << 20];
        loop {
            let n = input
                .read(&mut buf)
                .map_err(|e| fail(format!("cannot be read: {e}")))?;
            if n == 0 {
                break;
            }
            hash.update(&buf[..n]);
        }
        let found = hex(&hash.finalize());
        if found != record.sha256 {
            return Err(fail(format!(
                "its SHA-256 is {found}, was written as {}",
                record.sha256
            )));
        }
    }
    Ok(())
}
