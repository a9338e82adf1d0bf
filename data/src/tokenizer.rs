//! Text to token ids and back: bytes, GPT-2's byte pairs from memory, or any `tokenizer.json`.
//!
//! Decoding never fails: ids that name nothing are skipped, the end-of-document id is no text, and bytes that are not
//! UTF-8 become U+FFFD, since a model may stop in the middle of a character.

use crate::cache::hex;
use crate::chat::BUILT_IN_END;
use crate::cuts;
use crate::error::{DataError, Result};
use crate::hf_file::{HfFile, guarded};
use crate::spec::{TokenizerKind, TokenizerSpec};
use crate::tokenizer_json::{self, EOD_NAME, NamedFile};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

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
    /// Ids that a model must have.
    least: usize,
    eod: Option<u32>,
    /// The file or key that says what ends a text.
    eod_from: String,
    append_eod: bool,
    /// True if a long text can be cut where [`cuts::last`] says.
    cuts: bool,
    /// The tokens that begin a text of a model, such as Llama's `<s>`.
    begin: Vec<u32>,
    /// True if documents begin so too, and not prompts alone.
    begin_documents: bool,
}

/// The tokens of one document.
#[derive(Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids, without the end-of-document id.
    pub tokens: Vec<u32>,
    /// True if bytes that are not UTF-8 had to be replaced; never so for the bytes tokenizer.
    pub lossy: bool,
}

impl Tokenizer {
    /// Loads the tokenizer of `spec`. `model_vocab` is the model's vocabulary when it is fixed: a tokenizer that does not
    /// fit is an error.
    pub fn open(spec: &TokenizerSpec, model_vocab: Option<usize>) -> Result<Self> {
        let mut this = match &spec.kind {
            TokenizerKind::Bytes => Self::bytes(),
            TokenizerKind::Gpt2 => Self::gpt2()?,
            TokenizerKind::HfFile(path) => Self::hf(
                path,
                HfFile::open(path, spec.eod_token.as_deref())?,
                spec.add_bos,
            ),
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
            (this.eod, this.vocab, this.least) = (None, 256, 256);
        }
        match (spec.add_bos, &this.kind) {
            (Some(false), _) => this.begin = vec![],
            // The built-in ones have one token for both ends.
            (Some(true), Kind::Bytes | Kind::Gpt2(_)) => {
                this.begin = this.eod.into_iter().collect()
            }
            _ => {}
        }
        if spec.add_bos == Some(true) && this.begin.is_empty() {
            return Err(this.bad(
                "`data.add_bos` is true but no token is known to begin a text",
                "set `data.add_bos` to false, or name `bos_token` in tokenizer_config.json",
            ));
        }
        if let Some(vocab) = model_vocab.filter(|&v| v < this.least) {
            return Err(DataError::setting(
                "model.vocab_size",
                format!(
                    "{vocab} is smaller than the {} ids of tokenizer {}",
                    this.least,
                    this.path.display()
                ),
                format!("set it to at least {}", this.least),
            ));
        }
        this.vocab = this.vocab.min(model_vocab.unwrap_or(usize::MAX));
        this.identity = format!(
            "{} eod={:?} append={}",
            this.identity, this.eod, this.append_eod
        );
        if !this.begin.is_empty() {
            this.identity += &format!(" begin={:?}", this.begin);
        }
        Ok(this)
    }

    /// The same for documents that are cut into samples for another objective than the next token: they begin with nothing unless
    /// `data.add_bos` asks for it.
    pub(crate) fn for_running_text(mut self, spec: &TokenizerSpec) -> Self {
        if spec.add_bos != Some(true) && !self.begin.is_empty() {
            self.begin_documents = false;
            self.identity += " prompts";
        }
        self
    }

