//! Rows as people have them give the examples of the same conversations written as JSON lines of messages, token for token and mark for mark.

use crate::tables::{arrow, arrow_bytes, parquet};
use arrow_array::builder::{StringBuilder, StructBuilder};
use arrow_array::{ArrayRef, RecordBatch, StringArray, StructArray};
use crossweave_data::*;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

const SEQ: usize = 48;
const TEMPLATE: &str =
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{{ eos_token }}{% endfor %}";

/// Numbers by a seed, so that a failure is found again.
struct Seeded(u64);
impl Seeded {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A role and what is said.
type Talk = Vec<(&'static str, String)>;

fn talks(r: &mut Seeded) -> Vec<Talk> {
    let words = ["a", "quick", "\"brown\"", "fox\n", "Grüße", "{% x %}", ""];
    let mut said = || {
        let n = 1 + r.below(3);
        let all = (0..n).map(|_| words[r.below(7) as usize]);
        format!("{}.", all.collect::<Vec<_>>().join(" "))
    };
    let mut talk = |i: u64| {
        let mut all: Talk = vec![];
        if i.is_multiple_of(3) {
            all.push(("system", said()));
        }
        for _ in 0..1 + i % 2 {
            all.push(("user", said()));
            all.push(("assistant", said()));
        }
        all
    };
    (0..9).map(&mut talk).collect()
}

fn lines(rows: impl Iterator<Item = Value>) -> Vec<u8> {
    rows.map(|r| format!("{r}\n")).collect::<String>().into()
}

fn spec(dir: &Path, glob: &str, rows: Rows) -> DataSpec {
    std::fs::write(dir.join("chat.jinja"), TEMPLATE).unwrap();
    DataSpec {
        objective: Objective::Causal,
        train: Source::Files(FilesSource::new(dir, [glob])),
        examples: Some(Examples {
            rows,
            all: false,
            template: (rows != Rows::Tokens).then(|| dir.join("chat.jinja")),
            skip_null: false,
            pack: false,
            refuse_long: false,
        }),
        validation: Validation::None,
        tokenizer: Some(TokenizerSpec::new(TokenizerKind::Bytes)),
        model_vocab: None,
    }
}

/// The tokens and labels of every row.
type Seen = Vec<(Vec<u32>, Vec<i32>)>;

fn seen(dir: &Path, glob: &str, rows: Rows) -> Result<Seen> {
    let spec = spec(dir, glob, rows);
    check(&spec)?;
    let corpus = open(&spec, &dir.join("cache"), &NoProgress)?;
    let Pass::Samples(n) = corpus.pass(SEQ)? else {
        panic!("no samples");
    };
    let source = corpus.train(SEQ, n, 3)?;
    (0..n)
        .map(|i| {
            let mut tokens = vec![0; source.row_len()];
            source.read(i, &mut tokens)?;
            let mut labels = vec![0; tokens.len() - 1];
            source.labels(i, &tokens, &mut labels)?;
            Ok((tokens, labels))
        })
        .collect()
}

fn packed(bytes: &[u8], zstd: bool) -> Vec<u8> {
    if zstd {
        return zstd::encode_all(bytes, 1).unwrap();
    }
    let mut to = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    to.write_all(bytes).unwrap();
    to.finish().unwrap()
}

/// Files and folders of the same rows, by their names.
fn containers(dir: &Path, stem: &str, rows: &[Value]) -> Vec<String> {
    let text = lines(rows.iter().cloned());
    let list = serde_json::to_vec_pretty(rows).unwrap();
    let mut all = vec![];
    for (end, bytes) in [
        (".jsonl", text.clone()),
        (".json", list),
        (".gz", packed(&text, false)),
        (".zst", packed(&text, true)),
        (".arrow", arrow(rows, false)),
        ("-stream", arrow(rows, true)),
        (".parquet", parquet(rows)),
    ] {
        let name = format!("{stem}{end}");
        std::fs::write(dir.join(&name), bytes).unwrap();
        all.push(name);
    }
    // As `save_to_disk` leaves it: the folder by its name.
    let saved = dir.join(stem);
    std::fs::create_dir(&saved).unwrap();
    let (first, rest) = rows.split_at(rows.len() / 2);
    let names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"];
    for (name, part) in names.into_iter().zip([first, rest]) {
        std::fs::write(saved.join(name), arrow(part, true)).unwrap();
    }
    std::fs::write(saved.join("dataset_info.json"), "{\"features\": {}}").unwrap();
    let files: Vec<Value> = names.iter().map(|n| json!({"filename": n})).collect();
    let state =
        json!({"_data_files": files, "_fingerprint": "0", "_format_type": null, "_split": "train"});
    std::fs::write(saved.join("state.json"), state.to_string()).unwrap();
    all.push(stem.into());
    all
}

#[test]
fn every_form_of_a_conversation_gives_the_same_examples() {
    let mut r = Seeded(47);
    for _ in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let (all, dir) = (talks(&mut r), dir.path());
        let message =
            |(role, said): &(&'static str, String)| json!({"role": role, "content": said});
        let messages =
            |part: &[(&'static str, String)]| -> Value { part.iter().map(message).collect() };
        // A field that is null everywhere, as datasets write one that some rows of a corpus have.
        let row = |t: &Talk| json!({"messages": messages(t), "note": null});
        std::fs::write(dir.join("plain.jsonl"), lines(all.iter().map(row))).unwrap();
        let plain = seen(dir, "plain.jsonl", Rows::Messages).unwrap();
        assert!(!plain.is_empty());
        let same = |stem: &str, rows: Vec<Value>, form: Rows, want: &Seen| {
            for name in containers(dir, stem, &rows) {
                assert_eq!(seen(dir, &name, form).unwrap(), *want, "{name}");
            }
        };
        same(
            "messages",
            all.iter().map(row).collect(),
            Rows::Messages,
            &plain,
        );
        // ShareGPT, with the system message beside the conversation in every other row, and names of either kind.
        let speakers = |i: usize, role: &str| match (role, i % 2) {
            ("user", 0) => "human",
            ("assistant", 0) => "gpt",
            (role, _) => ["user", "assistant", "system"]
                .into_iter()
                .find(|r| *r == role)
                .unwrap(),
        };
        let share = all.iter().enumerate().map(|(i, talk)| {
            let beside = i % 2 == 0 && talk[0].0 == "system";
            let said = talk.iter().skip(usize::from(beside));
            let said = said.map(|(role, text)| json!({"from": speakers(i, role), "value": text}));
            let mut row = json!({"id": i, "conversations": said.collect::<Vec<_>>()});
            if beside {
                row["system"] = json!(talk[0].1);
            }
            row
        });
        same("share", share.collect(), Rows::ShareGpt, &plain);
        // Alpaca: the last question and answer, with the turns before them as a history.
        let alpaca = all.iter().enumerate().map(|(i, talk)| {
            let system = talk.iter().take_while(|m| m.0 == "system").count();
            let turns: Vec<_> = talk[system..].chunks(2).map(|t| [&t[0].1, &t[1].1]).collect();
            let ([asked, output], before) = turns.split_last().unwrap();
            // A question over two lines may stand in both fields.
            let (instruction, input) = match asked.split_once('\n').filter(|(a, b)| i % 2 == 0 && !a.is_empty() && !b.is_empty()) {
                Some((a, b)) => (a, b),
                None => (asked.as_str(), ""),
            };
            let mut row = json!({"instruction": instruction, "input": input, "output": output, "history": before});
            if system > 0 {
                row["system"] = json!(talk[0].1);
            }
            row
        });
        same("alpaca", alpaca.collect(), Rows::Alpaca, &plain);
        // Pairs of which the completion is the last answer: where that is the only one, the examples of the messages.
        let pair = |t: &Talk| {
            let (prompt, completion) = t.split_at(t.len() - 1);
            json!({"prompt": messages(prompt), "completion": messages(completion)})
        };
        let single = all
            .iter()
            .filter(|t| t.iter().filter(|m| m.0 == "assistant").count() == 1);
        let single: Vec<&Talk> = single.collect();
        assert!(single.len() > 2 && single.len() < all.len());
        let rows = single.iter().map(|t| row(t));
        std::fs::write(dir.join("single.jsonl"), lines(rows)).unwrap();
        let answers = seen(dir, "single.jsonl", Rows::Messages).unwrap();
        let rows = single.iter().map(|t| pair(t)).collect();
        same("pairs", rows, Rows::PromptCompletion, &answers);
        // The same tokens with their labels.
        let tokens = plain.iter().map(|(tokens, labels)| {
            let end = labels.iter().rposition(|l| *l != -100).unwrap() + 2;
            let mut all = vec![-100];
            all.extend(&labels[..end - 1]);
            let mask: Vec<u8> = (0..end + 2).map(|i| u8::from(i < end)).collect();
            let padded = |v: Vec<i64>, fill| [v, vec![fill; 2]].concat();
            let ids = tokens[..end].iter().map(|t| i64::from(*t)).collect();
            let labels = all.into_iter().map(i64::from).collect();
            json!({"input_ids": padded(ids, 0), "labels": padded(labels, -100), "attention_mask": mask})
        });
        let sorted = |mut all: Seen| {
            all.iter_mut().for_each(|(tokens, labels)| {
                let end = labels.iter().rposition(|l| *l != -100).unwrap() + 2;
                tokens.truncate(end);
            });
            all.sort();
            all
        };
        for name in containers(dir, "tokens", &tokens.collect::<Vec<_>>()) {
            let made = seen(dir, &name, Rows::Tokens).unwrap();
            assert_eq!(sorted(made), sorted(plain.clone()), "{name}");
        }
    }
}

/// Prompts and completions that are plain text are the same examples in a table as in lines.
#[test]
fn pairs_of_text_are_the_same_in_every_file() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let rows = (0..9)
        .map(|i| json!({"prompt": "é?".repeat(i % 4), "completion": format!("{i}!\n"), "id": i}));
    let rows: Vec<Value> = rows.collect();
    let all = containers(dir, "pairs", &rows);
    let [first, others @ ..] = &all[..] else {
        panic!("no files")
    };
    let want = seen(dir, first, Rows::PromptCompletion).unwrap();
    assert_eq!(want.len(), 9);
    for name in others {
        let got = seen(dir, name, Rows::PromptCompletion).unwrap();
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn rows_that_are_no_examples_of_their_form_are_refused_by_line_and_cause() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let good = [
        json!({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}),
        json!({"instruction": "q", "input": "", "output": "a"}),
        json!({"input_ids": [97, 98]}),
        json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}),
        json!({"prompt": "q", "completion": "a"}),
    ];
    let forms = [
        Rows::ShareGpt,
        Rows::Alpaca,
        Rows::Tokens,
        Rows::Messages,
        Rows::PromptCompletion,
    ];
    let names = [
        "sharegpt",
        "alpaca",
        "tokens",
        "messages",
        "prompt_completion",
    ];
    let said = |rows: Rows, bad: &Value| {
        let first = forms.iter().position(|f| *f == rows).unwrap();
        std::fs::write(
            dir.join("x.jsonl"),
            lines([good[first].clone(), bad.clone()].into_iter()),
        )
        .unwrap();
        let e = seen(dir, "x.jsonl", rows).unwrap_err().to_string();
        assert!(e.contains("x.jsonl:2") && e.contains("fix: "), "{e}");
        let left = std::fs::read_dir(dir.join("cache"));
        assert_eq!(
            left.map_or(0, |d| d.count()),
            0,
            "something half-made is left"
        );
        e
    };
    for (rows, bad, words) in [
        (
            Rows::ShareGpt,
            json!({"conversations": [{"from": "narrator", "value": "q"}]}),
            "message 1 of \"conversations\" is from \"narrator\", which is none of system, human, user, gpt",
        ),
        (
            Rows::ShareGpt,
            json!({"conversations": [{"value": "q"}]}),
            "message 1 of \"conversations\" has no \"from\"",
        ),
        (
            Rows::ShareGpt,
            json!({"conversations": [{"from": "human"}]}),
            "has no \"value\"",
        ),
        (
            Rows::ShareGpt,
            json!({"conversations": [{"from": "human", "value": 3}]}),
            "is no string but number",
        ),
        (
            Rows::ShareGpt,
            json!({"conversations": "hi"}),
            "field \"conversations\" is no list",
        ),
        (
            Rows::ShareGpt,
            json!({"conversations": []}),
            "field \"conversations\" is an empty list",
        ),
        (
            Rows::Alpaca,
            json!({"instruction": "q"}),
            "field \"output\" is missing",
        ),
        (
            Rows::Alpaca,
            json!({"instruction": "", "input": "", "output": "a"}),
            "is empty, and so is \"input\"",
        ),
        (
            Rows::Alpaca,
            json!({"instruction": 3, "output": "a"}),
            "field \"instruction\" is no string",
        ),
        (
            Rows::Alpaca,
            json!({"instruction": "q", "output": "a", "history": [["b"]]}),
            "turn 1 of \"history\" is no pair",
        ),
        (
            Rows::Tokens,
            json!({"input_ids": [1, 2], "labels": [1]}),
            "\"labels\" has 1 places and \"input_ids\" 2",
        ),
        (
            Rows::Tokens,
            json!({"input_ids": [1, 257]}),
            "place 1 of \"input_ids\" is 257, and the tokenizer has 257 tokens",
        ),
        (
            Rows::Tokens,
            json!({"input_ids": [1, -1]}),
            "place 1 of \"input_ids\" is -1",
        ),
        (
            Rows::Tokens,
            json!({"input_ids": [1, 2.5]}),
            "place 1 of \"input_ids\" is no whole number",
        ),
        (
            Rows::Tokens,
            json!({"input_ids": [1, 2], "labels": [1, 3]}),
            "place 1 of \"labels\" is 3, and the token there is 2",
        ),
        (
            Rows::Tokens,
            json!({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}),
            "leaves out place 1",
        ),
        (
            Rows::Tokens,
            json!({"input_ids": [1, 2], "labels": [1, 2], "attention_mask": [1, 0]}),
            "place 1 of \"labels\" counts",
        ),
        (
            Rows::Tokens,
            json!({"input_ids": [1, 2], "attention_mask": [1, 2]}),
            "holds 2, which is neither 0 nor 1",
        ),
    ] {
        let e = said(rows, &bad);
        assert!(e.contains(words), "{bad}: {e}");
    }
    // A row of another form says which it is, and so does text.
    for (row, name) in good.iter().zip(names) {
        for (rows, own) in forms.iter().zip(names).filter(|(_, own)| *own != name) {
            // Messages are taken for ShareGPT's too where their roles have its names.
            if (own, name) == ("sharegpt", "messages") {
                continue;
            }
            let e = said(*rows, row);
            assert!(
                e.contains(&format!("data.format to {name}, which these rows are")),
                "{own}: {e}"
            );
        }
        std::fs::write(dir.join("t.jsonl"), lines([row.clone()].into_iter())).unwrap();
        let mut plain = spec(dir, "t.jsonl", Rows::Messages);
        plain.examples = None;
        let e = open(&plain, &dir.join("cache"), &NoProgress)
            .err()
            .unwrap()
            .to_string();
        assert!(
            e.contains(&format!(
                "these rows are examples: set data.format to {name}"
            )),
            "{e}"
        );
    }
}

/// The tokens of a text source, as text with `.` for the end of a document, and how many rows of null were left out.
fn text(dir: &Path, name: &str, field: &str, skip: bool) -> Result<(String, u64)> {
    let mut source = FilesSource::new(dir, [name]);
    (source.text_key, source.skip_null) = (field.into(), skip);
    let spec = DataSpec {
        train: Source::Files(source),
        examples: None,
        ..spec(dir, name, Rows::Messages)
    };
    let corpus = open(&spec, &dir.join("cache"), &NoProgress)?;
    let report = corpus.reports()[0].clone();
    let set = IndexedDataset::open(&report.prefix)?;
    let mut all = vec![];
    for i in 0..set.sequences() {
        let mut tokens = vec![0; set.length(i).unwrap() as usize];
        set.read(i, 0, None, &mut tokens)?;
        all.extend(tokens);
    }
    let char_of = |t: u32| u8::try_from(t).map_or('.', char::from);
    Ok((all.into_iter().map(char_of).collect(), report.null_rows))
}

/// A struct column `meta` with a string column `text` in it, of which the second row is null and the text of the third.
fn nested(stream: bool) -> Vec<u8> {
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, None, Some("d")]));
    let plain = StructArray::try_from(vec![("text", texts.clone())]).unwrap();
    let mut to = StructBuilder::from_fields(plain.fields().clone(), 4);
    for (i, text) in ["a", "", "", "d"].into_iter().enumerate() {
        let column = to.field_builder::<StringBuilder>(0).unwrap();
        match i {
            1 | 2 => column.append_null(),
            _ => column.append_value(text),
        }
        to.append(i != 1);
    }
    let meta: ArrayRef = Arc::new(to.finish());
    let batch = RecordBatch::try_from_iter([("meta", meta), ("meta.note", texts)]).unwrap();
    arrow_bytes(&batch, stream)
}

