//! The built-in tokenizers as files that other libraries read: a `tokenizer.json` (and GPT-2's two older files) with the ids of this program.
//!
//! Both are byte-level BPE in the sense of the `tokenizers` library: text becomes UTF-8 bytes, each byte is written as one printable
//! character (GPT-2's table), and merges join characters. `bytes` is the case without merges. One difference cannot be expressed: those
//! libraries take the *name* of a special token in a text for the token, here it is text.

use serde::{Serialize, Serializer};
use std::collections::HashMap;

/// The spelling of the end-of-document token of the built-in tokenizers, which is GPT-2's.
pub const EOD_NAME: &str = "<|endoftext|>";

/// File name and contents.
pub type NamedFile = (&'static str, Vec<u8>);

/// The character that stands for each byte: printable ones for themselves, the others from U+0100 on, in order.
fn byte_chars() -> [char; 256] {
    let mut next = 256u32;
    std::array::from_fn(|b| {
        let b = b as u32;
        let printable = (33..127).contains(&b) || (161..173).contains(&b) || b >= 174;
        let code = match printable {
            true => b,
            false => {
                next += 1;
                next - 1
            }
        };
        // All codes are below the surrogates.
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

fn spelled(chars: &[char; 256], bytes: &[u8]) -> String {
    bytes.iter().map(|b| chars[*b as usize]).collect()
}

/// Tokens by id, as a JSON object in that order.
struct Vocab(Vec<String>);

impl Serialize for Vocab {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.0.iter().enumerate().map(|(id, token)| (token, id)))
    }
}

#[derive(Serialize)]
struct AddedToken {
    id: usize,
    content: &'static str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

/// The same struct stands for pre-tokenizer, post-processor and decoder.
#[derive(Serialize)]
struct ByteLevel {
    r#type: &'static str,
    add_prefix_space: bool,
    trim_offsets: bool,
    use_regex: bool,
}

#[derive(Serialize)]
struct Bpe {
    r#type: &'static str,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: Vocab,
    merges: Vec<String>,
}

#[derive(Serialize)]
struct TokenizerJson {
    version: &'static str,
    truncation: Option<()>,
    padding: Option<()>,
    added_tokens: Vec<AddedToken>,
    normalizer: Option<()>,
    pre_tokenizer: ByteLevel,
    post_processor: ByteLevel,
    decoder: ByteLevel,
    model: Bpe,
}

/// `use_regex`: text is cut into words first, as GPT-2 does, and no merge crosses their borders.
fn tokenizer_json(vocab: Vec<String>, merges: Vec<String>, use_regex: bool) -> Vec<u8> {
    let level = |use_regex| ByteLevel {
        r#type: "ByteLevel",
        add_prefix_space: false,
        trim_offsets: false,
        use_regex,
    };
    let eod = vocab.iter().position(|t| t == EOD_NAME);
    let all = TokenizerJson {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: eod
            .map(|id| AddedToken {
                id,
                content: EOD_NAME,
                single_word: false,
                lstrip: false,
                rstrip: false,
                normalized: false,
                special: true,
            })
            .into_iter()
            .collect(),
        normalizer: None,
        pre_tokenizer: level(use_regex),
        post_processor: level(true),
        decoder: level(true),
        model: Bpe {
            r#type: "BPE",
            dropout: None,
            unk_token: None,
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab: Vocab(vocab),
            merges,
        },
    };
    json(&all)
}

/// Strings, numbers and flags only: there is nothing in it that could fail to become JSON.
fn json(value: &impl Serialize) -> Vec<u8> {
    let mut out = serde_json::to_vec(value).unwrap_or_default();
    out.push(b'\n');
    out
}

/// Files of the `bytes` tokenizer: 256 ids for the bytes and, with `eod`, id 256 that ends a document.
pub(crate) fn bytes(eod: bool) -> Vec<NamedFile> {
    let chars = byte_chars();
    let mut vocab: Vec<String> = chars.iter().map(char::to_string).collect();
    if eod {
        vocab.push(EOD_NAME.into());
    }
    vec![("tokenizer.json", tokenizer_json(vocab, vec![], false))]
}

/// Files of GPT-2's tokenizer from the bytes of its tokens in the order of their ids, the end-of-document token left out: it takes the next id.
pub(crate) fn gpt2(tokens: &[Vec<u8>]) -> Vec<NamedFile> {
    let chars = byte_chars();
    let merges = merges(tokens, &chars);
    let mut vocab: Vec<String> = tokens.iter().map(|t| spelled(&chars, t)).collect();
    vocab.push(EOD_NAME.into());
    let list = format!("#version: 0.2\n{}\n", merges.join("\n"));
    vec![
        ("vocab.json", json(&Vocab(vocab.clone()))),
        ("merges.txt", list.into_bytes()),
        ("tokenizer.json", tokenizer_json(vocab, merges, true)),
    ]
}

/// The merge that makes each token of several bytes, in the order of their ids, which is their rank. The two halves of a token are what
/// its bytes come to when only merges of lower rank are applied.
fn merges(tokens: &[Vec<u8>], chars: &[char; 256]) -> Vec<String> {
    let rank: HashMap<&[u8], usize> = tokens
        .iter()
        .enumerate()
        .map(|(id, t)| (t.as_slice(), id))
        .collect();
    let mut out = Vec::with_capacity(tokens.len().saturating_sub(256));
    for (id, token) in tokens.iter().enumerate().filter(|(_, t)| t.len() > 1) {
        // Borders of the parts; the lowest rank joins first, the leftmost of equals.
        let mut cuts: Vec<usize> = (0..=token.len()).collect();
        while cuts.len() > 3 {
            let joined = |i: usize| rank.get(&token[cuts[i]..cuts[i + 2]]).copied();
            let best = (0..cuts.len() - 2)
                .filter_map(|i| Some((joined(i).filter(|r| *r < id)?, i)))
                .min();
            let Some((_, i)) = best else { break };
            cuts.remove(i + 1);
        }
        if let [from, middle, to] = cuts[..] {
            let half = |part: &[u8]| spelled(chars, part);
            out.push(format!(
                "{} {}",
                half(&token[from..middle]),
                half(&token[middle..to])
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::spec::{TokenizerKind, TokenizerSpec};
    use crate::tokenizer::Tokenizer;
    use proptest::prelude::*;

    fn open(kind: TokenizerKind, append_eod: Option<bool>) -> Tokenizer {
        let spec = TokenizerSpec {
            append_eod,
            ..TokenizerSpec::new(kind)
        };
        Tokenizer::open(&spec, None).unwrap()
    }

    /// Reads the file that we write by the `tokenizers` library.
    fn theirs(ours: &Tokenizer) -> tokenizers::Tokenizer {
        let files = ours.hf_files();
        let (_, bytes) = files.iter().find(|f| f.0 == "tokenizer.json").unwrap();
        tokenizers::Tokenizer::from_bytes(bytes).unwrap()
    }

    fn agree(ours: &Tokenizer, theirs: &tokenizers::Tokenizer, text: &str) {
        // With special tokens, as transformers calls it: none may be added.
        let ids = theirs.encode(text, true).unwrap().get_ids().to_vec();
        assert_eq!(
            ids,
            ours.encode(text.as_bytes()).unwrap().tokens,
            "{text:?}"
        );
        assert_eq!(theirs.decode(&ids, true).unwrap(), text, "{text:?}");
    }

    const TEXTS: [&str; 12] = [
        "",
        " ",
        "hello world",
        "  two  spaces \n\n\ttab\r\n",
        "it's we'll I'd they've'S",
        "na\u{ef}ve \u{1F600}\u{1F3FD} \u{4e2d}\u{6587} \u{0}\u{1}\u{7f}\u{ad}",
        "fn main() { println!(\"{:?}\", 1_000 >> 2); }",
        "\u{a0}\u{2003}\u{3000}x",
        "e\u{301}\u{200d}\u{feff}",
        "123456 7890 \u{0663}\u{bd}",
        "\u{10ffff}\u{e000}",
        "<|endoftex|> <|endoftext |>",
    ];

    #[test]
    fn bytes_have_the_ids_of_the_file_they_write() {
        for append in [None, Some(false)] {
            let ours = open(TokenizerKind::Bytes, append);
            let theirs = theirs(&ours);
            assert_eq!(theirs.get_vocab_size(true), ours.vocab_size());
            assert_eq!(theirs.token_to_id(super::EOD_NAME), ours.eod());
            for text in TEXTS {
                agree(&ours, &theirs, text);
            }
            proptest!(ProptestConfig::with_cases(300), |(text in any::<String>())| {
                agree(&ours, &theirs, &text);
            });
        }
    }

    #[test]
    fn gpt2_has_the_ids_of_the_file_it_writes() {
        let ours = open(TokenizerKind::Gpt2, None);
        let files = ours.hf_files();
        let theirs = theirs(&ours);
        assert_eq!(theirs.get_vocab_size(true), 50_257);
        assert_eq!(theirs.token_to_id(super::EOD_NAME), Some(50_256));
        // The first lines of the file that OpenAI published, and their number.
        let merges = files.iter().find(|f| f.0 == "merges.txt").unwrap();
        let merges = String::from_utf8(merges.1.clone()).unwrap();
        let lines: Vec<&str> = merges.lines().collect();
        assert_eq!(
            lines[..5],
            ["#version: 0.2", "\u{120} t", "\u{120} a", "h e", "i n"]
        );
        assert_eq!(lines.len(), 50_001);
        for text in TEXTS {
            agree(&ours, &theirs, text);
        }
        // Every token's own bytes, where they are text.
        for id in (0..50_256).step_by(7) {
            let text = ours.decode(&[id]);
            if !text.contains('\u{fffd}') {
                agree(&ours, &theirs, &text);
            }
        }
        proptest!(ProptestConfig::with_cases(300), |(text in any::<String>(), words in "[ a-zA-Z0-9'\\n.,(){}_-]{0,200}")| {
            agree(&ours, &theirs, &text);
            agree(&ours, &theirs, &words);
        });
    }

    #[test]
    fn the_name_of_the_special_token_is_the_token_to_others() {
        let ours = open(TokenizerKind::Bytes, None);
        let ids = theirs(&ours)
            .encode("a<|endoftext|>", false)
            .unwrap()
            .get_ids()
            .to_vec();
        assert_eq!(ids, [97, 256]);
        assert_eq!(ours.encode(b"a<|endoftext|>").unwrap().tokens.len(), 14);
    }
}
