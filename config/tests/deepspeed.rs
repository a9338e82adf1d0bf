//! Configs in the shape of DeepSpeed's own tutorials: each becomes the plan beside it in its `.expect` file, and each key without an
//! equivalent is named there with what is said about it.
//!
//! A file may be refused at first: then every key it is refused for is named, with a reason and a fix, and following the messages
//! (removing the key, or writing `instead`) leads to the plan. What this build cannot do yet stands under `pending`: exactly those keys
//! are refused, and with the value beside each (null: removed) the rest of the file becomes the plan.

use crossweave_config::{Config, Errors, Resolved};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// What a DeepSpeed file never holds: here the model and the data are part of the run.
const RUN: [(&str, &str); 3] = [
    (
        "model",
        r#"{"family": "gpt2", "preset": "tiny", "vocab_size": 256}"#,
    ),
    ("data", r#"{"train": "corpus/*.txt"}"#),
    ("run.steps", "10"),
];

fn load(name: &str, value: &Value) -> Result<Config, Errors> {
    let sets: Vec<(String, String)> = RUN.map(|(k, v)| (k.to_string(), v.to_string())).into();
    Config::load(name, value.to_string(), &sets)
}

fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |v, key| v.get(key))
}

fn lay(value: &mut Value, path: &str, new: Option<&Value>) {
    let (parents, key) = path.rsplit_once('.').unwrap_or(("", path));
    let mut node = value;
    for p in parents.split('.').filter(|p| !p.is_empty()) {
        let object = node.as_object_mut().expect("an object");
        node = object.entry(p).or_insert_with(|| Value::Object(Map::new()));
    }
    let object = node.as_object_mut().expect("an object");
    match new {
        Some(v) => object.insert(key.to_string(), v.clone()),
        None => object.remove(key),
    };
}

/// Numbers are equal as numbers: 1 is 1.0.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(a, b)| same(a, b))
        }
        _ => a == b,
    }
}

fn said(name: &str, problems: &[crossweave_config::Problem]) -> BTreeMap<String, String> {
    let text = |p: &crossweave_config::Problem| (p.path.clone(), p.to_string());
    let all: BTreeMap<_, _> = problems.iter().map(text).collect();
    for (key, what) in &all {
        assert!(what.contains("; fix: "), "{name}: {key}: {what}");
    }
    all
}

/// The keys that were named are exactly those expected, each with its words.
fn named(name: &str, got: &BTreeMap<String, String>, want: Option<&Value>) {
    let empty = Map::new();
    let want = want.and_then(Value::as_object).unwrap_or(&empty);
    for (key, words) in want {
        let words = words.as_str().expect("words");
        // What the Trainer would fill in stands in one warning, with the value taken.
        let folded = got
            .get("")
            .filter(|what| what.contains(&format!("{key} = ")));
        match got.get(key).or(folded) {
            Some(what) => assert!(what.contains(words), "{name}: {words:?} not in: {what}"),
            None => panic!("{name}: {key} is not named: {got:?}"),
        }
    }
    let more: Vec<_> = got
        .iter()
        .filter(|(k, what)| {
            !(want.contains_key(*k) || k.is_empty() && want.keys().any(|w| what.contains(w)))
        })
        .collect();
    assert!(more.is_empty(), "{name}: also named: {more:#?}");
}

/// The keys that this build cannot do yet: exactly those expected, and each is said to be that.
fn pending(name: &str, errors: &Errors, want: &Map<String, Value>) {
    let got = said(name, &errors.0);
    for (key, what) in &got {
        let words = "not available in this build yet";
        assert!(what.contains(words), "{name}: {key}: {what}");
    }
    let keys = |m: Vec<&String>| m.into_iter().cloned().collect::<Vec<_>>();
    let (got, want) = (keys(got.keys().collect()), keys(want.keys().collect()));
    assert_eq!(got, want, "{name}: refused for now");
}

