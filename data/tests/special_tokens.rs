//! What the folder of a tokenizer says of special tokens, against what `AutoTokenizer` of transformers 5.23 makes of the same folders
//! (`special_tokens.json`, which `special_tokens.py` writes).

use crossweave_data::*;
use serde_json::{Value, json};
use std::path::Path;

/// A byte-level `tokenizer.json` whose ids are the bytes, with tokens added behind them; `begins`: texts begin with `<s>`.
fn tokenizer_json(added: &[(&str, u64)], begins: bool) -> Value {
    let plain = |b: u32| (33..127).contains(&b) || (161..173).contains(&b) || b >= 174;
    let mut others = 256u32..;
    let vocab: serde_json::Map<String, Value> = (0..256u32)
        .map(|b| {
            let code = if plain(b) { b } else { others.next().unwrap() };
            (char::from_u32(code).unwrap().to_string(), b.into())
        })
        .collect();
    let added: Vec<Value> = added
        .iter()
        .map(|(content, id)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let begin = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null, "pre_tokenizer": level,
        "post_processor": if begins { begin } else { Value::Null }, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    })
}

struct Folder {
    dir: tempfile::TempDir,
    spec: DataSpec,
}

impl Folder {
    fn new(added: &[(&str, u64)], begins: bool, files: &Value, texts: &[&str]) -> Folder {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
        write("tokenizer.json", tokenizer_json(added, begins).to_string());
        for (name, content) in files.as_object().unwrap() {
            write(name, content.to_string());
        }
        let lines = texts.iter().map(|t| format!("{}\n", json!({"text": t})));
        write("x.jsonl", lines.collect());
        let tokenizer =
            TokenizerSpec::new(TokenizerKind::HfFile(dir.path().join("tokenizer.json")));
        let spec = DataSpec {
            objective: Objective::Causal,
            train: Source::Files(FilesSource::new(dir.path(), ["x.jsonl"])),
            examples: None,
            validation: Validation::None,
            tokenizer: Some(tokenizer),
            model_vocab: None,
        };
        Folder { dir, spec }
    }

    fn tokenizer(&mut self) -> &mut TokenizerSpec {
        self.spec.tokenizer.as_mut().unwrap()
    }

    fn open(&self) -> std::result::Result<Corpus, String> {
        let remarks = check(&self.spec).map_err(|e| e.to_string())?;
        let corpus = open(&self.spec, &self.dir.path().join("cache"), &NoProgress);
        let corpus = corpus.map_err(|e| e.to_string())?;
        assert_eq!(corpus.remarks(), remarks);
        Ok(corpus)
    }

    fn documents(&self) -> std::result::Result<Vec<Vec<u32>>, String> {
        let corpus = self.open()?;
        let set = IndexedDataset::open(&corpus.reports()[0].prefix).unwrap();
        let read = |i: usize| {
            let mut ids = vec![0; set.length(i).unwrap() as usize];
            set.read(i, 0, None, &mut ids).unwrap();
            ids
        };
        Ok((0..set.sequences()).map(read).collect())
    }
}

const OWN: &[(&str, u64)] = &[("<s>", 256), ("</s>", 257)];

#[test]
fn documents_are_what_auto_tokenizer_makes_of_them_with_one_end() {
    let table: Value = serde_json::from_str(include_str!("special_tokens.json")).unwrap();
    let texts: Vec<&str> = table["texts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_str().unwrap())
        .collect();
    let ids = |v: &Value| -> Vec<u32> {
        v.as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap() as u32)
            .collect()
    };
    let cases = table["cases"].as_array().unwrap();
    assert!(cases.len() > 95);
    for case in cases {
        let added = case["added"].as_array().unwrap().iter();
        let added: Vec<(&str, u64)> = added
            .map(|t| (t[0].as_str().unwrap(), t[1].as_u64().unwrap()))
            .collect();
        let folder = Folder::new(&added, case["begins"] == true, &case["files"], &texts);
        let mut own = tokenizer_json(&added, case["begins"] == true);
        own["normalizer"] = case["normalizer"].clone();
        for (i, token) in case["added"].as_array().unwrap().iter().enumerate() {
            for (flag, set) in token[2].as_object().into_iter().flatten() {
                own["added_tokens"][i][flag] = set.clone();
            }
        }
        std::fs::write(folder.dir.path().join("tokenizer.json"), own.to_string()).unwrap();
        let corpus = folder.open().unwrap();
        let tokenizer = corpus.tokenizer().unwrap();
        let named = &case["files"]["special_tokens_map.json"]["eos_token"];
        let end = match (
            case["eos_id"].as_u64(),
            named.as_str().or(named["content"].as_str()),
        ) {
            (Some(id), _) => id as u32,
            // transformers leaves it out where the settings list added tokens.
            (None, Some("<|im_end|>")) => 259,
            // The usual name.
            (None, _) => 257,
        };
        assert_eq!(tokenizer.eod(), Some(end), "{case}");
        assert_eq!(
            tokenizer.vocab_size() as u64,
            case["vocab"].as_u64().unwrap(),
            "{case}"
        );
        let begin = ids(&case["begin"]);
        let expected = case["ids"].as_array().unwrap().iter().map(|text| {
            let mut all = ids(text);
            if !all.starts_with(&begin) {
                all.splice(0..0, begin.iter().copied());
            }
            if all.last() != Some(&end) {
                all.push(end);
            }
            all
        });
        assert_eq!(
            folder.documents().unwrap(),
            expected.collect::<Vec<_>>(),
            "{case}"
        );
    }
}

