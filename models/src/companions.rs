//! The files beside a model's weights: its tokenizer, special tokens and generation settings, so that `transformers` loads the folder as it is.
//!
//! A tokenizer of this program's own is written in the form of `tokenizers`; one that came from a folder takes the files of that folder with
//! it. The special tokens are those the run used: the token that ended its documents begins and ends a text.

use crate::job_error::Result;
use crate::tokens;
use crossweave_checkpoint::{TOKENIZER_FILES, named_files};
use crossweave_data::{Tokenizer, TokenizerKind, TokenizerSpec};
use serde_json::{Map, Value, json};
use std::path::Path;

const SETTINGS: &str = "tokenizer_config.json";
const SPECIAL: &str = "special_tokens_map.json";
const GENERATION: &str = "generation_config.json";

/// Name and contents.
pub type File = (String, Vec<u8>);

/// What the files are made from.
pub struct Companions<'a> {
    /// The run's tokenizer; `None` for a run on given tokens without one.
    pub tokenizer: Option<(&'a TokenizerSpec, &'a Tokenizer)>,
    /// The folder the model was loaded from.
    pub folder: Option<&'a Path>,
    /// `config.json` of the model.
    pub config: &'a Value,
    /// Takes a warning about a file of the folder.
    pub warn: &'a dyn Fn(&str),
}

