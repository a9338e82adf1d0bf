//! Mixtures, examples and `run.epochs`: their forms, what they ask of other keys, and what is refused.

use crossweave_config::*;

fn text(data: &str, run: &str) -> String {
    format!(
        r#"{{"model": {{"family": "gpt2", "preset": "tiny"}}, "data": {{{data}}}, "run": {{{run}}}, "train_batch_size": 8}}"#
    )
}

fn load(data: &str) -> Result<Config, String> {
    Config::load("t.json", text(data, r#""steps": 10"#), &[]).map_err(|e| e.to_string())
}

/// What is wrong with a config of this data, or its warnings.
fn said(data: &str) -> Result<Vec<String>, String> {
    let resolved = load(data)?.resolve(1).map_err(|e| e.to_string())?;
    Ok(resolved.warnings.iter().map(ToString::to_string).collect())
}

fn refused(data: &str, parts: &[&str]) {
    let e = said(data).expect_err(data);
    assert!(parts.iter().all(|part| e.contains(part)), "{data}: {e}");
}

#[test]
fn a_mixture_is_a_list_of_sources_with_weights() {
    let two = r#""train": [{"files": "a/*.txt", "weight": 0.7}, {"files": ["b", "c"], "weight": 3, "field": "body"}, {"indexed": "p", "weight": 1e-3}]"#;
    assert_eq!(said(two), Ok(vec![]));
    let config = load(two).unwrap();
    let Some(Data::Text(d)) = &config.settings.data else {
        panic!("no text")
    };
    let TextSource::Mixture(parts) = &d.train else {
        panic!("no mixture")
    };
    assert_eq!(
        parts[0].files.as_deref(),
        Some(&["a/*.txt".to_string()][..])
    );
    assert_eq!(
        (parts[1].weight, parts[1].field.as_deref()),
        (3.0, Some("body"))
    );
    assert_eq!(parts[2].indexed.as_deref(), Some("p"));
    let summary = config.check(1).unwrap();
    assert!(
        summary.contains("18.9 % a/*.txt") && summary.contains("81.1 % b, c"),
        "{summary}"
    );
    // What is resolved says the same again.
    let once = config.resolve(1).unwrap().to_json();
    let again = Config::load("config.json", &once, &[]).unwrap();
    assert_eq!(again.resolve(1).unwrap().to_json(), once);
    // Globs go on as they were.
    for plain in [r#""train": "a""#, r#""train": ["a", "b"]"#] {
        assert_eq!(said(plain), Ok(vec![]));
    }
    let one = |part: &str| format!(r#""train": [{{"files": "ok", "weight": 1}}, {part}]"#);
    let at = "t.json:1:";
    for (part, words) in [
        (
            r#"{"files": "a"}"#,
            &["data.train[1].weight", "missing"][..],
        ),
        (
            r#"{"files": "a", "weight": 0}"#,
            &["data.train[1].weight", "> 0"],
        ),
        (r#"{"files": "a", "weight": -2}"#, &["data.train[1].weight"]),
        (
            r#"{"files": "a", "weight": "much"}"#,
            &["data.train[1].weight"],
        ),
        (r#"{"files": "a", "weight": 1e999}"#, &["too large"]),
        (r#"{"weight": 1}"#, &["data.train[1]", "without files"]),
        (r#"{"files": [], "weight": 1}"#, &["data.train[1].files"]),
        (
            r#"{"files": "a", "indexed": "b", "weight": 1}"#,
            &["data.train[1]", "both"],
        ),
        (
            r#"{"indexed": "b", "weight": 1, "field": "x"}"#,
            &["data.train[1].field"],
        ),
        (
            r#"{"files": "a", "wieght": 1}"#,
            &["data.train[1].wieght", "\"weight\""],
        ),
        (
            r#""b/*.txt""#,
            &["data.train", "a list of globs and of sources"],
        ),
    ] {
        refused(&one(part), &[&[at], words].concat());
    }
    refused(
        r#""train": {"files": "a", "weight": 1}"#,
        &["data.train", "stands in a list"],
    );
    refused(r#""train": []"#, &["data.train"]);
    let validation = r#""train": "a", "validation": [{"files": "b", "weight": 0}]"#;
    refused(validation, &["data.validation[0].weight"]);
}

#[test]
fn epochs_stand_for_steps_and_become_them() {
    let config = |run: &str, more: &str| {
        let text = text(r#""train": "a""#, run);
        let text = text.replacen('{', &format!("{{{more}"), 1);
        Config::load("t.json", text, &[])
    };
    let cosine = r#""scheduler": {"type": "cosine", "params": {}}, "#;
    let open = config(r#""epochs": 1.5"#, cosine).unwrap();
    // Before the data are open nothing is wrong, and nothing is known.
    let before = open.resolve(1).unwrap();
    assert_eq!(
        (before.settings.run.steps, before.settings.run.epochs),
        (None, Some(1.5))
    );
    assert!(open.check(1).unwrap().contains("1.5 epochs"));
    let given = |epoch| Given {
        epoch: Some(epoch),
        ..Given::default()
    };
    let of = |epoch| open.resolve_given(1, given(epoch)).unwrap();
    let run = of(Epoch::Tokens {
        tokens: 1000,
        sample: 10,
    });
    assert_eq!(
        (run.settings.run.steps, run.settings.run.epochs),
        (Some(19), None)
    );
    // Schedules end with the run, as with run.steps.
    let steps = config(r#""steps": 19"#, cosine)
        .unwrap()
        .resolve(1)
        .unwrap();
    assert_eq!(
        (run.schedule, &run.settings),
        (steps.schedule, &steps.settings)
    );
    assert_eq!(of(Epoch::Samples(80)).settings.run.steps, Some(15));
    let again = Config::load("config.json", run.to_json(), &[]).unwrap();
    assert_eq!(again.resolve(1).unwrap().settings, run.settings);
    let e = config(r#""epochs": 1, "steps": 5"#, "").unwrap().resolve(1);
    let e = e.unwrap_err().to_string();
    assert!(
        e.contains("run.epochs") && e.contains("run.steps is given too"),
        "{e}"
    );
    for bad in ["0", "-1", "\"two\""] {
        let e = config(&format!(r#""epochs": {bad}"#), "")
            .unwrap_err()
            .to_string();
        assert!(e.contains("run.epochs: wanted a number > 0"), "{e}");
    }
    let far = config(r#""epochs": 1e300"#, "").unwrap();
    let e = far
        .resolve_given(1, given(Epoch::Samples(9)))
        .unwrap_err()
        .to_string();
    assert!(e.contains("run.epochs") && e.contains("counted"), "{e}");
    let neither = config("", "").unwrap().resolve(1).unwrap_err().to_string();
    assert!(
        neither.contains("run.steps") && neither.contains("epochs"),
        "{neither}"
    );
    // Given batches: of the file.
    let batches = text(r#""tokens": "t.safetensors""#, r#""epochs": 2"#);
    let batches = Config::load("t.json", batches, &[]).unwrap();
    let held = Given {
        batch: Some(8),
        steps: Some(7),
        ..given(Epoch::Steps(7))
    };
    let twice = batches.resolve_given(1, held).unwrap();
    assert_eq!(twice.settings.run.steps, Some(14));
    // Without the passes 14 steps would be more than the file holds.
    let again = Config::load("config.json", twice.to_json(), &[]).unwrap();
    let settings = |g| again.resolve_given(1, g).unwrap().settings;
    assert_eq!(settings(held), twice.settings);
    assert_eq!(again.resolve(1).unwrap().settings, twice.settings);
    let other = Given {
        epoch: Some(Epoch::Steps(6)),
        ..held
    };
    let e = again.resolve_given(1, other).unwrap_err().to_string();
    assert!(e.contains("run.epochs"), "{e}");
    // The word that people bring.
    let word = text(r#""train": "a""#, r#""num_train_epochs": 3"#);
    let e = Config::load("t.json", word, &[]).unwrap_err().to_string();
    assert!(e.contains("run.epochs"), "{e}");
}

#[test]
fn examples_and_text_have_keys_of_their_own() {
    let one = |more: &str| format!(r#""train": "a.jsonl", {more}"#);
    let chat = one(r#""format": "messages", "chat_template": "t.jinja", "loss_on": "all""#);
    assert_eq!(said(&chat), Ok(vec![]));
    let pairs = load(&one(r#""format": "prompt_completion""#)).unwrap();
    let Data::Text(d) = pairs.resolve(1).unwrap().data else {
        panic!("no text")
    };
    assert_eq!(d.loss_on, Some(LossOn::Completion));
    assert_eq!(d.format, Some(DataFormat::PromptCompletion));
    // A config of text resolves to what it always did.
    let plain = load(r#""train": "a.txt", "format": "text""#).unwrap();
    let Data::Text(d) = plain.resolve(1).unwrap().data else {
        panic!("no text")
    };
    assert_eq!((d.loss_on, d.chat_template), (None, None));
    let messages = r#""format": "messages""#;
    for (more, words) in [
        (r#""format": "chat""#, &["data.format", "messages"][..]),
        (
            r#""loss_on": "completion""#,
            &["data.loss_on", "no completion"],
        ),
        (
            r#""chat_template": "t""#,
            &["data.chat_template", "only messages"],
        ),
        (
            &format!(r#"{messages}, "field": "body""#),
            &["data.field", "are messages"],
        ),
        (
            r#""format": "prompt_completion", "jsonl_field": "body""#,
            &["data.field", "prompt and completion"],
        ),
    ] {
        refused(&one(more), words);
    }
    for (source, words) in [
        (r#"{"indexed": "p"}"#, &["data.train", "JSON lines"][..]),
        (
            r#"{"cargo_sources": {"packages": ["a"]}}"#,
            &["data.train", "JSON lines"],
        ),
        (
            r#"[{"files": "a", "weight": 1}, {"indexed": "p", "weight": 1}]"#,
            &["data.train[1].indexed"],
        ),
        (
            r#"[{"files": "a", "weight": 1, "field": "x"}]"#,
            &["data.train[0].field"],
        ),
    ] {
        refused(&format!(r#""train": {source}, {messages}"#), words);
    }
    for (more, words) in [
        (r#""loss_on": "all""#, "data.loss_on: has no effect"),
        (
            &format!(r#"{messages}, "reset_attention_mask": true"#),
            "data.reset_attention_mask: has no effect",
        ),
        (
            &format!(r#"{messages}, "append_eod": true"#),
            "data.append_eod: has no effect",
        ),
        (
            &format!(r#"{messages}, "add_bos": false"#),
            "data.add_bos: has no effect",
        ),
    ] {
        let warned = said(&one(more)).unwrap();
        assert!(warned.iter().any(|w| w.contains(words)), "{warned:?}");
    }
}

/// What people bring from other programs leads to the key that is meant, whichever section it stands in.
#[test]
fn words_of_other_programs_are_answered_with_the_key() {
    let base = r#"{"model": {"family": "gpt2", "preset": "tiny"}, "data": {"train": "a"}, "run": {"steps": 3}, "train_batch_size": 4}"#;
    for (word, answer) in [
        ("lora_r", "model.lora.r"),
        ("text_column", "data.field"),
        ("data.max_length", "data.seq_len"),
        ("data.path", "data.train"),
        ("warmup_ratio", "scheduler.params.warmup_num_steps"),
        ("eval_strategy", "run.validate_every"),
        ("report_to", "run.tensorboard"),
        ("run.save_every", "run.checkpoint_every"),
        ("model.layers", "model.n_layer"),
        ("model.dropout", "model.resid_pdrop"),
        ("hidden_dropout", "model.attn_pdrop"),
        ("optimizer.name", "optimizer.type"),
        ("scheduler.warmup", "scheduler.params.warmup_num_steps"),
        ("mesh.tensor", "mesh.tp"),
        ("zero.stage", "zero_optimization"),
        ("bf16", "write {\"enabled\": true}"),
    ] {
        let set = [(word.to_string(), "true".to_string())];
        let said = Config::load("c.json", base, &set).unwrap_err().to_string();
        assert!(
            said.contains("fix: write") && said.contains(answer),
            "{word}: {said}"
        );
    }
}

/// Files of other programs, by what few of their keys say.
#[test]
fn other_programs_and_files_of_models_are_told_apart() {
    for (text, words) in [
        (
            r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 3, "use_cache": true}"#,
            "Hugging Face model",
        ),
        (
            r#"{"peft_type": "LORA", "lora_alpha": 3, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM", "r": 3}"#,
            "PEFT adapter",
        ),
        (
            "base_model: a/b\nsequence_len: 2048\nmicro_batch_size: 2\nadapter: lora\n",
            "Axolotl",
        ),
        (
            "model:\n  _component_: torchtune.models.llama3.llama3_8b\nepochs: 1\n",
            "torchtune",
        ),
        (
            "model_name_or_path: a/b\nstage: sft\nfinetuning_type: lora\n",
            "LLaMA-Factory",
        ),
        (
            "[job]\nout = 'x'\n[training]\nseq_len = 2048\n",
            "TOML, and a config is JSON",
        ),
        ("a: 1\nb: 2\n", "YAML, and a config is JSON"),
        (
            r#"{"program": "crossweave", "sessions": []}"#,
            "the record of a run",
        ),
    ] {
        let e = Config::load("c", text, &[]).unwrap_err();
        let said = e.to_string();
        assert!(
            e.0.len() == 1 && said.contains(words) && said.contains("; fix: "),
            "{said}"
        );
    }
}

/// DeepSpeed reads past what it does not know at the top of a file, however much of it there is.
#[test]
fn many_keys_that_deepspeed_reads_past_are_warnings() {
    let keys: String = (0..60)
        .map(|i| format!("\"my_program_{i}\": {i},"))
        .collect();
    let text =
        format!("{{{keys} \"train_batch_size\": 4, \"zero_optimization\": {{\"stage\": 2}}}}");
    let sets = [
        ("model", r#"{"family": "gpt2", "preset": "tiny"}"#),
        ("data.train", "a"),
        ("run.steps", "3"),
    ];
    let sets = sets.map(|(k, v)| (k.to_string(), v.to_string()));
    let config = Config::load("ds.json", &text, &sets).unwrap();
    let named = |i: usize| {
        config
            .warnings()
            .iter()
            .any(|w| w.path == format!("my_program_{i}"))
    };
    assert!((0..60).all(named));
    // Elsewhere the last is named like the first.
    let text = text.replace("\"stage\": 2", "\"stages\": 2");
    let e = Config::load("ds.json", &text, &sets).unwrap_err();
    assert!(e.to_string().contains("unknown key \"stages\""), "{e}");
}

#[test]
fn packing_is_of_examples() {
    let examples = |more: &str| format!(r#""train": "a.jsonl", "format": "messages"{more}"#);
    for pack in ["true", "false"] {
        let data = examples(&format!(r#", "pack": {pack}, "on_long": "refuse""#));
        assert_eq!(said(&data), Ok(vec![]));
        let once = load(&data).unwrap().resolve(1).unwrap().to_json();
        assert!(once.contains(&format!("\"pack\": {pack}")), "{once}");
    }
    let warned = said(&examples(r#", "pack": true, "reset_attention_mask": true"#)).unwrap();
    assert!(
        warned[0].contains("data.pack keeps the examples of a row apart"),
        "{warned:?}"
    );
    refused(
        r#""train": "a.txt", "pack": true"#,
        &["data.pack", "data.reset_attention_mask"],
    );
    refused(r#""tokens": "b.safetensors", "pack": true"#, &["data.pack"]);
    refused(
        &examples(r#", "on_long": "drop""#),
        &["data.on_long", "refuse"],
    );
    let warned = said(r#""train": "a.txt", "on_long": "cut""#).unwrap();
    assert!(warned[0].contains("data.on_long"), "{warned:?}");
    assert!(!may_change_on_resume("data.pack") && !may_change_on_resume("data.on_long"));
}
