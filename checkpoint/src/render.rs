//! `crossweave checkpoint inspect` and `verify` as text: what a directory holds, and whether it is sound.

use crate::error::{CheckpointError, Result};
use crate::hf::HfDir;
use crate::load::check_files;
use crate::manifest::{Found, MANIFEST, Manifest, list, read_manifest};
use crate::safefile::{SafeFile, TensorInfo};
use std::fmt::Write;
use std::path::Path;

/// What lies at `path`, as text: a Hugging Face directory, one safetensors file, a step's folder, or a run with its
/// checkpoints. Only headers and manifests are read.
pub fn inspect(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    let mut out = String::new();
    match what(path)? {
        Kind::File => {
            let file = SafeFile::open(path)?;
            line(&mut out, format!("{}: safetensors", path.display()));
            for (k, v) in file.metadata() {
                line(&mut out, format!("  {k} = {v}"));
            }
            tensors(&mut out, file.tensors());
        }
        Kind::Model => {
            let dir = HfDir::open(path)?;
            let family = dir.config.get("model_type").and_then(|v| v.as_str());
            let num_files = dir.files().count();
            line(
                &mut out,
                format!(
                    "{}: Hugging Face model, model_type {}, {num_files} weight file{}",
                    path.display(),
                    family.unwrap_or("(none)"),
                    if num_files == 1 { "" } else { "s" }
                ),
            );
            for note in &dir.notes {
                line(&mut out, format!("  note: {note}"));
            }
            tensors(&mut out, &dir.tensors);
        }
        Kind::Step => step(&mut out, path)?,
        Kind::Run(found) => {
            line(
                &mut out,
                format!(
                    "{}: {} checkpoint{}",
                    path.display(),
                    found.len(),
                    if found.len() == 1 { "" } else { "s" }
                ),
            );
            for f in &found {
                match read_manifest(&f.path) {
                    Ok(m) => line(
                        &mut out,
                        format!(
                            "  step {:>8}  {} rank{}  {}",
                            m.step,
                            m.world_size,
                            if m.world_size == 1 { "" } else { "s" },
                            size(m.files.iter().map(|r| r.bytes).sum())
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
                step(&mut out, &newest.path)?;
            }
        }
    }
    Ok(out)
}

/// Checks everything at `path` (the same things as [`inspect`]) and returns one line a file. Any damage makes it
/// [`CheckpointError::VerifyFailed`], whose report lists every file all the same.
pub fn verify(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    let mut out = String::new();
    let mut num_bad = 0;
    match what(path)? {
        Kind::File => {
            let file = SafeFile::open(path)?;
            let n = file.tensors().len();
            line(
                &mut out,
                format!("ok       {}  {n} tensors", path.display()),
            );
        }
        Kind::Model => {
            let dir = HfDir::open(path)?;
            for file in dir.files() {
                let n = file.tensors().len();
                line(
                    &mut out,
                    format!(
                        "ok       {}  {n} tensors, {}",
                        file.path().display(),
                        size(file.len())
                    ),
                );
            }
            line(
                &mut out,
                "headers, ranges and the index agree; a model directory carries no hashes of its weights".into(),
            );
        }
        Kind::Step => num_bad += verify_step(&mut out, path),
        Kind::Run(found) => {
            for f in &found {
                num_bad += verify_step(&mut out, &f.path);
            }
            if found.is_empty() {
                line(&mut out, format!("{}: no checkpoints", path.display()));
            }
        }
    }
    if num_bad > 0 {
        let plural = if num_bad == 1 { "" } else { "s" };
        line(
            &mut out,
            format!(
                "{num_bad} file{plural} damaged; fix: resume from a checkpoint whose lines all say ok"
            ),
        );
        return Err(CheckpointError::VerifyFailed { report: out });
    }
    Ok(out)
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
    if path.join(MANIFEST).is_file() {
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

fn step(out: &mut String, path: &Path) -> Result<()> {
    let manifest: Manifest = read_manifest(path).map_err(|reason| {
        CheckpointError::header(
            &path.join(MANIFEST),
            reason,
            "inspect another checkpoint; this one is damaged",
        )
    })?;
    line(
        out,
        format!(
            "{}: step {}, {} ranks, format {}",
            path.display(),
            manifest.step,
            manifest.world_size,
            manifest.format_version
        ),
    );
    for record in &manifest.files {
        let file = SafeFile::open(path.join(&record.name))?;
        line(
            out,
            format!(
                "  {}  {}  {} blobs  sha256 {}…",
                record.name,
                size(record.bytes),
                file.tensors().len(),
                record.sha256.get(..12).unwrap_or_default()
            ),
        );
    }
    let num_layout = manifest.layout.len();
    if num_layout > 0 {
        line(out, format!("  {num_layout} logical tensors:"));
    }
    for (name, logical) in &manifest.layout {
        let ranks: std::collections::BTreeSet<_> = logical.pieces.iter().map(|p| p.rank).collect();
        let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
        line(
            out,
            format!(
                "    {name}  {:?} {:?}  on rank {}",
                logical.dtype,
                logical.shape,
                ranks.join(", ")
            ),
        );
    }
    let state = format!("{:#}", manifest.state).replace('\n', "\n  ");
    line(out, format!("  state: {state}"));
    Ok(())
}

fn verify_step(out: &mut String, path: &Path) -> usize {
    let mut manifest = match read_manifest(path) {
        Ok(m) => m,
        Err(reason) => {
            line(
                out,
                format!("DAMAGED  {}: {reason}", path.join(MANIFEST).display()),
            );
            return 1;
        }
    };
    line(out, format!("ok       {}", path.join(MANIFEST).display()));
    let mut num_bad = 0;
    for record in std::mem::take(&mut manifest.files) {
        manifest.files = vec![record];
        let file = path.join(&manifest.files[0].name);
        let checked = check_files(path, &manifest)
            .map_err(|(_, reason)| reason)
            .and_then(|()| SafeFile::open(&file).map_err(|e| e.to_string()));
        match checked {
            Ok(_) => line(out, format!("ok       {}", file.display())),
            Err(reason) => {
                num_bad += 1;
                line(out, format!("DAMAGED  {}: {reason}", file.display()));
            }
        }
    }
    num_bad
}

fn tensors(out: &mut String, all: &std::collections::BTreeMap<String, TensorInfo>) {
    let width = all.keys().map(String::len).max().unwrap_or(0);
    let (mut elements, mut bytes) = (0, 0);
    for (name, info) in all {
        elements += info.num_elements();
        bytes += info.num_bytes();
        line(
            out,
            format!("  {name:width$}  {:?} {:?}", info.dtype, info.shape),
        );
    }
    line(
        out,
        format!(
            "  {} tensors, {elements} elements, {}",
            all.len(),
            size(bytes)
        ),
    );
}

fn line(out: &mut String, text: String) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{text}");
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