#[test]
fn what_contradicts_is_named() {
    let config = |c: Value| json!({"tokenizer_config.json": c});
    let token = |name: &str| json!({"content": name, "special": true});
    for (files, words) in [
        (
            config(json!({"added_tokens_decoder": {"300": token("<a>")}})),
            &["tokenizer_config.json", "\"<a>\" has the id 300", "258"][..],
        ),
        (
            config(json!({"added_tokens_decoder": {"258": token("</s>")}})),
            &["\"</s>\" has the id 258", "the id 257"],
        ),
        (
            config(json!({"added_tokens_decoder": {"257": token("<a>")}})),
            &["\"<a>\" has the id 257", "\"</s>\""],
        ),
        (
            config(json!({"added_tokens_decoder": {"x": token("<a>")}})),
            &["\"x\" is no id"],
        ),
        (
            json!({"added_tokens.json": {"<a>": 258, "<b>": 258}}),
            &["added_tokens.json", "have the id 258"],
        ),
        (
            json!({"added_tokens.json": {"<a>": -1}}),
            &["added_tokens.json", "no id"],
        ),
        (
            json!({"added_tokens.json": []}),
            &["added_tokens.json", "no JSON object"],
        ),
        (
            config(json!({"eos_token": "<end>"})),
            &[
                "`eos_token`",
                "tokenizer_config.json",
                "\"<end>\"",
                "no vocabulary",
                "data.eod_token",
            ],
        ),
        (
            json!({"special_tokens_map.json": {"eos_token": {"content": "<end>"}}}),
            &["special_tokens_map.json", "\"<end>\""],
        ),
    ] {
        let said = Folder::new(OWN, false, &files, &["a"])
            .open()
            .err()
            .unwrap();
        assert!(
            words.iter().all(|w| said.contains(w)) && said.contains("fix: "),
            "{said}"
        );
    }
    let mut own = tokenizer_json(OWN, false);
    own["added_tokens"][1]["id"] = 300.into();
    let folder = Folder::new(OWN, false, &json!({}), &["a"]);
    std::fs::write(folder.dir.path().join("tokenizer.json"), own.to_string()).unwrap();
    let said = folder.open().err().unwrap();
    assert!(said.contains("300") && said.contains("\"</s>\""), "{said}");
}

#[test]
fn the_user_says_what_begins_and_ends_a_text() {
    let files = json!({"tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>"}});
    let texts = ["a", "<s>b</s>", "</s>"];
    let of = |begins: bool, change: &dyn Fn(&mut TokenizerSpec)| {
        let mut folder = Folder::new(OWN, begins, &files, &texts);
        change(folder.tokenizer());
        let borders = folder.open().unwrap().borders().unwrap();
        (folder.documents().unwrap(), borders)
    };
    let (plain, said) = of(false, &|_| {});
    assert_eq!(plain, [vec![97, 257], vec![256, 98, 257], vec![257]]);
    assert_eq!(
        said,
        "texts end with </s> (257, eos_token of tokenizer_config.json)"
    );
    let (begun, said) = of(false, &|t| t.add_bos = Some(true));
    assert_eq!(
        begun,
        [vec![256, 97, 257], vec![256, 98, 257], vec![256, 257]]
    );
    assert!(
        said.starts_with("texts begin with <s> and end with </s>"),
        "{said}"
    );
    assert_eq!(of(true, &|_| {}).0, begun);
    assert_eq!(of(true, &|t| t.add_bos = Some(false)).0, plain);
    let (open_ended, said) = of(false, &|t| t.append_eod = Some(false));
    assert_eq!(open_ended, [vec![97], vec![256, 98, 257], vec![257]]);
    assert_eq!(said, "texts end with no token");
    let (other, said) = of(false, &|t| t.eod_token = Some("<s>".into()));
    assert_eq!(other[0], [97, 256]);
    assert!(said.contains("data.eod_token"), "{said}");
}

