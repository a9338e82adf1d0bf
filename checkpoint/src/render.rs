//! `crossweave checkpoint inspect` and `verify`: what a directory holds, and whether it is sound, as text or as JSON.

use crate::error::{CheckpointError, Result};
use crate::hf::HfDir;
use crate::layout::prove;
use crate::load::check_file;
use crate::manifest::{Found, MANIFEST, Manifest, is_step, list, read_hashed, read_manifest};
use crate::safefile::{SafeFile, TensorInfo};
use crate::sign::PublicKey;
use crossweave_words::Size;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// What [`inspect`] lists beside its summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// Every tensor, and every file with its hash.
    pub tensors: bool,
    /// Everything that is stored beside the tensors: counters, the config, metadata.
    pub state: bool,
}

/// Checkpoints of a run that a summary lists.
const NEWEST: usize = 5;
/// Notes about a model that a summary lists, and names in one line.
const FEW: usize = 4;

/// What lies at `path`, as text: a Hugging Face directory, one safetensors file, a step's folder, or a run with its
/// checkpoints. Only headers and manifests are read. Without details it is at most 15 lines, whatever lies there.
pub fn inspect(path: impl AsRef<Path>, detail: Detail) -> Result<String> {
    let path = path.as_ref();
    let mut out = String::new();
    match what(path)? {
        Kind::File => {
            let file = SafeFile::open(path)?;
            line(
                &mut out,
                format!("{}: safetensors, {}", path.display(), Size(file.len())),
            );
            let metadata = file.metadata();
            if detail.state {
                for (k, v) in metadata {
                    line(&mut out, format!("  {k} = {v}"));
                }
            } else if !metadata.is_empty() {
                let keys = some(metadata.keys());
                line(&mut out, format!("  metadata: {keys}"));
            }
            tensors(&mut out, file.tensors(), detail);
        }
        Kind::Model => {
            let dir = HfDir::open(path)?;
            let family = dir.config.get("model_type").and_then(|v| v.as_str());
            let num_files = dir.files().count();
            line(
                &mut out,
                format!(
                    "{}: Hugging Face model, model_type {}, {num_files} weight file{}, {}",
                    path.display(),
                    family.unwrap_or("(none)"),
                    plural(num_files),
                    Size(dir.files().map(SafeFile::len).sum())
                ),
            );
            let shown = match detail.state {
                true => dir.notes.len(),
                false => FEW.min(dir.notes.len()),
            };
            for note in &dir.notes[..shown] {
                line(&mut out, format!("  note: {note}"));
            }
            if shown < dir.notes.len() {
                let more = dir.notes.len() - shown;
                line(&mut out, format!("  and {more} more notes (--state)"));
            }
            if detail.state {
                let config = format!("{:#}", dir.config).replace('\n', "\n  ");
                line(&mut out, format!("  config: {config}"));
            }
            tensors(&mut out, &dir.tensors, detail);
        }
        Kind::Step => step(&mut out, path, detail)?,
        Kind::Run(found) => {
            line(
                &mut out,
                format!(
                    "{}: {} checkpoint{}",
                    path.display(),
                    found.len(),
                    plural(found.len())
                ),
            );
            let older = match detail.tensors {
                true => 0,
                false => found.len().saturating_sub(NEWEST),
            };
            if older > 0 {
                line(&mut out, format!("  {older} older (--tensors lists all)"));
            }
            for f in &found[older..] {
                match read_manifest(&f.path) {
                    Ok(m) => line(
                        &mut out,
                        format!(
                            "  step {:>8}  {} rank{}  {}",
                            m.step,
                            m.world_size,
                            plural(m.world_size),
                            Size(m.files.iter().map(|r| r.bytes).sum())
                        ),
                    ),
                    Err(e) => line(
                        &mut out,
                        format!("  step {:>8}  DAMAGED: {MANIFEST}: {e}", f.step),
                    ),
                }
            }
            if let Some(newest) = found.last().filter(|f| read_manifest(&f.path).is_ok()) {
                line(&mut out, "newest:".into());
                step(&mut out, &newest.path, detail)?;
            }
        }
    }
    Ok(out)
}

