//! Writing a model directory that transformers loads, whole or not at all.

use crate::error::{CheckpointError, Result};
use crate::files::{TempDir, parent_of, write_synced};
use crate::safewrite::{TensorOut, write_safetensors};
use crossweave_claim::Claim;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The shard size transformers uses when none is given.
pub const DEFAULT_SHARD_BYTES: u64 = 5_000_000_000;

/// File extensions a model directory of ours or of transformers may hold; anything else stops a replacement.
const KNOWN_EXTENSIONS: [&str; 6] = ["json", "safetensors", "txt", "model", "jinja", "md"];

/// Writes `config.json`, `generation_config.json`, the weights (`model.safetensors`, or shards of at most
/// `max_shard_bytes` with their index) and `extra` files (tokenizer and the like; they win over a generated
/// `generation_config.json`).
///
/// Names are written as given, so give the names transformers uses, and leave out a tied `lm_head.weight`. The directory
/// is filled under a temporary name in the same parent, synced, and renamed; a model directory that stood at `dir` is
/// replaced, anything else is refused; so is a second export to `dir` while one runs. Memory: one provider's chunk at a time.
pub fn export_hf<'a>(
    dir: impl AsRef<Path>,
    config: &Value,
    tensors: impl IntoIterator<Item = TensorOut<'a>>,
    max_shard_bytes: u64,
    extra: &[(String, Vec<u8>)],
) -> Result<()> {
    let fields = config.as_object().ok_or_else(|| {
        CheckpointError::write(
            "config.json",
            "a config is a JSON object",
            "give the model's config",
        )
    })?;
    replace(dir.as_ref(), |temp| {
        write_weights(temp, tensors, max_shard_bytes)?;
        write_json(temp, "config.json", config)?;
        if !extra.iter().any(|(n, _)| n == "generation_config.json") {
            write_json(temp, "generation_config.json", &generation_config(fields))?;
        }
        write_extra(temp, extra)
    })
}

/// Writes an adapter directory as PEFT's `save_pretrained` does, `adapter_config.json` and `adapter_model.safetensors`, with `extra`
/// files; whole or not at all, as [`export_hf`].
pub fn export_adapter<'a>(
    dir: impl AsRef<Path>,
    config: &Value,
    tensors: impl IntoIterator<Item = TensorOut<'a>>,
    extra: &[(String, Vec<u8>)],
) -> Result<()> {
    replace(dir.as_ref(), |temp| {
        let tensors = tensors.into_iter().collect();
        write_safetensors(&temp.path().join(ADAPTER), tensors, &[("format", "pt")])?;
        write_json(temp, ADAPTER_CONFIG, config)?;
        write_extra(temp, extra)
    })
}

/// The weights of an adapter directory.
pub const ADAPTER: &str = "adapter_model.safetensors";
/// The file that makes a directory an adapter's.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";

/// Fills a temporary directory and puts it in the place of `dir`.
fn replace(dir: &Path, fill: impl FnOnce(&TempDir) -> Result<()>) -> Result<()> {
    let name = dir.file_name().ok_or_else(|| {
        target_error(
            dir,
            "not the name of a directory",
            "name a directory to write to",
        )
    })?;
    let parent = parent_of(dir);
    std::fs::create_dir_all(parent).map_err(CheckpointError::io("create", parent))?;
    // Two at once would fill one temporary folder.
    let _claim = Claim::beside(dir, "export of a model")?;
    check_target(dir)?;
    let mut temp = TempDir::create(beside(parent, name, ".partial"))?;
    fill(&temp)?;
    temp.publish(dir, &beside(parent, name, ".replaced"))
}

fn write_weights<'a>(
    temp: &TempDir,
    tensors: impl IntoIterator<Item = TensorOut<'a>>,
    max_shard_bytes: u64,
) -> Result<()> {
    let shards = split(tensors, max_shard_bytes)?;
    let num_shards = shards.len();
    let (mut weight_map, mut total_bytes, mut total_params) = (Map::new(), 0u64, 0u64);
    for (i, shard) in shards.into_iter().enumerate() {
        let file = match num_shards {
            1 => "model.safetensors".to_string(),
            n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
        };
        for t in &shard {
            total_bytes += t.num_bytes()?;
            total_params += crate::dtype::num_elements(&t.shape).unwrap_or(0);
            if weight_map
                .insert(t.name.clone(), Value::from(file.clone()))
                .is_some()
            {
                return Err(CheckpointError::write(
                    &t.name,
                    "given twice",
                    "give every parameter once",
                ));
            }
        }
        write_safetensors(&temp.path().join(&file), shard, &[("format", "pt")])?;
    }
    if num_shards > 1 {
        let index = json!({
            "metadata": {"total_parameters": total_params, "total_size": total_bytes},
            "weight_map": weight_map,
        });
        write_json(temp, "model.safetensors.index.json", &index)?;
    }
    Ok(())
}

