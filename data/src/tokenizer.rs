//! Text to token ids and back: bytes, GPT-2's byte pairs from memory, or any `tokenizer.json`.
//!
//! Decoding never fails: ids that name nothing are skipped, the end-of-document id is no text, and bytes that are not
//! UTF-8 become U+FFFD, since a model may stop in the middle of a character.

use crate::cache::hex;
use crate::chat::BUILT_IN_END;
use crate::error::{DataError, Result};
use crate::spec::{TokenizerKind, TokenizerSpec};
use crate::tokenizer_json::{self, EOD_NAME, NamedFile};
use crossweave_files::clip;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

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
const GPT2_EOD: u32 = 50_256;
const BYTES_EOD: u32 = 256;

enum Kind {
    Bytes,
    Gpt2(Box<tiktoken_rs::CoreBPE>),
    Hf(Box<tokenizers::Tokenizer>),
}

/// A loaded tokenizer. Shared by threads.
pub struct Tokenizer {
    kind: Kind,
    path: PathBuf,
    identity: String,
    vocab: usize,
    eod: Option<u32>,
    append_eod: bool,
    /// What begins a text of a model, such as Llama's `<s>`.
    begin: Vec<u32>,
}

/// The tokens of one document.
#[derive(Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids, without the end-of-document id.
    pub tokens: Vec<u32>,
    /// Whether bytes that are not UTF-8 had to be replaced; never so for the bytes tokenizer.
    pub lossy: bool,
}

/// Texts that a tokenizer is tried on when it is opened.
const TRIAL: [&str; 2] = ["a", "Two words, 3 numbers\n"];

/// The parts of a `tokenizer.json` that rewrite a text.
#[derive(serde::Deserialize)]
struct Steps {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    decoder: Value,
}

/// Far more than any real one: a file of some hundred bytes could else ask for more memory than there is.
const MOST_GROWTH: f64 = 1000.0;

/// How much longer these steps can make a text, at most.
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

/// Runs the tokenizer library, which panics on some files it has read without a complaint. Sound to go on after, since nothing but
/// the value being made is touched. The panic's own report still goes to the panic hook of the process.
fn guarded<T>(f: impl FnOnce() -> T) -> std::result::Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).map_err(|e| {
        let text = e.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| e.downcast_ref::<&str>().copied());
        let text = clip(text.unwrap_or("no reason given"), 200);
        format!("the tokenizer library gave up on it ({text})")
    })
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

impl Tokenizer {
    /// Loads the tokenizer of `spec`. `model_vocab` is the model's vocabulary when it is fixed: a tokenizer that does not
    /// fit is an error.
    pub fn open(spec: &TokenizerSpec, model_vocab: Option<usize>) -> Result<Self> {
        let mut this = match &spec.kind {
            TokenizerKind::Bytes => Self::bytes(),
            TokenizerKind::Gpt2 => Self::gpt2()?,
            TokenizerKind::HfFile(path) => Self::hf(path, spec.eod_token.as_deref())?,
        };
        // The bytes tokenizer without its end-of-document id needs 256 ids only, so it follows the model when it may.
        let bytes = matches!(this.kind, Kind::Bytes);
        let fits = !bytes || model_vocab.is_none_or(|v| v > BYTES_EOD as usize);
        this.append_eod = match spec.append_eod {
            Some(true) if this.eod.is_none() => {
                return Err(this.bad(
                    "`data.append_eod` is true but no token is known to end a document",
                    "set `data.append_eod` to false",
                ));
            }
            Some(wish) => wish,
            None => this.eod.is_some() && fits,
        };
        if bytes && !this.append_eod {
            (this.eod, this.vocab) = (None, 256);
        }
        if let Some(vocab) = model_vocab.filter(|&v| v < this.vocab) {
            return Err(DataError::setting(
                "model.vocab_size",
                format!(
                    "{vocab} is smaller than the {} ids of tokenizer {}",
                    this.vocab,
                    this.path.display()
                ),
                format!("set it to at least {}", this.vocab),
            ));
        }
        this.identity = format!(
            "{} eod={:?} append={}",
            this.identity, this.eod, this.append_eod
        );
        Ok(this)
    }

