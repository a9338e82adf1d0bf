//! Places at which a long text can be cut so that the tokens of the parts are those of the whole.
//!
//! Byte-level BPE splits a text by a regular expression from left to right and merges within the parts. Between the end of a line and a letter
//! or digit all expressions below end a part, whatever stands before and behind: none has an alternative that matches a line break and one of
//! these, none looks back, and at the cut `\s+(?!\S)`, `\s+$` and `\s` all match the one line break, since what precedes it is no white space.
//! Between a letter and a space that a letter follows they end one too: none matches a letter and a space.

use serde_json::Value;

/// Published expressions: of cl100k and Llama 3, of Qwen 2, and of GPT-2.
const SPLITS: [&str; 3] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
];

/// The last place of a text to cut at: behind the end of a line that is not blank, before a letter or digit; or before a space between ASCII
/// letters.
pub(crate) fn last(text: &[u8]) -> Option<usize> {
    let fits = |at: &usize| match (text[at - 1], text[*at]) {
        (b'\n', next) => {
            let before = &text[..at - 1];
            (next.is_ascii_alphanumeric() || letter(&text[*at..])) && ends_line(before)
        }
        (b, b' ') => {
            b.is_ascii_alphabetic() && text.get(at + 1).is_some_and(u8::is_ascii_alphabetic)
        }
        _ => false,
    };
    (2..text.len()).rev().find(fits)
}

/// Could a token with these bytes lie over a place to cut at?
pub(crate) fn within(token: &[u8]) -> bool {
    let over = |w: &[u8]| w[0].is_ascii_alphabetic() && w[1] == b' ';
    token.contains(&b'\n') || token.windows(2).any(over)
}

/// Does a text begin with a letter of one of the scripts that lines commonly begin with? No normalisation makes another class of it, or
/// composes it with what stands before.
fn letter(text: &[u8]) -> bool {
    let first = text[..text.len().min(4)].utf8_chunks().next();
    let first = first.and_then(|c| c.valid().chars().next());
    matches!(
        first,
        Some(
            '\u{c0}'..='\u{d6}'
            | '\u{d8}'..='\u{f6}'
            | '\u{391}'..='\u{3a1}'
            | '\u{3b1}'..='\u{3c9}'
            | '\u{410}'..='\u{44f}'
            | '\u{5d0}'..='\u{5ea}'
            | '\u{627}'..='\u{63a}'
            | '\u{905}'..='\u{939}'
            | '\u{e01}'..='\u{e30}'
            | '\u{3041}'..='\u{3096}'
            | '\u{30a1}'..='\u{30fa}'
            | '\u{4e00}'..='\u{9fa5}'
            | '\u{ac00}'..='\u{d7a3}',
        )
    )
}

/// Does a line end in something that is no white space: an ASCII character, such a letter, or punctuation of East Asia?
fn ends_line(line: &[u8]) -> bool {
    let tail = &line[line.len().saturating_sub(3)..];
    let wide = |t: &[u8]| {
        let text = std::str::from_utf8(t).unwrap_or_default();
        matches!(
            text.chars().next(),
            Some('\u{3001}'..='\u{3011}' | '\u{ff01}'..='\u{ff5e}')
        )
    };
    match tail {
        [.., b] if b.is_ascii() => b.is_ascii_graphic(),
        [.., 0xc0..=0xdf, _] => letter(&tail[tail.len() - 2..]),
        [0xe0..=0xef, ..] => letter(tail) || wide(tail),
        _ => false,
    }
}

