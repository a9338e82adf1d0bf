//! The config of a layout, as a user would write it, and the files that it names.

use super::axes::AXES;
use super::draw::Layout;
use crossweave_family::{Dims, Kind, family};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// Steps of a run, and those before it is resumed.
pub const STEPS: u64 = 4;
pub const CUT: u64 = 2;

/// Sets the value of a key within a config.
fn set(config: &mut Value, key: &str, value: Value) {
    let mut at = config;
    for part in key.split('.') {
        at = &mut at[part];
    }
    *at = value;
}

/// The model as keys of its family.
fn model(l: &Layout) -> Value {
    let f = family(l.pick("family")).expect("a family");
    let [heads, wide, inner] = l.heads();
    let dims = Dims {
        name: "drawn",
        layers: l.n("layers"),
        width: heads * wide,
        heads,
        positions: 24,
        vocab: 0,
    };
    let mut model = json!({"family": f.name});
    for (key, text) in f.preset(&dims) {
        model[key] = serde_json::from_str(&text).expect("JSON");
    }
    let r = &f.roles;
    let rows = l.on("vocabulary").then(|| json!(l.n("vocabulary")));
    model["vocab_size"] = rows.unwrap_or(Value::Null);
    if f.name == "gpt_neox" {
        // Of narrow heads a quarter is no pair.
        model["rotary_pct"] = json!(0.5);
    }
    for (key, n) in [(r.kv_heads, l.kv()), (r.head_dim, wide), (r.mlp, inner)] {
        if !key.is_empty() {
            model[key] = json!(n);
        }
    }
    let drop = match l.pick("dropout") {
        "hidden" => [0.1, 0.0],
        "attention" => [0.0, 0.1],
        _ => [0.0, 0.0],
    };
    for k in f.keys() {
        match k.kind {
            Kind::Probability => model[k.name] = json!(drop[usize::from(k.name == r.dropout[2])]),
            _ if k.name == "tie_word_embeddings" && l.on("tied") => {
                model[k.name] = json!(l.is("tied", "tied"))
            }
            _ if k.name == "sliding_window" && l.on("window") => {
                model[k.name] = json!(l.n("window"))
            }
            _ => {}
        }
    }
    if model["vocab_size"].is_null() {
        model
            .as_object_mut()
            .expect("an object")
            .remove("vocab_size");
    }
    model
}

/// Is its head the embedding?
pub fn tied(l: &Layout) -> bool {
    let f = family(l.pick("family")).expect("a family");
    match model(l)["tie_word_embeddings"].as_bool() {
        Some(tied) => tied,
        None => f
            .key("tie_word_embeddings")
            .is_none_or(|k| k.default == "true"),
    }
}

/// What is said of the model that adapters sit on.
pub const BASE: [&str; 10] = [
    "family",
    "heads",
    "kv",
    "layers",
    "vocabulary",
    "tied",
    "window",
    "dropout",
    "experts",
    "capacity",
];

/// The name of the folder of that model.
pub fn base_of(l: &Layout) -> String {
    let name = BASE.map(|a| l.pick(a)).join("-");
    format!("base-{}", name.replace([' ', ','], "_"))
}

/// The division of the units over the runs of the stages, of which the first has what is left over.
fn uneven(l: &Layout) -> String {
    let runs = l.n("pp") * l.runs();
    let mut each = vec![1; runs as usize];
    each[0] += l.units().saturating_sub(runs);
    each.iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// The config of a layout, in which DIR stands for the folder of its files.
pub fn config(l: &Layout, seed: u64) -> Value {
    let mut config = json!({
        "model": match l.on("adapters") {
            true => json!({"hf": format!("DIR/{}/model", base_of(l))}),
            false => model(l),
        },
        "data": {"cache_dir": "DIR/cache", "seq_len": l.n("tokens")},
        "train_batch_size": Layout::BATCH,
        "train_micro_batch_size_per_gpu": l.n("micro"),
        "run": {"steps": STEPS, "seed": seed, "threads_per_rank": 1, "generate": {"tokens": 0}},
    });
    for (axis, pick) in AXES.iter().zip(l.picks) {
        // A folder says itself what experts it has.
        let known = l.on("adapters") && ["experts", "capacity"].contains(&axis.name);
        for (key, text) in axis.choices[pick as usize].sets.iter().filter(|_| !known) {
            let mut value: Value = serde_json::from_str(text).expect("JSON");
            if value.get("experts").is_some_and(Value::is_string) {
                // Every other layer keeps its MLP.
                let each = (0..l.n("layers")).map(|i| if i % 2 == 0 { "3" } else { "0" });
                value["experts"] = json!(each.collect::<Vec<_>>().join(","));
            }
            set(&mut config, key, value);
        }
    }
    if l.on("division") {
        config["mesh"]["pp_layers"] = json!(uneven(l));
    }
    if l.on("resume") {
        config["run"]["steps"] = json!(CUT);
        config["run"]["checkpoint_every"] = json!(CUT);
    }
    config
}

/// The same with its files in a folder.
pub fn placed(config: &Value, folder: &Path) -> Value {
    let text = config
        .to_string()
        .replace("DIR/", &format!("{}/", folder.display()));
    serde_json::from_str(&text).expect("JSON")
}

/// Writes what configs name: text, documents shorter than a row, and examples of which an answer counts.
pub fn files(folder: &Path) {
    std::fs::create_dir_all(folder.join("corpus")).expect("a folder");
    let (mut text, mut documents, mut examples) = (String::new(), String::new(), String::new());
    for i in 0..300u64 {
        let square = i * i * 7919 % 10007;
        let _ = writeln!(
            text,
            "the {} of {i} is {square}",
            ["square", "half", "name"][i as usize % 3]
        );
        let _ = writeln!(
            documents,
            "{}",
            json!({"text": format!("{i}:{}", "abcdefgh".get(..(i % 8) as usize).unwrap_or(""))})
        );
        let _ = writeln!(
            examples,
            "{}",
            json!({"prompt": format!("{i}+{}=", i % 7), "completion": format!("{}", square % 10u64.pow(1 + i as u32 % 5))})
        );
    }
    for (name, what) in [
        ("corpus/a.txt", text),
        ("documents.jsonl", documents),
        ("examples.jsonl", examples),
    ] {
        std::fs::write(folder.join(name), what).expect("a file");
    }
}