#[test]
fn fields_within_fields_are_read_and_rows_of_null_are_refused_or_counted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let rows = [
        json!({"id": 1, "meta": {"x": {"text": 3}, "text": "a"}, "meta.note": "a"}),
        json!({"meta": null, "meta.note": null}),
        json!({"meta": {"text": null}, "meta.note": null}),
        json!({"meta.note": "d", "meta": {"text": "d", "note": "x"}}),
    ];
    let flat = rows.clone().map(|r| json!({"meta": r["meta"].get("text").map_or(Value::Null, |t| json!({"text": t})), "meta.note": r["meta.note"]}));
    std::fs::write(dir.join("a.jsonl"), lines(rows.iter().cloned())).unwrap();
    std::fs::write(
        dir.join("a.json"),
        serde_json::to_string_pretty(&rows).unwrap(),
    )
    .unwrap();
    std::fs::write(dir.join("a.arrow"), nested(false)).unwrap();
    std::fs::write(dir.join("stream"), nested(true)).unwrap();
    std::fs::write(dir.join("a.parquet"), parquet(&flat)).unwrap();
    for name in ["a.jsonl", "a.json", "a.arrow", "stream", "a.parquet"] {
        for field in ["meta.text", "meta.note"] {
            let e = text(dir, name, field, false).unwrap_err().to_string();
            assert!(
                e.contains(name) && e.contains("fix: "),
                "{name} {field}: {e}"
            );
            let found = text(dir, name, field, true).unwrap();
            assert_eq!(found, ("a.d.".into(), 2), "{name} {field}");
        }
        // A field that is not there, or is something else, is an error still.
        for field in ["meta.txt", "meta", "other.text"] {
            let e = text(dir, name, field, true).unwrap_err().to_string();
            assert!(e.contains(field), "{name} {field}: {e}");
        }
    }
    // Examples of null.
    let talk = json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]});
    std::fs::write(
        dir.join("n.jsonl"),
        lines([talk, json!({"messages": null})].into_iter()),
    )
    .unwrap();
    let mut spec = spec(dir, "n.jsonl", Rows::Messages);
    assert!(open(&spec, &dir.join("cache"), &NoProgress).is_err());
    spec.examples.as_mut().unwrap().skip_null = true;
    let corpus = open(&spec, &dir.join("cache"), &NoProgress).unwrap();
    assert_eq!(
        (corpus.pass(SEQ).unwrap(), corpus.reports()[0].null_rows),
        (Pass::Samples(1), 1)
    );
}

