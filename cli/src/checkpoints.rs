//! `crossweave checkpoint`: look into a checkpoint or a model folder, verify every byte, write it for other ranks, export its model.

use crate::args::CheckpointAction;
use crate::companions::Companions;
use crate::error::{CliError, Result};
use crate::say::say;
use crate::stored::{floats, parameters};
use crate::surroundings::Caches;
use crate::train::save;
use crate::{adapted, described, trained};
use crossweave_checkpoint::{
    Checkpoint, Detail, Dtype, Proof, PublicKey, SIGNATURE, SecretKey, check_target, inspect,
    inspect_json, keygen, reshard, sign, verify_by, verify_json_by,
};
use serde_json::{Value, json};
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
            json,
        } => export((&dir, caches), &out, &dtype, merge, json)?,
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
    // Read once: each chunk is held against its hash as it passes.
    let from = Checkpoint::open_as(dir, Proof::AsRead)?;
    described::check(&from)?;
    let mut state = from.state().clone();
    // A run that continues asks for its ranks and stage anew; what is recorded is what the files are cut for.
    if state["config"]["mesh"].is_object() {
        state["config"]["mesh"]["dp"] = ranks.into();
        // Each of these ranks has a slice of every whole unit.
        for axis in ["pp", "tp", "cp"] {
            state["config"]["mesh"][axis] = 1.into();
        }
        state["config"]["mesh"]["pp_layers"] = "even".into();
    }
    if let Some(stage) = stage {
        state["config"]["zero_optimization"]["stage"] = stage.into();
    }
    let step = reshard(&from, out, ranks as usize, state)?;
    if json {
        let report = json!({"step": from.step(), "from": {"path": from.path(), "ranks": from.world_size()}, "to": {"path": step, "ranks": ranks}});
        say!("{report:#}");
    } else {
        say!(
            "step {}: {} rank(s) -> {ranks}: {}",
            from.step(),
            from.world_size(),
            step.display()
        );
    }
    Ok(())
}

/// Writes a checkpoint's model in Hugging Face layout, or its adapters in PEFT's.
fn export(
    (dir, caches): (&Path, &Caches),
    out: &Path,
    dtype: &str,
    merge: bool,
    json: bool,
) -> Result<()> {
    let dtype = match dtype {
        "bf16" => Dtype::BF16,
        "f16" => Dtype::F16,
        _ => Dtype::F32,
    };
    let from = Checkpoint::open_as(dir, Proof::AsRead)?;
    described::check(&from)?;
    let config = trained::hf_config(&from, caches)?;
    check_target(out)?;
    let warn = |what: &str| eprintln!("warning: {what}");
    let extra = trained::companions(&from, &config, caches, &warn).or_else(|e| {
        warn(&format!("the model is written without a tokenizer: {e}"));
        Companions {
            tokenizer: None,
            folder: None,
            config: &config,
            warn: &warn,
        }
        .files()
    })?;
    match merge {
        true => merged(&from, out, &config, dtype, &extra)?,
        false => save::export(&from, out, &config, dtype, (&extra, save::Weights::Trained))?,
    }
    let num_params = parameters(&from).count();
    if json {
        let report = json!({"step": from.step(), "checkpoint": from.path(), "model": out, "tensors": num_params});
        say!("{report:#}");
    } else {
        say!(
            "step {}: {num_params} {}: {}",
            from.step(),
            match merge {
                true => "matrices of adapters, merged",
                false => "tensors",
            },
            out.display()
        );
    }
    Ok(())
}

/// Writes the model under a checkpoint's adapters with their updates added.
fn merged(
    from: &Checkpoint,
    out: &Path,
    config: &Value,
    dtype: Dtype,
    extra: &[(String, Vec<u8>)],
) -> Result<()> {
    let Some(source) = adapted::of_checkpoint(from)? else {
        return Err(CliError::refused(
            format!("--merge: {} holds no adapters", from.path().display()),
            "leave --merge out: its model is whole",
        ));
    };
    let read = |name: &str| {
        let logical = format!("value/{name}");
        let shape = &from.logical_info(&logical)?.shape;
        let elements = shape.iter().map(|d| *d as u64).product();
        floats(from, &logical, 0..elements)
    };
    Ok(adapted::merge(&source, out, config, dtype, extra, &read)?)
}
