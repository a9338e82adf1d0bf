//! The tokenizer that travels with a model: `tokenizer.json` where there is one, else a note that names a built-in one.

use crate::caches::Caches;
use crate::error::{JobError, Result};
use crate::hub::{self, Part};
use crossweave_config as config;
use crossweave_data::{Tokenizer, TokenizerKind, TokenizerSpec};
use crossweave_files as disk;
use crossweave_nn::ModelSpec;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// File that names a built-in tokenizer beside a model.
pub const NOTE: &str = "crossweave_tokenizer.json";
/// File of a tokenizer in Hugging Face's format.
pub const HF_FILE: &str = "tokenizer.json";

/// Content of [`NOTE`].
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    /// `bytes`, `gpt2`, or `file` for the `tokenizer.json` beside the note.
    tokenizer: String,
    /// As `data.append_eod`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    append_eod: Option<bool>,
    /// As `data.eod_token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    eod_token: Option<String>,
    /// As `data.add_bos`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    add_bos: Option<bool>,
}

/// What a config asks for; `hf` is the model's folder, whose tokenizer is taken when the config names none.
///
/// # Errors
/// A note in the folder that cannot be read; a folder without a tokenizer whose vocabulary is that of no built-in one.
pub fn of_config(
    data: &config::TextData,
    hf: Option<&Path>,
    caches: &Caches,
) -> Result<TokenizerSpec> {
    let kind = match &data.tokenizer {
        Some(config::Tokenizer::BuiltIn(config::BuiltIn::Bytes)) => TokenizerKind::Bytes,
        Some(config::Tokenizer::BuiltIn(config::BuiltIn::Gpt2)) => TokenizerKind::Gpt2,
        Some(config::Tokenizer::File(f)) => TokenizerKind::HfFile(f.file.clone().into()),
        Some(config::Tokenizer::Hf(t)) => {
            let dir = hub::folder(&t.hf, "data.tokenizer.hf", Part::Tokenizer, caches)?;
            let spec = of_folder(&dir)?.ok_or_else(|| none_in(&dir))?;
            return Ok(laid_over(data, spec));
        }
        None => match hf {
            Some(dir) => {
                let spec = match (of_folder(dir)?, vocabulary(dir)) {
                    (Some(spec), _) => spec,
                    (None, Some(vocab)) => by_vocabulary(dir, vocab)?,
                    // What is wrong with the model is said where it is opened.
                    (None, None) => TokenizerSpec::new(TokenizerKind::Bytes),
                };
                return Ok(laid_over(data, spec));
            }
            None => TokenizerKind::Bytes,
        },
    };
    Ok(TokenizerSpec {
        kind,
        append_eod: data.append_eod,
        eod_token: data.eod_token.clone(),
        add_bos: data.add_bos,
    })
}

/// What the config says of documents' ends goes before what the tokenizer's note says.
fn laid_over(data: &config::TextData, spec: TokenizerSpec) -> TokenizerSpec {
    TokenizerSpec {
        append_eod: data.append_eod.or(spec.append_eod),
        eod_token: data.eod_token.clone().or(spec.eod_token),
        add_bos: data.add_bos.or(spec.add_bos),
        ..spec
    }
}

/// The vocabulary of a model folder, if it is one.
fn vocabulary(dir: &Path) -> Option<u64> {
    let bytes = disk::read(&dir.join("config.json"), disk::TABLE).ok()?;
    let config = serde_json::from_slice(&bytes).ok()?;
    Some(ModelSpec::from_hf(&config).ok()?.model().vocab)
}

/// The built-in tokenizer that a model without a tokenizer of its own can only have been made for.
fn by_vocabulary(dir: &Path, vocab: u64) -> Result<TokenizerSpec> {
    match vocab {
        256..=257 => Ok(TokenizerSpec::new(TokenizerKind::Bytes)),
        50257..=50304 => Ok(TokenizerSpec::new(TokenizerKind::Gpt2)),
        _ => Err(none_in(dir)),
    }
}