fn write_extra(temp: &TempDir, extra: &[(String, Vec<u8>)]) -> Result<()> {
    for (file, bytes) in extra {
        let taken = temp.path().join(file).exists();
        if taken || Path::new(file).file_name() != Some(file.as_ref()) {
            return Err(CheckpointError::write(
                file,
                "an extra file is a plain name that the export does not write itself",
                "rename it or leave it out",
            ));
        }
        write_synced(&temp.path().join(file), bytes)?;
    }
    Ok(())
}

/// Is `dir` free to be written: absent, empty, or a model directory that may be replaced? Callers that train for hours
/// before they export ask this first.
pub fn check_target(dir: &Path) -> Result<()> {
    let fix = "choose another directory, or move what is there";
    let Ok(meta) = dir.symlink_metadata() else {
        return Ok(());
    };
    if !meta.is_dir() {
        return Err(target_error(dir, "is not a directory", fix));
    }
    let entries = std::fs::read_dir(dir).map_err(CheckpointError::io("list", dir))?;
    let mut empty = true;
    for entry in entries {
        let entry = entry.map_err(CheckpointError::io("list", dir))?;
        empty = false;
        let path = PathBuf::from(entry.file_name());
        let known = path
            .extension()
            .is_some_and(|e| KNOWN_EXTENSIONS.iter().any(|k| e == *k));
        if !known || !entry.file_type().is_ok_and(|t| t.is_file()) {
            let reason = format!(
                "holds `{}`, which is no file of a model directory, so it is not replaced",
                path.display()
            );
            return Err(target_error(dir, &reason, fix));
        }
    }
    if !empty && !is_model(dir) {
        return Err(target_error(
            dir,
            "is neither empty nor a model directory (no config.json, no adapter_config.json), so it is not replaced",
            fix,
        ));
    }
    Ok(())
}

fn is_model(dir: &Path) -> bool {
    [ADAPTER_CONFIG, "config.json"]
        .iter()
        .any(|f| dir.join(f).is_file())
}

/// The model that a killed export had moved aside before its own could take the place, if there is one.
pub(crate) fn left_aside(dir: &Path) -> Option<PathBuf> {
    let aside = beside(parent_of(dir), dir.file_name()?, ".replaced");
    is_model(&aside).then_some(aside)
}

fn target_error(dir: &Path, reason: &str, fix: &str) -> CheckpointError {
    CheckpointError::Target {
        path: dir.to_path_buf(),
        reason: reason.to_string(),
        fix: fix.to_string(),
    }
}

fn beside(parent: &Path, name: &std::ffi::OsStr, suffix: &str) -> PathBuf {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(suffix);
    parent.join(hidden)
}

fn write_json(temp: &TempDir, file: &str, value: &Value) -> Result<()> {
    write_synced(&temp.path().join(file), format!("{value:#}\n").as_bytes())
}

/// Greedy in the given order, as transformers does: a shard is closed when the next tensor would not fit.
fn split<'a>(
    tensors: impl IntoIterator<Item = TensorOut<'a>>,
    max_shard_bytes: u64,
) -> Result<Vec<Vec<TensorOut<'a>>>> {
    let mut shards = vec![Vec::new()];
    let mut filled = 0u64;
    for t in tensors {
        let bytes = t.num_bytes()?;
        if filled > 0 && filled.saturating_add(bytes) > max_shard_bytes {
            shards.push(Vec::new());
            filled = 0;
        }
        filled = filled.saturating_add(bytes);
        if let Some(last) = shards.last_mut() {
            last.push(t);
        }
    }
    Ok(shards)
}

/// The few keys transformers itself derives from a model config.
fn generation_config(config: &Map<String, Value>) -> Value {
    let mut out = Map::new();
    out.insert("_from_model_config".into(), Value::Bool(true));
    for key in [
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "transformers_version",
    ] {
        if let Some(v) = config.get(key).filter(|v| !v.is_null()) {
            out.insert(key.into(), v.clone());
        }
    }
    Value::Object(out)
}
