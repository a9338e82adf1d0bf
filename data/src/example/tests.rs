//! Lines of examples to tokens, and which of them count.

use super::*;
use crate::chat::BUILT_IN_END;
use crate::spec::TokenizerKind;
use std::collections::BTreeMap;

const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

fn reader(rows: Rows, all: bool, template: Option<&str>) -> (ExampleReader, Tokenizer) {
    let spec = TokenizerSpec::new(TokenizerKind::Bytes);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), template.unwrap_or_default()).unwrap();
    let examples = Examples {
        rows,
        all,
        template: template.map(|_| file.path().to_path_buf()),
        skip_null: false,
        pack: false,
        refuse_long: false,
    };
    let reader = ExampleReader::open(&examples, &spec).unwrap();
    (reader, Tokenizer::open(&spec, None).unwrap())
}

/// The text of the tokens that count, parts apart by `|`, and of all; the end of a document as `.`.
fn counted((reader, tokenizer): &(ExampleReader, Tokenizer), line: &str) -> (String, String) {
    let of = reader.of_line(line.as_bytes(), tokenizer, Path::new("d/x.jsonl"), 7);
    let example = of.unwrap().unwrap();
    let char_of = |t: &u32| u8::try_from(*t).map_or('.', char::from);
    let (mut out, mut gap) = (String::new(), false);
    for (t, counts) in example.tokens.iter().zip(&example.counted) {
        if *counts {
            if gap && !out.is_empty() {
                out.push('|');
            }
            out.push(char_of(t));
        }
        gap = !counts;
    }
    (out, example.tokens.iter().map(char_of).collect())
}

fn refused((reader, tokenizer): &(ExampleReader, Tokenizer), line: &str) -> String {
    let of = reader.of_line(line.as_bytes(), tokenizer, Path::new("d/x.jsonl"), 7);
    let said = of.unwrap_err().to_string();
    assert!(
        said.starts_with("d/x.jsonl:7: ") && said.contains("fix: "),
        "{said}"
    );
    said
}

const TALK: &str = r#"{"messages": [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2"}], "id": 3}"#;

