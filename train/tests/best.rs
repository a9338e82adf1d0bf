//! The best of a run: the checkpoint that is kept, the run that ends, and the moving average that is validated and written.

use crate::support::{Scratch, open_json, records, same};
use serde_json::Value;
use std::path::Path;

fn train(s: &Scratch, out: &str, ranks: u32, sets: &[&str]) -> String {
    let job = s.job("config.json").ranks(ranks).sets(sets);
    job.run(out).said
}

fn weights(dir: &Path) -> Vec<u8> {
    std::fs::read(dir.join("model.safetensors")).expect("a model")
}

/// Step and figure of each validation.
fn validations(out: &Path, figure: &str) -> Vec<(u64, f64)> {
    let of = |r: &Value| Some((r["step"].as_u64()?, r[figure].as_f64()?));
    records(out).iter().filter_map(of).collect()
}

const BASE: [&str; 4] = [
    "run.steps=24",
    "run.validate_every=4",
    "run.checkpoint_every=4",
    "run.keep_last=1",
];

#[test]
fn the_best_checkpoint_stays_and_a_run_that_gets_no_better_ends() {
    let s = Scratch::new();
    // A rate at which it soon gets no better.
    let wild = ["scheduler=null", "optimizer.params.lr=20"];
    train(&s, "whole", 1, &[&BASE[..], &wild].concat());
    let all = validations(&s.path("whole"), "val_loss");
    assert_eq!(all.len(), 6);
    let best = |all: &[(u64, f64)]| {
        let lower = |a: (u64, f64), b: &(u64, f64)| if b.1 < a.1 { *b } else { a };
        all.iter().fold(all[0], lower)
    };
    let (lowest, _) = best(&all);
    assert!(lowest < 24, "the last is the best: {all:?}");
    // Checkpoints of other steps than validations do not matter, nor how few stay.
    let keep = ["run.keep_best=true", wild[0], wild[1]];
    train(&s, "kept", 1, &[&BASE[..], &keep].concat());
    let steps = |out: &str| -> Vec<u64> {
        let dir = s.path(out).join("checkpoints");
        let names = std::fs::read_dir(dir).unwrap().flatten();
        let names = names.map(|e| e.file_name().to_string_lossy().into_owned());
        let number = |n: String| n.trim_start_matches("step-").parse().ok();
        let mut all: Vec<u64> = names.filter_map(number).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(steps("kept"), [lowest, 24]);
    assert_eq!(steps("whole"), [24]);
    let place = format!("kept/checkpoints/step-{lowest:08}");
    s.export(&place, "best", false).unwrap();
    assert!(weights(&s.path("best")) == weights(&s.path("kept/model")));
    assert!(weights(&s.path("best")) != weights(&s.path("whole/model")));
    // It ends two validations behind the best of those so far, on any ranks, and goes on as it was from a checkpoint.
    let patience = [
        &BASE[..],
        &keep,
        &["run.stop_after=2", "run.checkpoint_every=100"],
    ]
    .concat();
    let said = train(&s, "ended", 1, &patience);
    let mut since = (f64::INFINITY, 0);
    let end = all.iter().find(|(_, loss)| {
        since = if *loss < since.0 {
            (*loss, 0)
        } else {
            (since.0, since.1 + 1)
        };
        since.1 == 2
    });
    let end = end.expect("no end").0;
    assert!(end < 24, "{all:?}");
    let line = format!("the run ends at step {end} of 24 (run.stop_after)");
    assert!(said.contains(&line), "{said}");
    let ended = validations(&s.path("ended"), "val_loss");
    assert_eq!(ended, all[..ended.len()]);
    assert_eq!(ended.last().unwrap().0, end);
    assert_eq!(steps("ended"), [best(&ended).0, end]);
    train(&s, "two", 2, &patience);
    let two = validations(&s.path("two"), "val_loss");
    assert_eq!(two.last().unwrap().0, end);
    // A run that is continued knows the best of the one before, and takes the model from its folder.
    let short = [&patience[..], &["run.steps=8"]].concat();
    train(&s, "short", 1, &short);
    let longer = s.job("config.json").sets(&patience);
    longer.resume("short").run("again");
    same(&s.path("again"), &s.path("ended"));
}

#[test]
fn the_moving_average_is_validated_saved_resumed_and_written() {
    let s = Scratch::new();
    let sets = [&BASE[..], &["run.ema_decay=0.8"]].concat();
    train(&s, "one", 1, &sets);
    train(&s, "plain", 1, &BASE);
    same(&s.path("one"), &s.path("plain"));
    assert!(!s.path("plain/model-ema").exists());
    let emas = validations(&s.path("one"), "ema_val_loss");
    let plain = validations(&s.path("one"), "val_loss");
    assert_eq!(emas.len(), 6);
    assert!(
        emas.iter()
            .zip(&plain)
            .all(|(e, p)| e.0 == p.0 && e.1 != p.1),
        "{emas:?} {plain:?}"
    );
    let one = weights(&s.path("one/model-ema"));
    assert!(one != weights(&s.path("one/model")));
    // What is written is a model: another run that begins with it has its loss.
    let mut config = open_json(&s.path("config.json"));
    config["model"] = serde_json::json!({"hf": "one/model-ema"});
    let still = [
        "run.steps=1",
        "run.validate_every=1",
        "scheduler=null",
        "optimizer.params.lr=0",
    ];
    s.job_of(config).sets(&still).run("from");
    let again = validations(&s.path("from"), "val_loss")[0].1;
    assert!(
        (again - emas[5].1).abs() < 1e-5 * again,
        "{again} and {emas:?}"
    );
    // Over ranks that hold parts, offloaded, and resumed on another number of ranks.
    let mut two = sets.clone();
    two.extend([
        "zero_optimization.stage=3",
        "zero_optimization.offload_optimizer.device=cpu",
    ]);
    train(&s, "two", 2, &two);
    let near = validations(&s.path("two"), "ema_val_loss");
    assert!(
        near.iter()
            .zip(&emas)
            .all(|(a, b)| (a.1 - b.1).abs() < 1e-4 * b.1),
        "{near:?} {emas:?}"
    );
    let short = [&sets[..], &["run.steps=8"]].concat();
    train(&s, "short", 2, &short);
    let longer = |of: &str| s.job("config.json").sets(&sets).resume(of);
    longer("short").run("on-one");
    let on_one = validations(&s.path("on-one"), "ema_val_loss");
    assert!(
        on_one
            .iter()
            .zip(&emas)
            .all(|(a, b)| (a.1 - b.1).abs() < 1e-4 * b.1),
        "{on_one:?} {emas:?}"
    );
    train(&s, "half", 1, &short);
    longer("half").run("goes-on");
    assert!(weights(&s.path("goes-on/model-ema")) == one);
    s.job("config.json")
        .set("run.ema_decay=0.5")
        .set("run.steps=24")
        .resume("half")
        .refused(&["run.ema_decay"]);
}

/// A stage may train nothing, and holds no average then: it validates with the others all the same, and rank 0 has the loss.
#[test]
fn stages_that_train_nothing_validate_the_average_too() {
    let s = Scratch::new();
    let frozen = r#"optimizer.param_groups=[{"match": ["transformer.w*"], "frozen": true}]"#;
    let sets = [&BASE[..], &["run.steps=8", "run.ema_decay=0.8", frozen]].concat();
    train(&s, "one", 1, &sets);
    let one = validations(&s.path("one"), "ema_val_loss");
    for pp in [2, 4] {
        let (out, pp) = (format!("{pp}"), format!("mesh.pp={pp}"));
        // Of a V the first stage has the embedding and the head.
        let schedule = match out.as_str() {
            "2" => "mesh.pp_schedule=zbv",
            _ => "mesh.pp_schedule=1f1b",
        };
        let ranks = out.parse().unwrap();
        train(&s, &out, ranks, &[&sets[..], &[&pp, schedule]].concat());
        let staged = validations(&s.path(&out), "ema_val_loss");
        assert_eq!(staged.len(), 2);
        let near = |(a, b): (&(u64, f64), &(u64, f64))| (a.1 - b.1).abs() < 1e-4 * b.1;
        assert!(staged.iter().zip(&one).all(near), "{staged:?} {one:?}");
    }
}

#[test]
fn what_needs_validations_or_a_decay_is_refused_by_key() {
    let s = Scratch::new();
    for (sets, parts) in [
        (
            ["run.keep_best=true", "data.validation_fraction=null"],
            ["run.keep_best", "data.validation"],
        ),
        (
            ["run.stop_after=3", "data.validation_fraction=null"],
            ["run.stop_after", "data.validation"],
        ),
        (
            ["run.keep_best=true", "run.validate_every=0"],
            ["run.keep_best", "run.validate_every"],
        ),
        (
            ["run.stop_after=0", "run.steps=2"],
            ["run.stop_after", "fix"],
        ),
        (
            ["run.ema_decay=1", "run.steps=2"],
            ["run.ema_decay", "[0, 1)"],
        ),
        (
            ["run.ema_decay=-0.1", "run.steps=2"],
            ["run.ema_decay", "[0, 1)"],
        ),
    ] {
        s.job("config.json").sets(&sets).refused(&parts);
    }
}