    fn bytes() -> Self {
        Self {
            kind: Kind::Bytes,
            path: "bytes".into(),
            identity: "bytes".into(),
            vocab: 257,
            eod: Some(BYTES_EOD),
            append_eod: true,
            begin: vec![],
        }
    }

    fn gpt2() -> Result<Self> {
        let bpe = tiktoken_rs::r50k_base().map_err(|e| DataError::Tokenizer {
            path: "gpt2".into(),
            reason: e.to_string(),
            fix: "rebuild: the vocabulary is part of the program".into(),
        })?;
        Ok(Self {
            kind: Kind::Gpt2(Box::new(bpe)),
            path: "gpt2".into(),
            identity: "gpt2".into(),
            vocab: GPT2_EOD as usize + 1,
            eod: Some(GPT2_EOD),
            append_eod: true,
            begin: vec![],
        })
    }

    fn hf(path: &Path, eod_token: Option<&str>) -> Result<Self> {
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
        let eod = match eod_token {
            Some(name) => Some(hf.token_to_id(name).ok_or_else(|| {
                bad(
                    format!("the end-of-document token {name:?} is not in the vocabulary"),
                    "name a token of the file",
                )
            })?),
            None => EOD_NAMES.iter().find_map(|name| hf.token_to_id(name)),
        };
        // Ids may have holes, so the count of tokens is not the bound of the ids.
        let vocab = hf
            .get_vocab(true)
            .into_values()
            .max()
            .map_or(0, |id| id as usize + 1);
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
        let digest: [u8; 32] = Sha256::digest(&bytes).into();
        Ok(Self {
            kind: Kind::Hf(Box::new(hf)),
            path: path.into(),
            identity: format!("hf {}", hex(&digest)),
            vocab,
            eod,
            append_eod: true,
            begin,
        })
    }

    fn bad(&self, reason: impl Into<String>, fix: &str) -> DataError {
        DataError::Tokenizer {
            path: self.path.clone(),
            reason: reason.into(),
            fix: fix.into(),
        }
    }

    /// Number of ids: every id this tokenizer gives is below it.
    pub fn vocab_size(&self) -> usize {
        self.vocab
    }

    /// The end-of-document id.
    pub fn eod(&self) -> Option<u32> {
        self.eod
    }

    /// The id of a token of a `tokenizer.json` by its name.
    pub(crate) fn id_of(&self, name: &str) -> Option<u32> {
        match &self.kind {
            Kind::Hf(hf) => hf.token_to_id(name),
            Kind::Bytes | Kind::Gpt2(_) => None,
        }
    }

    /// How [`Tokenizer::eod`] is spelled in the vocabulary.
    pub fn eod_name(&self) -> Option<String> {
        match &self.kind {
            Kind::Hf(hf) => hf.id_to_token(self.eod?),
            Kind::Bytes | Kind::Gpt2(_) => self.eod.map(|_| EOD_NAME.to_string()),
        }
    }

    /// The files that give other libraries the ids of a built-in tokenizer; none for one that was read from a file, which has them already.
    pub fn hf_files(&self) -> Vec<NamedFile> {
        match &self.kind {
            Kind::Bytes => tokenizer_json::bytes(self.eod.is_some()),
            Kind::Gpt2(bpe) => {
                let tokens = (0..GPT2_EOD).map(|id| bpe.decode_bytes(&[id]).unwrap_or_default());
                tokenizer_json::gpt2(&tokens.collect::<Vec<_>>())
            }
            Kind::Hf(_) => vec![],
        }
    }

    /// Whether documents of a corpus end in [`Tokenizer::eod`].
    pub fn appends_eod(&self) -> bool {
        self.append_eod
    }

