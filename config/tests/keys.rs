//! No key is absorbed: set to a value that is not its default, each key of the tables is refused, or named in a warning, or read by
//! the program.

use crossweave_config::schema::{Default, Field, Kind, Table};
use crossweave_config::{Auto, Config, Mesh, Problem, ROOT, SequenceParallel};
use serde_json::{Value, json};
use std::path::Path;

/// Configs that between them have every section; a key is tried in the first that knows it.
const BASES: [&str; 5] = [
    r#"{"model": {"family": "gpt2", "preset": "tiny"}, "data": {"train": "corpus/*.txt", "validation_fraction": 0.1}, "run": {"steps": 10}, "train_batch_size": 8,
        "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}"#,
    r#"{"model": {"family": "llama", "preset": "tiny"}, "data": {"tokens": "t.safetensors"}, "run": {"steps": 10}, "train_batch_size": 8,
        "optimizer": {"type": "AdamW", "param_groups": [{"match": ["*"]}]}, "faults": [{"rank": 0, "step": 2, "kind": "delay", "ms": 1}]}"#,
    r#"{"model": {"hf": "folder"}, "data": {"train": {"indexed": "p"}}, "run": {"steps": 10}, "train_batch_size": 8, "optimizer": {"type": "AdamW"}}"#,
    r#"{"model": {"family": "gpt2", "preset": "tiny"}, "data": {"train": {"cargo_sources": {"packages": ["a"]}}}, "run": {"steps": 10}, "train_batch_size": 8,
        "optimizer": {"type": "AdamW"}, "bf16": {"enabled": true}}"#,
    r#"{"model": {"family": "gpt2", "preset": "tiny"}, "data": {"train": [{"files": "a/*.txt", "weight": 0.7}, {"files": "b.txt", "weight": 1}],
        "validation": [{"files": "c.txt", "weight": 2}]}, "run": {"steps": 10}, "train_batch_size": 8, "optimizer": {"type": "AdamW"}}"#,
];

/// A value of the kind other than `default`.
fn other(field: &Field) -> Option<String> {
    let default = match field.default {
        Default::Json(text) => text,
        _ => "",
    };
    let first = |choices: &[&str]| {
        choices
            .iter()
            .find(|c| **c != default)
            .map(|c| (*c).to_string())
    };
    match &field.kind {
        Kind::Bool => first(&["true", "false"]),
        Kind::Int { min, max } => {
            let near = [min + 1, min + 2].map(|n| n.min(*max).to_string());
            first(&[&near[0], &near[1]])
        }
        Kind::Float(range) => ["0.25", "2.5", "-0.25", "0.5"]
            .into_iter()
            .find(|x| range.holds(x.parse().unwrap()) && *x != default)
            .map(str::to_string),
        Kind::Pair(_) => Some("[0.25, 0.5]".into()),
        Kind::Text { .. } => Some("\"other\"".into()),
        Kind::Word(words) => words
            .iter()
            .map(|w| format!("{w:?}"))
            .find(|w| w != default),
        Kind::Texts => Some("[\"other\"]".into()),
        Kind::Ignored(_) | Kind::Refused(_) => Some("{\"enabled\": true, \"x\": 8}".into()),
        Kind::Section(_) | Kind::List(_) | Kind::Typed(_) | Kind::Forms(_) => None,
    }
}

/// Every leaf of the tables: its path and a value.
fn leaves(table: &'static Table, path: &str, out: &mut Vec<(String, String)>) {
    for field in table.fields {
        let path = if path.is_empty() {
            field.key.to_string()
        } else {
            format!("{path}.{}", field.key)
        };
        out.extend(other(field).map(|value| (path.clone(), value)));
        inner(&field.kind, &path, out);
    }
}

fn inner(kind: &'static Kind, path: &str, out: &mut Vec<(String, String)>) {
    match kind {
        Kind::Section(table) => leaves(table, path, out),
        Kind::List(table) => leaves(table, &format!("{path}.0"), out),
        Kind::Typed(typed) => {
            for field in typed.extra {
                inner(&field.kind, &format!("{path}.{}", field.key), out);
            }
            for (name, table) in typed.cases {
                leaves(table, &format!("{path}({name}).params"), out);
            }
        }
        Kind::Forms(forms) => forms.forms.iter().for_each(|f| inner(&f.kind, path, out)),
        _ => {}
    }
}