    fn bytes() -> Self {
        Self {
            kind: Kind::Bytes,
            path: "bytes".into(),
            identity: "bytes".into(),
            vocab: 257,
            least: 257,
            eod: Some(BYTES_EOD),
            eod_from: String::new(),
            append_eod: true,
            cuts: true,
            begin: vec![],
            begin_documents: true,
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
            least: GPT2_EOD as usize + 1,
            eod: Some(GPT2_EOD),
            eod_from: String::new(),
            append_eod: true,
            cuts: true,
            begin: vec![],
            begin_documents: true,
        })
    }

    fn hf(path: &Path, file: HfFile, add_bos: Option<bool>) -> Self {
        let (eod, eod_from) = file.eod.unzip();
        let mut this = Self {
            kind: Kind::Hf(Box::new(file.hf)),
            path: path.into(),
            identity: format!("hf 2 {}", hex(&file.digest)),
            vocab: file.vocab,
            least: file.least,
            eod,
            eod_from: eod_from.unwrap_or_default(),
            append_eod: true,
            cuts: file.cuts,
            begin: file.begin,
            begin_documents: true,
        };
        if add_bos == Some(true) && this.begin.is_empty() {
            this.begin = file.bos.into_iter().collect();
        }
        this
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

    /// Returns the spelling of [`Tokenizer::eod`] in the vocabulary.
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

    /// Returns true if documents of a corpus end in [`Tokenizer::eod`].
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
                .iter()
                .map(|id| self.held(*id))
                .collect::<Result<_>>()?,
        };
        Ok(Encoded { tokens, lossy })
    }

    /// Ids that begin a text, as the tokenizer's own file puts them before one.
    pub fn begin(&self) -> &[u32] {
        &self.begin
    }

    /// Returns true if a long text can be tokenised in parts.
    pub(crate) fn has_cuts(&self) -> bool {
        self.cuts
    }

    /// The last place of a text at which it can be cut, so that its parts have the tokens of the whole.
    pub(crate) fn cut(&self, text: &[u8]) -> Option<usize> {
        match self.kind {
            Kind::Bytes => Some(text.len()),
            Kind::Gpt2(_) | Kind::Hf(_) => cuts::last(text).filter(|_| self.cuts),
        }
    }

    /// The ids of a document, or of the first or last part of one, with what begins and what ends one, neither twice.
    pub(crate) fn bordered(&self, mut ids: Vec<u32>, first: bool, last: bool) -> Vec<u32> {
        if first && self.begin_documents && !ids.starts_with(&self.begin) {
            ids.splice(0..0, self.begin.iter().copied());
        }
        let end = self.eod.filter(|_| self.append_eod && last);
        if end.is_some() && ids.last().copied() != end {
            ids.extend(end);
        }
        ids
    }

    /// Says in words what begins and what ends a text, and who says so.
    pub fn borders(&self) -> String {
        let spelled = |id: u32| match &self.kind {
            Kind::Hf(hf) => hf.id_to_token(id).unwrap_or_default(),
            Kind::Bytes | Kind::Gpt2(_) => EOD_NAME.to_string(),
        };
        let from = match &self.eod_from[..] {
            "" => String::new(),
            from => format!(", {from}"),
        };
        let end = match self.eod.filter(|_| self.append_eod) {
            Some(id) => format!("end with {} ({id}{from})", spelled(id)),
            None => "end with no token".to_string(),
        };
        match &self.begin[..] {
            [] => format!("texts {end}"),
            begin => {
                let names: Vec<String> = begin.iter().map(|id| spelled(*id)).collect();
                let which = match self.begin_documents {
                    true => "texts",
                    false => "prompts",
                };
                format!("{which} begin with {} and {end}", names.join(" "))
            }
        }
    }

    /// Is it a file without a token that could end a text?
    pub(crate) fn has_no_end(&self) -> bool {
        matches!(self.kind, Kind::Hf(_)) && self.eod.is_none()
    }

    /// Refuses a token beyond the model's vocabulary: a special one that nothing but its name in a text asks for.
    fn held(&self, id: u32) -> Result<u32> {
        match &self.kind {
            Kind::Hf(hf) if id as usize >= self.vocab => {
                let name = hf.id_to_token(id).unwrap_or_default();
                let reason = format!(
                    "the text holds the token {name:?} ({id}), and the vocabulary ends with {}",
                    self.vocab - 1
                );
                Err(self.bad(
                    reason,
                    "raise `model.vocab_size`, or take the name out of the text",
                ))
            }
            _ => Ok(id),
        }
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
                let ids = encoded.get_ids().iter().zip(spans);
                ids.map(|(id, span)| Ok((self.held(*id)?, span)))
                    .collect::<Result<_>>()?
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
