//! What stands beside the weights of a trained model: tokenizer, special tokens, generation settings, for every kind of tokenizer and from
//! every place a model is written.

use crate::support::{Scratch, losses, open_json};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Every file but weights and config, by name.
fn beside(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    entries
        .map(|p| {
            let name = p.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(&p).unwrap())
        })
        .filter(|(name, _)| name != "config.json" && !name.contains("safetensors"))
        .collect()
}

fn json(dir: &Path, name: &str) -> Value {
    open_json(&dir.join(name))
}

#[test]
fn a_run_on_bytes_leaves_a_tokenizer_that_others_read() {
    let s = Scratch::new();
    s.job("config.json").run("a");
    let model = s.path("a/model");
    let names: Vec<String> = beside(&model).into_keys().collect();
    assert_eq!(
        names,
        [
            "crossweave_tokenizer.json",
            "generation_config.json",
            "special_tokens_map.json",
            "tokenizer.json",
            "tokenizer_config.json"
        ]
    );
    let settings = json(&model, "tokenizer_config.json");
    assert_eq!(settings["tokenizer_class"], "PreTrainedTokenizerFast");
    assert_eq!(settings["model_max_length"], 16);
    assert_eq!(settings["clean_up_tokenization_spaces"], false);
    assert_eq!(
        settings["model_input_names"],
        serde_json::json!(["input_ids", "attention_mask"])
    );
    let map = json(&model, "special_tokens_map.json");
    for key in ["bos_token", "eos_token", "pad_token"] {
        assert_eq!(settings[key], "<|endoftext|>", "{key}");
        assert_eq!(map[key], "<|endoftext|>", "{key}");
    }
    let generation = json(&model, "generation_config.json");
    for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        assert_eq!(generation[key], 256, "{key}");
    }
    assert_eq!(generation["max_length"], 16);
    // The embedding of the filling token is trained like any other: to Llama's code in transformers a pad_token_id here would freeze it.
    let config = json(&model, "config.json");
    assert_eq!(config["eos_token_id"], 256);
    assert!(config["pad_token_id"].is_null());
    assert_eq!(config["torch_dtype"], "float32");

    // The file gives the ids that the run was trained on: as a given tokenizer it leads to the same losses.
    let file = r#"data.tokenizer={"file": "a/model/tokenizer.json"}"#;
    s.job("config.json").set(file).run("b");
    assert_eq!(losses(&s.path("a")), losses(&s.path("b")));
    let own = beside(&s.path("b/model"));
    for (name, bytes) in beside(&model) {
        // The note says where the tokenizer is; all else travels.
        assert!(
            name == "crossweave_tokenizer.json" || own[&name] == bytes,
            "{name}"
        );
    }

    // Without ends of documents there is no such token.
    let none = ["data.append_eod=false", "model.save_dtype=\"bf16\""];
    s.job("config.json").sets(&none).run("c");
    let model = s.path("c/model");
    let settings = json(&model, "tokenizer_config.json");
    assert!(settings.get("eos_token").is_none(), "{settings}");
    assert!(
        json(&model, "generation_config.json")
            .get("eos_token_id")
            .is_none()
    );
    assert_eq!(
        json(&model, "tokenizer.json")["added_tokens"],
        serde_json::json!([])
    );
    assert_eq!(json(&model, "config.json")["torch_dtype"], "bfloat16");
}

#[test]
fn gpt2_leaves_the_files_that_openai_published() {
    let s = Scratch::new();
    let sets = [
        "data.tokenizer=\"gpt2\"",
        "model.vocab_size=50304",
        "run.generate.tokens=0",
    ];
    s.job("config.json").steps(1).sets(&sets).run("a");
    let model = s.path("a/model");
    assert_eq!(
        json(&model, "tokenizer_config.json")["tokenizer_class"],
        "GPT2Tokenizer"
    );
    assert_eq!(json(&model, "vocab.json")["hello"], 31373);
    assert_eq!(
        json(&model, "tokenizer.json")["model"]["vocab"]["<|endoftext|>"],
        50256
    );
    assert_eq!(
        json(&model, "generation_config.json")["eos_token_id"],
        50256
    );
}

