//! The config as its user meets it: what parses, what it resolves to, and what each mistake says.

use crossweave_config::schema::{Kind, Table};
use crossweave_config::*;
use crossweave_family::desc;

pub const BASE: &str = r#"{
  "model": {"family": "gpt2", "preset": "tiny"},
  "data": {"train": "corpus/*.txt"},
  "run": {"steps": 10},
  "train_batch_size": 8
}"#;

pub fn load(text: &str) -> Result<Config, Errors> {
    Config::load("t.json", text, &[])
}

/// The first error of loading `text`, or of resolving it for one rank.
fn complaint(text: &str) -> String {
    match load(text) {
        Err(e) => e.to_string(),
        Ok(config) => match config.resolve(1) {
            Err(e) => e.to_string(),
            Ok(_) => panic!("no complaint about {text}"),
        },
    }
}

/// BASE with one more top-level member.
fn with(member: &str) -> String {
    BASE.replacen('{', &format!("{{{member},\n"), 1)
}

pub fn expect(text: &str, parts: &[&str]) {
    let said = complaint(text);
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}

#[test]
fn misspelt_keys_are_named_at_every_level() {
    let cases = [
        (
            r#""zero_optimisation": {"stage": 3}"#,
            "zero_optimisation",
            "\"zero_optimization\"",
        ),
        (
            r#""zero_optimization": {"stge": 0}"#,
            "zero_optimization.stge",
            "\"stage\"",
        ),
        (
            r#""optimizer": {"type": "AdamW", "params": {"learning_rate": 1}}"#,
            "optimizer.params.learning_rate",
            "write it as optimizer.params.lr",
        ),
        (
            r#""optimizer": {"type": "AdamW", "params": {"weigth_decay": 1}}"#,
            "optimizer.params.weigth_decay",
            "\"weight_decay\"",
        ),
        (
            r#""optimizer": {"typ": "AdamW"}"#,
            "optimizer.typ",
            "\"type\"",
        ),
        (
            r#""scheduler": {"type": "cosine", "params": {"warmup_step": 1}}"#,
            "scheduler.params.warmup_step",
            "\"warmup_steps\"",
        ),
        (r#""fp16": {"enable": true}"#, "fp16.enable", "\"enabled\""),
        (
            r#""gradient_cliping": 1.0"#,
            "gradient_cliping",
            "\"gradient_clipping\"",
        ),
        (
            r#""train_micro_batch_size": 1"#,
            "train_micro_batch_size",
            "write it as train_micro_batch_size_per_gpu",
        ),
        (r#""mesh": {"db": 1}"#, "mesh.db", "\"dp\""),
        (r#""seq_len": 12"#, "seq_len", "it belongs at data.seq_len"),
        (r#""steps": 12"#, "steps", "it belongs at run.steps"),
    ];
    for (member, path, fix) in cases {
        let said = complaint(&with(member));
        assert!(said.contains(fix), "{fix} is not in: {said}");
        assert!(said.starts_with("t.json:1:"), "{said}");
        assert!(said.contains(&format!(": {path}: ")), "{said}");
    }
    expect(
        &BASE.replace("preset", "prest"),
        &["t.json:2:31: model.prest: unknown key", "\"preset\""],
    );
    expect(
        &BASE.replace("\"train\"", "\"trian\""),
        &["t.json:3:12: data.trian", "\"train\""],
    );
    expect(&BASE.replace("family", "famly"), &["famly", "\"family\""]);
    expect(
        &with(r#""optimizer": {"type": "AdamW", "lr": 1}"#),
        &["optimizer.lr", "it belongs at optimizer.params.lr"],
    );
}

#[test]
fn all_mistakes_come_at_once_each_with_its_place() {
    let text = "{\n  \"gradient_clipping\": -1,\n  \"bogus_key_here\": 1,\n  \"run\": {\n    \"steps\": 0\n  }\n}";
    let errors = load(text).unwrap_err();
    let places: Vec<_> = errors
        .0
        .iter()
        .map(|e| (e.path.as_str(), e.at.clone()))
        .collect();
    let at = |line, col| At::File { line, col };
    assert_eq!(
        places,
        [
            ("bogus_key_here", at(3, 3)),
            ("run.steps", at(5, 14)),
            ("gradient_clipping", at(2, 24)),
        ]
    );
}

#[test]
fn wrong_types_and_ranges_say_wanted_and_got() {
    expect(
        &with(r#""gradient_clipping": "high""#),
        &["wanted a number >= 0, got the string \"high\""],
    );
    expect(
        &with(r#""gradient_clipping": "1.0""#),
        &["drop the quotes: 1.0"],
    );
    expect(
        &with(r#""bf16": true"#),
        &["bf16: wanted an object, got the boolean true", "enabled"],
    );
    expect(
        &with(r#""bf16": {"enabled": 1}"#),
        &["wanted true or false, got the number 1"],
    );
    expect(
        &with(r#""gradient_accumulation_steps": 0"#),
        &["wanted a whole number >= 1, got 0"],
    );
    expect(
        &with(r#""gradient_accumulation_steps": 1.5"#),
        &["wanted a whole number >= 1, got 1.5"],
    );
    expect(
        &with(r#""gradient_accumulation_steps": -1"#),
        &["wanted a whole number >= 1, got -1"],
    );
    expect(
        &with(r#""zero_optimization": {"stage": 4}"#),
        &["wanted a whole number from 0 to 3, got 4"],
    );
    expect(
        &with(r#""optimizer": {"type": "AdamW", "params": {"betas": [0.9, 1.0]}}"#),
        &["optimizer.params.betas[1]", "in [0, 1), got 1.0"],
    );
    expect(
        &with(r#""optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}"#),
        &["wanted two numbers", "a list of 1"],
    );
    expect(
        &with(r#""optimizer": {"type": "AdmW"}"#),
        &["optimizer.type", "did you mean \"Adam"],
    );
    expect(
        &with(r#""optimizer": {"type": "Adagrad"}"#),
        &["Adagrad is not yet available; available: AdamW, Adam"],
    );
    expect(
        &with(r#""scheduler": {"type": "OneCycl"}"#),
        &["did you mean \"OneCycle\""],
    );
    expect(
        &BASE.replace("tiny", "tiney"),
        &["model.preset", "did you mean \"tiny\"?"],
    );
    expect(&BASE.replace("gpt2", "gtp2"), &["did you mean \"gpt2\"?"]);
    expect(
        &BASE.replace("\"tiny\"", "\"tiny\", \"attn_pdrop\": 1"),
        &["model.attn_pdrop", "in [0, 1)"],
    );
    expect(
        &with(r#""run": null, "mesh": []"#).replace("\"run\": {\"steps\": 10},", ""),
        &[
            "run: wanted an object, got null",
            "mesh: wanted an object, got a list of 0",
        ],
    );
    expect("[]", &["wanted an object, got a list of 0"]);
}

#[test]
fn contradictions_are_found_when_resolving() {
    expect(
        &with(r#""train_micro_batch_size_per_gpu": 3"#),
        &["t.json:6:23: train_batch_size", "6 or 9"],
    );
    expect(
        &with(r#""bf16": {"enabled": true}, "fp16": {"enabled": true}"#),
        &["both enabled"],
    );
    expect(
        &with(r#""mesh": {"dp": 4}"#),
        &["mesh.dp 4 is not the number of ranks, 1", "--ranks 4"],
    );
    expect(
        &with(r#""zero_optimization": {"stage": 3, "zero_quantized_weights": true}"#),
        &[
            "zero_quantized_weights: only 16-bit parameters",
            "enable bf16",
        ],
    );
    expect(
        &with(
            r#""bf16": {"enabled": true}, "zero_optimization": {"zero_quantized_weights": true}"#,
        ),
        &["zero_quantized_weights: stage 0 gathers no parameters"],
    );
    expect(
        &with(r#""mesh": {"ep": 2}"#),
        &["mesh.ep: the model has no experts"],
    );
    expect(
        &with(r#""seed": 1"#).replace("10}", "10, \"seed\": 2}"),
        &["seed is 1 and run.seed is 2"],
    );
    expect(
        &BASE.replace("\"tiny\"", "\"tiny\", \"n_head\": 7"),
        &["n_embd 256 is not divisible by n_head 7"],
    );
    expect(
        &BASE.replace("*.txt\"", "*.txt\", \"seq_len\": 512"),
        &["do not fit a model of 256 positions"],
    );
    expect(
        &BASE.replace("*.txt\"", "*.txt\", \"split\": \"a,b\""),
        &["wanted up to three weights"],
    );
    expect("{}", &["model: missing", "data: missing"]);
    expect(
        &BASE.replace("\"steps\": 10", ""),
        &["run.steps: missing", "--steps"],
    );
    expect(
        &BASE.replace(
            "\"family\": \"gpt2\", \"preset\": \"tiny\"",
            "\"family\": \"llama\"",
        ),
        &["model.hidden_size: missing"],
    );
}

#[test]
fn foreign_keys_warn_or_fail_never_vanish() {
    let config = load(&with(
        r#""wandb": {"enabled": true}, "amp": {"enabled": false}, "elasticity": null"#,
    ))
    .unwrap();
    let warnings: Vec<_> = config.warnings().iter().map(|w| w.path.as_str()).collect();
    assert_eq!(warnings, ["wandb"]);
    expect(
        &with(r#""sparse_attention": {"mode": "fixed"}"#),
        &["sparse_attention: known to DeepSpeed but not available"],
    );
}

#[test]
fn presets_are_the_dimensions_of_the_baselines() {
    for (name, layers, width, heads, seq, vocab) in [
        ("tiny", 4, 256, 4, 256, 256),
        ("small", 6, 512, 8, 512, 8192),
        ("gpt2", 12, 768, 12, 512, 50304),
    ] {
        let model = |text: &str| {
            let Model::New(m) = load(text).unwrap().resolve(1).unwrap().model else {
                panic!("no new model");
            };
            (m.vocab_size(), m.spec(None).unwrap().model().clone())
        };
        let dims = |m: &desc::Model| {
            let l = &m.stack.layers[0];
            let n = m.stack.layers.len();
            (n, m.width, l.attention.1.heads, m.positions)
        };
        let text = BASE.replace("tiny", name);
        let (rows, m) = model(&text);
        assert_eq!(dims(&m), (layers, width, heads, seq));
        assert_eq!(rows, Some(vocab));
        assert_eq!(m.stack.layers[0].mlp.1.width, 4 * width);
        let text = text.replace("\"family\": \"gpt2\"", "\"family\": \"llama\"");
        let (rows, m) = model(&text);
        assert_eq!(dims(&m), (layers, width, heads, seq));
        let (a, mlp) = (&m.stack.layers[0].attention.1, &m.stack.layers[0].mlp.1);
        assert_eq!((a.kv_heads, a.head_dim), (heads / 2, width / heads));
        assert_eq!(mlp.width, (8 * width / 3).div_ceil(64) * 64);
        assert_eq!((rows, m.head.tied), (Some(vocab), true));
    }
    // "auto" asks for the tokenizer's vocabulary even where the preset has one.
    let text = BASE.replace("\"tiny\"", "\"tiny\", \"vocab_size\": \"auto\"");
    let Some(Model::New(m)) = load(&text).unwrap().settings.model else {
        panic!("no new model");
    };
    assert_eq!(m.vocab_size(), None);
}

#[test]
fn set_is_as_strict_as_the_file() {
    let mut config = load(BASE).unwrap();
    config.set("run.steps", "20").unwrap();
    config.set("optimizer.type", "adam").unwrap();
    config.set("optimizer.params.lr", "3e-4").unwrap();
    config.set("data.train", "other/*.txt").unwrap();
    assert_eq!(config.settings.run.steps, Some(20));
    assert_eq!(config.settings.optimizer.kind, "Adam");
    assert_eq!(config.settings.optimizer.params.lr, Some(3e-4));
    let before = config.clone();
    let e = config.set("run.stpes", "5").unwrap_err().to_string();
    assert_eq!(
        e,
        "--set run.stpes=5: run.stpes: unknown key \"stpes\"; fix: did you mean \"steps\"?"
    );
    let e = config.set("run.steps", "many").unwrap_err().to_string();
    assert!(
        e.starts_with("--set run.steps=many: run.steps: wanted a whole number >= 1"),
        "{e}"
    );
    let e = config
        .set("train_batch_size.x", "1")
        .unwrap_err()
        .to_string();
    assert!(e.contains("has no key \"x\": it is the number 8"), "{e}");
    assert_eq!(config, before);
    assert_eq!(split_set("a.b=c=d").unwrap(), ("a.b".into(), "c=d".into()));
    assert!(split_set("nothing").is_err());
    // A file that lacks something becomes valid by --set.
    let sets = [("run.steps".to_string(), "5".to_string())];
    let fixed = Config::load("t.json", BASE.replace("10", "0"), &sets).unwrap();
    assert_eq!(fixed.settings.run.steps, Some(5));
}

#[test]
fn given_batches_take_their_sizes_from_the_file() {
    let text = BASE
        .replace(
            "\"train\": \"corpus/*.txt\"",
            "\"tokens\": \"b.safetensors\", \"key\": \"ids\"",
        )
        .replace("\"run\": {\"steps\": 10},\n", "")
        .replace("\"train_batch_size\": 8", "\"run\": {}");
    let config = load(&text).unwrap();
    let given = Given {
        batch: Some(6),
        steps: Some(20),
        ..Given::default()
    };
    let run = config.resolve_given(2, given).unwrap();
    assert_eq!((run.batch.global, run.batch.micro), (6, 3));
    assert_eq!(run.settings.run.steps, Some(20));
    assert!(config.resolve_given(4, given).is_err());
    let mut more = config.clone();
    more.set("run.steps", "21").unwrap();
    assert!(
        more.resolve_given(1, given)
            .unwrap_err()
            .to_string()
            .contains("holds batches for 20")
    );
    let mut other = config;
    other.set("train_batch_size", "5").unwrap();
    assert!(
        other
            .resolve_given(1, given)
            .unwrap_err()
            .to_string()
            .contains("batches of 6")
    );
}

#[test]
fn examples_parse_resolve_and_survive_a_round_trip() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/configs");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        seen += 1;
        let name = path.display().to_string();
        let config = Config::load(&name, std::fs::read(&path).unwrap(), &[]).unwrap();
        assert!(config.warnings().is_empty(), "{name}");
        for ranks in [1, 2] {
            let given = Given {
                batch: Some(4),
                steps: Some(7),
                ..Given::default()
            };
            let run = config
                .resolve_given(ranks, given)
                .unwrap_or_else(|e| panic!("{e}"));
            let again =
                Config::load("config.json", run.to_json(), &[]).unwrap_or_else(|e| panic!("{e}"));
            let again = again
                .resolve_given(ranks, given)
                .unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(again.settings, run.settings, "{name}");
            assert_eq!(again.schedule, run.schedule, "{name}");
            assert_eq!(again.to_json(), run.to_json(), "{name}");
        }
        assert!(config.explain(80).contains("optimizer.params.lr"));
    }
    assert!(seen >= 6, "only {seen} examples");
}

#[test]
fn every_scheduler_builds_the_function_of_its_name() {
    let rate = |scheduler: &str, n| {
        let text = with(&format!(r#""scheduler": {scheduler}"#));
        load(&text).unwrap().resolve(1).unwrap().schedule.lr(n)
    };
    assert_eq!(rate("null", 5), 1e-3);
    let warm = r#"{"type": "warmuplr", "params": {"warmup_num_steps": 4, "warmup_max_lr": 0.1, "warmup_type": "linear"}}"#;
    assert_eq!(
        (rate(warm, 0), rate(warm, 3), rate(warm, 9)),
        (0.0, 0.05, 0.1)
    );
    let decay =
        r#"{"type": "WarmupDecayLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": "auto"}}"#;
    // Such a file was to be filled in by the Trainer, and so is its optimizer.
    assert_eq!((rate(decay, 5), rate(decay, 11)), (5e-5, 0.0));
    let cosine = r#"{"type": "WarmupCosineLR", "params": {"warmup_num_steps": 4}}"#;
    assert!((rate(cosine, 5) - 0.000933019401).abs() < 1e-12);
    for kind in ["constant", "linear", "cosine", "inverse_sqrt", "WSD"] {
        let text = format!(r#"{{"type": "{kind}", "params": {{"warmup_steps": 2}}}}"#);
        assert_eq!((rate(&text, 0), rate(&text, 2)), (0.0, 1e-3), "{kind}");
    }
    assert_eq!(
        rate(r#"{"type": "cosine", "params": {"min_lr": 1e-4}}"#, 10),
        1e-4
    );
}

#[test]
fn fp16_gives_the_scaler_of_deepspeed() {
    let text = with(r#""fp16": {"enabled": true, "initial_scale_power": 8}"#);
    let run = load(&text).unwrap().resolve(1).unwrap();
    assert_eq!(run.dtype, Dtype::F16);
    let scale = run.loss_scale().unwrap();
    assert_eq!((scale.fixed, scale.initial), (None, 256.0));
    assert_eq!((scale.window, scale.hysteresis, scale.min), (1000, 2, 1.0));
    assert!(!scale.consecutive_hysteresis);
    let fixed = with(r#""fp16": {"enabled": true, "loss_scale": 128}"#);
    let scale = load(&fixed).unwrap().resolve(1).unwrap().loss_scale();
    assert_eq!(scale.unwrap().fixed, Some(128.0));
    let none = load(BASE).unwrap().resolve(1).unwrap().loss_scale();
    assert_eq!(none, None);
}

#[test]
fn a_deepspeed_file_as_transformers_writes_it_is_read() {
    let text = r#"{
      "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
      "bf16": {"enabled": "auto"},
      "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
      "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}},
      "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "offload_param": {"device": "cpu", "pin_memory": true},
        "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save": true},
      "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
      "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false
    }"#;
    let config = load(text).unwrap();
    assert_eq!(config.settings.zero_optimization.stage, 3);
    assert_eq!(
        config.settings.zero_optimization.sub_group_size,
        1_000_000_000
    );
    assert_eq!(config.settings.train_batch_size, None);
    // All that the Trainer would fill in, in one warning.
    let said: Vec<_> = config.warnings().iter().map(ToString::to_string).collect();
    let [said] = &said[..] else {
        panic!("{said:#?}")
    };
    for part in [
        "train_micro_batch_size_per_gpu = 8",
        "optimizer.params.lr = 5e-5",
        "scheduler.params.warmup_num_steps = 0",
        "gradient_clipping = 1.0",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let mut config = config;
    config.set("model", r#"{"hf": "folder"}"#).unwrap();
    config.set("data", r#"{"train": "x"}"#).unwrap();
    config.set("run.steps", "5").unwrap();
    let run = config.resolve(2).unwrap();
    assert_eq!((run.batch.global, run.batch.micro), (16, 8));
    assert_eq!(run.settings.run.log_every, Some(2000));
}

/// Every key of the tables must have a field in the structs; `deny_unknown_fields` of the structs
/// turns a missing one into an error when all keys are given.
#[test]
fn tables_and_structs_agree() {
    fn sample(kind: &Kind) -> Option<String> {
        Some(match kind {
            Kind::Bool => "false".into(),
            Kind::Int { min, .. } => min.to_string(),
            Kind::Float(range) => {
                if range.holds(0.0) {
                    "0".into()
                } else if range.holds(1.0) {
                    "1".into()
                } else if range.holds(0.5) {
                    "0.5".into()
                } else {
                    "-1".into()
                }
            }
            Kind::Pair(_) => "[0.5, 0.5]".into(),
            Kind::Text { .. } => "\"1\"".into(),
            Kind::Word(words) => format!("{:?}", words[0]),
            Kind::Texts => "[\"x\"]".into(),
            Kind::Section(table) => full(table),
            Kind::List(table) => format!("[{}]", full(table)),
            Kind::Typed(typed) => {
                let extra = typed.extra.iter();
                let extra =
                    extra.filter_map(|f| Some(format!(", {:?}: {}", f.key, sample(&f.kind)?)));
                format!(
                    r#"{{"type": {:?}, "params": {}{}}}"#,
                    typed.cases[0].0,
                    full(typed.cases[0].1),
                    extra.collect::<String>()
                )
            }
            Kind::Forms(forms) => sample(&forms.forms[0].kind)?,
            Kind::Ignored(_) | Kind::Refused(_) => return None,
        })
    }
    fn full(table: &Table) -> String {
        let members: Vec<_> = table
            .fields
            .iter()
            .filter_map(|f| Some(format!("{:?}: {}", f.key, sample(&f.kind)?)))
            .collect();
        format!("{{{}}}", members.join(", "))
    }
    let text = full(&ROOT);
    load(&text).unwrap_or_else(|e| panic!("{e}"));
    // And every alternative of every choice.
    for field in ROOT.fields {
        match &field.kind {
            Kind::Forms(forms) => {
                for (i, form) in forms.forms.iter().enumerate() {
                    let mut value = sample(&form.kind).unwrap();
                    let named = format!("\"family\": {:?}", form.name);
                    value = value.replace("\"family\": \"gpt2\"", &named);
                    let text = format!("{{{:?}: {value}}}", field.key);
                    load(&text).unwrap_or_else(|e| panic!("form {i}: {e}"));
                }
            }
            Kind::Typed(typed) => {
                for (name, table) in typed.cases {
                    let text = format!(
                        r#"{{{:?}: {{"type": {name:?}, "params": {}}}}}"#,
                        field.key,
                        full(table)
                    );
                    load(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
                }
            }
            _ => {}
        }
    }
}

#[test]
fn the_schema_is_json_schema_and_knows_every_key() {
    let schema: serde_json::Value = serde_json::from_str(&json_schema()).unwrap();
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    assert_eq!(schema["additionalProperties"], false);
    for field in ROOT.fields {
        assert!(
            schema["properties"].get(field.key).is_some(),
            "{}",
            field.key
        );
    }
    assert_eq!(
        schema["properties"]["zero_optimization"]["properties"]["stage"]["anyOf"][0]["maximum"],
        3
    );
    assert!(reference().contains("`zero_optimization.stage`"));
}

#[test]
fn check_and_explain_say_what_counts() {
    let config = load(&with(r#""comms_logger": {"enabled": true}"#)).unwrap();
    let text = config.check(2).unwrap();
    assert!(
        text.contains("8 sequences = 4 x 1 accumulated x 2 ranks"),
        "{text}"
    );
    assert!(
        text.contains("warning: t.json:1:2: comms_logger: has no effect here"),
        "{text}"
    );
    let explain = config.explain(200);
    let line = |key: &str| {
        explain
            .lines()
            .find(|l| l.split_whitespace().next() == Some(key))
            .unwrap_or_else(|| panic!("no {key} in\n{explain}"))
    };
    assert!(
        line("run.steps").contains("line 5"),
        "{}",
        line("run.steps")
    );
    assert!(line("model.n_layer").contains("preset tiny"));
    assert!(line("gradient_clipping").contains("default"));
    assert!(line("run.overlap").contains("  default  "));
    assert!(line("zero_optimization.offload_param").contains("—"));
    assert!(line("optimizer.type").contains("AdamW"));
}

#[test]
fn ranks_come_from_the_flag_or_the_mesh() {
    let config = load(&with(r#""mesh": {"dp": 4}"#)).unwrap();
    assert_eq!((config.ranks(None), config.ranks(Some(2))), (4, 2));
    assert_eq!(load(BASE).unwrap().ranks(None), 1);
}

#[test]
fn optimizers_and_groups_are_read_strictly() {
    let run = |o: &str| {
        let config = load(&with(&format!(r#""optimizer": {o}"#))).unwrap_or_else(|e| panic!("{e}"));
        config.resolve(1).unwrap_or_else(|e| panic!("{o}: {e}"))
    };
    let of = |o: &str| run(o).settings.optimizer;
    let lion = of(r#"{"type": "lion"}"#).params;
    assert_eq!(lion.own["betas"], serde_json::json!([0.9, 0.999]));
    let lamb = of(r#"{"type": "Lamb"}"#).params;
    assert_eq!(lamb.number("max_coeff"), Some(10.0));
    assert_eq!(of(r#"{"type": "Adafactor"}"#).params.lr, None);
    assert_eq!(of(r#"{"type": "DeepSpeedCPUAdam"}"#).params.lr, Some(1e-3));
    let muon = of(r#"{"type": "Muon", "params": {"muon_lr": 0.02, "adam_lr": 3e-4}}"#);
    assert_eq!(
        (muon.params.number("momentum"), muon.params.adam_lr),
        (Some(0.95), Some(3e-4))
    );
    let grouped = of(
        r#"{"type": "AdamW", "params": {"weight_decay": 0.1}, "param_groups": [
        {"match": ["*.bias", "*norm*"], "weight_decay": 0},
        {"match": "wte.*", "lr_scale": 0.5, "optimizer": {"type": "SGD", "params": {"momentum": 0.9}}},
        {"match": ["h.0.*"], "frozen": true}]}"#,
    );
    let [a, b, c] = &grouped.param_groups[..] else {
        panic!("{grouped:?}")
    };
    assert_eq!(
        (a.patterns.len(), a.weight_decay, a.lr_scale),
        (2, Some(0.0), 1.0)
    );
    let sgd = b.optimizer.as_ref().unwrap();
    assert_eq!(
        (sgd.kind.as_str(), sgd.params.number("momentum")),
        ("SGD", Some(0.9))
    );
    assert!(c.frozen);

    for (o, parts) in [
        (
            r#"{"type": "Lion", "params": {"eps": 1e-8}}"#,
            ["eps", "unknown key"],
        ),
        (
            r#"{"type": "Adafactor", "params": {"lr": 1e-3}}"#,
            ["optimizer.params.lr", "relative_step"],
        ),
        (
            r#"{"type": "Adafactor", "params": {"relative_step": false}}"#,
            ["optimizer.params.lr", "missing"],
        ),
        (
            r#"{"type": "Adafactor", "params": {"decay_rate": 0.8}}"#,
            ["decay_rate", "< 0"],
        ),
        (
            r#"{"type": "Lamb", "params": {"min_coeff": 11}}"#,
            ["min_coeff", "above max_coeff"],
        ),
        (
            r#"{"type": "SGD", "params": {"nesterov": true}}"#,
            ["nesterov", "momentum"],
        ),
        (
            r#"{"type": "Muon", "params": {"ns_steps": 0}}"#,
            ["ns_steps", "from 1 to"],
        ),
        (
            r#"{"type": "Muon", "params": {"scale_mode": "spectra"}}"#,
            ["scale_mode", "spectral"],
        ),
        (
            r#"{"type": "AdamW", "param_groups": {}}"#,
            ["param_groups", "a list of objects"],
        ),
        (
            r#"{"type": "AdamW", "param_groups": [{"lr_scale": 2}]}"#,
            ["param_groups[0].match", "missing"],
        ),
        (
            r#"{"type": "AdamW", "param_groups": [{"match": "x", "lr": 2}]}"#,
            ["param_groups[0].lr", "unknown key"],
        ),
        (
            r#"{"type": "AdamW", "param_group": []}"#,
            ["param_group", "did you mean \"param_groups\""],
        ),
        (
            r#"{"type": "AdamW", "param_groups": [{"match": "x", "frozen": true, "weight_decay": 1}]}"#,
            ["param_groups[0].frozen", "frozen parameters"],
        ),
        (
            r#"{"type": "AdamW", "param_groups": [{"match": "x", "optimizer": {"type": "SGD", "params": {"lr": 1}}}]}"#,
            ["optimizer.params.lr", "unknown key"],
        ),
    ] {
        expect(&with(&format!(r#""optimizer": {o}"#)), &parts);
    }
    let clash = with(r#""optimizer": {"type": "Adafactor"}, "scheduler": {"type": "WarmupLR"}"#);
    expect(&clash, &["scheduler", "relative_step"]);
    let both = run(r#"{"type": "AdamW", "params": {"adam_w_mode": false}}"#);
    assert!(
        both.warnings
            .iter()
            .any(|w| w.to_string().contains("decoupled"))
    );
}

#[test]
fn one_cycle_and_the_range_test_resolve() {
    let schedule = |s: &str| {
        let config = load(&with(&format!(r#""scheduler": {s}"#))).unwrap_or_else(|e| panic!("{e}"));
        config.resolve(1).unwrap_or_else(|e| panic!("{e}")).schedule
    };
    let c = schedule(
        r#"{"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 4}}"#,
    );
    assert!((c.lr(4) - 1e-3).abs() < 1e-15 && (c.lr(8) - 1e-4).abs() < 1e-15);
    assert_eq!(c.betas(4).map(|b| (b[0] * 1e6).round()), Some(8e5));
    let r = schedule(r#"{"type": "LRRangeTest", "params": {"lr_range_test_step_size": 10}}"#);
    assert!((r.lr(10) - 2e-3).abs() < 1e-15);
    expect(
        &with(r#""scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4}}"#),
        &["cycle_max_lr", "missing"],
    );
}

/// Keys of DeepSpeed's offload sections that change nothing here say why; those that hold anyway are silent.
#[test]
fn offload_keys_without_effect_are_named_with_the_reason() {
    let text = |keys: &str| {
        with(&format!(
            r#""optimizer": {{"type": "AdamW"}}, "zero_optimization": {{"stage": 3, "offload_optimizer": {{"device": "cpu", {keys}}}}}"#
        ))
    };
    let said = |keys: &str| -> String {
        let resolved = load(&text(keys)).unwrap().resolve(1).unwrap();
        let all: Vec<String> = resolved.warnings.iter().map(ToString::to_string).collect();
        all.join("\n")
    };
    assert_eq!(said(r#""pin_memory": true, "pipeline_read": true"#), "");
    let off = said(r#""pin_memory": false, "pipeline_write": false, "fast_init": true"#);
    assert!(!off.contains("pin_memory"), "{off}");
    for part in [
        "offload_optimizer.pipeline_write: has no effect: reads always run ahead",
        "fast_init",
        "no first write to save",
    ] {
        assert!(off.contains(part), "{off}");
    }
}