#[test]
fn a_text_without_an_end_is_warned_of_and_a_bad_key_refused() {
    let folder = || Folder::new(&[("<a>", 256)], false, &json!({}), &["a"]);
    let warned = |f: &Folder| f.open().unwrap().remarks().to_vec();
    let said = warned(&folder());
    assert!(
        matches!(&said[..], [Remark::Warning(w)] if w.starts_with("data.eod_token: ") && w.contains("data.append_eod")),
        "{said:?}"
    );
    let mut chosen = folder();
    chosen.tokenizer().append_eod = Some(false);
    assert_eq!(warned(&chosen), []);
    let mut named = folder();
    named.tokenizer().eod_token = Some("<a>".into());
    assert_eq!(warned(&named), []);
    let mut begun = folder();
    begun.tokenizer().add_bos = Some(true);
    let said = begun.open().err().unwrap();
    assert!(
        said.contains("data.add_bos") && said.contains("fix: "),
        "{said}"
    );
}

#[test]
fn a_completion_ends_once_and_a_prompt_begins_once() {
    let files = json!({"tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>"}});
    let mut folder = Folder::new(OWN, true, &files, &[]);
    let lines = [
        json!({"prompt": "q", "completion": "a"}),
        json!({"prompt": "<s>q", "completion": "a</s>"}),
        json!({"prompt": "q</s>", "completion": ""}),
        json!({"prompt": "", "completion": "a"}),
    ];
    let lines: String = lines.iter().map(|l| format!("{l}\n")).collect();
    std::fs::write(folder.dir.path().join("x.jsonl"), lines).unwrap();
    folder.spec.examples = Some(Examples {
        rows: Rows::PromptCompletion,
        all: false,
        template: None,
        skip_null: false,
        pack: false,
        refuse_long: false,
    });
    assert_eq!(
        folder.documents().unwrap(),
        [
            vec![256, 113, 97, 257],
            vec![256, 113, 97, 257],
            vec![256, 113, 257, 257],
            vec![256, 97, 257],
        ]
    );
    let set = &folder.open().unwrap().reports()[0].prefix.clone();
    let counted = IndexedDataset::open(Path::new(&format!("{}-counted", set.display()))).unwrap();
    let mut marks = [0; 4];
    counted.read(1, 0, None, &mut marks).unwrap();
    assert_eq!(marks, [0, 0, 1, 1]);
}

#[test]
fn a_token_beyond_the_models_vocabulary_is_refused_only_where_a_text_has_it() {
    let files = json!({"tokenizer_config.json": {"eos_token": "</s>", "pad_token": "<pad>"}});
    let open = |text: &str, vocab: usize| {
        let mut folder = Folder::new(OWN, false, &files, &[text]);
        folder.spec.model_vocab = Some(vocab);
        folder.documents()
    };
    assert_eq!(open("a<pad>", 259).unwrap(), [[97, 258, 257]]);
    assert_eq!(open("a", 258).unwrap(), [[97, 257]]);
    let said = open("a<pad>", 258).unwrap_err();
    assert!(
        said.contains("\"<pad>\" (258)") && said.contains("model.vocab_size"),
        "{said}"
    );
    assert!(
        open("a", 257)
            .unwrap_err()
            .contains("smaller than the 258 ids")
    );
}

#[test]
fn samples_for_hidden_tokens_begin_with_nothing() {
    let files = json!({"tokenizer_config.json": {"eos_token": "</s>"}});
    let mut folder = Folder::new(OWN, true, &files, &["a"]);
    let causal = folder.documents().unwrap();
    folder.spec.objective = Objective::MaskedLm(Masking {
        share: 0.15,
        mask: None,
        pairs: None,
    });
    assert_eq!(
        (causal, folder.documents().unwrap()),
        (vec![vec![256, 97, 257]], vec![vec![97, 257]])
    );
    folder.tokenizer().add_bos = Some(true);
    assert_eq!(folder.documents().unwrap(), [[256, 97, 257]]);
}
