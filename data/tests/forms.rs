//! Rows as people have them give the examples of the same conversations written as JSON lines of messages, token for token and mark for mark.

use arrow_array::builder::{ListBuilder, StringBuilder, StructBuilder};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, StructArray};
use crossweave_data::*;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use serde_json::{Value, json};
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
            template: matches!(rows, Rows::Messages | Rows::ShareGpt | Rows::Alpaca)
                .then(|| dir.join("chat.jinja")),
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

fn arrow(all: &[Talk], stream: bool) -> Vec<u8> {
    let empty: ArrayRef = Arc::new(StringArray::from(Vec::<String>::new()));
    let of_two = StructArray::try_from(vec![("role", empty.clone()), ("content", empty)]).unwrap();
    let mut to = ListBuilder::new(StructBuilder::from_fields(of_two.fields().clone(), 0));
    for talk in all {
        for (role, said) in talk {
            for (i, text) in [*role, said].into_iter().enumerate() {
                let column = to.values().field_builder::<StringBuilder>(i).unwrap();
                column.append_value(text);
            }
            to.values().append(true);
        }
        to.append(true);
    }
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..all.len() as i64));
    let talks: ArrayRef = Arc::new(to.finish());
    let batch = RecordBatch::try_from_iter([("id", ids), ("messages", talks)]).unwrap();
    arrow_bytes(&batch, stream)
}

/// The bytes of an Arrow file, or of a stream.
fn arrow_bytes(batch: &RecordBatch, stream: bool) -> Vec<u8> {
    if stream {
        let mut to = arrow_ipc::writer::StreamWriter::try_new(vec![], &batch.schema()).unwrap();
        to.write(batch).unwrap();
        return to.into_inner().unwrap();
    }
    let mut to = arrow_ipc::writer::FileWriter::try_new(vec![], &batch.schema()).unwrap();
    to.write(batch).unwrap();
    to.into_inner().unwrap()
}

/// Lists of groups, with a field that is null everywhere, as datasets write one that some rows of a corpus have.
fn parquet(all: &[Talk]) -> Vec<u8> {
    use parquet::file::{properties::WriterProperties, writer::SerializedFileWriter};
    let schema = "message m { OPTIONAL INT64 id; OPTIONAL group messages (LIST) { REPEATED group list { OPTIONAL group element {
        OPTIONAL BINARY content (UTF8); OPTIONAL BINARY role (UTF8); OPTIONAL BINARY name (UTF8); } } } }";
    let schema = parquet::schema::parser::parse_message_type(schema).unwrap();
    let how = WriterProperties::builder().build();
    let mut to = SerializedFileWriter::new(vec![], schema.into(), how.into()).unwrap();
    for part in all.chunks(4) {
        let mut group = to.next_row_group().unwrap();
        let ids: Vec<i64> = (0..part.len() as i64).collect();
        let mut c = group.next_column().unwrap().unwrap();
        let present = vec![1; ids.len()];
        c.typed::<Int64Type>()
            .write_batch(&ids, Some(&present), None)
            .unwrap();
        c.close().unwrap();
        let begins = part
            .iter()
            .flat_map(|t| (0..t.len()).map(|i| i16::from(i > 0)));
        let begins: Vec<i16> = begins.collect();
        for column in 0..3 {
            let of = |(role, said): &(&'static str, String)| match column {
                0 => ByteArray::from(said.as_str()),
                _ => ByteArray::from(*role),
            };
            let values: Vec<ByteArray> = part.iter().flatten().map(of).collect();
            let (values, level) = if column == 2 {
                (vec![], 3)
            } else {
                (values, 4)
            };
            let mut c = group.next_column().unwrap().unwrap();
            c.typed::<ByteArrayType>()
                .write_batch(&values, Some(&vec![level; begins.len()]), Some(&begins))
                .unwrap();
            c.close().unwrap();
        }
        group.close().unwrap();
    }
    to.into_inner().unwrap()
}