/// The first of some names, and how many more there are.
fn some<'a>(names: impl ExactSizeIterator<Item = &'a String>) -> String {
    let all = names.len();
    // Whatever a name is made of, it stays in its line.
    let shown = names.take(2 * FEW);
    let shown: Vec<String> = shown
        .map(|n| crossweave_files::clip(n, 60).escape_debug().to_string())
        .collect();
    let more = match all - shown.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{}{more}", shown.join(", "))
}

/// How many of each type: `118 F32, 2 I64`.
fn types(all: impl Iterator<Item = String>) -> String {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    for t in all {
        *count.entry(t).or_default() += 1;
    }
    let each = count.iter().map(|(t, n)| format!("{n} {t}"));
    each.collect::<Vec<_>>().join(", ")
}

/// The same things as [`inspect`], as one JSON object with `kind` `safetensors`, `model`, `checkpoint` or `run`.
pub fn inspect_json(path: impl AsRef<Path>) -> Result<Value> {
    let path = path.as_ref();
    let listed = |all: &BTreeMap<String, TensorInfo>| -> Value {
        let one = |(n, i): (&String, &TensorInfo)| {
            (
                n.clone(),
                json!({"dtype": i.dtype, "shape": i.shape, "bytes": i.num_bytes()}),
            )
        };
        Value::Object(all.iter().map(one).collect())
    };
    Ok(match what(path)? {
        Kind::File => {
            let file = SafeFile::open(path)?;
            json!({
                "kind": "safetensors", "path": path, "bytes": file.len(),
                "metadata": file.metadata(), "tensors": listed(file.tensors()),
            })
        }
        Kind::Model => {
            let dir = HfDir::open(path)?;
            json!({
                "kind": "model", "path": path, "config": dir.config, "notes": dir.notes,
                "files": dir.files().map(|f| f.path()).collect::<Vec<_>>(), "tensors": listed(&dir.tensors),
            })
        }
        Kind::Step => step_json(path, &manifest_of(path)?),
        Kind::Run(found) => {
            let one = |f: &Found| match read_manifest(&f.path) {
                Ok(m) => step_json(&f.path, &m),
                Err(e) => json!({"step": f.step, "path": f.path, "damaged": e}),
            };
            json!({"kind": "run", "path": path, "checkpoints": found.iter().map(one).collect::<Vec<_>>()})
        }
    })
}

fn step_json(path: &Path, m: &Manifest) -> Value {
    let file = |r: &crate::manifest::FileRecord| {
        let (algorithm, hash) = r.hash();
        json!({"rank": r.rank, "name": r.name, "bytes": r.bytes, algorithm: hash})
    };
    json!({
        "kind": "checkpoint", "path": path, "step": m.step, "world_size": m.world_size, "format_version": m.format_version,
        "save": m.save, "files": m.files.iter().map(file).collect::<Vec<_>>(), "tensors": m.layout, "state": m.state,
    })
}

/// A file that was looked at.
#[derive(Serialize)]
struct Checked {
    path: String,
    ok: bool,
    /// What it holds, or what is wrong with it.
    detail: String,
}

fn checked(path: &Path, outcome: std::result::Result<String, String>) -> Checked {
    let ok = outcome.is_ok();
    let (Ok(detail) | Err(detail)) = outcome;
    let path = path.display().to_string();
    Checked { path, ok, detail }
}

/// Checks everything at `path` (the same things as [`inspect`]) and returns one line a file. Any damage makes it
/// [`CheckpointError::VerifyFailed`], whose report lists every file all the same. With a `key`, a checkpoint whose manifest its owner
/// has not signed counts as damaged, and so does what carries no signatures at all.
pub fn verify(path: impl AsRef<Path>, key: Option<&PublicKey>) -> Result<String> {
    verify_by(path, key, &|_| Ok(()))
}

/// What else a manifest is held against, such as the model that it describes; the error is a reason.
pub type Holds<'a> = &'a dyn Fn(&Manifest) -> std::result::Result<(), String>;

