//! The manifest of a training checkpoint, and the folder of checkpoints it is found in.
//!
//! `DIR/checkpoints/step-00000100/` holds `rank-00000.safetensors`, … and `manifest.json`. A step's folder gets its name
//! by a rename after everything in it is on disk, so a folder with that name is complete. Readers find the newest by
//! looking; the file `latest` beside the folders says the same to people and is believed by nobody. The last field of the
//! manifest is the SHA-256 of the text before it.

use crate::error::{CheckpointError, Result};
use crate::files::{read_json_bytes, remove_dir_if_there, sync_dir, write_synced};
use crate::hash::{Tree, hex};
use crate::layout::Logical;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Version of the manifest this build writes. It reads this one and 1, whose files carry a SHA-256 of the whole file.
pub const FORMAT_VERSION: u32 = 2;
/// Name of the file that shows people which checkpoint is the newest.
pub(crate) const LATEST: &str = "latest";
/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// The generator of every random number of a run, as `state.rng.generator` names it.
pub const GENERATOR: &str = "philox4x32-10";
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
    /// Distinguishes this save from every other; each rank's file carries it too. Empty in version 1.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub save: String,
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
    /// BLAKE3 and what proves parts of the file (version 2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<Tree>,
    /// SHA-256, lower-case hexadecimal (version 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl FileRecord {
    /// Algorithm and hash, for people.
    pub fn hash(&self) -> (&'static str, &str) {
        match (&self.blake3, &self.sha256) {
            (Some(t), _) => ("blake3", &t.hash),
            (None, Some(h)) => ("sha256", h),
            (None, None) => ("none", ""),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        match (&self.blake3, &self.sha256) {
            (Some(tree), None) => tree.check(self.bytes),
            (None, Some(_)) => Ok(()),
            _ => Err("needs one hash".into()),
        }
        .map_err(|e| format!("{}: {e}", self.name))
    }
}

