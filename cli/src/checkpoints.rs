//! `crossweave checkpoint`: look into a checkpoint or a model folder, verify every byte, write it for other ranks, export its model.

use crate::args::CheckpointAction;
use crate::described;
use crate::error::{CliError, Result};
use crate::exports::{self, Form, Weights};
use crate::say::say;
use crate::surroundings::Caches;
use crossweave_checkpoint::{
    Detail, Dtype, PublicKey, SIGNATURE, SecretKey, inspect, inspect_json, keygen, sign, verify_by,
    verify_json_by,
};
use serde_json::json;
use std::path::Path;

/// Runs the command.
///
/// # Errors
/// Nothing there; damage, with file and reason; a target that is taken; the disk.
pub fn run(action: CheckpointAction, caches: &Caches) -> Result<()> {
    match action {
        CheckpointAction::Inspect {
            dir, json: true, ..
        } => say!("{:#}", inspect_json(&dir)?),
        CheckpointAction::Inspect {
            dir,
            json: false,
            tensors,
            state,
        } => say!("{}", inspect(&dir, Detail { tensors, state })?.trim_end()),
        CheckpointAction::Verify { dir, key, json } => {
            let key = key.map(|k| PublicKey::read(&k)).transpose()?;
            check(&dir, key.as_ref(), json)?;
        }
        CheckpointAction::Keygen { file } => {
            let (key, public) = keygen(&file)?;
            say!("{}: secret; keep it from others", file.display());
            say!("{}: public key {key}", public.display());
        }
        CheckpointAction::Sign { dir, key } => {
            for step in sign(&dir, &SecretKey::read(&key)?)? {
                say!("signed   {}", step.join(SIGNATURE).display());
            }
        }
        CheckpointAction::Reshard {
            dir,
            out,
            ranks,
            stage,
            json,
        } => rewrite(&dir, &out, ranks, stage, json)?,
        CheckpointAction::Export {
            dir,
            out,
            dtype,
            merge,
            ema,
            json,
        } => {
            let form = Form {
                dtype: match dtype.as_str() {
                    "bf16" => Dtype::BF16,
                    "f16" => Dtype::F16,
                    _ => Dtype::F32,
                },
                merge,
                weights: match ema {
                    true => Weights::Averaged,
                    false => Weights::Trained,
                },
            };
            export((&dir, caches), &out, form, json)?;
        }
    }
    Ok(())
}

/// Holds everything against lengths, hashes and, with a key, signatures.
fn check(dir: &Path, key: Option<&PublicKey>, json: bool) -> Result<()> {
    if !json {
        say!("{}", verify_by(dir, key, &described::holds)?.trim_end());
        return Ok(());
    }
    let report = verify_json_by(dir, key, &described::holds)?;
    say!("{report:#}");
    match report["ok"] == true {
        true => Ok(()),
        false => Err(CliError::refused(
            format!("{}: damaged files, see \"files\"", dir.display()),
            "resume from a checkpoint that is whole",
        )),
    }
}

/// Writes an equivalent checkpoint for another number of ranks.
fn rewrite(dir: &Path, out: &Path, ranks: u32, stage: Option<u8>, json: bool) -> Result<()> {
    let done = exports::for_ranks(dir, out, ranks, stage)?;
    let (step, had, to) = (done.step, done.from_ranks, &done.to);
    if json {
        let report = json!({"step": step, "from": {"path": done.from, "ranks": had}, "to": {"path": to, "ranks": ranks}});
        say!("{report:#}");
    } else {
        say!("step {step}: {had} rank(s) -> {ranks}: {}", to.display());
    }
    Ok(())
}

/// Writes a checkpoint's model in Hugging Face layout, or its adapters in PEFT's.
fn export(from: (&Path, &Caches), out: &Path, form: Form, json: bool) -> Result<()> {
    let done = exports::as_model(from, out, form, &|what| {
        eprintln!("warning: {what}");
    })?;
    let (step, params) = (done.step, done.params);
    if json {
        let report =
            json!({"step": step, "checkpoint": done.from, "model": out, "tensors": params});
        say!("{report:#}");
        return Ok(());
    }
    let what = match form.merge {
        true => "matrices of adapters, merged",
        false => "tensors",
    };
    say!("step {step}: {params} {what}: {}", out.display());
    Ok(())
}
