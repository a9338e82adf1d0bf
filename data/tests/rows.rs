//! Rows by content: every ending, packing and layout of the same rows gives the same documents, or an error that names the file.

use crossweave_data::*;
use std::io::Write;

/// Tokens of all documents of one file, or what was said.
fn tokens_of(
    name: &str,
    bytes: &[u8],
    examples: Option<Examples>,
) -> std::result::Result<Vec<u32>, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(name), bytes).unwrap();
    let spec = DataSpec {
        objective: Objective::Causal,
        train: Source::Files(FilesSource::new(dir.path(), [name])),
        examples,
        validation: Validation::None,
        tokenizer: Some(TokenizerSpec::new(TokenizerKind::Bytes)),
        model_vocab: None,
    };
    check(&spec).map_err(|e| e.to_string())?;
    let corpus = open(&spec, &dir.path().join("cache"), &NoProgress).map_err(|e| e.to_string())?;
    assert_eq!(corpus.remarks(), [], "{name}");
    let set = IndexedDataset::open(&corpus.reports()[0].prefix).map_err(|e| e.to_string())?;
    let mut all = vec![];
    for i in 0..set.sequences() {
        let mut one = vec![0; set.length(i).unwrap() as usize];
        set.read(i, 0, None, &mut one).unwrap();
        all.extend(one);
    }
    Ok(all)
}

fn packed(packing: &str, bytes: &[u8]) -> Vec<u8> {
    match packing {
        ".gz" => {
            let mut to = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
            to.write_all(bytes).unwrap();
            to.finish().unwrap()
        }
        ".zst" => zstd::encode_all(bytes, 1).unwrap(),
        _ => bytes.to_vec(),
    }
}

const TEXTS: [&str; 4] = [
    "one, \"1\"\nand more",
    "[{\"text\": \"}\"}]",
    "\u{4e16}\u{e9}",
    "z",
];
const ENDINGS: [&str; 11] = [
    "", ".json", ".jsonl", ".ndjson", ".txt", ".csv", ".tsv", ".tab", ".psv", ".rs", ".JSON",
];
/// What a file may be called whose bytes are packed by the second.
const PACKINGS: [(&str, &str); 6] = [
    ("", ""),
    (".gz", ".gz"),
    (".zst", ".zst"),
    // A packed file without the name of its packing, and one that a client has unpacked.
    ("", ".gz"),
    ("", ".zst"),
    (".gz", ""),
];

#[test]
fn every_layout_under_every_name_gives_the_documents_of_the_lines() {
    let row = |t: &str| serde_json::json!({"id": [1, {"text": "no"}], "text": t});
    let rows: Vec<serde_json::Value> = TEXTS.iter().map(|t| row(t)).collect();
    let lines: String = rows.iter().map(|r| format!("{r}\n")).collect();
    let pretty: String = rows.iter().map(|r| format!("{r:#}\n")).collect();
    let long = serde_json::json!({"id": "x".repeat(80_000), "text": TEXTS[0]});
    let behind_long: String = rows[1..].iter().map(|r| format!("{r}\n")).collect();
    let layouts = [
        lines.clone(),
        format!("\u{feff}\r\n\n{}", lines.replace('\n', "\r\n\r\n")),
        format!("{long}\n{behind_long}"),
        lines.replace("\"id\":", "\"score\": NaN, \"id\":"),
        serde_json::Value::from(rows.clone()).to_string(),
        format!("\u{feff}{:#}\n", serde_json::Value::from(rows.clone())),
        format!("[{long},\n{}]", behind_long.trim().replace('\n', ",")),
        pretty,
    ];
    let expected = tokens_of("x.jsonl", lines.as_bytes(), None).unwrap();
    assert_eq!(expected.iter().filter(|t| **t == 256).count(), TEXTS.len());
    for (i, text) in layouts.iter().enumerate() {
        for ending in ENDINGS {
            for (name, packing) in PACKINGS {
                let file = format!("part-0{ending}{name}");
                let got = tokens_of(&file, &packed(packing, text.as_bytes()), None);
                assert_eq!(
                    got.as_ref(),
                    Ok(&expected),
                    "layout {i} as {file} packed {packing:?}"
                );
            }
        }
    }
}

