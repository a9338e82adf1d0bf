//! Every key of DeepSpeed, with the default that its source gives it (`tests/deepspeed/keys/keys.json`, written by `keys.py` beside it): at its
//! default it is accepted in silence, at another value it is honoured, warned about or refused, and where it is not given the same is
//! taken as there, or the difference stands here with its reason.

use crossweave_config::{Config, Errors, Problem, Resolved};
use serde_json::{Map, Value, json};

/// What a DeepSpeed file leaves to the training script.
const RUN: [(&str, &str); 3] = [
    (
        "model",
        r#"{"family": "gpt2", "preset": "tiny", "vocab_size": 256}"#,
    ),
    ("data", r#"{"train": "corpus/*.txt"}"#),
    ("run.steps", "100000"),
];

/// Keys of which something else than DeepSpeed's default is taken, and why.
const OTHER_DEFAULTS: &[(&str, &str)] = &[
    (
        "gradient_clipping",
        "a warning says that nothing is clipped: the default of DeepSpeed itself has changed",
    ),
    (
        "steps_per_print",
        "a plain terminal would show nothing; DeepSpeed's scripts print themselves",
    ),
    (
        "zero_optimization.offload_optimizer.pin_memory",
        "what the device copies is page-locked either way; the rest of the host's memory is not, which changes no number",
    ),
    (
        "data_types.grad_accum_dtype",
        "gradients are added up in float32, which rounds no more than DeepSpeed's choices",
    ),
    (
        "zero_optimization.stage3_param_persistence_threshold",
        "memory alone: a block stays gathered only where that is asked for",
    ),
    (
        "zero_optimization.stage3_max_reuse_distance",
        "memory alone: a block is gathered for each use unless the opposite is asked for",
    ),
    (
        "zero_optimization.offload_optimizer.pipeline_read",
        "speed alone: reads always run ahead",
    ),
    (
        "zero_optimization.offload_optimizer.pipeline_write",
        "speed alone: writes always run behind",
    ),
    (
        "aio.intra_op_parallelism",
        "speed alone: threads where io_uring is missing",
    ),
];

/// Keys of which DeepSpeed's default is said to have no effect, since the opposite is always done.
const SAID_AT_DEFAULT: &[&str] = &[
    "zero_optimization.offload_optimizer.pipeline_read",
    "zero_optimization.offload_optimizer.pipeline_write",
];

struct List {
    keys: Map<String, Value>,
    removed: Vec<String>,
}

fn list() -> List {
    let text = include_str!("../../tests/deepspeed/keys/keys.json");
    let all: Value = serde_json::from_str(text).unwrap();
    let removed = all["removed"].as_array().unwrap().iter();
    let list = List {
        keys: all["keys"].as_object().unwrap().clone(),
        removed: removed.map(|k| k.as_str().unwrap().into()).collect(),
    };
    assert!(list.keys.len() > 350 && list.removed.len() > 10);
    list
}

/// A file with what `path` needs around it, and the path without the names of types.
fn around(path: &str) -> (Value, String) {
    let mut file = json!({"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}});
    let mut plain = path.to_string();
    for section in ["optimizer", "scheduler"] {
        let Some(rest) = path.strip_prefix(&format!("{section}(")) else {
            continue;
        };
        let (kind, rest) = rest.split_once(')').unwrap();
        file[section] = json!({"type": kind, "params": {}});
        if kind == "OneCycle" {
            file[section]["params"] = json!({"cycle_min_lr": 0.1, "cycle_max_lr": 0.2});
        }
        if rest.contains("[torch_adam]") {
            file[section]["params"]["torch_adam"] = json!(true);
        }
        plain = format!("{section}{}", rest.replace("[torch_adam]", ""));
    }
    for section in ["offload_optimizer", "offload_param"] {
        let inside = format!("zero_optimization.{section}.");
        if let Some(key) = path.strip_prefix(&inside) {
            file["zero_optimization"] = json!({"stage": 3, "offload_optimizer": {"device": "cpu"}});
            file["zero_optimization"][section]["device"] = json!("cpu");
            if key == "device" {
                file["zero_optimization"] = json!({"stage": 3});
            }
        }
    }
    if path.starts_with("train_") || path.starts_with("gradient_acc") {
        file["train_batch_size"] = Value::Null;
        file["train_micro_batch_size_per_gpu"] = json!(8);
    }
    if path.starts_with("aio.") {
        let disk = json!({"device": "nvme", "nvme_path": "/disk"});
        file["zero_optimization"] = json!({"stage": 2, "offload_optimizer": disk});
    }
    if path.starts_with("fp16.") {
        file["fp16"] = json!({"enabled": path != "fp16.enabled"});
    }
    if path.starts_with("zero_optimization.stage3") {
        file["zero_optimization"] = json!({"stage": 3});
    }
    if path.starts_with("expert_parallel.") && path.ends_with("_size") {
        file["model"] =
            json!({"family": "gpt2", "preset": "tiny", "vocab_size": 256, "moe": {"experts": 8}});
        file["mesh"] = json!({"dp": 8});
    }
    (file, plain)
}

fn put(file: &mut Value, path: &str, value: Value) {
    let keys: Vec<&str> = path.split('.').collect();
    let (last, sections) = keys.split_last().unwrap();
    let mut node = file;
    for key in sections {
        if !node[*key].is_object() {
            node[*key] = json!({});
        }
        node = &mut node[*key];
    }
    node[*last] = value;
}

fn load(file: &Value) -> Result<Config, Errors> {
    let own = RUN.into_iter().filter(|(k, _)| file.get(k).is_none());
    let sets: Vec<(String, String)> = own.map(|(k, v)| (k.into(), v.into())).collect();
    Config::load("ds.json", file.to_string(), &sets)
}

fn resolve(file: &Value) -> Result<Resolved, Errors> {
    let config = load(file)?;
    config.resolve(config.ranks(None))
}

/// What is said of `path`, or of the section that holds it.
fn about(problems: &[Problem], path: &str) -> Vec<String> {
    let of = |p: &&Problem| {
        path == p.path || path.starts_with(&format!("{}.", p.path)) && !p.path.is_empty()
    };
    problems.iter().filter(of).map(Problem::to_string).collect()
}

/// Values that are not `default`, likely ones first.
fn others(path: &str, default: &Value) -> Vec<Value> {
    let all = match default {
        Value::Bool(b) => vec![json!(!b)],
        Value::Number(_) if path.ends_with("autotp_size") => vec![json!(2)],
        Value::Number(_) => [8.0, 4096.0, 2.0, 3.0, 0.85, 0.5, 0.25, -2.0]
            .map(|x| json!(x))
            .into(),
        Value::Array(_) => vec![json!([0.25, 0.5]), json!(["a"])],
        _ if path.ends_with("zenflow") || path.ends_with("writer") => vec![json!({})],
        _ => {
            let words = ["cpu", "sum", "linear", "bf16", "fp32", "Fail", "other"];
            let mut all: Vec<Value> = words.map(|w| json!(w)).into();
            all.extend([
                json!(3),
                json!(true),
                json!({"device": "cpu"}),
                json!({"a": 1}),
            ]);
            all
        }
    };
    let same = |v: &Value| v == default || v.as_f64().is_some() && v.as_f64() == default.as_f64();
    all.into_iter().filter(|v| !same(v)).collect()
}

enum Outcome {
    Honoured,
    Said(Vec<String>),
    /// The value is of another type, or out of range.
    Unfit,
    Absorbed,
}

/// Whether that value is what is done where the key is not given.
fn done(file: &Value, path: &str, value: &Value) -> bool {
    let mut without = file.clone();
    put(&mut without, path, Value::Null);
    let (section, key) = path.rsplit_once('.').unwrap_or(("", path));
    let at = section.split('.').filter(|s| !s.is_empty());
    let section = at.fold(&mut without, |v, key| &mut v[key]);
    section.as_object_mut().unwrap().remove(key);
    let config = load(&without).unwrap();
    let row = config.rows().iter().find(|r| r.path == path);
    // Rows have their values as JSON text.
    let text = value.to_string();
    row.is_some_and(|r| r.value == text)
}

fn outcome(list: &List, path: &str, value: &Value) -> Outcome {
    let (mut file, plain) = around(path);
    let before = resolve(&file).unwrap_or_else(|e| panic!("{path}: {e}"));
    put(&mut file, &plain, value.clone());
    // What is set in a section that is switched off asks for nothing, in DeepSpeed neither.
    if let Some((section, key)) = plain.rsplit_once('.') {
        let switch = format!("{section}.enabled");
        if key != "enabled" && list.keys.get(&switch) == Some(&json!(false)) && section != "bf16" {
            put(&mut file, &switch, json!(true));
        }
    }
    match resolve(&file) {
        Err(e) => {
            let said = about(&e.0, &plain);
            assert!(!said.is_empty(), "{path} = {value}: {e}");
            match said.iter().any(|s| s.contains(": wanted ")) {
                true => Outcome::Unfit,
                false => Outcome::Said(said),
            }
        }
        Ok(after) => {
            let said = about(&after.warnings, &plain);
            if !said.is_empty() {
                Outcome::Said(said)
            } else if after.to_json() != before.to_json() || done(&file, &plain, value) {
                Outcome::Honoured
            } else {
                Outcome::Absorbed
            }
        }
    }
}

#[test]
fn every_key_at_another_value_is_honoured_or_warned_about_or_refused() {
    let list = list();
    let mut wrong = vec![];
    let (mut honoured, mut said) = (0, 0);
    for (path, default) in &list.keys {
        let tries = others(path, default);
        let outcomes = tries.iter().map(|v| (v, outcome(&list, path, v)));
        let fit = outcomes
            .into_iter()
            .find(|(_, o)| !matches!(o, Outcome::Unfit));
        match fit {
            None => wrong.push(format!("{path}: no value is understood")),
            Some((v, Outcome::Absorbed)) => wrong.push(format!("{path} = {v}: absorbed")),
            Some((_, Outcome::Honoured)) => honoured += 1,
            Some((v, Outcome::Said(words))) => {
                said += 1;
                for text in words {
                    let untrue = ["unknown key", "without effect here as in", "did you mean"];
                    let gone = text.contains("removed from DeepSpeed");
                    if untrue.iter().any(|u| text.contains(u)) || gone {
                        wrong.push(format!("{path} = {v}: {text}"));
                    }
                }
            }
            Some((_, Outcome::Unfit)) => {}
        }
    }
    for path in &list.removed {
        let (mut file, plain) = around(path);
        put(&mut file, &plain, json!({"enabled": true, "x": 8}));
        let words = match resolve(&file) {
            Err(e) => about(&e.0, &plain),
            Ok(run) => about(&run.warnings, &plain),
        };
        let known = words.iter().any(|w| !w.contains("unknown key"));
        if !known {
            wrong.push(format!("{path}, which DeepSpeed refuses: {words:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(honoured > 100 && said > 150, "{honoured}, {said}");
}

#[test]
fn every_key_at_its_default_is_accepted_in_silence() {
    let mut wrong = vec![];
    let keys = list().keys;
    // To write a key of such a section is to ask for the section.
    let absent = |path: &str| keys.get(path) == Some(&Value::Null);
    for (path, default) in &keys {
        let asks = path.starts_with("zero_optimization.zenflow.")
            || path.starts_with("checkpoint.writer.");
        let batch = path == "train_micro_batch_size_per_gpu";
        if batch
            || default == "<required>"
            || asks && path.rsplit_once('.').is_some_and(|(s, _)| absent(s))
        {
            continue;
        }
        let (mut file, plain) = around(path);
        put(&mut file, &plain, default.clone());
        match resolve(&file) {
            Err(e) => wrong.push(format!("{path} = {default}: {e}")),
            Ok(run) => {
                let words = about(&run.warnings, &plain);
                if !words.is_empty() && !SAID_AT_DEFAULT.contains(&&**path) {
                    wrong.push(format!("{path} = {default}: {words:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_taken_for_a_key_that_is_not_given_is_what_deepspeed_takes() {
    let mut wrong = vec![];
    let mut compared = 0;
    for (path, default) in &list().keys {
        let (file, plain) = around(path);
        let config = load(&file).unwrap_or_else(|e| panic!("{path}: {e}"));
        let row = config.rows().iter().find(|r| r.path == plain);
        let Some(row) = row.filter(|r| r.origin != "auto") else {
            continue;
        };
        // What stands in the file around the key was put there.
        if row.origin.starts_with("line") {
            continue;
        }
        let own: Value = serde_json::from_str(&row.value).unwrap_or(Value::Null);
        let number = |v: &Value| v.as_f64();
        let same = match (&own, default) {
            (Value::Array(a), Value::Array(b)) => a.iter().map(number).eq(b.iter().map(number)),
            // Absent here is "solved", and there None, or what a script must give.
            (Value::Null, d) => {
                d.is_null() || d == "<required>" || path.ends_with("model_persistence_threshold")
            }
            (a, b) => a == b || number(a).is_some() && number(a) == number(b),
        };
        compared += 1;
        let listed = OTHER_DEFAULTS
            .iter()
            .any(|(key, why)| key == path && !why.is_empty());
        match (same, listed) {
            (false, false) => wrong.push(format!("{path}: {own} here, {default} there")),
            (true, true) => wrong.push(format!("{path}: {own} is DeepSpeed's default too")),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 90, "{compared}");
}

/// The rates of the first updates, with the optimizer's rate not at its own default.
#[test]
fn schedules_take_the_rates_that_deepspeed_takes() {
    let rates = |optimizer: Value, scheduler: Value| -> Vec<f64> {
        let file = json!({"train_batch_size": 8, "optimizer": optimizer, "scheduler": scheduler});
        let run = resolve(&file).unwrap_or_else(|e| panic!("{e}"));
        (0..5).map(|n| run.schedule.lr(n)).collect()
    };
    let close = |got: Vec<f64>, want: [f64; 5]| {
        let mut pairs = got.iter().zip(want);
        assert!(
            pairs.all(|(a, b)| (a - b).abs() <= 1e-3 * b),
            "{got:?} {want:?}"
        );
    };
    let adam = json!({"type": "Adam", "params": {"lr": 2e-5}});
    let warm = |kind: &str| json!({"type": kind, "params": {"warmup_num_steps": 3}});
    // As DeepSpeed 0.19.8 gives them: without warmup_max_lr the optimizer's rate …
    close(
        rates(adam.clone(), warm("WarmupLR")),
        [0.0, 0.0, 1.26186e-5, 2e-5, 2e-5],
    );
    // … but not for WarmupDecayLR, whose default is a number.
    close(
        rates(adam.clone(), warm("WarmupDecayLR")),
        [0.0, 0.0, 6.3093e-4, 1e-3, 1e-3],
    );
    close(
        rates(adam.clone(), warm("WarmupCosineLR"))[..3]
            .iter()
            .copied()
            .chain([0.0, 0.0])
            .collect(),
        [0.0, 0.0, 1.26186e-5, 0.0, 0.0],
    );
    let muon =
        resolve(&json!({"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {}}}))
            .unwrap();
    let p = &muon.settings.optimizer.params;
    assert_eq!(
        (p.lr, p.adam_lr, p.own["betas"].clone()),
        (Some(0.02), Some(3e-4), json!([0.9, 0.95]))
    );
    let muon = resolve(
        &json!({"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.1}}}),
    )
    .unwrap();
    assert_eq!(muon.settings.optimizer.params.adam_lr, None);
    // The rate that training takes is the one that `config check` prints.
    let file =
        json!({"train_batch_size": 8, "optimizer": adam, "scheduler": warm("WarmupDecayLR")});
    let said = load(&file).unwrap().check(1).unwrap();
    assert!(
        said.contains("lr 0.001,") && said.contains("default for WarmupDecayLR"),
        "{said}"
    );
}

#[test]
fn an_optimizer_that_torch_lends_has_torchs_decay() {
    let decay = |kind: &str, more: Value| {
        let mut params = json!({"lr": 0.003, "torch_adam": true});
        params
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let file = json!({"train_batch_size": 8, "gradient_clipping": 0, "optimizer": {"type": kind, "params": params}});
        let run = resolve(&file).unwrap();
        let said = about(&run.warnings, "optimizer.params.torch_adam");
        let again: Value = serde_json::from_str(&run.to_json()).unwrap();
        assert_eq!(
            again["optimizer"]["params"]["weight_decay"].as_f64(),
            run.settings.optimizer.params.weight_decay
        );
        (
            run.settings.optimizer.params.weight_decay.unwrap(),
            said.len(),
        )
    };
    assert_eq!(decay("AdamW", json!({})), (0.01, 1));
    assert_eq!(decay("Adam", json!({})), (0.01, 1));
    assert_eq!(decay("Adam", json!({"adam_w_mode": false})), (0.0, 0));
    assert_eq!(decay("AdamW", json!({"adam_w_mode": false})).0, 0.01);
    assert_eq!(decay("AdamW", json!({"weight_decay": 0.1})), (0.1, 0));
    assert_eq!(decay("AdamW", json!({"weight_decay": "auto"})), (0.0, 0));
    assert_eq!(decay("AdamW", json!({"torch_adam": false})), (0.0, 0));
}

#[test]
fn a_file_for_the_trainer_has_the_trainers_optimizer() {
    let rate = |file: Value| resolve(&file).unwrap().settings.optimizer.params.lr;
    assert_eq!(rate(json!({"train_batch_size": "auto"})), Some(5e-5));
    assert_eq!(
        rate(json!({"bf16": {"enabled": "auto"}, "train_batch_size": 8})),
        Some(5e-5)
    );
    let given =
        json!({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}});
    assert_eq!(rate(given), Some(5e-5));
    assert_eq!(rate(json!({"train_batch_size": 8})), Some(1e-3));
    let typed = json!({"train_batch_size": "auto", "optimizer": {"type": "AdamW"}});
    assert_eq!(rate(typed), Some(1e-3));
    // Which one is taken is said.
    let config = load(&json!({"train_batch_size": "auto"})).unwrap();
    let said = about(config.warnings(), "optimizer");
    assert!(
        said.len() == 1 && said[0].contains("lr 0.00005"),
        "{said:?}"
    );
}

#[test]
fn set_changes_the_default_optimizer() {
    let run = |file: &str, sets: &[(&str, &str)]| {
        let own = sets.iter().map(|(k, v)| (k.to_string(), v.to_string()));
        let sets: Vec<_> = RUN
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .into_iter()
            .chain(own)
            .collect();
        Config::load("ds.json", file, &sets).and_then(|c| c.resolve(1))
    };
    let params = |file: &str, sets: &[(&str, &str)]| run(file, sets).unwrap().settings.optimizer;
    let o = params(
        r#"{"train_batch_size": 8}"#,
        &[("optimizer.params.lr", "0.1")],
    );
    assert_eq!((o.kind.as_str(), o.params.lr), ("AdamW", Some(0.1)));
    let o = params(
        r#"{"train_batch_size": 8}"#,
        &[
            ("optimizer.params.weight_decay", "0.1"),
            ("optimizer.params.lr", "0.2"),
        ],
    );
    assert_eq!((o.params.lr, o.params.weight_decay), (Some(0.2), Some(0.1)));
    let o = params(
        r#"{"train_batch_size": "auto"}"#,
        &[("optimizer.params.weight_decay", "0.1")],
    );
    assert_eq!(
        (o.params.lr, o.params.weight_decay),
        (Some(5e-5), Some(0.1))
    );
    let o = params(r#"{"train_batch_size": 8}"#, &[("optimizer.type", "Lion")]);
    assert_eq!(
        (o.kind.as_str(), o.params.own.get("betas").cloned()),
        ("Lion", Some(json!([0.9, 0.999])))
    );
    // A section of the file is what the file says.
    let e = run(
        r#"{"train_batch_size": 8, "optimizer": {}}"#,
        &[("optimizer.params.lr", "0.1")],
    );
    assert!(
        e.unwrap_err()
            .to_string()
            .contains("optimizer.type: missing")
    );
}

#[test]
fn autotp_is_the_mesh() {
    let tp = |file: Value| load(&file).map(|c| (c.settings.mesh.tp, c.ranks(None)));
    for (size, ranks) in [
        (json!(0), 1),
        (json!(1), 1),
        (json!(2), 2),
        (json!(4), 4),
        (json!(null), 1),
    ] {
        let file = json!({"train_batch_size": 8, "tensor_parallel": {"autotp_size": size}});
        assert_eq!(tp(file).unwrap(), (ranks, ranks), "{size}");
    }
    let both = |own: u64| json!({"train_batch_size": 8, "mesh": {"tp": own}, "tensor_parallel": {"autotp_size": 2}});
    assert_eq!(tp(both(2)).unwrap().0, 2);
    assert!(
        tp(both(4))
            .unwrap_err()
            .to_string()
            .contains("keep one of them")
    );
    for wrong in [json!("two"), json!(-1), json!(1.5), json!(true), json!([2])] {
        let file = json!({"train_batch_size": 8, "tensor_parallel": {"autotp_size": wrong}});
        assert!(tp(file).is_err(), "{wrong}");
    }
}

/// DeepSpeed reads `autoep_size` only where `expert_parallel.enabled` is true.
#[test]
fn autoep_is_the_mesh_where_it_is_on() {
    let ep = |section: Value| {
        let file = json!({"train_batch_size": 8, "expert_parallel": section});
        load(&file).map(|c| c.settings.mesh.ep)
    };
    assert_eq!(ep(json!({"enabled": true, "autoep_size": 4})).unwrap(), 4);
    assert_eq!(ep(json!({"enabled": false, "autoep_size": 4})).unwrap(), 1);
    assert_eq!(ep(json!({"autoep_size": 4})).unwrap(), 1);
    let etp = |section: Value, mesh: Value| {
        let file = json!({"train_batch_size": 8, "mesh": mesh, "expert_parallel": section});
        load(&file).map(|c| c.settings.mesh.etp)
    };
    for (more, mesh, cut) in [
        (json!({}), json!({"tp": 2}), Some(1)),
        (json!({}), json!({"tp": 2, "etp": 2}), Some(2)),
        (
            json!({"expert_tensor_parallel_size": 2}),
            json!({"tp": 2}),
            Some(2),
        ),
        (
            json!({"enabled": false, "expert_tensor_parallel_size": 2}),
            json!({"tp": 2}),
            None,
        ),
    ] {
        let mut section = json!({"enabled": true, "autoep_size": 2});
        for (key, value) in more.as_object().unwrap() {
            section[key] = value.clone();
        }
        assert_eq!(etp(section, mesh).unwrap(), cut);
    }
    assert_eq!(
        ep(json!({"enabled": true, "autoep_size": 2, "preset_model": "mixtral"})).unwrap(),
        2
    );
    for wrong in [json!("two"), json!(-1), json!(true)] {
        assert!(ep(json!({"enabled": true, "autoep_size": wrong})).is_err());
    }
    let section = json!({"enabled": true, "autoep_size": 2});
    let file = json!({"train_batch_size": 8, "mesh": {"ep": 4}, "expert_parallel": section});
    let e = load(&file).map(|_| ()).unwrap_err().to_string();
    assert!(e.contains("keep one of them"), "{e}");
}

/// Numbers out of range are mistakes where something reads them, and only there.
#[test]
fn numbers_that_nothing_reads_are_not_refused() {
    let says = |fp16: Value| {
        let file = json!({"train_batch_size": 8, "gradient_clipping": 0, "fp16": fp16});
        resolve(&file).map(|r| r.settings.fp16.loss_scale_window)
    };
    for key in ["loss_scale_window", "hysteresis", "min_loss_scale"] {
        for n in [0, -1] {
            assert!(says(json!({"enabled": false, key: n})).is_ok(), "{key} {n}");
            assert!(says(json!({key: n})).is_ok(), "{key} {n}");
            assert!(
                says(json!({"enabled": true, "loss_scale": 128, key: n})).is_ok(),
                "{key} {n}"
            );
            assert!(says(json!({"enabled": true, key: n})).is_err(), "{key} {n}");
        }
        // Of the wrong type it is wrong anywhere.
        assert!(says(json!({key: "many"})).is_err(), "{key}");
    }
    assert!(says(json!({"initial_scale_power": 99})).is_ok());
    assert_eq!(says(json!({"loss_scale_window": 7})).unwrap(), 7);
    let f16 = json!({"train_batch_size": 8, "fp16": {"loss_scale_window": 0}});
    let mut config = load(&f16).unwrap();
    assert!(config.set("run.dtype", "f16").is_err());
    let disk = |device: &str, n: u64| {
        let o = json!({"device": device, "nvme_path": "/tmp", "buffer_count": n});
        resolve(
            &json!({"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": o}}),
        )
    };
    assert!(disk("cpu", 0).is_ok() && disk("nvme", 1).is_ok());
    assert!(disk("nvme", 0).is_err());
}

#[test]
fn a_file_of_deepspeeds_is_told_that_nothing_is_clipped() {
    let said = |file: Value| {
        let warnings = load(&file).unwrap().warnings().to_vec();
        about(&warnings, "gradient_clipping").len()
    };
    assert_eq!(said(json!({"train_batch_size": 8})), 1);
    assert_eq!(
        said(json!({"train_batch_size": 8, "gradient_clipping": 0})),
        0
    );
    assert_eq!(
        said(json!({"train_batch_size": 8, "gradient_clipping": "auto"})),
        0
    );
    assert_eq!(said(json!({"train_batch_size": 8, "mesh": {}})), 0);
}