/// As [`verify`]; a manifest for which `holds` gives a reason counts as damaged too.
pub fn verify_by(
    path: impl AsRef<Path>,
    key: Option<&PublicKey>,
    holds: Holds<'_>,
) -> Result<String> {
    let (files, note) = examine(path.as_ref(), key, holds)?;
    let mut out = String::new();
    for f in &files {
        match (f.ok, f.detail.as_str()) {
            (true, "") => line(&mut out, format!("ok       {}", f.path)),
            (true, detail) => line(&mut out, format!("ok       {}  {detail}", f.path)),
            (false, detail) => line(&mut out, format!("DAMAGED  {}: {detail}", f.path)),
        }
    }
    if let Some(note) = note {
        line(&mut out, note);
    }
    let num_bad = files.iter().filter(|f| !f.ok).count();
    if num_bad > 0 {
        line(
            &mut out,
            format!(
                "{num_bad} file{} damaged; fix: resume from a checkpoint whose lines all say ok",
                plural(num_bad)
            ),
        );
        return Err(CheckpointError::VerifyFailed { report: out });
    }
    Ok(out)
}

/// As [`verify_by`], as `{"ok": …, "files": [{"path", "ok", "detail"}]}`. Damage is reported by `ok`, not by an error.
pub fn verify_json_by(
    path: impl AsRef<Path>,
    key: Option<&PublicKey>,
    holds: Holds<'_>,
) -> Result<Value> {
    let (files, _) = examine(path.as_ref(), key, holds)?;
    Ok(json!({"ok": files.iter().all(|f| f.ok), "files": files}))
}

fn examine(
    path: &Path,
    key: Option<&PublicKey>,
    holds: Holds<'_>,
) -> Result<(Vec<Checked>, Option<String>)> {
    let mut out = Vec::new();
    let mut note = None;
    let kind = what(path)?;
    if key.is_some() && matches!(kind, Kind::File | Kind::Model) {
        return Err(CheckpointError::NotFound {
            path: path.to_path_buf(),
            reason: "only training checkpoints are signed".into(),
            fix: "name a run or a checkpoint of one, or leave the key out".into(),
        });
    }
    match kind {
        Kind::File => {
            let file = SafeFile::open(path)?;
            out.push(checked(
                path,
                Ok(format!("{} tensors", file.tensors().len())),
            ));
        }
        Kind::Model => {
            let dir = HfDir::open(path)?;
            for file in dir.files() {
                let n = file.tensors().len();
                let detail = format!("{n} tensors, {}", Size(file.len()));
                out.push(checked(file.path(), Ok(detail)));
            }
            note = Some(
                "headers, ranges and the index agree; a model directory carries no hashes of its weights".into(),
            );
        }
        Kind::Step => verify_step(&mut out, path, key, holds),
        Kind::Run(found) => {
            found
                .iter()
                .for_each(|f| verify_step(&mut out, &f.path, key, holds));
            if found.is_empty() {
                note = Some(format!("{}: no checkpoints", path.display()));
            }
        }
    }
    Ok((out, note))
}

enum Kind {
    File,
    Model,
    Step,
    Run(Vec<Found>),
}

fn what(path: &Path) -> Result<Kind> {
    if path.is_file() {
        return Ok(Kind::File);
    }
    if is_step(path) {
        return Ok(Kind::Step);
    }
    let found = list(path)?;
    if path.join("checkpoints").is_dir() || !found.is_empty() {
        return Ok(Kind::Run(found));
    }
    if path.join("config.json").is_file() && !path.join("metrics.jsonl").exists() {
        return Ok(Kind::Model);
    }
    Err(CheckpointError::NotFound {
        path: path.to_path_buf(),
        reason: "neither a model directory, nor a run with checkpoints, nor a safetensors file"
            .into(),
        fix: "name one of them".into(),
    })
}

fn manifest_of(path: &Path) -> Result<Manifest> {
    read_manifest(path).map_err(|reason| {
        CheckpointError::header(
            &path.join(MANIFEST),
            reason,
            "inspect another checkpoint; this one is damaged",
        )
    })
}