#[test]
fn a_given_tokenizer_takes_its_folder_along() {
    let s = Scratch::new();
    s.job("config.json").steps(1).run("a");
    std::fs::create_dir(s.path("tok")).unwrap();
    let file = s.path("a/model/tokenizer.json");
    std::fs::copy(&file, s.path("tok/tokenizer.json")).unwrap();
    // Spacing and numbers that would not come through a reader and a writer.
    let settings = "{ \"eos_token\" : \"<|endoftext|>\",\n\"model_max_length\": 1000000000000000019884624838656, \"chat_template\": \"{{ x }}\" }";
    s.write("tok/tokenizer_config.json", settings);
    s.write("tok/chat_template.jinja", "{{ messages }}");
    s.write("tok/notes.json", "{}");
    let train = |out: &str, sets: &[&str]| {
        s.job("config.json").steps(1).sets(sets).run(out);
        s.path(out).join("model")
    };
    let given = r#"data.tokenizer={"file": "tok/tokenizer.json"}"#;
    let model = train("b", &[given]);
    let files = beside(&model);
    assert_eq!(files["tokenizer_config.json"], settings.as_bytes());
    assert_eq!(files["chat_template.jinja"], b"{{ messages }}");
    assert_eq!(files["tokenizer.json"], std::fs::read(&file).unwrap());
    assert!(!files.contains_key("notes.json"), "no file of a tokenizer");
    // The same by the folder's name, and from the model it went to.
    for (out, set) in [
        ("c", r#"data.tokenizer={"hf": "tok"}"#),
        ("d", r#"data.tokenizer={"hf": "b/model"}"#),
    ] {
        let again = beside(&train(out, &[set]));
        assert_eq!(again["tokenizer_config.json"], settings.as_bytes(), "{set}");
        assert_eq!(again["chat_template.jinja"], b"{{ messages }}", "{set}");
    }
    // Under another name it may lie anywhere, and what lies beside it is not its own.
    std::fs::rename(s.path("tok/tokenizer.json"), s.path("tok/mine.json")).unwrap();
    let files = beside(&train(
        "e",
        &[r#"data.tokenizer={"file": "tok/mine.json"}"#],
    ));
    assert!(!files.contains_key("chat_template.jinja"));
    assert_ne!(files["tokenizer_config.json"], settings.as_bytes());
    // A token that the config names as the end is the end.
    std::fs::rename(s.path("tok/mine.json"), s.path("tok/tokenizer.json")).unwrap();
    s.write(
        "tok/tokenizer_config.json",
        r#"{"eos_token": "!", "chat_template": "{{ x }}"}"#,
    );
    let model = train("f", &[given]);
    assert_eq!(json(&model, "tokenizer_config.json")["eos_token"], "!");
    let model = train("g", &[given, "data.eod_token=\"<|endoftext|>\""]);
    let settings = json(&model, "tokenizer_config.json");
    assert_eq!(settings["eos_token"], "<|endoftext|>");
    assert_eq!(settings["chat_template"], "{{ x }}");
    // A folder without one is named.
    std::fs::create_dir(s.path("empty")).unwrap();
    let set = r#"data.tokenizer={"hf": "empty"}"#;
    s.job("config.json")
        .set(set)
        .refused(&["empty has no tokenizer.json", "fix:"]);
}

/// Fine-tuning: the folder's own settings stay, and what ends a document of the run ends a text.
#[test]
fn a_loaded_model_keeps_its_settings() {
    let s = Scratch::new();
    s.job("config.json").steps(1).run("a");
    let from = s.path("a/model");
    std::fs::write(
        from.join("generation_config.json"),
        r#"{"temperature": 0.7, "eos_token_id": [7, 8]}"#,
    )
    .unwrap();
    let train = |out: &str, sets: &[&str]| {
        let from = [r#"model={"hf": "a/model"}"#, "data.seq_len=16"];
        let job = s.job("config.json").steps(1).sets(&from);
        job.sets(sets).run(out);
        s.path(out).join("model")
    };
    let generation = json(&train("b", &[]), "generation_config.json");
    assert_eq!(
        generation,
        serde_json::json!({"temperature": 0.7, "eos_token_id": [7, 8, 256]})
    );
    // A tokenizer of another kind takes nothing of the folder's.
    std::fs::write(from.join("chat_template.jinja"), "{{ x }}").unwrap();
    assert!(beside(&train("c", &[])).contains_key("chat_template.jinja"));
    std::fs::copy(from.join("tokenizer.json"), s.path("mine.json")).unwrap();
    let other = r#"data.tokenizer={"file": "mine.json"}"#;
    let other = beside(&train("d", &[other]));
    assert!(!other.contains_key("chat_template.jinja"));
    // Text for a model whose tokenizer is not there is not turned into bytes without a word.
    for name in ["tokenizer.json", "crossweave_tokenizer.json"] {
        std::fs::remove_file(from.join(name)).unwrap();
    }
    // A model of more words than there are bytes: its weights are those of a run with such a vocabulary.
    let wide = ["model.vocab_size=300", "model.n_layer=1"];
    s.job("config.json").steps(1).sets(&wide).run("wide");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(s.path("wide/model").join(name), from.join(name)).unwrap();
    }
    std::fs::write(from.join("vocab.json"), "{}").unwrap();
    let model = r#"model={"hf": "a/model"}"#;
    s.job("config.json").set(model).refused(&[
        "a/model has no tokenizer.json",
        "vocab.json",
        "save_pretrained",
    ]);
}

/// From a step's checkpoint, with the exported model beside it or not, and from one that was cut for other ranks.
#[test]
fn exports_of_checkpoints_are_as_whole_as_the_runs_own() {
    let s = Scratch::new();
    s.job("config.json").ranks(2).run("a");
    let wanted = beside(&s.path("a/model"));
    let export = |from: &str, out: &str| {
        s.export(from, out, false).unwrap();
        beside(&s.path(out))
    };
    assert_eq!(export("a", "e1"), wanted);
    s.reshard("a", "r", 3, None).unwrap();
    assert_eq!(export("r", "e2"), wanted);
    std::fs::remove_dir_all(s.path("a/model")).unwrap();
    assert_eq!(export("a/checkpoints/step-00000006", "e3"), wanted);
    assert_eq!(export("a", "e4"), wanted);
}