#[test]
fn every_form_of_a_conversation_gives_the_same_examples() {
    let mut r = Seeded(47);
    for _ in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let (all, dir) = (talks(&mut r), dir.path());
        let write = |name: &str, bytes: Vec<u8>| std::fs::write(dir.join(name), bytes).unwrap();
        let message =
            |(role, said): &(&'static str, String)| json!({"role": role, "content": said});
        let row = |t: &Talk| json!({"messages": t.iter().map(message).collect::<Vec<_>>()});
        write("lines.jsonl", lines(all.iter().map(row)));
        let plain = seen(dir, "lines.jsonl", Rows::Messages).unwrap();
        assert!(!plain.is_empty());
        write("file.arrow", arrow(&all, false));
        write("stream", arrow(&all, true));
        write("groups.parquet", parquet(&all));
        // As `save_to_disk` leaves it: the folder by its name.
        std::fs::create_dir(dir.join("saved")).unwrap();
        let (first, rest) = all.split_at(5);
        write("saved/data-00000-of-00002.arrow", arrow(first, true));
        write("saved/data-00001-of-00002.arrow", arrow(rest, true));
        write("saved/dataset_info.json", b"{\"features\": {}}".to_vec());
        let state = json!({"_data_files": [{"filename": "data-00000-of-00002.arrow"}, {"filename": "data-00001-of-00002.arrow"}],
            "_fingerprint": "0", "_format_type": null, "_split": "train"});
        write("saved/state.json", state.to_string().into());
        for name in ["file.arrow", "stream", "groups.parquet", "saved"] {
            assert_eq!(seen(dir, name, Rows::Messages).unwrap(), plain, "{name}");
        }
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
        write("share.jsonl", lines(share.clone()));
        write("share.json", Value::from_iter(share).to_string().into());
        for name in ["share.jsonl", "share.json"] {
            assert_eq!(seen(dir, name, Rows::ShareGpt).unwrap(), plain, "{name}");
        }
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
        write("alpaca.jsonl", lines(alpaca));
        assert_eq!(seen(dir, "alpaca.jsonl", Rows::Alpaca).unwrap(), plain);
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
        write("tokens.jsonl", lines(tokens));
        let sorted = |mut all: Seen| {
            all.iter_mut().for_each(|(tokens, labels)| {
                let end = labels.iter().rposition(|l| *l != -100).unwrap() + 2;
                tokens.truncate(end);
            });
            all.sort();
            all
        };
        let made = seen(dir, "tokens.jsonl", Rows::Tokens).unwrap();
        assert_eq!(sorted(made), sorted(plain));
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

fn nested_parquet() -> Vec<u8> {
    use parquet::file::{properties::WriterProperties, writer::SerializedFileWriter};
    let schema = "message m { OPTIONAL group meta { OPTIONAL BINARY text (UTF8); } OPTIONAL BINARY meta.note (UTF8); }";
    let schema = parquet::schema::parser::parse_message_type(schema).unwrap();
    let how = WriterProperties::builder().build();
    let mut to = SerializedFileWriter::new(vec![], schema.into(), how.into()).unwrap();
    let mut group = to.next_row_group().unwrap();
    for levels in [[2, 0, 1, 2], [1, 0, 0, 1]] {
        let mut c = group.next_column().unwrap().unwrap();
        c.typed::<ByteArrayType>()
            .write_batch(&["a", "d"].map(ByteArray::from), Some(&levels), None)
            .unwrap();
        c.close().unwrap();
    }
    group.close().unwrap();
    to.into_inner().unwrap()
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
    std::fs::write(dir.join("a.jsonl"), lines(rows.iter().cloned())).unwrap();
    std::fs::write(
        dir.join("a.json"),
        serde_json::to_string_pretty(&rows).unwrap(),
    )
    .unwrap();
    std::fs::write(dir.join("a.arrow"), nested(false)).unwrap();
    std::fs::write(dir.join("stream"), nested(true)).unwrap();
    std::fs::write(dir.join("a.parquet"), nested_parquet()).unwrap();
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
    let talk: Vec<Talk> = vec![vec![("user", "q".into()), ("assistant", "a".into())]];
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
    let names: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
    let batch = RecordBatch::try_from_iter([("name", names)]).unwrap();
    let mut to = arrow_ipc::writer::FileWriter::try_new(vec![], &batch.schema()).unwrap();
    to.write(&batch).unwrap();
    std::fs::write(dir.join("n.arrow"), to.into_inner().unwrap()).unwrap();
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