    /// `bytes`, `gpt2`, or the path of the `tokenizer.json`.
    pub fn name(&self) -> &Path {
        &self.path
    }

    /// Text that differs whenever the same text could become other tokens.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Tokens of a document's bytes, without special tokens.
    ///
    /// # Errors
    /// A `tokenizer.json` whose model cannot represent the text.
    pub fn encode(&self, document: &[u8]) -> Result<Encoded> {
        if let Kind::Bytes = self.kind {
            return Ok(Encoded {
                tokens: document.iter().map(|&b| u32::from(b)).collect(),
                lossy: false,
            });
        }
        let text = String::from_utf8_lossy(document);
        let lossy = matches!(text, Cow::Owned(_));
        let tokens = match &self.kind {
            Kind::Bytes => Vec::new(),
            Kind::Gpt2(bpe) => {
                bpe.encode(&text, &HashSet::new())
                    .map_err(|e| self.bad(e.message, "split the document into smaller ones"))?
                    .0
            }
            Kind::Hf(hf) => guarded(|| hf.encode_fast(text.as_ref(), false))
                .map_err(|why| {
                    self.bad(
                        format!("cannot encode a document: {why}"),
                        "use a tokenizer whose regular expressions match some text, such as the one of its model",
                    )
                })?
                .map_err(|e| {
                    self.bad(
                        format!("cannot encode a document: {e}"),
                        "use a tokenizer with an unknown token",
                    )
                })?
                .get_ids()
                .to_vec(),
        };
        Ok(Encoded { tokens, lossy })
    }

    /// Ids that begin a text, as the tokenizer's own file puts them before one.
    pub(crate) fn begin(&self) -> &[u32] {
        &self.begin
    }

    /// Tokens of a text and the bytes of it that each stands for; with `special`, names of special tokens in it are those tokens, as a chat
    /// template writes them. (A `tokenizer.json` always reads them so.)
    pub(crate) fn encode_spans(
        &self,
        text: &str,
        special: bool,
    ) -> Result<Vec<(u32, Range<usize>)>> {
        let mut at = 0;
        let mut next = |id: u32, len: usize| {
            at += len;
            (id, at - len..at)
        };
        Ok(match &self.kind {
            Kind::Bytes => {
                let mut out = Vec::with_capacity(text.len());
                for (i, part) in text.split(BUILT_IN_END).enumerate() {
                    match self.eod.filter(|_| special) {
                        Some(end) if i > 0 => out.push(next(end, BUILT_IN_END.len())),
                        _ if i > 0 => {
                            out.extend(BUILT_IN_END.bytes().map(|b| next(u32::from(b), 1)));
                        }
                        _ => {}
                    }
                    out.extend(part.bytes().map(|b| next(u32::from(b), 1)));
                }
                out
            }
            Kind::Gpt2(bpe) => {
                let allowed = match special {
                    true => HashSet::from([BUILT_IN_END]),
                    false => HashSet::new(),
                };
                let ids = bpe.encode(text, &allowed);
                let ids =
                    ids.map_err(|e| self.bad(e.message, "split the text into shorter ones"))?;
                let len = |id: u32| bpe.decode_bytes(&[id]).map_or(0, |b| b.len());
                ids.0.into_iter().map(|id| next(id, len(id))).collect()
            }
            Kind::Hf(hf) => {
                let fix = "use a tokenizer that can represent it";
                let encoded = guarded(|| hf.encode(text, false))
                    .map_err(|why| self.bad(format!("cannot encode an example: {why}"), fix))?
                    .map_err(|e| self.bad(format!("cannot encode an example: {e}"), fix))?;
                let spans = encoded.get_offsets().iter().map(|(a, b)| *a..*b);
                encoded.get_ids().iter().copied().zip(spans).collect()
            }
        })
    }