#[test]
fn completions_count_and_prompts_do_not() {
    let r = reader(Rows::PromptCompletion, false, None);
    let line = r#"{"prompt": "2+2=", "completion": "4", "source": {"x": 1}}"#;
    assert_eq!(counted(&r, line), ("4.".into(), "2+2=4.".into()));
    assert_eq!(counted(&r, r#"{"prompt": "", "completion": "y"}"#).0, "y.");
    let all = reader(Rows::PromptCompletion, true, None);
    assert_eq!(counted(&all, line).0, "2+2=4.");
    let empty = counted(&r, r#"{"prompt": "", "completion": ""}"#);
    assert_eq!(empty, (String::new(), ".".into()));
    assert!(
        r.0.of_line(b" \n", &r.1, Path::new("x"), 1)
            .unwrap()
            .is_none()
    );
    // Both as messages.
    let chat = reader(Rows::PromptCompletion, false, Some(PLAIN));
    let line = r#"{"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]}"#;
    assert_eq!(
        counted(&chat, line),
        ("a.".into(), "<user>q.<assistant>a.".into())
    );
    assert!(refused(&r, line).contains("no chat template"));
}

#[test]
fn what_the_assistant_says_counts() {
    let r = reader(Rows::Messages, false, Some(PLAIN));
    let whole = "<user>q1.<assistant>a1.<user>q2.<assistant>a2.";
    assert_eq!(counted(&r, TALK), ("a1.|a2.".into(), whole.into()));
    let lighter = TALK.replace("\"content\": \"a1\"", "\"content\": \"a1\", \"weight\": 0");
    assert_eq!(counted(&r, &lighter).0, "a2.");
    let all = reader(Rows::Messages, true, Some(PLAIN));
    assert_eq!(counted(&all, TALK).0, whole);
    let marked = PLAIN.replace(
        "{{ m.content }}{{ eos_token }}",
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{{ eos_token }}{% endif %}",
    );
    let marked = reader(Rows::Messages, false, Some(&marked));
    assert_eq!(counted(&marked, TALK), ("a1.|a2.".into(), whole.into()));
    assert_eq!(counted(&marked, &lighter).0, "a2.");
    let silent = r#"{"messages": [{"role": "user", "content": "q"}]}"#;
    assert_eq!(counted(&r, silent).0, "");
}

#[test]
fn lines_that_are_no_examples_say_what_is_missing() {
    let r = reader(Rows::Messages, false, Some(PLAIN));
    for (line, words) in [
        ("{\"text\": \"a\"}", "\"messages\" is missing"),
        ("{\"prompt\": \"a\"}", "data.format to prompt_completion"),
        ("{\"messages\": []}", "an empty list"),
        ("{\"messages\": \"hi\"}", "no list of messages but string"),
        (
            "{\"messages\": [\"hi\"]}",
            "message 1 of \"messages\" is no object",
        ),
        (
            "{\"messages\": [{\"content\": \"a\"}]}",
            "message 1 of \"messages\" has no role",
        ),
        (
            "{\"messages\": [{\"from\": \"human\", \"value\": \"a\"}]}",
            "are of data.format \"sharegpt\"",
        ),
        ("{\"messages\": [{\"role\": \"user\"}]}", "has no content"),
        ("[{\"messages\": []}]", "no JSON object"),
        ("{\"messages\": [}", "column 15"),
        ("{\"messages\": \"\u{1}\"}", "column"),
        ("{\"messages\": NaN}", "\"messages\" is NaN, which Python"),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": -Infinity}]}",
            "message 1 of \"messages\": \"content\" is -Infinity, which Python",
        ),
        (
            "{\"messages\": [{\"role\": NaN, \"content\": \"a\"}]}",
            "\"role\" is NaN",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": Infinity}",
            "\"tools\" is Infinity",
        ),
    ] {
        let said = refused(&r, line);
        assert!(said.contains(words), "{line}: {said}");
    }
    let s = reader(Rows::ShareGpt, false, Some(PLAIN));
    let said = refused(
        &s,
        "{\"conversations\": [{\"from\": \"human\", \"value\": NaN}]}",
    );
    assert!(
        said.contains("is no string but NaN, which Python"),
        "{said}"
    );
    let a = reader(Rows::Alpaca, false, Some(PLAIN));
    let said = refused(
        &a,
        "{\"instruction\": \"a\", \"input\": NaN, \"output\": \"b\"}",
    );
    assert!(
        said.contains("field \"input\" is NaN, which Python"),
        "{said}"
    );
    let p = reader(Rows::PromptCompletion, false, None);
    for (line, words) in [
        ("{\"prompt\": \"a\"}", "\"completion\" is missing"),
        (
            "{\"prompt\": NaN, \"completion\": \"a\"}",
            "\"prompt\" is NaN, which Python writes for a value that is missing",
        ),
        (
            "{\"prompt\": \"a\", \"completion\": NaN}",
            "\"completion\" is NaN",
        ),
        ("{\"completion\": \"a\"}", "\"prompt\" is missing"),
        ("{\"messages\": []}", "data.format to messages"),
        ("{\"prompt\": \"a\", \"completion\": []}", "not alike"),
        (
            "{\"prompt\": 1, \"completion\": 2}",
            "no list of messages but number",
        ),
    ] {
        let said = refused(&p, line);
        assert!(said.contains(words), "{line}: {said}");
    }
    // One that thinks aloud in its last answer only: what was said is found all the same.
    let thinks = "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.role == 'assistant' %}(hm){% endif %}{{ m.content | trim }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let thinks = reader(Rows::Messages, false, Some(thinks));
    assert_eq!(counted(&thinks, TALK).0, "a1.|(hm)a2.");
    // The template's own refusal, and one that rewrites what was said before.
    let strict = reader(
        Rows::Messages,
        false,
        Some("{{ raise_exception('only two roles') }}"),
    );
    assert!(refused(&strict, TALK).contains("only two roles"));
    let forgets = "{% for m in messages %}<{{ m.role }}>{% if loop.last %}{{ m.content }}{% endif %}.{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let said = refused(&reader(Rows::Messages, false, Some(forgets)), TALK);
    assert!(
        said.contains("leaves out all that message 2 says"),
        "{said}"
    );
}

/// The runs of text that count, each with the byte at which it begins.
fn runs((reader, tokenizer): &(ExampleReader, Tokenizer), line: &str) -> Vec<(usize, String)> {
    let of = reader.of_line(line.as_bytes(), tokenizer, Path::new("x"), 1);
    let example = of.unwrap_or_else(|e| panic!("{e}\n{line}")).unwrap();
    let (mut all, mut at, mut before) = (vec![], 0, false);
    for (token, counts) in example.tokens.iter().zip(&example.counted) {
        let bytes = match u8::try_from(*token) {
            Ok(byte) => vec![byte],
            Err(_) => BUILT_IN_END.as_bytes().to_vec(),
        };
        if *counts && !before {
            all.push((at, vec![]));
        }
        at += bytes.len();
        if let Some((_, run)) = all.last_mut().filter(|_| *counts) {
            run.extend(bytes);
        }
        before = *counts;
    }
    let text = |(at, bytes)| (at, String::from_utf8(bytes).unwrap());
    all.into_iter().map(text).collect()
}

#[derive(serde::Deserialize)]
struct Table {
    conversations: Vec<String>,
    rows: BTreeMap<String, Vec<(usize, Vec<(usize, String)>)>>,
}

/// `tests/oracles/conversations.py` says what the table holds, and writes a larger one for a sweep.
#[test]
fn what_counts_is_what_the_assistant_wrote_behind_its_header() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles/conversations");
    let table = std::fs::read(dir.join("table.json")).unwrap();
    let table: Table = serde_json::from_slice(&table).unwrap();
    let mut wrong = vec![];
    let mut seen = 0;
    for (name, rows) in &table.rows {
        let marked = std::fs::read_to_string(dir.join(format!("{name}.jinja"))).unwrap();
        let plain = ["{% generation %}", "{% endgeneration %}"];
        let plain = plain
            .iter()
            .fold(marked.clone(), |s, tag| s.replace(tag, ""));
        for (kind, template) in [("plain", plain), ("marked", marked)] {
            let reader = reader(Rows::Messages, false, Some(&template));
            for (line, wanted) in rows {
                let line = &table.conversations[*line];
                let got = runs(&reader, line);
                seen += 1;
                if got != *wanted {
                    wrong.push(format!(
                        "{name}, {kind}: {line}\n  wanted {wanted:?}\n  got    {got:?}"
                    ));
                }
            }
        }
    }
    assert!(table.rows.len() > 12 && seen > 400);
    assert!(
        wrong.is_empty(),
        "{} of {seen}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn spans_that_overlap_are_one() {
    let all = vec![7..9, 0..2, 1..1, 2..4, 8..8, 5..6, 7..8];
    assert_eq!(joined(all), [0..4, 5..6, 7..9]);
    assert!(joined(vec![]).is_empty());
    // A template that marks each letter by itself.
    let each = "{% for m in messages %}{% for c in m.content %}{% generation %}{{ c }}{% endgeneration %}{{ c }}{% endfor %}{% endfor %}";
    let r = reader(Rows::Messages, false, Some(each));
    let line = r#"{"messages": [{"role": "assistant", "content": "abc"}]}"#;
    assert_eq!(counted(&r, line), ("a|b|c".into(), "aabbcc".into()));
}