fn none_in(dir: &Path) -> JobError {
    let older = ["vocab.json", "vocab.txt", "tokenizer.model", "spiece.model"];
    let fix = match older.iter().find(|f| dir.join(f).is_file()) {
        Some(file) => format!(
            "it has {file}, of an older kind: AutoTokenizer.from_pretrained(dir).save_pretrained(dir) in transformers writes {HF_FILE} beside it"
        ),
        None => format!(
            "copy the model's {HF_FILE} there, set data.tokenizer, or write {{\"tokenizer\": \"gpt2\"}} into {NOTE}"
        ),
    };
    JobError::refused(format!("{} has no {HF_FILE}", dir.display()), fix)
}

/// The tokenizer beside a model; `None` when there is none.
///
/// # Errors
/// A note that cannot be read.
pub fn of_folder(dir: &Path) -> Result<Option<TokenizerSpec>> {
    let (note, file) = (dir.join(NOTE), dir.join(HF_FILE));
    if !note.is_file() {
        return Ok(file
            .is_file()
            .then(|| TokenizerSpec::new(TokenizerKind::HfFile(file))));
    }
    let bytes = disk::read(&note, disk::TEXT).map_err(JobError::io("read", &note))?;
    let bad = |why: String| {
        let fix = "write {\"tokenizer\": \"bytes\"}, {\"tokenizer\": \"gpt2\"} or remove the file";
        JobError::refused(format!("{}: {why}", note.display()), fix)
    };
    let read: Note = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
    let kind = match read.tokenizer.as_str() {
        "bytes" => TokenizerKind::Bytes,
        "gpt2" => TokenizerKind::Gpt2,
        "file" => TokenizerKind::HfFile(file),
        other => return Err(bad(format!("no tokenizer {other:?}"))),
    };
    Ok(Some(TokenizerSpec {
        kind,
        append_eod: read.append_eod,
        eod_token: read.eod_token,
        add_bos: read.add_bos,
    }))
}

/// The files that let `generate` decode with the tokenizer of `spec`.
///
/// # Errors
/// A `tokenizer.json` that cannot be read any more.
pub fn files(spec: &TokenizerSpec) -> Result<Vec<(String, Vec<u8>)>> {
    let (name, mut out) = match &spec.kind {
        TokenizerKind::Bytes => ("bytes", vec![]),
        TokenizerKind::Gpt2 => ("gpt2", vec![]),
        TokenizerKind::HfFile(path) => {
            let bytes = disk::read(path, disk::TABLE).map_err(JobError::io("read", path))?;
            ("file", vec![(HF_FILE.to_string(), bytes)])
        }
    };
    let note = Note {
        tokenizer: name.into(),
        append_eod: spec.append_eod,
        eod_token: spec.eod_token.clone(),
        add_bos: spec.add_bos,
    };
    let text = serde_json::to_string_pretty(&note).unwrap_or_default() + "\n";
    out.push((NOTE.to_string(), text.into_bytes()));
    Ok(out)
}

/// Opens the tokenizer beside a model, or the built-in one that its vocabulary points to.
///
/// # Errors
/// No tokenizer; a damaged one; one larger than the model's vocabulary.
pub fn open_for(dir: &Path, vocab: u64) -> Result<Tokenizer> {
    let spec = match of_folder(dir)? {
        Some(spec) => spec,
        None => by_vocabulary(dir, vocab)?,
    };
    Ok(Tokenizer::open(&spec, Some(vocab as usize))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_names_the_tokenizer_it_was_written_for() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of_folder(dir.path()).unwrap(), None);
        for kind in [TokenizerKind::Bytes, TokenizerKind::Gpt2] {
            let spec = TokenizerSpec {
                kind,
                append_eod: Some(false),
                eod_token: None,
                add_bos: None,
            };
            for (name, bytes) in files(&spec).unwrap() {
                std::fs::write(dir.path().join(name), bytes).unwrap();
            }
            assert_eq!(of_folder(dir.path()).unwrap(), Some(spec));
        }
        std::fs::write(dir.path().join(NOTE), r#"{"tokenizer": "morse"}"#).unwrap();
        let e = of_folder(dir.path()).unwrap_err().to_string();
        assert!(
            e.contains(NOTE) && e.contains("morse") && e.contains("fix:"),
            "{e}"
        );
    }
}