#[test]
fn separated_values_are_rows_by_their_names() {
    let quoted: Vec<String> = TEXTS.iter().map(|t| t.replace('"', "\"\"")).collect();
    let rows = |by: char| {
        let line = |(i, t): (usize, &String)| format!("{i}{by}\"{t}\"{by}x\r\n");
        let lines: String = quoted.iter().enumerate().map(line).collect();
        format!("id{by}text{by}label\r\n{lines}")
    };
    let lines: String = TEXTS
        .iter()
        .map(|t| format!("{}\n", serde_json::json!({"text": t})))
        .collect();
    let expected = tokens_of("x.jsonl", lines.as_bytes(), None).unwrap();
    for (ending, by) in [
        (".csv", ','),
        (".CSV", ','),
        (".tsv", '\t'),
        (".tab", '\t'),
        (".TAB", '\t'),
        (".psv", '|'),
    ] {
        for (name, packing) in PACKINGS {
            let file = format!("rows{ending}{name}");
            let got = tokens_of(&file, &packed(packing, rows(by).as_bytes()), None);
            assert_eq!(got.as_ref(), Ok(&expected), "{file} packed {packing:?}");
            let other = tokens_of(&file, &packed(packing, rows(';').as_bytes()), None).unwrap_err();
            assert!(
                other.contains(&file) && other.contains("has no column \"text\""),
                "{other}"
            );
        }
    }
}

#[test]
fn damaged_rows_are_an_error_that_names_the_file_whatever_its_name() {
    for text in [
        "{\"text\": \"a\"}\n{\"text\": 3}\n",
        "{\"body\": \"a\"}\n{\"body\": \"b\"}\n",
        "{\"text\": \"a\"}\n{\"text\": \"cut",
        "{\"text\": oops}\n{\"text\": \"a\"}\n{\"text\": \"b\"}\n",
        "[{\"text\": \"a\"}, {\"text\": \"cut",
        "[{\"text\": \"a\"}, 3]",
        "[\"a\", \"b\"]",
        "[{\"body\": \"a\"}]",
    ] {
        for ending in ENDINGS {
            for (name, packing) in PACKINGS {
                let file = format!("x{ending}{name}");
                let said = tokens_of(&file, &packed(packing, text.as_bytes()), None).unwrap_err();
                assert!(said.contains(&file), "{text}: {said}");
            }
        }
    }
}

#[test]
fn sources_that_begin_with_a_brace_stay_text() {
    for text in [
        "{\n  int x = 3; // {\"text\": 1}\n}\n",
        "{{ message.text }}\n{\"text\": \"a\"}\n",
        "{\\rtf1 text}",
        "[1] A reference\n[2] Another\n",
        "[package]\nname = \"text\"\n",
        "a,text\n1,2\n",
        "{\n  \"name\": \"settings\"\n}\n",
    ] {
        for ending in ["", ".txt", ".rs", ".tex"] {
            for (name, packing) in PACKINGS {
                let file = format!("x{ending}{name}");
                let got = tokens_of(&file, &packed(packing, text.as_bytes()), None).unwrap();
                let mut own: Vec<u32> = text.bytes().map(u32::from).collect();
                own.push(256);
                assert_eq!(got, own, "{file}");
            }
        }
    }
}

#[test]
fn examples_are_read_from_lists_too() {
    let examples = || {
        Some(Examples {
            rows: Rows::PromptCompletion,
            all: false,
            template: None,
            skip_null: false,
            pack: false,
            refuse_long: false,
        })
    };
    let row = |i: usize| serde_json::json!({"prompt": format!("{i}+{i}="), "completion": "2"});
    let rows: Vec<serde_json::Value> = (0..5).map(row).collect();
    let lines: String = rows.iter().map(|r| format!("{r}\n")).collect();
    let expected = tokens_of("x.jsonl", lines.as_bytes(), examples()).unwrap();
    let list = serde_json::Value::from(rows);
    for text in [
        list.to_string(),
        format!("{list:#}"),
        lines.replace("}\n", ", \"score\": NaN}\n"),
    ] {
        for file in ["x.json", "x.jsonl", "x"] {
            assert_eq!(
                tokens_of(file, text.as_bytes(), examples()),
                Ok(expected.clone())
            );
        }
    }
    let said = tokens_of("x.json", b"[{\"prompt\": \"a\"}]", examples()).unwrap_err();
    assert!(
        said.contains("x.json:1: ") && said.contains("completion"),
        "{said}"
    );
    let said = tokens_of(
        "x.jsonl",
        b"{\"prompt\": NaN, \"completion\": \"a\"}",
        examples(),
    );
    let said = said.unwrap_err();
    assert!(
        said.contains("x.jsonl:1: ") && said.contains("field \"prompt\" is NaN, which Python"),
        "{said}"
    );
}

#[test]
fn a_table_is_no_file_of_examples() {
    let examples = Examples {
        rows: Rows::PromptCompletion,
        all: false,
        template: None,
        skip_null: false,
        pack: false,
        refuse_long: false,
    };
    let said = tokens_of("x.csv", b"prompt,completion\na,b\n", Some(examples)).unwrap_err();
    assert!(said.contains("x.csv: is a table"), "{said}");
}