fn holds(name: &str, run: &Resolved, expect: &Value) {
    let settings: Value = serde_json::from_str(&run.to_json()).expect("JSON");
    for (path, want) in expect["plan"].as_object().expect("a plan") {
        let got = at(&settings, path).unwrap_or(&Value::Null);
        assert!(same(got, want), "{name}: {path} is {got}, not {want}");
    }
    for (n, want) in expect["lr"].as_object().into_iter().flatten() {
        let got = run.schedule.lr(n.parse().expect("a step"));
        let want = want.as_f64().expect("a rate");
        assert!(
            (got - want).abs() <= 1e-9 * want.max(1e-3),
            "{name}: lr after {n} steps is {got}, not {want}"
        );
    }
}

fn run(path: &Path) {
    let name = path.display().to_string();
    let read = |p: &Path| -> Value {
        let text = std::fs::read_to_string(p).expect("a file");
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", p.display()))
    };
    let expect = read(&path.with_extension("expect"));
    let mut value = read(path);
    if let Some(keys) = expect.get("refused") {
        let errors = load(&name, &value).expect_err(&name);
        named(&name, &said(&name, &errors.0), Some(keys));
        let keys = keys.as_object().expect("keys");
        keys.keys().for_each(|key| lay(&mut value, key, None));
        for (key, new) in expect["instead"].as_object().into_iter().flatten() {
            lay(&mut value, key, Some(new));
        }
    }
    let loaded = |value: &Value| load(&name, value).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut config = loaded(&value);
    let mut warned = said(&name, config.warnings());
    // DeepSpeed leaves a missing optimizer to the caller; which one is taken is reported in one way.
    if value.get("optimizer").is_none()
        && let Some(what) = warned.remove("optimizer")
    {
        assert!(what.contains("AdamW with lr"), "{name}: {what}");
    }
    // The same of a clipping that is not given.
    if let Some(what) = warned.remove("gradient_clipping") {
        let given = value.get("gradient_clipping").is_some();
        assert!(!given && what.contains("not clipped"), "{name}: {what}");
    }
    named(&name, &warned, expect.get("named"));
    let ranks = expect["ranks"].as_u64().expect("ranks");
    if let Some(keys) = expect.get("pending").and_then(Value::as_object) {
        let errors = config.resolve(ranks).expect_err(&name);
        pending(&name, &errors, keys);
        for (key, new) in keys {
            lay(&mut value, key, Some(new).filter(|v| !v.is_null()));
        }
        config = loaded(&value);
    }
    let resolve = |c: &Config| c.resolve(ranks).unwrap_or_else(|e| panic!("{name}: {e}"));
    let resolved = resolve(&config);
    holds(&name, &resolved, &expect);
    let text = serde_json::from_str(&resolved.to_json()).expect("JSON");
    let again = resolve(&loaded(&text));
    assert_eq!(again.settings, resolved.settings, "{name}");
}

#[test]
fn tutorials_become_the_plan_beside_them() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/deepspeed");
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .expect("a folder")
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    assert!(files.len() >= 20, "only {} configs", files.len());
    files.iter().for_each(|p| run(p));
}

#[test]
fn auto_sizes_follow_the_width_where_it_is_known() {
    let value = serde_json::json!({
        "train_batch_size": 4,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
    });
    let run = load("t.json", &value).unwrap().resolve(1).unwrap();
    // h = 256: h^2 and the whole part of 0.9 h^2.
    let zero = &run.settings.zero_optimization;
    assert_eq!(
        (zero.reduce_bucket_size, zero.stage3_prefetch_bucket_size),
        (65536, 58982)
    );
    assert!(run.warnings.is_empty(), "{:?}", run.warnings);
    let mut folder = load("t.json", &value).unwrap();
    folder.set("model", r#"{"hf": "folder"}"#).unwrap();
    let run = folder.resolve(1).unwrap();
    let first = run.warnings.first().expect("a warning").to_string();
    assert!(first.contains("follows the width of the model"), "{first}");
    let given = crossweave_config::Given {
        width: Some(100),
        ..Default::default()
    };
    let run = folder.resolve_given(1, given).unwrap();
    assert_eq!(run.settings.zero_optimization.reduce_bucket_size, 10_000);
}