/// Can a `tokenizer.json` with these parts be cut so? `normalizer` is none or composes characters, which neither a line break nor what
/// follows one takes part in.
pub(crate) fn holds(normalizer: &Value, pre_tokenizer: &Value, model: &Value) -> bool {
    let plain = normalizer.is_null() || normalizer["type"] == "NFC" || normalizer["type"] == "NFKC";
    let bytes = |v: &Value, own: bool| {
        v["type"] == "ByteLevel"
            && v["add_prefix_space"] == false
            && (v["use_regex"] != false) == own
    };
    let split = |v: &Value| {
        let regex = v["pattern"]["Regex"].as_str();
        v["type"] == "Split"
            && v["behavior"] == "Isolated"
            && v["invert"] == false
            && regex.is_some_and(|r| SPLITS.contains(&r))
    };
    let cut = match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
        Some([first, second]) => split(first) && bytes(second, false),
        _ => bytes(pre_tokenizer, true),
    };
    // Some steps of a merge are left out at random.
    plain && cut && model["type"] == "BPE" && model["dropout"].is_null()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hf_file::tests::byte_level;
    use crate::spec::{TokenizerKind, TokenizerSpec};
    use crate::tokenizer::Tokenizer;
    use proptest::prelude::*;
    use serde_json::json;

    fn agree(tokenizer: &Tokenizer, text: &str) {
        let whole = tokenizer.encode(text.as_bytes()).unwrap().tokens;
        let (mut rest, mut parts) = (text.as_bytes(), vec![]);
        while let Some(at) = tokenizer.cut(rest).filter(|at| *at < rest.len()) {
            parts.splice(0..0, tokenizer.encode(&rest[at..]).unwrap().tokens);
            rest = &rest[..at];
        }
        parts.splice(0..0, tokenizer.encode(rest).unwrap().tokens);
        assert_eq!(parts, whole, "{text:?}");
    }

    #[test]
    fn parts_have_the_tokens_of_the_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut all =
            vec![Tokenizer::open(&TokenizerSpec::new(TokenizerKind::Gpt2), None).unwrap()];
        let merges = [
            "a b",
            "\u{10a} a",
            "\u{120} a",
            "ab c",
            "; \u{10a}",
            "\u{10a} \u{10a}",
            "\u{120} \u{120}",
            "\u{10a} 1",
        ];
        for (i, split) in SPLITS.iter().enumerate() {
            let path = dir.path().join(format!("{i}.json"));
            let pre = json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
            ]});
            std::fs::write(&path, byte_level(&merges, &pre).to_string()).unwrap();
            let spec = TokenizerSpec::new(TokenizerKind::HfFile(path));
            all.push(Tokenizer::open(&spec, None).unwrap());
        }
        for t in &all {
            assert_eq!(t.cut(b"ab\nab;\n"), Some(3), "{}", t.name().display());
            assert_eq!(t.cut(b"ab \nab\n\nab\n 1 a\n"), None);
            assert_eq!(t.cut(b"1\n2 a"), Some(2));
            assert_eq!(t.cut("字。\n字 ".as_bytes()), Some(7));
            assert_eq!(t.cut("Ж\nЖ".as_bytes()), Some(3));
            assert_eq!(t.cut("字\u{3000}\n字 ".as_bytes()), None);
            assert_eq!(t.cut(b"one two"), Some(3));
        }
        proptest!(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() },
            |(text in "[abc;<>/' \t\r\n\u{e9}\u{301}1\u{5b57}\u{3002}\u{3000}\u{416}\u{a0}]{0,60}", any in any::<String>())| {
            for t in &all {
                agree(t, &text);
                agree(t, &format!("{any}\n{text}\n{any}"));
                agree(t, &text.replace(' ', "\na"));
            }
        });
    }

    #[test]
    fn other_steps_are_not_cut() {
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let bpe = json!({"type": "BPE", "dropout": null});
        assert!(holds(&Value::Null, &level, &bpe));
        assert!(!holds(
            &json!({"type": "Prepend", "prepend": "\u{2581}"}),
            &level,
            &bpe
        ));
        assert!(!holds(&Value::Null, &Value::Null, &bpe));
        assert!(!holds(&Value::Null, &json!({"type": "Metaspace"}), &bpe));
        assert!(!holds(&Value::Null, &level, &json!({"type": "Unigram"})));
        assert!(!holds(
            &Value::Null,
            &level,
            &json!({"type": "BPE", "dropout": 0.1})
        ));
    }
}