impl Manifest {
    pub(crate) fn new(step: u64, world_size: usize, save: &str, state: Value) -> Self {
        Self {
            format: FORMAT.into(),
            format_version: FORMAT_VERSION,
            save: save.into(),
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
        if manifest.format != FORMAT || !(1..=FORMAT_VERSION).contains(&manifest.format_version) {
            return Err(format!(
                "format `{}` version {}, this build reads `{FORMAT}` up to version {FORMAT_VERSION}",
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
        manifest.files.iter().try_for_each(FileRecord::check)?;
        Ok(manifest)
    }

    /// Holds what a run remembers against the step it is of. A writer may remember other things, which are its own.
    fn consistent(&self) -> std::result::Result<(), String> {
        let state = &self.state;
        let generator = &state["rng"]["generator"];
        if !generator.is_null() && generator != GENERATOR {
            return Err(format!(
                "state.rng.generator is {}, and this build draws by {GENERATOR:?} only",
                short(generator)
            ));
        }
        // What is a count can be no other number.
        let count = |v: &Value, what: &str| match (v.is_null(), v.as_u64()) {
            (false, None) => Err(format!("state.{what} is {}, not a count", short(v))),
            (_, n) => Ok(n),
        };
        let of_step = |what: &str, v: &Value| {
            let text = short(v);
            format!(
                "state.{what} is {text} in a checkpoint of step {}",
                self.step
            )
        };
        let position = &state["rng"]["position"];
        if count(position, "rng.position")?.is_some_and(|p| p != self.step) {
            return Err(of_step("rng.position", position));
        }
        // A step that the loss scaler skipped is no update, so there may be fewer; without a scaler there are as many.
        let skipped = &state["loss_scaler"]["skipped"];
        let none = state["loss_scaler"].is_null() && state["config"].is_object();
        let skipped = match none {
            true => Some(0),
            false => count(skipped, "loss_scaler.skipped")?,
        };
        for part in ["scheduler", "optimizer"] {
            let updates = &state[part]["step"];
            let Some(n) = count(updates, &format!("{part}.step"))? else {
                continue;
            };
            let all = skipped.map(|s| n.saturating_add(s));
            if n > self.step || all.is_some_and(|all| all != self.step) {
                return Err(of_step(&format!("{part}.step"), updates));
            }
        }
        let lr = &state["scheduler"]["lr"];
        let scale = &state["loss_scaler"]["scale"];
        for (what, v, least) in [
            ("scheduler.lr", lr, 0.0),
            ("loss_scaler.scale", scale, f64::MIN_POSITIVE),
        ] {
            if !v.is_null() && v.as_f64().is_none_or(|n| n < least) {
                return Err(format!("state.{what} is {}", short(v)));
            }
        }
        // The run's own config says the same.
        let config = &state["config"];
        let sequences = &state["sequences_consumed"];
        let taken = count(sequences, "sequences_consumed")?;
        let batch = config["train_batch_size"].as_u64();
        if let (Some(n), Some(batch)) = (taken, batch)
            && batch.checked_mul(self.step) != Some(n)
        {
            let text = of_step("sequences_consumed", sequences);
            return Err(format!("{text} with a batch of {batch}"));
        }
        for (what, v, given, key) in [
            (
                "rng.seed",
                &state["rng"]["seed"],
                &config["run"]["seed"],
                "run.seed",
            ),
            (
                "optimizer.type",
                &state["optimizer"]["type"],
                &config["optimizer"]["type"],
                "optimizer.type",
            ),
        ] {
            if !v.is_null() && !given.is_null() && v != given {
                return Err(format!(
                    "state.{what} is {}, and its config says {key} {}",
                    short(v),
                    short(given)
                ));
            }
        }
        Ok(())
    }
}

/// A value of a manifest for a message.
fn short(v: &Value) -> String {
    crossweave_files::clip(&v.to_string(), 60)
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

/// Folder in which the ranks of one save meet before it has a name.
pub(crate) fn partial_dir(step: u64, save: &str) -> String {
    hidden(step, &format!("{save}.partial"))
}

/// Says in `latest` which step is the newest. Readers do not need it, so whatever happens to it loses nothing.
pub(crate) fn point_latest(root: &Path, step: u64) -> Result<()> {
    let partial = root.join(format!(".{LATEST}.partial"));
    write_synced(&partial, format!("{}\n", step_dir(step)).as_bytes())?;
    let place = root.join(LATEST);
    std::fs::rename(&partial, &place).map_err(CheckpointError::io("rename into place", &place))?;
    sync_dir(root)
}

fn parse_step(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.parse().ok()
}

/// The run and the step of a folder `RUN/checkpoints/step-N`; none for any other path. Nothing is opened.
pub fn run_and_step(path: &Path) -> Option<(&Path, u64)> {
    let step = parse_step(path.file_name()?.to_str()?)?;
    let steps = path.parent().filter(|p| p.ends_with("checkpoints"))?;
    // `checkpoints/step-N` lies in the current folder.
    let run = steps.parent().filter(|run| !run.as_os_str().is_empty());
    Some((run.unwrap_or(".".as_ref()), step))
}

/// Whether `path` is the folder of one step: it has a manifest, or the name that says it should.
pub(crate) fn is_step(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str());
    path.join(MANIFEST).is_file() || name.and_then(parse_step).is_some() && path.is_dir()
}

/// A folder that holds a checkpoint, by its name; nothing is verified yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Optimizer step, from the folder's name.
    pub step: u64,
    /// The step's folder.
    pub path: PathBuf,
}

/// The checkpoints of a run, oldest first. `dir` is the run's directory or the folder of steps in it. A run
/// without checkpoints gives an empty list.
pub fn list(dir: impl AsRef<Path>) -> Result<Vec<Found>> {
    let mut root = root_of(dir.as_ref());
    if !root.is_dir() {
        root = dir.as_ref().to_path_buf();
    }
    // A listing is no snapshot: read while a run adds its newest and removes the one before, it can miss both. Then there was
    // something else to see, and it is read again.
    for _ in 0..LISTINGS {
        let (found, seen) = scan(&root)?;
        if !found.is_empty() || !seen {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// Times a folder is listed before it counts as empty of checkpoints.
const LISTINGS: usize = 10;

/// One listing: the checkpoints, and whether there was anything at all.
fn scan(root: &Path) -> Result<(Vec<Found>, bool)> {
    let mut found = BTreeMap::new();
    let mut aside = Vec::new();
    let entries = entries(root)?;
    let seen = !entries.is_empty();
    for (name, path) in entries {
        // A step's folder gets its name when it is complete: one without a manifest has lost it, and is listed so that it can be reported.
        if let Some(step) = parse_step(&name).filter(|_| path.is_dir()) {
            found.insert(step, path);
        } else if let Some(step) = hidden_step(&name, ".replaced")
            && path.join(MANIFEST).is_file()
        {
            aside.push((step, path));
        }
    }
    // A run killed between the two renames of a replacement left the old folder under its other name only.
    for (step, path) in aside {
        found.entry(step).or_insert(path);
    }
    let found = found
        .into_iter()
        .map(|(step, path)| Found { step, path })
        .collect();
    Ok((found, seen))
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

// Partial folders carry the name of their save behind the step: `.step-00000100.5f0c….partial`.
fn hidden_step(name: &str, suffix: &str) -> Option<u64> {
    let inner = name.strip_prefix('.')?.strip_suffix(suffix)?;
    parse_step(inner.split('.').next()?)
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
    read_hashed(step_path).map(|(manifest, _)| manifest)
}

/// As [`read_manifest`], with the SHA-256 of its text, which is what a signature is of.
pub(crate) fn read_hashed(step_path: &Path) -> std::result::Result<(Manifest, [u8; 32]), String> {
    let bytes = read_manifest_bytes(step_path).map_err(|e| e.to_string())?;
    let manifest = Manifest::parse(&bytes)?;
    let name = step_path.file_name().and_then(|n| n.to_str());
    let named = name.and_then(|n| parse_step(n).or_else(|| hidden_step(n, ".replaced")));
    if let Some(step) = named.filter(|s| *s != manifest.step) {
        return Err(format!(
            "says that it is of step {}, and its folder that it is of step {step}",
            manifest.step
        ));
    }
    manifest.consistent()?;
    Ok((manifest, Sha256::digest(&bytes).into()))
}

/// The text of a step's manifest.
pub(crate) fn read_manifest_bytes(step_path: &Path) -> Result<Vec<u8>> {
    read_json_bytes(&step_path.join(MANIFEST))
}
