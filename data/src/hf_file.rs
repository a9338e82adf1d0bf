//! A `tokenizer.json` and what the files beside it say of special tokens, read and tried before any text reaches it.

use crate::cuts;
use crate::error::{DataError, Result};
use crate::guard;
use crate::special::SpecialTokens;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::Path;

/// Names under which published tokenizers keep their end-of-document token, in the order they are tried.
const EOD_NAMES: [&str; 7] = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
    "<|im_end|>",
];

/// Texts that a tokenizer is tried on when it is opened.
const TRIAL: [&str; 2] = ["a", "Two words, 3 numbers\n"];

/// The parts of a `tokenizer.json` that rewrite a text, and its added tokens.
#[derive(Deserialize)]
struct Steps {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    model: Model,
}

/// The parts of a model on which the ways to cut a text depend.
#[derive(Default, Deserialize)]
struct Model {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    dropout: Value,
}

/// A token beside the vocabulary.
#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

/// Far more than any real one: a file of some hundred bytes could else ask for more memory than there is.
const MOST_GROWTH: f64 = 1000.0;

/// Returns the factor by which these steps can make a text longer, at most.
fn growth(step: &Value) -> f64 {
    let inner = ["normalizers", "decoders"].map(|key| step[key].as_array());
    let inner = inner.into_iter().flatten().flatten();
    let within: f64 = inner.map(growth).product();
    let chars = |v: &Value| v.as_str().map(|t| t.chars().count() as f64);
    let own = match (chars(&step["content"]), chars(&step["pattern"]["String"])) {
        (Some(to), Some(from)) if step["type"] == "Replace" && from > 0.0 => to / from,
        (Some(to), None) if step["type"] == "Replace" && takes_some(step) => to,
        // What matches nothing can match between all characters.
        (Some(to), _) if step["type"] == "Replace" => 1.0 + to,
        _ => 1.0,
    };
    within * own.max(1.0)
}

/// Does a replacement by a regular expression match characters only? One that matches nothing too puts its text into a probe that
/// holds nothing to replace.
fn takes_some(step: &Value) -> bool {
    const PROBE: &str = "\u{1}";
    let replaced = guarded(|| {
        let step: tokenizers::NormalizerWrapper = serde_json::from_value(step.clone()).ok()?;
        let mut text = tokenizers::NormalizedString::from(PROBE);
        tokenizers::Normalizer::normalize(&step, &mut text).ok()?;
        Some(text.get().chars().count() <= 1)
    });
    matches!(replaced, Ok(Some(true)))
}

/// Runs the tokenizer library, which panics on some files it has read without a complaint.
pub(crate) fn guarded<T>(f: impl FnOnce() -> T) -> std::result::Result<T, String> {
    guard::guarded(f).map_err(|text| format!("the tokenizer library gave up on it ({text})"))
}

/// The ids that a tokenizer puts before a text. (What it puts behind one is the end of a document, and has a key of its own.)
fn begin_of(hf: &tokenizers::Tokenizer) -> Vec<u32> {
    let ids = |special: bool| -> Option<Vec<u32>> {
        let encoded = guarded(|| hf.encode_fast(TRIAL[0], special)).ok()?;
        Some(encoded.ok()?.get_ids().to_vec())
    };
    let (Some(plain), Some(whole)) = (ids(false), ids(true)) else {
        return vec![];
    };
    let at = whole.windows(plain.len().max(1)).position(|w| w == plain);
    at.map_or(vec![], |n| whole[..n].to_vec())
}

/// An opened file.
pub(crate) struct HfFile {
    pub(crate) hf: tokenizers::Tokenizer,
    /// Ids that a model must have; those of further special tokens may lie behind its vocabulary as long as no text has them.
    pub(crate) least: usize,
    /// All ids are below.
    pub(crate) vocab: usize,
    /// True if a long text can be cut where [`cuts::last`] says.
    pub(crate) cuts: bool,
    /// The token that ends a text, and who says so.
    pub(crate) eod: Option<(u32, String)>,
    /// The tokens that the file puts before a text.
    pub(crate) begin: Vec<u32>,
    /// `bos_token`.
    pub(crate) bos: Option<u32>,
    /// It differs whenever the same text could become other tokens.
    pub(crate) digest: [u8; 32],
}