    /// Text of `tokens`.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let tokens: Vec<u32> = tokens
            .iter()
            .copied()
            .filter(|&t| Some(t) != self.eod)
            .collect();
        let bytes = match &self.kind {
            Kind::Bytes => tokens
                .iter()
                .filter_map(|&t| u8::try_from(t).ok())
                .collect(),
            Kind::Gpt2(bpe) => tokens
                .iter()
                .filter_map(|&t| bpe.decode_bytes(&[t]).ok())
                .flatten()
                .collect(),
            Kind::Hf(hf) => {
                let text = guarded(|| hf.decode(&tokens, false));
                return text.ok().and_then(|t| t.ok()).unwrap_or_default();
            }
        };
        String::from_utf8(bytes)
            .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A byte-level tokenizer.json of 256 bytes, one merge, and an end-of-document token.
    pub(crate) fn tiny_json() -> String {
        let mut vocab = serde_json::Map::new();
        let mut extra = 0;
        for b in 0u32..256 {
            let printable =
                (33..127).contains(&b) || (161..173).contains(&b) || (174..256).contains(&b);
            let c = if printable {
                char::from_u32(b).unwrap()
            } else {
                extra += 1;
                char::from_u32(255 + extra).unwrap()
            };
            vocab.insert(c.to_string(), b.into());
        }
        vocab.insert("he".into(), 256.into());
        serde_json::json!({
            "version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": null,
            "added_tokens": [{"id": 257, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
                              "normalized": false, "special": true}],
            "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                      "vocab": vocab, "merges": ["h e"]}
        })
        .to_string()
    }

    fn spec(kind: TokenizerKind, append_eod: Option<bool>) -> TokenizerSpec {
        TokenizerSpec {
            append_eod,
            ..TokenizerSpec::new(kind)
        }
    }

