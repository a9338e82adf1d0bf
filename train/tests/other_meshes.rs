//! Checkpoints of one mesh that go on over another: models, adapters, moments in 8 bits, factored ones and momentum of whole matrices. Each run
//! arrives where one rank does. A sample of the ways here; all of them by
//! `cargo test --release -p crossweave --test suite other_meshes -- --ignored`.

use crate::split::near;
use crate::support::oracles::read;
use crate::support::{CONFIG, Scratch};
use serde_json::{Value, json};

/// A mesh: its ranks, and its keys.
type Mesh = (&'static str, &'static [&'static str]);

/// Rows of 16 tokens, which two ranks of mesh.tp divide.
const MESHES: [Mesh; 9] = [
    ("1", &[]),
    ("2", &["zero_optimization.stage=1"]),
    ("2", &["zero_optimization.stage=3"]),
    ("2", &["mesh.tp=2"]),
    ("2", &["mesh.tp=2", "mesh.sequence_parallel=false"]),
    ("4", &["mesh.tp=2", "zero_optimization.stage=3"]),
    ("4", &["mesh.pp=2", "zero_optimization.stage=1"]),
    ("4", &["mesh.pp=2", "mesh.tp=2"]),
    ("2", &["mesh.cp=2"]),
];

/// What is trained: a name, and what stands in the place of the config's.
fn jobs() -> Vec<(&'static str, Value)> {
    let with = |optimizer: Value, lora: Option<Value>| {
        let mut config: Value = serde_json::from_str(CONFIG).unwrap();
        // Matrices of which each rank has enough for blocks of 8-bit moments, of width and heads that two divide.
        for (key, n) in [("n_embd", 64), ("n_head", 4)] {
            config["model"][key] = json!(n);
        }
        config["data"]["seq_len"] = json!(16);
        config["optimizer"] = optimizer;
        config["scheduler"] = json!(null);
        config["run"]["generate"] = json!({"tokens": 0});
        if let Some(lora) = lora {
            config["model"] = json!({"hf": "base/model", "lora": lora});
        }
        config
    };
    let adam = |kind: &str| json!({"type": kind, "params": {"lr": 3e-3, "eps": 1e-4, "weight_decay": 0.1}});
    let muon = json!({"type": "Muon", "params": {"lr": 3e-3, "adam_lr": 1e-3, "eps": 1e-4}});
    let lora =
        json!({"r": 3, "lora_alpha": 6, "lora_dropout": 0.1, "target_modules": "all-linear"});
    vec![
        ("model", with(adam("AdamW"), None)),
        ("adapters", with(adam("AdamW"), Some(lora))),
        ("8-bit", with(adam("AdamW8bit"), None)),
        ("muon", with(muon, None)),
        (
            "adafactor",
            with(
                json!({"type": "Adafactor", "params": {"lr": 3e-3, "relative_step": false}}),
                None,
            ),
        ),
    ]
}

/// The norm of what the parameters of a run are away from those of another, over theirs.
fn apart(s: &Scratch, run: &str, from: &str) -> f64 {
    let [a, b] = [run, from].map(|run| read(&s.path(run).join("model/model.safetensors")));
    let (mut far, mut all) = (0.0, 0.0);
    for (name, (.., b)) in &b {
        for (a, b) in a[name].2.iter().zip(b) {
            far += (a - b) * (a - b);
            all += b * b;
        }
    }
    (far / all).sqrt()
}

/// Trains each job for five steps over the first mesh of each way, and to the end over the second.
fn goes_on(ways: impl Fn(usize) -> Vec<(Mesh, Mesh)>) {
    let s = Scratch::new();
    let all = jobs();
    s.write("c.json", all[0].1.to_string());
    s.job("c.json").set("run.steps=2").run("base");
    for (k, (name, config)) in all.iter().enumerate() {
        s.write("c.json", config.to_string());
        let whole = format!("{name}-whole");
        s.job("c.json").ranks(1).run(&whole);
        for (i, (first, then)) in ways(k).into_iter().enumerate() {
            let [part, rest] = ["part", "rest"].map(|w| format!("{name}-{i}-{w}"));
            let job = |(ranks, sets): Mesh| s.job("c.json").ranks(ranks).sets(sets);
            job(first).set("run.steps=5").run(&part);
            job(then).resume(&part).run(&rest);
            let what = format!("{name} over {first:?}, then {then:?}");
            if *name != "8-bit" {
                near(&s, &rest, &whole, &what);
                continue;
            }
            // Blocks are of the elements that a rank has, so that other ranks round otherwise; how far that is shows a run without rounding.
            let exact = "model-whole";
            let [own, rounded] = [&rest, &whole].map(|run| apart(&s, run, exact));
            assert!(
                rounded > 0.0 && own < 2.0 * rounded,
                "{what}: {own:e}, and {rounded:e} on one rank"
            );
        }
    }
}

#[test]
fn a_checkpoint_of_a_mesh_goes_on_over_another() {
    let [one, _, three, two, whole, four, staged, both, rows] = MESHES;
    // Each job by ways of its own.
    let ways = [
        (two, staged),
        (three, both),
        (four, one),
        (one, four),
        (both, three),
        (staged, whole),
        (rows, two),
    ];
    goes_on(|k| (0..3).map(|i| ways[(3 * k + i) % ways.len()]).collect());
}

#[test]
#[ignore = "minutes: from every mesh to every other"]
fn a_checkpoint_of_every_mesh_goes_on_over_every_other() {
    let each = || MESHES.iter().enumerate();
    goes_on(|_| {
        let all =
            each().flat_map(|(i, a)| each().filter(move |(j, _)| *j != i).map(|(_, b)| (*a, *b)));
        all.collect()
    });
}