impl HfFile {
    /// Reads the file and its folder. `eod_token`: the token that ends a text, where the user names it.
    ///
    /// # Errors
    /// A damaged file; one that cannot encode; ids that contradict; a token that ends a text and is in no vocabulary.
    pub(crate) fn open(path: &Path, eod_token: Option<&str>) -> Result<HfFile> {
        let bad = |reason: String, fix: &str| DataError::Tokenizer {
            path: path.into(),
            reason,
            fix: fix.into(),
        };
        let bytes = crossweave_files::read(path, crossweave_files::TABLE)
            .map_err(DataError::io("read the tokenizer", path))?;
        let damaged = |reason: String| {
            bad(
                format!("not a valid tokenizer.json: {reason}"),
                "copy the file again from its model",
            )
        };
        // Malformed JSON is the common cause of a panic below, and is refused first with its place.
        let steps: Steps = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
        if growth(&steps.normalizer).max(growth(&steps.decoder)) > MOST_GROWTH {
            return Err(damaged(format!(
                "its replacements can make a text more than {MOST_GROWTH} times as long"
            )));
        }
        let mut hf = guarded(|| tokenizers::Tokenizer::from_bytes(&bytes))
            .map_err(damaged)?
            .map_err(|e| damaged(e.to_string()))?;
        // Documents are whole here; what a model's input pipeline cuts or fills up must not reach the corpus.
        hf.with_padding(None);
        hf.with_truncation(None)
            .map_err(|e| bad(e.to_string(), "remove `truncation` from the file"))?;
        for token in &steps.added_tokens {
            if hf.token_to_id(&token.content) != Some(token.id) {
                let reason = format!(
                    "the id {} of its token {:?} contradicts its vocabulary",
                    token.id, token.content
                );
                return Err(damaged(reason));
            }
        }
        let special = SpecialTokens::beside(path)?;
        guarded(|| special.add_numbered(&mut hf)).map_err(damaged)??;
        let eod = end_of(&hf, &special, path, eod_token)?;
        let least = ids_of(&hf);
        guarded(|| special.add_others(&mut hf)).map_err(damaged)??;
        hf.set_encode_special_tokens(special.split);
        let vocab = ids_of(&hf);
        if vocab == 0 {
            return Err(bad(
                "the vocabulary is empty".into(),
                "copy the file again from its model",
            ));
        }
        if vocab > i32::MAX as usize {
            return Err(damaged(format!(
                "the id {} is beyond what a tensor of ids holds ({})",
                vocab - 1,
                i32::MAX - 1
            )));
        }
        // What panics on any text at all is refused now, by its name, and not from the middle of a corpus.
        for text in TRIAL {
            guarded(|| hf.encode_fast(text, false).map(drop))
                .map_err(|why| damaged(format!("it cannot encode the text {text:?}: {why}")))?
                .ok();
        }
        let begin = begin_of(&hf);
        // A token within a text takes white space around it along, or looks at what is beside it.
        let plain = |t: &tokenizers::AddedToken| {
            let holds = cuts::within(t.content.as_bytes());
            !(t.lstrip || t.rstrip || t.single_word || holds)
        };
        let model = json!({"type": steps.model.kind, "dropout": steps.model.dropout});
        let cuts = cuts::holds(&steps.normalizer, &steps.pre_tokenizer, &model)
            && hf.get_added_tokens_decoder().values().all(plain);
        let bos = special.named("bos_token");
        let bos = bos.and_then(|(name, _)| hf.token_to_id(name));
        // Of the tokens that were added only what encoding depends on.
        let mut digest = Sha256::new();
        digest.update(&bytes);
        let mut added: Vec<_> = hf.get_added_tokens_decoder().into_iter().collect();
        added.sort_by_key(|(id, _)| *id);
        for (id, t) in added {
            digest.update(format!("{id} {t:?}\n"));
        }
        if special.split {
            digest.update("split");
        }
        Ok(HfFile {
            hf,
            least,
            vocab,
            cuts,
            eod,
            begin,
            bos,
            digest: digest.finalize().into(),
        })
    }
}

/// The bound of the ids, which may have holes.
fn ids_of(hf: &tokenizers::Tokenizer) -> usize {
    let ids = hf.get_vocab(true).into_values();
    ids.max().map_or(0, |id| id as usize + 1)
}

/// Returns the token that ends a text: the one that the user names, else `eos_token` of the folder,
/// else a usual name.
fn end_of(
    hf: &tokenizers::Tokenizer,
    special: &SpecialTokens,
    path: &Path,
    eod_token: Option<&str>,
) -> Result<Option<(u32, String)>> {
    if let Some(name) = eod_token {
        let id = hf.token_to_id(name).ok_or_else(|| DataError::Tokenizer {
            path: path.into(),
            reason: format!("the end-of-document token {name:?} is not in the vocabulary"),
            fix: "name a token of the file".into(),
        })?;
        return Ok(Some((id, "data.eod_token".into())));
    }
    if let Some((name, said)) = special.named("eos_token") {
        let id = hf.token_to_id(name).ok_or_else(|| DataError::Tokenizer {
            path: path.into(),
            reason: format!(
                "`eos_token` of {} is {name:?}, which is in no vocabulary",
                said.display()
            ),
            fix: "correct it there, or name the token that ends a text by data.eod_token".into(),
        })?;
        let file = said.file_name().unwrap_or_default().display();
        return Ok(Some((id, format!("eos_token of {file}"))));
    }
    let usual = EOD_NAMES.iter().find_map(|name| hf.token_to_id(name));
    Ok(usual.map(|id| (id, "the usual name".into())))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A byte-level BPE file with these merges.
    pub(crate) fn byte_level(merges: &[&str], pre_tokenizer: &Value) -> Value {
        let plain = |b: u32| (33..127).contains(&b) || (161..173).contains(&b) || b >= 174;
        let mut others = 256u32..;
        let mut vocab = serde_json::Map::new();
        for b in 0..256u32 {
            let code = if plain(b) { Some(b) } else { others.next() };
            let c = char::from_u32(code.unwrap()).unwrap();
            vocab.insert(c.to_string(), b.into());
        }
        for merge in merges {
            let id = vocab.len();
            vocab.insert(merge.replace(' ', ""), id.into());
        }
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                      "vocab": vocab, "merges": merges},
        })
    }
}
