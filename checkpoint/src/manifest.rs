//! The manifest of a training checkpoint, and the folder of checkpoints it is found in.
//!
//! `DIR/checkpoints/step-00000100/` holds `rank-00000.safetensors`, … and `manifest.json`. A step's folder gets its name
//! by a rename after everything in it is on disk, so a folder with that name is complete; there is no pointer file that
//! could be half written. The last field of the manifest is the SHA-256 of the text before it.

use crate::error::{CheckpointError, Result};
use crate::files::{read_json_bytes, remove_dir_if_there};
use crate::layout::Logical;
use crate::safewrite::hex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Version of the manifest this build writes; it reads this one.
pub const FORMAT_VERSION: u32 = 1;
/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// Value of the manifest's `format` field.
const FORMAT: &str = "crossweave-checkpoint";
const TAIL_OPEN: &str = ",\n  \"sha256\": \"";
const TAIL_CLOSE: &str = "\"\n}\n";

/// Everything about a checkpoint but its tensors' bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// `crossweave-checkpoint`.
    pub format: String,
    /// [`FORMAT_VERSION`] of the writer.
    pub format_version: u32,
    /// Optimizer steps done.
    pub step: u64,
    /// Number of ranks that wrote it.
    pub world_size: usize,
    /// One file per rank, by rank.
    pub files: Vec<FileRecord>,
    /// Logical tensors among the files; empty when the writer gave none.
    pub layout: BTreeMap<String, Logical>,
    /// What the writer wanted to remember: data position, scheduler, seed, config hash.
    pub state: Value,
}

/// A rank's file, as it must be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// The rank that wrote it.
    pub rank: usize,
    /// File name inside the step's folder.
    pub name: String,
    /// Length.
    pub bytes: u64,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: String,
}

impl Manifest {
    pub(crate) fn new(step: u64, world_size: usize, state: Value) -> Self {
        Self {
            format: FORMAT.into(),
            format_version: FORMAT_VERSION,
            step,
            world_size,
            files: Vec::new(),
            layout: BTreeMap::new(),
            state,
        }
    }

    /// The text of `manifest.json`, its own hash at the end.
    pub(crate) fn to_text(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self).map_err(|e| {
            CheckpointError::write(MANIFEST, e.to_string(), "give a state that JSON can hold")
        })?;
        text.truncate(text.strip_suffix("\n}").map_or(text.len(), str::len));
        let hash = hex(&Sha256::digest(text.as_bytes()));
        text.push_str(TAIL_OPEN);
        text.push_str(&hash);
        text.push_str(TAIL_CLOSE);
        Ok(text)
    }

    /// Reads a manifest and proves its hash. The error is a reason, for the caller to say which step it damages.
    pub(crate) fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let tail = TAIL_OPEN.len() + 64 + TAIL_CLOSE.len();
        let split = bytes
            .len()
            .checked_sub(tail)
            .ok_or("truncated: no room for its hash")?;
        let (body, end) = bytes.split_at(split);
        let stored = end
            .strip_prefix(TAIL_OPEN.as_bytes())
            .and_then(|e| e.strip_suffix(TAIL_CLOSE.as_bytes()))
            .ok_or("truncated or edited: it does not end with its hash")?;
        if hex(&Sha256::digest(body)).as_bytes() != stored {
            return Err("its text does not match the hash at its end".into());
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if manifest.format != FORMAT || manifest.format_version != FORMAT_VERSION {
            return Err(format!(
                "format `{}` version {}, this build reads `{FORMAT}` version {FORMAT_VERSION}",
                manifest.format, manifest.format_version
            ));
        }
        let in_order = manifest
            .files
            .iter()
            .enumerate()
            .all(|(i, f)| f.rank == i && f.name == rank_file(i));
        if manifest.files.len() != manifest.world_size || !in_order {
            return Err(format!(
                "lists {} files for {} ranks, or not in order of rank",
                manifest.files.len(),
                manifest.world_size
            ));
        }
        Ok(manifest)
    }
}

/// File name of a rank's blobs.
pub(crate) fn rank_file(rank: usize) -> String {
    format!("rank-{rank:05}.safetensors")
}

/// Folder name of a step.
pub fn step_dir(step: u64) -> String {
    format!("step-{step:08}")
}

pub(crate) fn hidden(step: u64, suffix: &str) -> String {
    format!(".{}.{suffix}", step_dir(step))
}

fn parse_step(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.parse().ok()
}

/// A folder that holds a complete checkpoint, by its name and its manifest's presence; nothing is verified yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Optimizer step, from the folder's name.
    pub step: u64,
    /// The step's folder.
    pub path: PathBuf,
}

/// The complete checkpoints of a run, oldest first. `dir` is the run's directory or the folder of steps in it. A run
/// without checkpoints gives an empty list.
pub fn list(dir: impl AsRef<Path>) -> Result<Vec<Found>> {
    let mut root = root_of(dir.as_ref());
    if !root.is_dir() {
        root = dir.as_ref().to_path_buf();
    }
    let mut found = BTreeMap::new();
    let mut aside = Vec::new();
    for (name, path) in entries(&root)? {
        if !path.join(MANIFEST).is_file() {
            continue;
        }
        if let Some(step) = parse_step(&name) {
            found.insert(step, path);
        } else if let Some(step) = hidden_step(&name, ".replaced") {
            aside.push((step, path));
        }
    }
    // A run killed between the two renames of a replacement left the old folder under its other name only.
    for (step, path) in aside {
        found.entry(step).or_insert(path);
    }
    Ok(found
        .into_iter()
        .map(|(step, path)| Found { step, path })
        .collect())
}

/// Removes what killed writers left: partial folders, half-deleted ones, and replaced ones (put back when the
/// replacement never arrived).
pub(crate) fn clean(root: &Path) -> Result<()> {
    for (name, path) in entries(root)? {
        if hidden_step(&name, ".partial")
            .or(hidden_step(&name, ".deleting"))
            .is_some()
        {
            remove_dir_if_there(&path)?;
        } else if let Some(step) = hidden_step(&name, ".replaced") {
            let place = root.join(step_dir(step));
            if place.exists() {
                remove_dir_if_there(&path)?;
            } else {
                std::fs::rename(&path, &place).map_err(CheckpointError::io("put back", &path))?;
            }
        }
    }
    Ok(())
}

fn hidden_step(name: &str, suffix: &str) -> Option<u64> {
    parse_step(name.strip_prefix('.')?.strip_suffix(suffix)?)
}

fn entries(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let read = match std::fs::read_dir(root) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(CheckpointError::io("list", root))?,
    };
    let mut out = Vec::new();
    for entry in read {
        let entry = entry.map_err(CheckpointError::io("list", root))?;
        if let Ok(name) = entry.file_name().into_string() {
            out.push((name, entry.path()));
        }
    }
    Ok(out)
}

/// The folder a run's checkpoints are written to.
pub(crate) fn root_of(run: &Path) -> PathBuf {
    run.join("checkpoints")
}

/// Reads the manifest of a step's folder.
pub(crate) fn read_manifest(step_path: &Path) -> std::result::Result<Manifest, String> {
    let path = step_path.join(MANIFEST);
    let bytes = read_json_bytes(&path).map_err(|e| e.to_string())?;
    Manifest::parse(&bytes)
}