fn step(out: &mut String, path: &Path, detail: Detail) -> Result<()> {
    let manifest = manifest_of(path)?;
    line(
        out,
        format!(
            "{}: step {}, {} rank{}, format {}",
            path.display(),
            manifest.step,
            manifest.world_size,
            plural(manifest.world_size),
            manifest.format_version
        ),
    );
    let num_files = manifest.files.len();
    let bytes = manifest.files.iter().map(|r| r.bytes).sum();
    let hashed = manifest.files.first().map_or("", |r| r.hash().0);
    line(
        out,
        format!(
            "  {num_files} file{}, {}, hashed by {hashed}",
            plural(num_files),
            Size(bytes)
        ),
    );
    for record in manifest.files.iter().filter(|_| detail.tensors) {
        let file = SafeFile::open(path.join(&record.name))?;
        let (algorithm, hash) = record.hash();
        line(
            out,
            format!(
                "    {}  {}  {} blobs  {algorithm} {}…",
                record.name,
                Size(record.bytes),
                file.tensors().len(),
                hash.get(..12).unwrap_or_default()
            ),
        );
    }
    let layout = &manifest.layout;
    if !layout.is_empty() {
        let kinds = types(layout.values().map(|l| format!("{:?}", l.dtype)));
        let elements: u64 = layout
            .values()
            .map(|l| elements(&l.shape))
            .fold(0, u64::saturating_add);
        line(
            out,
            format!("  {} tensors ({kinds}), {elements} elements", layout.len()),
        );
    }
    let width = layout.keys().map(String::len).max().unwrap_or(0);
    for (name, logical) in layout.iter().filter(|_| detail.tensors) {
        let ranks: BTreeSet<_> = logical.pieces.iter().map(|p| p.rank).collect();
        let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
        line(
            out,
            format!(
                "    {name:width$}  {:?} {:?}  on rank {}",
                logical.dtype,
                logical.shape,
                ranks.join(", ")
            ),
        );
    }
    match (detail.state, manifest.state.as_object()) {
        (false, Some(state)) => line(out, format!("  state: {}", some(state.keys()))),
        _ => {
            let state = format!("{:#}", manifest.state).replace('\n', "\n  ");
            line(out, format!("  state: {state}"));
        }
    }
    if !detail.tensors && !detail.state {
        line(out, "  more: --tensors, --state, --json".into());
    }
    Ok(())
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().fold(1, |a, d| a.saturating_mul(*d as u64))
}

fn verify_step(out: &mut Vec<Checked>, path: &Path, key: Option<&PublicKey>, holds: Holds<'_>) {
    let manifest_path = path.join(MANIFEST);
    let (manifest, sha256) = match read_hashed(path) {
        Ok(m) => m,
        Err(reason) => return out.push(checked(&manifest_path, Err(reason))),
    };
    let at = out.len();
    let mut files = Vec::new();
    for record in &manifest.files {
        let file = path.join(&record.name);
        let outcome = check_file(&file, record, &manifest);
        out.push(checked(
            &file,
            outcome
                .as_ref()
                .map(|_| Size(record.bytes).to_string())
                .map_err(Clone::clone),
        ));
        files.push(outcome.ok());
    }
    // With a file gone there is nothing to hold the layout against; that file's line says enough.
    let sound = files.iter().all(Option::is_some);
    let layout = prove(&manifest.layout, |rank, name| {
        let info = files.get(rank)?.as_ref()?.tensors().get(name)?;
        Some((info.dtype, info.num_elements()))
    });
    let outcome = match (layout, key, holds(&manifest)) {
        (Err((name, reason)), ..) if sound => Err(format!("`{name}`: {reason}")),
        (_, _, Err(reason)) => Err(reason),
        (_, Some(key), _) => key
            .check(path, &sha256)
            .map(|()| format!("step {}, signed", manifest.step)),
        _ => Ok(format!("step {}", manifest.step)),
    };
    out.insert(at, checked(&manifest_path, outcome));
}

fn tensors(out: &mut String, all: &BTreeMap<String, TensorInfo>, detail: Detail) {
    let width = all.keys().map(String::len).max().unwrap_or(0);
    let (mut elements, mut bytes) = (0, 0);
    for (name, info) in all {
        elements += info.num_elements();
        bytes += info.num_bytes();
        if detail.tensors {
            line(
                out,
                format!("  {name:width$}  {:?} {:?}", info.dtype, info.shape),
            );
        }
    }
    let kinds = match all.is_empty() {
        true => String::new(),
        false => format!(
            " ({})",
            types(all.values().map(|i| format!("{:?}", i.dtype)))
        ),
    };
    line(
        out,
        format!(
            "  {} tensors{kinds}, {elements} elements, {}",
            all.len(),
            Size(bytes)
        ),
    );
    if !detail.tensors && !detail.state {
        line(out, "  more: --tensors, --state, --json".into());
    }
}

fn line(out: &mut String, text: String) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{text}");
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}