    #[test]
    fn bytes_with_and_without_an_end() {
        let t = Tokenizer::open(&spec(TokenizerKind::Bytes, None), None).unwrap();
        assert_eq!(
            (t.vocab_size(), t.eod(), t.appends_eod()),
            (257, Some(256), true)
        );
        assert_eq!(
            t.encode(b"a\xff").unwrap(),
            Encoded {
                tokens: vec![97, 255],
                lossy: false
            }
        );
        assert_eq!(t.decode(&[104, 105, 256, 0xe4, 9999]), "hi\u{fffd}");
        for (append, vocab) in [(Some(false), None), (None, Some(256))] {
            let t = Tokenizer::open(&spec(TokenizerKind::Bytes, append), vocab).unwrap();
            assert_eq!(
                (t.vocab_size(), t.eod(), t.appends_eod()),
                (256, None, false)
            );
        }
        let error = Tokenizer::open(&spec(TokenizerKind::Bytes, Some(true)), Some(256))
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("model.vocab_size") && error.contains("257"),
            "{error}"
        );
    }

    #[test]
    fn gpt2_is_gpt2() {
        let t = Tokenizer::open(&spec(TokenizerKind::Gpt2, None), Some(50_304)).unwrap();
        assert_eq!((t.vocab_size(), t.eod()), (50_257, Some(50_256)));
        assert_eq!(t.encode(b"hello world").unwrap().tokens, [31_373, 995]);
        assert_eq!(t.decode(&[31_373, 995, 50_256, 1_000_000]), "hello world");
        assert!(t.encode(b"\xffx").unwrap().lossy);
        // Text that spells the special token is text: it must not end a document.
        assert!(
            !t.encode(b"a<|endoftext|>b")
                .unwrap()
                .tokens
                .contains(&50_256)
        );
        assert!(Tokenizer::open(&spec(TokenizerKind::Gpt2, None), Some(1000)).is_err());
    }

    #[test]
    fn gpt2_survives_runs_of_one_character() {
        let t = Tokenizer::open(&spec(TokenizerKind::Gpt2, None), None).unwrap();
        for run in [" ", "a", "\n", "=", "\u{4e2d}"] {
            let text = run.repeat(200_000) + "x";
            let tokens = t.encode(text.as_bytes()).unwrap().tokens;
            assert_eq!(t.decode(&tokens), text);
        }
    }

    #[test]
    fn a_tokenizer_json_is_used_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        std::fs::write(&path, tiny_json()).unwrap();
        let t = Tokenizer::open(&spec(TokenizerKind::HfFile(path.clone()), None), None).unwrap();
        assert_eq!((t.vocab_size(), t.eod()), (258, Some(257)));
        // The file truncates to two tokens; a corpus must not.
        assert_eq!(t.encode(b"hehex").unwrap().tokens, [256, 256, 120]);
        assert_eq!(t.decode(&[256, 120, 257, 188, 299]), "hex\u{fffd}");
        let named = TokenizerSpec {
            eod_token: Some("he".into()),
            ..spec(TokenizerKind::HfFile(path.clone()), None)
        };
        assert_eq!(Tokenizer::open(&named, None).unwrap().eod(), Some(256));
        let absent = TokenizerSpec {
            eod_token: Some("<nope>".into()),
            ..named
        };
        let error = Tokenizer::open(&absent, None).err().unwrap().to_string();
        assert!(
            error.contains("<nope>") && error.contains("tokenizer.json"),
            "{error}"
        );
    }

    #[test]
    fn a_file_whose_steps_blow_up_a_text_is_refused_before_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.json");
        let open = |step: &str| {
            let text = tiny_json();
            let grown = text.replacen("\"normalizer\":null", &format!("\"normalizer\":{step}"), 1);
            assert!(step == "null" || text != grown, "{text}");
            std::fs::write(&path, grown).unwrap();
            Tokenizer::open(&spec(TokenizerKind::HfFile(path.clone()), None), None)
        };
        let replace = |pattern: &str, content: &str| {
            format!("{{\"type\":\"Replace\",\"pattern\":{pattern},\"content\":\"{content}\"}}")
        };
        let many = |step: String, n: usize| {
            let all = vec![step; n].join(",");
            format!("{{\"type\":\"Sequence\",\"normalizers\":[{all}]}}")
        };
        let (a, x) = (r#"{"String":"a"}"#, "a".repeat(50));
        for (step, fits) in [
            (many(replace(a, &x), 6), false),
            (many(replace(r#"{"Regex":""}"#, "xxx"), 6), false),
            (replace(a, &"a".repeat(5000)), false),
            // What published ones do.
            (many(replace(r#"{"String":" "}"#, "\u{2581}"), 9), true),
            (replace(r#"{"Regex":" {2,}"}"#, "\u{2581}"), true),
            (many(replace(r#"{"Regex":"[àáâ]"}"#, "a"), 20), true),
            (many(replace(r#"{"Regex":"a*"}"#, "b"), 20), false),
        ] {
            match open(&step) {
                Ok(_) => assert!(fits, "{step}"),
                Err(e) => assert!(!fits && e.to_string().contains("1000 times as long"), "{e}"),
            }
        }
    }

    #[test]
    fn a_missing_or_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let open = || {
            Tokenizer::open(&spec(TokenizerKind::HfFile(path.clone()), None), None)
                .err()
                .unwrap()
                .to_string()
        };
        assert!(open().contains("tokenizer.json"));
        for text in ["", "{", "[]", "{\"version\":\"1.0\"}", &tiny_json()[..500]] {
            std::fs::write(&path, text).unwrap();
            let error = open();
            assert!(
                error.contains("tokenizer.json") && error.contains("fix:"),
                "{error}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn a_damaged_tokenizer_never_panics(cut in 0usize..6000, at in 0usize..6000, byte: u8) {
            let mut bytes = tiny_json().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len().saturating_sub(cut % 3));
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("t.json");
            std::fs::write(&path, bytes).unwrap();
            if let Ok(t) = Tokenizer::open(&spec(TokenizerKind::HfFile(path), None), None) {
                let _ = t.encode(b"hello\xff world").map(|e| t.decode(&e.tokens));
            }
        }
    }
}