/// The sources that may read a setting: everything but what only declares, documents or checks keys.
fn readers() -> String {
    fn collect(dir: &Path, out: &mut String) {
        let mut entries: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        entries.sort();
        for path in entries {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let declares = ["table_", "settings", "schema", "render", "unavailable"];
            if path.is_dir() {
                collect(&path, out);
            } else if name.ends_with(".rs") && !declares.iter().any(|d| name.starts_with(d)) {
                out.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut out = String::new();
    for dir in [
        "config/src",
        "job/src",
        "train/src",
        "cli/src",
        "zero/optim/src",
    ] {
        collect(&root.join(dir), &mut out);
    }
    // The keys of `model.moe`, which a model is given.
    let moe = root.join("nn/family/src/moe.rs");
    out.push_str(&std::fs::read_to_string(moe).unwrap());
    out
}

/// Whether the sources read a field of this name.
fn read(sources: &str, key: &str) -> bool {
    let field = match key {
        "async" => "asynchronous",
        "match" => "patterns",
        // Fields of an optimizer that are renamed where they are declared.
        "adam_w_mode" => "l2",
        "scale_mode" => "scale",
        "extra_scale_factor" => "extra_scale",
        key => key,
    };
    sources.match_indices(field).any(|(at, _)| {
        let before = sources[..at].trim_end().chars().next_back();
        let after = sources[at + field.len()..].chars().next();
        before == Some('.') && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

enum Outcome {
    Unknown,
    Said,
    Taken,
}

/// Sets `path` in a config and says what is said of it. `optimizer(Muon).params.x` stands for a section of that type.
fn try_key(base: &str, path: &str, value: &str) -> Outcome {
    let mut config: Value = serde_json::from_str(base).unwrap();
    let mut plain = String::new();
    let mut rest = path;
    while let Some((section, after)) = rest.split_once('(') {
        let (kind, after) = after.split_once(')').unwrap();
        plain += section;
        let mut typed = json!({"type": kind});
        if kind == "OneCycle" {
            typed["params"] = json!({"cycle_min_lr": 0.1, "cycle_max_lr": 0.2});
        }
        if !set(&mut config, &plain, typed) {
            return Outcome::Unknown;
        }
        rest = after;
    }
    plain += rest;
    let load = |config: &Value| Config::load("t.json", config.to_string(), &[]);
    if plain.starts_with("model.moe.") {
        // The section is asked for with what it cannot do without.
        let mut experts = config.clone();
        set(&mut experts, "model.moe.experts", json!(4));
        config = load(&experts).map_or(config, |_| experts);
    }
    let before = load(&config).unwrap_or_else(|e| panic!("{path}: {e}"));
    if !set(&mut config, &plain, serde_json::from_str(value).unwrap()) {
        return Outcome::Unknown;
    }
    // `faults.0.rank` is called `faults[0].rank` in messages.
    let shown = plain.replace(".0", "[0]");
    let named = |problems: &[Problem]| problems.iter().any(|p| p.to_string().contains(&shown));
    let after = match load(&config) {
        Err(e) => {
            let text = e.to_string();
            let foreign = ["unknown key", "exactly one of"];
            let other = foreign.iter().any(|words| text.contains(words));
            return if other {
                Outcome::Unknown
            } else {
                Outcome::Said
            };
        }
        Ok(after) => after,
    };
    if named(after.warnings()) && !named(before.warnings()) {
        return Outcome::Said;
    }
    match after.resolve(1) {
        Err(_) => Outcome::Said,
        Ok(run) if named(&run.warnings) => Outcome::Said,
        Ok(_) => Outcome::Taken,
    }
}

/// Sets a dotted path, making sections on the way; false where a list on it is not there.
fn set(config: &mut Value, path: &str, value: Value) -> bool {
    let mut node = config;
    for key in path.split('.') {
        if let Ok(i) = key.parse::<usize>() {
            match node.get_mut(i) {
                Some(item) => node = item,
                None => return false,
            }
        } else {
            match node {
                Value::Null => *node = json!({}),
                Value::Object(_) => {}
                _ => return false,
            }
            node = &mut node[key];
        }
    }
    *node = value;
    true
}

#[test]
fn every_key_is_used_or_warned_about_or_refused() {
    let mut keys = vec![];
    leaves(&ROOT, "", &mut keys);
    assert!(keys.len() > 250, "only {} keys", keys.len());
    let sources = readers();
    assert!(!read(&sources, "no_such_key"));
    let mut absorbed = vec![];
    // One more base a family. That each of its keys changes the model is tested where the families are.
    let families = crossweave_family::FAMILIES.iter();
    let families = families.map(|f| BASES[0].replace("gpt2", f.name));
    let bases: Vec<String> = BASES
        .map(str::to_string)
        .into_iter()
        .chain(families)
        .collect();
    let of_family = |path: &str| {
        let key = path.strip_prefix("model.").unwrap_or_default();
        let key = key.split('.').next().unwrap_or_default();
        let mut all = crossweave_family::FAMILIES.iter();
        all.any(|f| f.key(key).is_some())
    };
    for (path, value) in &keys {
        let outcome = bases
            .iter()
            .map(|b| try_key(b, path, value))
            .find(|o| !matches!(o, Outcome::Unknown));
        let key = path.rsplit('.').next().unwrap();
        match outcome {
            None => absorbed.push(format!("{path}: no base config knows it")),
            Some(Outcome::Taken) if !read(&sources, key) && !of_family(path) => {
                absorbed.push(format!("{path} = {value}"))
            }
            Some(_) => {}
        }
    }
    assert!(
        absorbed.is_empty(),
        "neither used nor named:\n{}",
        absorbed.join("\n")
    );
}

fn warnings(text: &str) -> String {
    let run = Config::load("t.json", text, &[])
        .unwrap()
        .resolve(1)
        .unwrap();
    run.warnings.iter().map(|w| format!("{w}\n")).collect()
}

#[test]
fn keys_that_do_nothing_here_say_what_happens_instead() {
    for (key, words) in [
        (
            r#""contiguous_gradients": false"#,
            "always lie in one buffer",
        ),
        (r#""reduce_scatter": false"#, "always reduce-scattered"),
        (
            r#""allgather_partitions": false"#,
            "one all-gather of a unit",
        ),
        (r#""allgather_bucket_size": 2e8"#, "gathered unit by unit"),
        (r#""sub_group_size": 1e6"#, "without offload_optimizer"),
        (
            r#""stage3_model_persistence_threshold": 1000"#,
            "stage3_param_persistence_threshold alone",
        ),
        (
            r#""stage3_gather_16bit_weights_on_model_save": true"#,
            "float32, and so is the model",
        ),
        (r#""round_robin_gradients": true"#, "divided evenly"),
        (
            r#""stage3_prefetch_bucket_size": 1000"#,
            "one unit (a block of the model) is gathered ahead",
        ),
    ] {
        let text = BASES[1].replacen(
            '{',
            &format!("{{\"zero_optimization\": {{\"stage\": 2, {key}}},"),
            1,
        );
        let said = warnings(&text);
        let name = key.split('"').nth(1).unwrap();
        assert!(
            said.contains(name) && said.contains(words),
            "{key}: {said:?}"
        );
        assert!(!warnings(BASES[1]).contains(name));
    }
}

#[test]
fn one_setting_by_two_names_has_one_value() {
    let text = |keys: &str| {
        BASES[1]
            .replacen('{', &format!("{{{keys}, \"x_y_z\": 0,"), 1)
            .replace("\"x_y_z\": 0,", "")
    };
    let of = |keys: &str| Config::load("t.json", text(keys), &[]);
    let every = |keys: &str| of(keys).unwrap().resolve(1).unwrap().settings.run.log_every;
    assert_eq!(every(r#""steps_per_print": 50"#), Some(50));
    let zero = |keys: &str| of(&format!("\"zero_optimization\": {{{keys}}}"));
    let live = zero(r#""stage": 3, "max_live_parameters": 7"#).unwrap();
    assert_eq!(
        live.settings.zero_optimization.stage3_max_live_parameters,
        7
    );
    let twice = zero(r#""stage": 3, "max_live_parameters": 7, "stage3_max_live_parameters": 8"#);
    assert!(twice.unwrap_err().to_string().contains("keep one of them"));
    // A `--set` is laid over the file by either name.
    let mut config = zero(r#""stage": 3, "stage3_max_live_parameters": 8"#).unwrap();
    config
        .set("zero_optimization.max_live_parameters", "9")
        .unwrap();
    assert_eq!(
        config.settings.zero_optimization.stage3_max_live_parameters,
        9
    );
}

/// Every key without effect or refused, with what it is when not given.
fn foreign(table: &'static Table, path: &str, out: &mut Vec<(String, &'static str, bool)>) {
    for field in table.fields {
        let path = match path {
            "" => field.key.to_string(),
            _ => format!("{path}.{}", field.key),
        };
        match (&field.kind, &field.default) {
            (Kind::Ignored(_), Default::Json(text)) => out.push((path, text, false)),
            (Kind::Refused(_), Default::Json(text)) => out.push((path, text, true)),
            (Kind::Section(table), _) => foreign(table, &path, out),
            (Kind::Typed(typed), _) => {
                for (name, table) in typed.cases {
                    foreign(table, &format!("{path}({name}).params"), out);
                }
            }
            (Kind::Forms(forms), _) => {
                for form in forms.forms {
                    if let Kind::Section(table) = form.kind {
                        foreign(table, &path, out);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Off is what the type of a key calls off, and nothing else.
#[test]
fn no_number_but_the_keys_own_default_switches_a_key_off() {
    let mut keys = vec![];
    foreign(&ROOT, "", &mut keys);
    assert!(keys.len() > 100, "{}", keys.len());
    let mut wrong = vec![];
    for (path, default, _) in &keys {
        for value in ["1", "0.5", "-1", "0", "true", "\"on\"", "[1]"] {
            let number = |text: &str| serde_json::from_str::<Value>(text).ok()?.as_f64();
            let same =
                value == *default || number(value).is_some() && number(value) == number(default);
            let outcomes = BASES.iter().map(|b| try_key(b, path, value));
            let known = outcomes
                .into_iter()
                .find(|o| !matches!(o, Outcome::Unknown));
            match known {
                Some(Outcome::Said) if !same => {}
                Some(Outcome::Taken) if same => {}
                None => wrong.push(format!("{path}: no base config knows it")),
                Some(_) => wrong.push(format!("{path} = {value}, not given it is {default}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// PEFT 0.21's `TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING` for the families here. For the others it asks.
const PEFT: &[(&str, &[&str])] = &[
    ("bert", &["query", "value"]),
    ("bloom", &["query_key_value"]),
    ("falcon", &["query_key_value"]),
    ("gemma", &["q_proj", "v_proj"]),
    ("gemma2", &["q_proj", "v_proj"]),
    ("gemma3_text", &["q_proj", "v_proj"]),
    ("gpt2", &["c_attn"]),
    ("gpt_neox", &["query_key_value"]),
    ("gptj", &["q_proj", "v_proj"]),
    ("llama", &["q_proj", "v_proj"]),
    ("mistral", &["q_proj", "v_proj"]),
    ("mixtral", &["q_proj", "v_proj"]),
    ("opt", &["q_proj", "v_proj"]),
    ("phi", &["q_proj", "v_proj", "fc1", "fc2"]),
    ("qwen2", &["q_proj", "v_proj"]),
    ("qwen3", &["q_proj", "v_proj"]),
    ("stablelm", &["q_proj", "v_proj"]),
    ("t5", &["q", "v"]),
    ("mt5", &["q", "v"]),
    ("roberta", &["query", "value"]),
    ("xlm-roberta", &["query", "value"]),
];

/// What adapters are put on where nobody says it is PEFT's choice, and the documentation names the families for which it has none.
#[test]
fn adapters_are_put_where_peft_puts_them() {
    let docs = include_str!("../../docs/finetuning.md");
    let (_, none) = docs.split_once("PEFT has no choice for ").unwrap();
    let (none, _) = none.split_once(" and asks for one").unwrap();
    let none: Vec<&str> = none
        .split([',', ' '])
        .filter(|w| !w.is_empty() && *w != "and")
        .collect();
    for family in crossweave_family::FAMILIES {
        match PEFT.iter().find(|(name, _)| *name == family.name) {
            Some((name, targets)) => {
                assert_eq!(family.lora, *targets, "{name}");
                assert!(!none.contains(name), "{name}");
            }
            None => assert!(none.contains(&family.name), "{}: {none:?}", family.name),
        }
    }
}

/// Without the key tokens are cut where they can be; a record of before there was one says that they were not.
#[test]
fn tokens_are_cut_where_they_can_be_unless_the_config_says_otherwise() {
    let of = |mesh: &str| {
        let text = BASES[0].replacen('{', &format!("{{\"mesh\": {mesh}, "), 1);
        let config = Config::load("t.json", text, &[]).unwrap();
        config.resolve(2).unwrap().settings.mesh.sequence_parallel
    };
    let auto = SequenceParallel::Asked(Auto::Auto);
    assert_eq!(of("{}"), auto);
    assert_eq!(of("{\"tp\": 2}"), auto);
    assert_eq!(of("{\"tp\": 2, \"sequence_parallel\": \"auto\"}"), auto);
    for set in [true, false] {
        let given = of(&format!("{{\"tp\": 2, \"sequence_parallel\": {set}}}"));
        assert_eq!(given, SequenceParallel::Set(set));
    }
    let mut record = json!(
        Config::load("t.json", BASES[0], &[])
            .unwrap()
            .resolve(1)
            .unwrap()
            .settings
    );
    let mesh = record["mesh"].as_object_mut().unwrap();
    assert_eq!(mesh.remove("sequence_parallel"), Some(json!("auto")));
    let read: Mesh = serde_json::from_value(record["mesh"].clone()).unwrap();
    assert_eq!(read.sequence_parallel, SequenceParallel::Set(false));
}
