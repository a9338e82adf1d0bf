//! Opening a training checkpoint: found by scanning, proven by length and hash, read by rank or by logical tensor.

use crate::dtype::{Dtype, num_bytes, num_elements};
use crate::error::{CheckpointError, Result};
use crate::hash::hex;
use crate::layout::{Logical, Piece, Run, prove, runs};
use crate::manifest::{FileRecord, Found, MANIFEST, Manifest, is_step, list, read_hashed};
use crate::nearest::nearest;
use crate::safefile::{SafeFile, TensorInfo};
use crate::sign::{PublicKey, UNSIGNED_FIX};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A checkpoint whose bytes are proven before they are given out. Reads are positional; share it between ranks by reference.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    manifest: Manifest,
    /// The hash of the manifest's text.
    sha256: [u8; 32],
    files: Vec<SafeFile>,
    /// By file, then by chunk: has it been held against its hash?
    proven: Vec<Vec<AtomicBool>>,
}

/// How much of a checkpoint is proven when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Every byte of every file.
    Whole,
    /// Manifest, lengths, headers and layout; each chunk of data when it is first read. (Files of format version 1, which
    /// have no chunks, are read whole all the same.)
    AsRead,
}

impl Checkpoint {
    /// Opens and verifies a checkpoint: `path` is a step's folder, or a run's directory (or its `checkpoints` folder),
    /// whose newest complete checkpoint is then meant. Damage is a [`CheckpointError::Damaged`] that names the file and
    /// the newest older checkpoint that verifies; nothing falls back silently.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_as(path, Proof::Whole)
    }

    /// As [`Checkpoint::open`], with a choice of what is proven at once and what when it is read.
    pub fn open_as(path: impl AsRef<Path>, proof: Proof) -> Result<Self> {
        let path = path.as_ref();
        if is_step(path) {
            return open_step(path, proof);
        }
        while let Some(found) = Self::latest(path)? {
            let opened = open_step(&found.path, proof);
            // A run that goes on may have removed what was the newest a moment ago; then there is a newer one.
            if opened.is_ok() || found.path.exists() {
                return opened;
            }
        }
        Err(CheckpointError::NotFound {
            path: path.to_path_buf(),
            reason: "holds no complete checkpoint (a folder step-… with a manifest.json)".into(),
            fix: "name a run's directory, or one of the folders in its checkpoints/".into(),
        })
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

    /// Was the manifest that was read signed by the owner of `key`?
    ///
    /// # Errors
    /// No signature, another key's, or one of another manifest.
    pub fn signed_by(&self, key: &PublicKey) -> Result<()> {
        key.check(&self.path, &self.sha256)
            .map_err(|reason| CheckpointError::Header {
                path: self.path.join(MANIFEST),
                reason,
                fix: UNSIGNED_FIX.into(),
            })
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
        let range = self.file(rank)?.info(name)?.range.clone();
        let mut out = vec![0; (range.end - range.start) as usize];
        self.read_proven(rank, range.start, &mut out)?;
        Ok(out)
    }

    /// Fills `out` with a rank's blob from element `start` on.
    pub fn read_into(&self, rank: usize, name: &str, start: u64, out: &mut [u8]) -> Result<()> {
        let file = self.file(rank)?;
        let n = out.len() as u64 * 8 / file.info(name)?.dtype.bitsize() as u64;
        let bytes = file.byte_range(name, &(start..start.saturating_add(n)))?;
        if bytes.end - bytes.start != out.len() as u64 {
            return Err(CheckpointError::tensor(
                file.path(),
                name,
                format!("{} bytes are not whole elements", out.len()),
                "ask for whole elements",
            ));
        }
        self.read_proven(rank, bytes.start, out)
    }

    /// Bytes of a rank's file, each chunk of it held against its hash before any of it is given out.
    fn read_proven(&self, rank: usize, from: u64, out: &mut [u8]) -> Result<()> {
        let (file, record) = (&self.files[rank], &self.manifest.files[rank]);
        let Some(tree) = &record.blake3 else {
            return file.read_bytes(from, out);
        };
        let (chunk, end) = (tree.chunk_bytes, from + out.len() as u64);
        let mut whole = Vec::new();
        let mut at = from;
        while at < end {
            let i = at / chunk;
            let (first, last) = (i * chunk, (i + 1).saturating_mul(chunk).min(record.bytes));
            let stop = end.min(last);
            let part = &mut out[(at - from) as usize..(stop - from) as usize];
            let seen = &self.proven[rank][i as usize];
            // A chunk that is wanted whole is proven where it lands.
            let all = at == first && stop == last;
            let done = seen.load(Ordering::Relaxed);
            let read: &mut [u8] = match done || all {
                true => part,
                false => {
                    whole.resize((last - first) as usize, 0);
                    &mut whole
                }
            };
            file.read_bytes(if done { at } else { first }, read)?;
            if !done {
                if !tree.proves(i, read) {
                    return Err(CheckpointError::Damaged {
                        step: self.manifest.step,
                        path: file.path().to_path_buf(),
                        reason: format!("bytes {first}..{last} do not match their BLAKE3"),
                        previous_good: None,
                        fix: "resume from an older checkpoint, or restore the file from a copy"
                            .into(),
                    });
                }
                seen.store(true, Ordering::Relaxed);
                if !all {
                    let part = &mut out[(at - from) as usize..(stop - from) as usize];
                    part.copy_from_slice(&whole[(at - first) as usize..(stop - first) as usize]);
                }
            }
            at = stop;
        }
        Ok(())
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
        self.logical_slice(name, &[], elements)
    }

    /// The same of elements that are counted in a slice of the tensor, `[first, count]` of each dim; an empty one is the whole.
    pub fn logical_slice(
        &self,
        name: &str,
        slice: &[[u64; 2]],
        elements: Range<u64>,
    ) -> Result<Vec<u8>> {
        let logical = self.logical_info(name)?;
        let fail = |reason: String| {
            CheckpointError::tensor(
                &self.path.join(MANIFEST),
                name,
                reason,
                "resume from another checkpoint; this one's writer left a wrong layout",
            )
        };
        if elements.start > elements.end {
            return Err(fail(format!(
                "elements {}..{}",
                elements.start, elements.end
            )));
        }
        // Runs of the tensor, with their places in what is asked for.
        let asked = Piece {
            rank: 0,
            tensor: String::new(),
            offset: 0,
            start: elements.start,
            len: elements.end - elements.start,
            slice: slice.to_vec(),
        };
        let asked: Vec<Run> = runs(&logical.shape, &asked).map_err(&fail)?.collect();
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
            // Both rise, so that each run is met with the few that it overlaps.
            let mut first = 0;
            for run in runs(&logical.shape, piece).map_err(&fail)? {
                let end = run.full + run.len;
                while asked.get(first).is_some_and(|a| a.full + a.len <= run.full) {
                    first += 1;
                }
                for a in asked[first..].iter().take_while(|a| a.full < end) {
                    let (start, end) = (run.full.max(a.full), end.min(a.full + a.len));
                    let to = a.blob + start - a.full;
                    let at = whole(to)?..whole(to + end - start)?;
                    let from = run.blob.saturating_add(start - run.full);
                    self.read_into(piece.rank, &piece.tensor, from, &mut out[at])?;
                    filled += end - start;
                }
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

fn open_step(path: &Path, proof: Proof) -> Result<Checkpoint> {
    // A run that saves a step again may exchange the folder between two looks at it, so damage must be seen twice.
    match open_proven(path, proof).or_else(|_| open_proven(path, proof)) {
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
                .find(|f| f.step < step && open_proven(&f.path, Proof::Whole).is_ok());
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

/// A file and what is wrong with it.
pub(crate) type Fault = (PathBuf, String);

fn open_proven(path: &Path, proof: Proof) -> std::result::Result<Checkpoint, Fault> {
    let (manifest, sha256) = read_hashed(path).map_err(|e| (path.join(MANIFEST), e))?;
    let mut files = Vec::new();
    for record in &manifest.files {
        let file = path.join(&record.name);
        files.push(open_file(&file, record, &manifest).map_err(|e| (file, e))?);
    }
    let unproven = |r: &FileRecord| {
        let n = r.blake3.as_ref().map_or(0, |t| t.num_chunks(r.bytes));
        (0..n).map(|_| AtomicBool::new(false)).collect()
    };
    let checkpoint = Checkpoint {
        path: path.to_path_buf(),
        sha256,
        proven: manifest.files.iter().map(unproven).collect(),
        manifest,
        files,
    };
    match proof {
        Proof::Whole => checkpoint.prove_all()?,
        Proof::AsRead => checkpoint.prove_headers()?,
    }
    let blob = |rank: usize, name: &str| {
        let info = checkpoint.files.get(rank)?.tensors().get(name)?;
        Some((info.dtype, info.num_elements()))
    };
    prove(&checkpoint.manifest.layout, blob)
        .map_err(|(name, reason)| (path.join(MANIFEST), format!("`{name}`: {reason}")))?;
    Ok(checkpoint)
}

/// Opens a rank's file and makes sure that it is the one the manifest means, as far as its header shows.
pub(crate) fn open_file(
    path: &Path,
    record: &FileRecord,
    manifest: &Manifest,
) -> std::result::Result<SafeFile, String> {
    let len = crossweave_files::len(path).map_err(|e| format!("cannot be opened: {e}"))?;
    // A file that was exchanged with another is distinguished from a damaged one before lengths and hashes are compared.
    let file = SafeFile::open(path);
    if let Ok(f) = &file {
        let says = |key: &str| f.metadata().get(key).map(String::as_str);
        let rank = record.rank.to_string();
        if let Some(other) = says("save").filter(|s| *s != manifest.save) {
            return Err(format!(
                "belongs to another save ({other}, of step {}) than the manifest ({}, of step {})",
                says("step").unwrap_or("?"),
                manifest.save,
                manifest.step
            ));
        }
        if let Some(other) = says("rank").filter(|r| *r != rank) {
            return Err(format!(
                "holds the data of rank {other}: the files of two ranks were exchanged"
            ));
        }
    }
    if len != record.bytes {
        return Err(format!(
            "{len} bytes long, was written with {}",
            record.bytes
        ));
    }
    file.map_err(|e| e.to_string())
}

impl Checkpoint {
    fn prove_headers(&self) -> std::result::Result<(), Fault> {
        for (rank, (record, file)) in self.manifest.files.iter().zip(&self.files).enumerate() {
            let fault = |e: String| (file.path().to_path_buf(), e);
            if record.blake3.is_none() {
                check_sha256(file.path(), record).map_err(fault)?;
                continue;
            }
            let mut header = vec![0; file.data_start() as usize];
            self.read_proven(rank, 0, &mut header)
                .map_err(|e| fault(reason_of(e)))?;
        }
        Ok(())
    }

    /// Holds every chunk of every file against its hash, on several threads.
    fn prove_all(&self) -> std::result::Result<(), Fault> {
        let all: Vec<(usize, usize)> = self
            .proven
            .iter()
            .enumerate()
            .flat_map(|(rank, chunks)| (0..chunks.len()).map(move |i| (rank, i)))
            .collect();
        let next = AtomicUsize::new(0);
        let first: Mutex<Option<(usize, Fault)>> = Mutex::new(None);
        let work = || {
            loop {
                let k = next.fetch_add(1, Ordering::Relaxed);
                let Some(&(rank, i)) = all.get(k) else { return };
                let (file, record) = (&self.files[rank], &self.manifest.files[rank]);
                let chunk = record.blake3.as_ref().map_or(1, |t| t.chunk_bytes);
                // One byte of a chunk proves it.
                if let Err(e) = self.read_proven(rank, i as u64 * chunk, &mut [0][..]) {
                    let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                    if first.as_ref().is_none_or(|(at, _)| k < *at) {
                        *first = Some((k, (file.path().to_path_buf(), reason_of(e))));
                    }
                    // Later chunks need not be looked at; earlier ones are under way.
                    next.store(all.len(), Ordering::Relaxed);
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
        std::thread::scope(|s| {
            for _ in 1..threads.min(all.len()) {
                // A thread that cannot start costs speed only.
                let _ = std::thread::Builder::new().spawn_scoped(s, work);
            }
            work();
        });
        if let Some((_, fault)) = first.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(fault);
        }
        let old = self.manifest.files.iter().zip(&self.files);
        for (record, file) in old.filter(|(r, _)| r.blake3.is_none()) {
            check_sha256(file.path(), record).map_err(|e| (file.path().to_path_buf(), e))?;
        }
        Ok(())
    }
}

fn reason_of(e: CheckpointError) -> String {
    match e {
        CheckpointError::Damaged { reason, .. } => reason,
        e => e.to_string(),
    }
}

/// Holds every file of a step's folder against the manifest.
pub(crate) fn check_files(path: &Path) -> std::result::Result<(), Fault> {
    open_proven(path, Proof::Whole).map(drop)
}

/// Holds one file against its record, from its first byte to its last. The error is a reason.
pub(crate) fn check_file(
    path: &Path,
    record: &FileRecord,
    manifest: &Manifest,
) -> std::result::Result<SafeFile, String> {
    let file = open_file(path, record, manifest)?;
    let Some(tree) = &record.blake3 else {
        return check_sha256(path, record).map(|()| file);
    };
    let mut buf = Vec::new();
    for i in 0..tree.num_chunks(record.bytes) {
        let (first, last) = (
            i * tree.chunk_bytes,
            ((i + 1) * tree.chunk_bytes).min(record.bytes),
        );
        buf.resize((last - first) as usize, 0);
        file.read_bytes(first, &mut buf)
            .map_err(|e| e.to_string())?;
        if !tree.proves(i, &buf) {
            return Err(format!("bytes {first}..{last} do not match their BLAKE3"));
        }
    }
    Ok(file)
}

fn check_sha256(path: &Path, record: &FileRecord) -> std::result::Result<(), String> {
    let (mut input, _) =
        crossweave_files::open(path).map_err(|e| format!("cannot be opened: {e}"))?;
    let mut hash = Sha256::new();
    let mut buf = vec![0; 1 << 20];
    loop {
        let n = input
            .read(&mut buf)
            .map_err(|e| format!("cannot be read: {e}"))?;
        if n == 0 {
            break;
        }
        hash.update(&buf[..n]);
    }
    let found = hex(&hash.finalize());
    match record.sha256.as_deref() {
        Some(expected) if found == expected => Ok(()),
        expected => Err(format!(
            "its SHA-256 is {found}, was written as {}",
            expected.unwrap_or("nothing")
        )),
    }
}
