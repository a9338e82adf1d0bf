//! The spanned parser accepts what serde_json accepts (but for duplicate keys and depth) with the same
//! values, and beyond it only comments, a last comma and keys without quotes; it says where a mistake
//! stands, and never panics.

use crossweave_config::json::{Json, parse};
use crossweave_config::{At, Config};
use proptest::prelude::*;

fn has_duplicates(error: &str) -> bool {
    error.contains("given twice")
}

/// Whether the text holds something that only the wider grammar has.
fn relaxed(text: &str) -> bool {
    let dense: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let bare = |open: char| {
        let after = dense.split(open).skip(1);
        after
            .into_iter()
            .any(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
    };
    ["#", "//", "/*", ",]", ",}"]
        .iter()
        .any(|mark| dense.contains(mark))
        || bare('{')
        || bare(',')
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        any::<f64>().prop_map(|x| serde_json::Value::from(if x.is_finite() { x } else { 0.5 })),
        any::<String>().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn values_survive(value in any_json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let node = parse(&text).unwrap();
        prop_assert_eq!(node.value.plain(), serde_json::from_str::<serde_json::Value>(&text).unwrap());
    }

    #[test]
    fn accepts_what_serde_json_accepts(text in r#"[\[\]{}:,"0-9eE+.\-truefalsn \n\\/ué'#a]{0,24}"#) {
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        match parse(&text) {
            Ok(node) => match theirs {
                Ok(theirs) => prop_assert_eq!(node.value.plain(), theirs),
                Err(_) => prop_assert!(relaxed(&text), "{text:?}"),
            },
            Err(e) => prop_assert!(theirs.is_err() || has_duplicates(&e.what), "{text:?}: {}", e.what),
        }
    }

    #[test]
    fn a_broken_document_never_panics(value in any_json(), cut in any::<prop::sample::Index>(), put in any::<char>()) {
        let mut chars: Vec<char> = serde_json::to_string_pretty(&value).unwrap().chars().collect();
        let i = cut.index(chars.len());
        chars[i] = put;
        let text: String = chars.iter().collect();
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        match parse(&text) {
            Ok(node) => match theirs {
                Ok(theirs) => prop_assert_eq!(node.value.plain(), theirs),
                Err(_) => prop_assert!(relaxed(&text), "{text:?}"),
            },
            Err(e) => prop_assert!(theirs.is_err() || has_duplicates(&e.what), "{text:?}: {}", e.what),
        }
        let short: String = chars[..i].iter().collect();
        let _ = parse(&short);
    }

    #[test]
    fn any_bytes_give_a_config_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Config::load("x.json", bytes, &[]);
    }

    #[test]
    fn any_object_gives_a_config_or_an_error(value in any_json(), key in "(model|data|run|mesh|optimizer|scheduler|zero_optimization)") {
        let text = format!("{{\"{key}\": {value}}}");
        let _ = Config::load("x.json", text, &[]);
    }
}

#[track_caller]
fn broken(text: &str, line: u32, col: u32, what: &str) {
    let e = parse(text).unwrap_err();
    assert_eq!(e.at, At::File { line, col }, "{text:?}: {}", e.what);
    assert!(e.what.contains(what), "{text:?}: {}", e.what);
}

#[test]
fn mistakes_have_a_place_and_a_name() {
    broken("", 1, 1, "ends where a value");
    broken("[1, 2,}", 1, 7, "where a value was expected");
    broken("[1,, 2]", 1, 4, "where a value was expected");
    broken("{,}", 1, 2, "a key was expected");
    broken("{\"a\": 1\n \"b\": 2}", 2, 2, "',' or '}'");
    broken(
        "{\"a\": 1, \"é\": 1, \"a\": 2}",
        1,
        18,
        "given twice, first on line 1",
    );
    broken("{\"a\" 1}", 1, 6, "no ':'");
    broken("{a 1}", 1, 4, "no ':'");
    broken("{'a': 1}", 1, 2, "a key was expected");
    broken("{\"a\": tru}", 1, 7, "bare word tru");
    broken("{\"a\": True}", 1, 7, "Python");
    broken("{\"a\": NaN}", 1, 7, "not a JSON number");
    broken("{\"a\": 01}", 1, 8, "leading zero");
    broken("{\"a\": 1.}", 1, 9, "lacks digits");
    broken("{\"a\": 1e999}", 1, 7, "too large");
    broken("{\"a\": \"b", 1, 7, "never closed");
    broken("{\"a\": \"b\n\"}", 1, 9, "control character");
    broken("{\"a\": \"\\x\"}", 1, 9, "unknown escape");
    broken("{\"a\": \"\\ud800\"}", 1, 8, "surrogate");
    broken("{} /* c", 1, 4, "after the end");
    broken("/* c\n{}", 1, 1, "comment that is never closed");
    broken("[1 / 2]", 1, 4, "',' or ']'");
    broken("{} {}", 1, 4, "after the end");
    broken("\u{feff}{}", 1, 1, "byte order mark");
    broken("{\"a\": [1, 2", 1, 12, "opened at 1:7");
    broken(&"[".repeat(200), 1, 97, "nested deeper");
    let e = Config::load("x.json", b"{\n \"a\xff\"".as_slice(), &[]).unwrap_err();
    assert!(e.to_string().starts_with("x.json:2:4: not UTF-8"), "{e}");
}

#[test]
fn columns_count_characters() {
    let node = parse("{\"é\": \"\\u00e9\\ud83d\\ude00\", \"b\": 1}").unwrap();
    let Json::Object(members) = node.value else {
        panic!("not an object");
    };
    assert_eq!(members[0].node.value, Json::Text("é😀".into()));
    assert_eq!(members[1].at, At::File { line: 1, col: 29 });
}

#[test]
fn what_hjson_also_reads_is_read() {
    let text = "// head\n{ # one\n  a_key: 1, /* two\n lines */ \"b\": [1, 2,], // three\n  \"c\": \"# no // comment\",\n}\n# end";
    let node = parse(text).unwrap();
    assert_eq!(
        node.value.plain(),
        serde_json::json!({"a_key": 1, "b": [1, 2], "c": "# no // comment"})
    );
    let Json::Object(members) = node.value else {
        panic!("not an object");
    };
    assert_eq!(members[1].at, At::File { line: 4, col: 11 });
}

/// Digits alone, beyond every number that a key takes, are named as too large.
#[test]
fn numbers_beyond_64_bits_are_too_large_and_not_negative() {
    for (text, fix) in [
        ("99999999999999999999", "at most"),
        ("-1", "not negative"),
        ("1.5", "not negative"),
    ] {
        let text = format!("{{\"mesh\": {{\"tp\": {text}}}}}");
        let e = Config::load("c.json", text, &[]).unwrap_err().to_string();
        assert!(e.contains(fix), "{e}");
    }
}
