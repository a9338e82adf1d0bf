//! Schedules and recompute, printed and held against files (`UPDATE_EXPECT=1` rewrites them), and their worlds checked.
#![forbid(unsafe_code)]

use crossweave_parallel::Keeps;
use crossweave_parallel::schedule::{accumulate, evaluate, one_f_one_b};
use crossweave_plan::axes::{Axis, Topology};
use crossweave_plan::{
    Depend, Facts, Keep, Lane, Law, PassManager, Plan, PlanError, Recompute, Runs, Step, UnitFacts,
    check, check_world,
};
use std::path::PathBuf;

fn expect(name: &str, found: &str) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("UPDATE_EXPECT").is_some_and(|v| v == "1") {
        std::fs::write(&file, found).unwrap();
    }
    let wanted = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(
        wanted, found,
        "{name}: run with UPDATE_EXPECT=1 if the new plan is meant"
    );
}

fn facts(units: u32, micro_batches: u32) -> Facts {
    let unit = UnitFacts {
        params: 100,
        param_bytes: 200,
        grad_bytes: 400,
        state_bytes: 1200,
        saved_all: 90,
        saved_selective: 50,
        saved_input: 10,
        flow_bytes: 10,
        workspace_bytes: 5,
        ..UnitFacts::default()
    };
    Facts::uniform(units, micro_batches, 1, unit)
}

/// Stages of one rank each.
fn agree(plans: &[Plan]) -> Result<(), PlanError> {
    let mesh = Topology::new(&[(Axis::Pp, plans.len() as u32)]).unwrap();
    let f = Facts::default();
    let ranks: Vec<_> = plans.iter().map(|p| (p, &f)).collect();
    check_world(&mesh, &ranks)
}

#[test]
fn accumulation_and_recompute() {
    let facts = facts(3, 2);
    let picks = [
        ("keep all", Keeps(vec![])),
        ("full", Recompute::Full.into()),
        ("selective", Recompute::Selective.into()),
        (
            "per unit",
            Keeps(vec![Keep::Input, Keep::Selective, Keep::All]),
        ),
    ];
    let mut found = String::new();
    let mut peaks = Vec::new();
    for (name, keeps) in picks {
        let line = PassManager::new().with(keeps).with(Depend);
        let plan = line.run(accumulate(3, 2), &facts).unwrap();
        let peak = check(&plan, &facts).unwrap();
        found += &format!(
            "{name:<10} {plan}\n{:<10} peak {} bytes at {}\n",
            "", peak.bytes, peak.text
        );
        peaks.push(peak.parts.activations);
    }
    let evaluation = evaluate(3, 2);
    check(&evaluation, &facts).unwrap();
    found += &format!("evaluate   {evaluation}\n");
    expect("accumulate", &found);
    assert!(
        peaks[1] < peaks[2] && peaks[2] < peaks[0],
        "recompute must save memory: {peaks:?}"
    );
}

#[test]
fn keeping_nothing_is_no_recompute() {
    let line = PassManager::new().with(Keeps(vec![Keep::All, Keep::Nothing]));
    let fault = line.run(accumulate(2, 1), &facts(2, 1)).unwrap_err();
    assert_eq!(fault.law, Law::Activations);
}

#[test]
fn recompute_after_recompute_is_refused() {
    let line = PassManager::new()
        .with(Keeps::from(Recompute::Full))
        .with(Keeps::from(Recompute::Full));
    assert_eq!(
        line.run(accumulate(2, 1), &facts(2, 1)).unwrap_err().law,
        Law::PassOrder
    );
}

#[test]
fn one_forward_one_backward() {
    let stages = Runs::even(5, 3);
    let facts = facts(5, 4);
    let line = || {
        PassManager::new()
            .with(Keeps::from(Recompute::Full))
            .with(Depend)
    };
    let plans: Vec<Plan> = (0..3)
        .map(|s| line().run(one_f_one_b(&stages, s, 4), &facts).unwrap())
        .collect();
    let mut found = String::new();
    for (rank, plan) in plans.iter().enumerate() {
        let peak = check(plan, &facts).unwrap_or_else(|e| panic!("{e}"));
        found += &format!(
            "rank {rank}: peak {} bytes\n{plan}\n{}\n",
            peak.bytes,
            plan.table(None)
        );
    }
    expect("one_f_one_b", &found);
    agree(&plans).unwrap();
    let mut broken = plans.clone();
    let kept: Vec<Step> = plans[1]
        .steps
        .iter()
        .filter(|s| s.lane != Lane::Peer || s.id.0 != 0)
        .cloned()
        .collect();
    broken[1] = plans[1].clone().rebuild(kept);
    assert_eq!(agree(&broken).unwrap_err().law, Law::Peer);
}

#[test]
fn every_shape_of_pipeline_comes_to_its_end() {
    for ranks in 1..6u32 {
        for units in ranks..ranks + 3 {
            for micro_batches in 1..6 {
                let facts = facts(units, micro_batches);
                let stages = Runs::even(units, ranks);
                let plans: Vec<Plan> = (0..ranks)
                    .map(|s| one_f_one_b(&stages, s, micro_batches))
                    .collect();
                for plan in &plans {
                    check(plan, &facts).unwrap();
                }
                agree(&plans).unwrap();
            }
        }
    }
}