#[test]
fn tables_and_folders_that_hold_no_examples_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let refused = |name: &str, rows: Rows, words: &[&str]| {
        let e = seen(dir, name, rows).unwrap_err().to_string();
        assert!(words.iter().all(|w| e.contains(w)), "{name}: {e}");
    };
    let talk = [
        json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}),
    ];
    std::fs::write(dir.join("a.arrow"), arrow(&talk, false)).unwrap();
    std::fs::write(dir.join("a.parquet"), parquet(&talk)).unwrap();
    for name in ["a.arrow", "a.parquet"] {
        refused(name, Rows::Alpaca, &[name, ":1", "data.format to messages"]);
        let mut plain = spec(dir, name, Rows::Messages);
        plain.examples = None;
        let e = open(&plain, &dir.join("cache"), &NoProgress)
            .err()
            .unwrap()
            .to_string();
        assert!(
            e.contains("no column \"text\"") && e.contains("set data.format to messages"),
            "{e}"
        );
        let bytes = std::fs::read(dir.join(name)).unwrap();
        let cut = format!("cut-{name}");
        std::fs::write(dir.join(&cut), &bytes[..bytes.len() / 2]).unwrap();
        refused(&cut, Rows::Messages, &[&cut, "damaged table"]);
    }
    std::fs::write(dir.join("n.arrow"), arrow(&[json!({"name": "a"})], false)).unwrap();
    refused(
        "n.arrow",
        Rows::Messages,
        &["n.arrow", "none of the columns", "\"name\""],
    );
    std::fs::write(dir.join("c.csv"), "messages\nhi\n").unwrap();
    refused("c.csv", Rows::Messages, &["c.csv", "table of texts alone"]);
    let state = |text: &str| {
        let saved = dir.join("saved");
        std::fs::create_dir_all(&saved).unwrap();
        std::fs::write(saved.join("state.json"), text).unwrap();
    };
    for (text, word) in [
        (
            "{\"_data_files\": [{\"filename\": \"data.arrow\"}]}",
            "\"data.arrow\", which is not in the folder",
        ),
        (
            "{\"_data_files\": [{\"filename\": \"../a.arrow\"}]}",
            "\"../a.arrow\", which is not in the folder",
        ),
        ("{\"_data_files\": []}", "names no table"),
        ("{\"_data_fil", "EOF"),
    ] {
        state(text);
        refused("saved", Rows::Messages, &["state.json", word, "fix: "]);
    }
    std::fs::write(
        dir.join("saved/dataset_dict.json"),
        "{\"splits\": [\"train\", \"test\"]}",
    )
    .unwrap();
    refused(
        "saved",
        Rows::Messages,
        &["a dataset for each split: train, test", "saved/train"],
    );
}
