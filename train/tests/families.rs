//! Every family as a run has it: the same bits under every layout, and an export that comes back as it went. A sample of the committed oracle
//! models here; all of them, under every layout, by
//! `cargo test --release -p crossweave --test suite families -- --ignored`.

use crate::support::oracles::cases;
use crate::support::{Scratch, figures, losses, model_bytes, open_json, same};
use crossweave_nn::ModelSpec;
use serde_json::json;
use std::path::Path;

/// The run that a layout has the bits of: of as many data-parallel ranks.
struct Layout {
    name: &'static str,
    dp: &'static str,
    ranks: &'static str,
    sets: &'static [&'static str],
}

impl Layout {
    /// Keys of the run without it: on one rank gradients are summed in place, but beside an offloaded optimizer as micro-batches make them.
    fn whole(&self) -> &'static [&'static str] {
        match self.dp == "1" && self.sets.contains(&OFFLOAD) {
            true => &[
                "zero_optimization.stage=2",
                "zero_optimization.reduce_gradients=micro_batch",
            ],
            false => &[],
        }
    }
}

const fn layout(
    name: &'static str,
    [dp, ranks]: [&'static str; 2],
    sets: &'static [&'static str],
) -> Layout {
    Layout {
        name,
        dp,
        ranks,
        sets,
    }
}

const OFFLOAD: &str = "zero_optimization.offload_optimizer.device=cpu";
const PARAMS: &str = "zero_optimization.offload_param.device=cpu";

/// Every way to lay out a run of one model.
const LAYOUTS: &[Layout] = &[
    layout("stage-1", ["2", "2"], &["zero_optimization.stage=1"]),
    layout("stage-2", ["2", "2"], &["zero_optimization.stage=2"]),
    layout("stage-3", ["2", "2"], &["zero_optimization.stage=3"]),
    layout(
        "stage-3-recompute-offload",
        ["2", "2"],
        &[
            "zero_optimization.stage=3",
            "model.recompute=full",
            OFFLOAD,
            PARAMS,
        ],
    ),
    layout(
        "selective",
        ["2", "2"],
        &["zero_optimization.stage=2", "model.recompute=selective"],
    ),
    layout("recompute", ["1", "1"], &["model.recompute=full"]),
    layout(
        "offload",
        ["1", "1"],
        &["zero_optimization.stage=2", OFFLOAD],
    ),
    layout("pipeline", ["1", "2"], &["mesh.pp=2"]),
    layout(
        "pipeline-stage-3",
        ["2", "4"],
        &["mesh.pp=2", "zero_optimization.stage=3"],
    ),
];

/// A config that trains the model of a case on its batches, with what dropout it has.
fn config(s: &Scratch, case: &Path) -> String {
    let name = case.file_name().unwrap().to_string_lossy();
    let config = json!({
        "model": {"hf": case.join("model")},
        "data": {"tokens": case.join("train.safetensors"), "key": "input_ids"},
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
        "run": {"steps": 4, "threads_per_rank": 1, "generate": {"tokens": 0}},
    });
    let file = format!("{name}.json");
    s.write(&file, config.to_string());
    file
}

fn train(s: &Scratch, file: &str, ranks: &str, sets: &[&str], out: &str) {
    s.job(file).ranks(ranks).sets(sets).run(out);
}

fn spec(case: &Path) -> ModelSpec {
    ModelSpec::from_hf(&open_json(&case.join("model/config.json"))).unwrap()
}

/// The layout gives the run of `whole`, a run without it: bit for bit, or within 1e-4 where two stages share the embedding.
fn held(s: &Scratch, case: &Path, file: &str, layout: &Layout, whole: &str) {
    let out = format!("{file}-{}", layout.name);
    train(s, file, layout.ranks, layout.sets, &out);
    let (whole, run) = (s.path(whole), s.path(&out));
    println!("{out}");
    let spec = spec(case);
    let shares = spec.model().head.tied || spec.model().decoder.is_some();
    if !(shares && layout.sets.contains(&"mesh.pp=2")) {
        same(&whole, &run);
        return;
    }
    let (a, b) = (losses(&whole), losses(&run));
    assert!(a.len() == b.len() && !a.is_empty());
    for (a, b) in a.iter().zip(&b) {
        assert!((a - b).abs() <= 1e-4 * a.abs(), "{out}: {a} and {b}");
    }
}

/// What a run has written is read back and written again without a change.
fn comes_back(s: &Scratch, file: &str, run: &str) {
    let from = format!("model={}", json!({"hf": s.path(run).join("model")}));
    let still = [from.as_str(), "optimizer.params.lr=0", "run.steps=1"];
    let again = format!("{run}-again");
    train(s, file, "1", &still, &again);
    let (a, b) = (s.path(run), s.path(&again));
    assert!(model_bytes(&a) == model_bytes(&b), "{run}: other weights");
    let said = |run: &Path| std::fs::read_to_string(run.join("model/config.json")).unwrap();
    assert_eq!(said(&a), said(&b), "{run}");
}

/// Adapters of the layers that the family names train to the same losses whole and in parts.
fn adapted(s: &Scratch, file: &str) {
    let lora = r#"model.lora={"r": 2, "lora_alpha": 4, "lora_dropout": 0.1}"#;
    let (whole, parts) = (format!("{file}-lora"), format!("{file}-lora-parts"));
    train(s, file, "2", &[lora], &whole);
    let stage = "zero_optimization.stage=3";
    train(
        s,
        file,
        "2",
        &[lora, stage, "model.recompute=full", OFFLOAD],
        &parts,
    );
    let seen = figures(&s.path(&whole));
    assert_eq!(seen, figures(&s.path(&parts)), "{file}");
    // A gradient arrives.
    assert!(seen.iter().all(|r| r.3 > Some(0.0)), "{file}: {seen:?}");
}

/// One model of each family, each under another layout.
#[test]
fn families_train_alike_under_a_layout_each_and_their_exports_come_back() {
    let s = Scratch::new();
    let mut seen = vec![];
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let family = spec(&case).family().name;
        if seen.contains(&family) {
            continue;
        }
        let file = config(&s, &case);
        let layout = &LAYOUTS[seen.len() % LAYOUTS.len()];
        let whole = format!("{name}-whole");
        train(&s, &file, layout.dp, layout.whole(), &whole);
        held(&s, &case, &file, layout, &whole);
        comes_back(&s, &file, &whole);
        adapted(&s, &file);
        seen.push(family);
    }
    assert!(seen.len() >= 24, "{seen:?}");
}

#[test]
#[ignore = "minutes: every committed model under every layout, by `--ignored`"]
fn every_model_trains_alike_under_every_layout() {
    let s = Scratch::new();
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let file = config(&s, &case);
        for dp in ["1", "2"] {
            let whole = format!("{name}-{dp}");
            train(&s, &file, dp, &[], &whole);
            for layout in LAYOUTS.iter().filter(|l| l.dp == dp) {
                let whole = match layout.whole() {
                    [] => whole.clone(),
                    sets => {
                        let out = format!("{whole}-{}", layout.name);
                        train(&s, &file, dp, sets, &out);
                        out
                    }
                };
                held(&s, &case, &file, layout, &whole);
            }
        }
        comes_back(&s, &file, &format!("{name}-1"));
        adapted(&s, &file);
    }
}
