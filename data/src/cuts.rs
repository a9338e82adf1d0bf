//! Places at which a long text can be cut so that the tokens of the parts are those of the whole.
//!
//! Byte-level BPE splits a text by a regular expression from left to right and merges within the parts. Between the end of a line and a
//! letter all expressions below end a part, whatever stands before and behind: none has an alternative that matches a line break and a letter,
//! none looks back, and at the cut `\s+(?!\S)`, `\s+$` and `\s` all match the one line break, since what precedes it is no white space.

use serde_json::Value;

/// Published expressions: of cl100k and Llama 3, of Qwen 2, and of GPT-2.
const SPLITS: [&str; 3] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
];

/// The last place of a text to cut at: behind the end of a line that is not blank, before an ASCII letter.
pub(crate) fn last(text: &[u8]) -> Option<usize> {
    let fits = |w: &[u8]| w[0].is_ascii_graphic() && w[1] == b'\n' && w[2].is_ascii_alphabetic();
    text.windows(3).rposition(fits).map(|at| at + 2)
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
            assert_eq!(t.cut(b"ab \nab\n\nab\n 1\n2"), None);
        }
        proptest!(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() },
            |(text in "[abc;<>/' \t\r\n\u{e9}\u{301}1]{0,60}", any in any::<String>())| {
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