impl Companions<'_> {
    /// All of them.
    ///
    /// # Errors
    /// A tokenizer file or a file of the folder that cannot be read any more.
    pub fn files(&self) -> Result<Vec<File>> {
        let mut out = match (self.tokenizer, self.folder) {
            (Some((spec, t)), _) => self.tokenizer_files(spec, t)?,
            // Nothing is known of it; what the model came with stays with it.
            (None, Some(dir)) => named_files(dir, TOKENIZER_FILES)?,
            (None, None) => vec![],
        };
        out.push((GENERATION.into(), self.generation()?));
        Ok(out)
    }

    /// Longest sequence of the model, in tokens.
    fn longest(&self) -> Option<u64> {
        let keys = ["n_positions", "max_position_embeddings"];
        keys.iter().find_map(|k| self.config[*k].as_u64())
    }

    fn tokenizer_files(&self, spec: &TokenizerSpec, t: &Tokenizer) -> Result<Vec<File>> {
        let mut out = tokens::files(spec)?;
        let own = t.hf_files().into_iter();
        out.extend(own.map(|(name, bytes)| (name.to_string(), bytes)));
        let beside = match (&spec.kind, self.folder) {
            (TokenizerKind::HfFile(path), _) => siblings(path)?,
            // The folder of a model that was trained here: what was put beside its tokenizer stays there.
            (own, Some(dir)) if tokens::of_folder(dir)?.is_some_and(|t| t.kind == *own) => {
                named_files(dir, TOKENIZER_FILES)?
            }
            _ => vec![],
        };
        for file in beside {
            if out.iter().all(|(name, _)| *name != file.0) {
                out.push(file);
            }
        }
        self.special_tokens(spec, t, &mut out);
        Ok(out)
    }

    /// Makes sure that [`SETTINGS`] is there and names the run's tokens. Files that came along are left as they are, byte for byte, unless
    /// they name no end of a text or the config has chosen another (`data.eod_token`).
    fn special_tokens(&self, spec: &TokenizerSpec, t: &Tokenizer, out: &mut Vec<File>) {
        let end = t.eod_name().map(Value::from);
        let given = self.take_object(out, SETTINGS);
        let fresh = given.is_none();
        let mut settings = given.unwrap_or_default();
        if fresh {
            let class = match spec.kind {
                TokenizerKind::Gpt2 => "GPT2Tokenizer",
                TokenizerKind::Bytes | TokenizerKind::HfFile(_) => "PreTrainedTokenizerFast",
            };
            settings.insert("tokenizer_class".into(), class.into());
            // Spaces before punctuation are text; old releases remove them unless this is set.
            settings.insert("clean_up_tokenization_spaces".into(), false.into());
            // Without this some releases add types of segments, which GPT-2's model takes for tokens and Llama's refuses.
            let inputs = json!(["input_ids", "attention_mask"]);
            settings.insert("model_input_names".into(), inputs);
            if let Some(n) = self.longest() {
                settings.insert("model_max_length".into(), n.into());
            }
        }
        let mut map = self.take_object(out, SPECIAL).unwrap_or_default();
        if let Some(end) = end {
            let chosen = spec.eod_token.is_some() && t.appends_eod();
            if chosen || settings.get("eos_token").is_none_or(Value::is_null) {
                settings.insert("eos_token".into(), end.clone());
                map.insert("eos_token".into(), end.clone());
            }
            if fresh {
                let unknown = matches!(spec.kind, TokenizerKind::Gpt2).then_some("unk_token");
                for key in ["bos_token", "pad_token"].into_iter().chain(unknown) {
                    settings.entry(key).or_insert_with(|| end.clone());
                    map.entry(key).or_insert_with(|| end.clone());
                }
            }
        }
        put_object(out, SETTINGS, settings);
        if !map.is_empty() {
            put_object(out, SPECIAL, map);
        }
    }

    /// A JSON object, or a warning that the file came along and is none.
    fn object(&self, name: &str, bytes: &[u8]) -> Option<Map<String, Value>> {
        let why = match serde_json::from_slice(bytes) {
            Ok(Value::Object(map)) => return Some(map),
            Ok(_) => "not a JSON object".to_string(),
            Err(e) => format!("damaged ({e})"),
        };
        (self.warn)(&format!(
            "{name} beside the tokenizer is {why}; it is copied as it is"
        ));
        None
    }

    /// The object of a file that came along, which stays in the list.
    fn take_object(&self, files: &[File], name: &str) -> Option<Map<String, Value>> {
        let (_, bytes) = files.iter().find(|f| f.0 == name)?;
        self.object(name, bytes)
    }

    /// The folder's own settings, where it has some, with the run's end of a text among those that end one; else new ones.
    fn generation(&self) -> Result<Vec<u8>> {
        let beside = match self.folder {
            Some(dir) => named_files(dir, &[GENERATION])?,
            None => vec![],
        };
        let end = self.tokenizer.filter(|(_, t)| t.appends_eod());
        let end = end.and_then(|(_, t)| t.eod());
        if let Some((name, bytes)) = beside.into_iter().next() {
            let Some(mut settings) = self.object(&name, &bytes) else {
                return Ok(bytes);
            };
            let ends = match settings.get("eos_token_id") {
                Some(Value::Array(all)) => all.clone(),
                Some(one) if !one.is_null() => vec![one.clone()],
                _ => vec![],
            };
            match end.map(Value::from) {
                Some(id) if !ends.contains(&id) => {
                    let all: Vec<Value> = ends.into_iter().chain([id]).collect();
                    let one = (all.len() == 1).then(|| all[0].clone());
                    settings.insert("eos_token_id".into(), one.unwrap_or(all.into()));
                    return Ok(text(settings));
                }
                _ => return Ok(bytes),
            }
        }
        let mut settings = Map::new();
        let known = |key: &str| Some(self.config[key].clone()).filter(|v| !v.is_null());
        for key in ["bos_token_id", "eos_token_id"] {
            if let Some(id) = known(key) {
                settings.insert(key.into(), id);
            }
        }
        // Without a token of its own for it, rows are filled up with the end of a text, which is masked.
        let first = |ends: Value| match ends {
            Value::Array(all) => all.into_iter().next().unwrap_or_default(),
            one => one,
        };
        if let Some(id) = known("pad_token_id").or(known("eos_token_id").map(first)) {
            settings.insert("pad_token_id".into(), id);
        }
        if let Some(n) = self.longest() {
            settings.insert("max_length".into(), n.into());
        }
        Ok(text(settings))
    }
}

/// The files of the folder that a `tokenizer.json` belongs to. A file of another name may lie anywhere: what is beside it is not its own.
fn siblings(path: &Path) -> Result<Vec<File>> {
    match (path.file_name(), path.parent()) {
        (Some(name), Some(dir)) if name == tokens::HF_FILE => {
            let dir = if dir.as_os_str().is_empty() {
                Path::new(".")
            } else {
                dir
            };
            Ok(named_files(dir, TOKENIZER_FILES)?)
        }
        _ => Ok(vec![]),
    }
}

/// Puts an object in the place of a file, unless the file says the same already or cannot be read.
fn put_object(files: &mut Vec<File>, name: &str, value: Map<String, Value>) {
    match files.iter_mut().find(|f| f.0 == name) {
        None => files.push((name.into(), text(value))),
        Some((_, bytes)) => {
            if let Ok(Value::Object(before)) = serde_json::from_slice(bytes)
                && before != value
            {
                *bytes = text(value);
            }
        }
    }
}

fn text(value: Map<String, Value>) -> Vec<u8> {
    format!("{:#}\n", json!(value)).into_bytes()
}
