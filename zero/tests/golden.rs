//! Printed plans, pass by pass, held against files. `UPDATE_EXPECT=1` rewrites the files.
#![forbid(unsafe_code)]

use crossweave_plan::{
    Depend, Facts, Law, Order, PassManager, Plan, StepKind, UnitFacts, check, print_stages,
};
use crossweave_zero::{
    Bucket, HostUpdates, ParamsAway, Place, Prefetch, ReduceEach, Reuse, SpillInputs, Updates,
    ZeroStage,
};
use std::path::PathBuf;

/// Holds `found` against `tests/golden/NAME.txt`.
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
    Facts::uniform(units, micro_batches, 4, unit)
}

fn golden(name: &str, schedule: &str, facts: &Facts, pipeline: PassManager) -> Plan {
    let start: Plan = schedule.parse().unwrap();
    let (plan, stages) = pipeline.with(Depend).stages(start, facts).unwrap();
    let peak = check(&plan, facts).unwrap();
    let found = format!(
        "{}\npeak {} bytes at step {} ({})\n\n{}",
        print_stages(&stages),
        peak.bytes,
        peak.step.0,
        peak.text,
        plan.table(Some(facts))
    );
    expect(name, &found);
    plan
}

/// A unit stays gathered where no other unit computes before its next use.
const REUSE: Reuse = Reuse {
    reshard: true,
    within: Some(0),
};
const RECOMPUTED: &str = "F0.0' F1.0' F2.0' R2.0 B2.0 R1.0 B1.0 R0.0 B0.0";
const TWO_MICRO_BATCHES: &str = "F0.0 F1.0 F2.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 B2.1 B1.1 B0.1";

/// The three lines that the architecture prints, to the letter.
#[test]
fn the_printed_example_of_the_architecture() {
    let facts = facts(3, 1);
    let raw = PassManager::new()
        .with(Place(ZeroStage::Three))
        .with(Updates::default())
        .run(RECOMPUTED.parse().unwrap(), &facts)
        .unwrap();
    assert_eq!(
        raw.to_string(),
        "+0 F0.0' -0 +1 F1.0' -1 +2 F2.0' -2 +2 R2.0 -2 +2 B2.0 -2 rs2 +1 R1.0 -1 +1 B1.0 -1 rs1 +0 R0.0 -0 +0 B0.0 -0 rs0 opt0 opt1 opt2"
    );
    let reused = PassManager::new().with(REUSE).run(raw, &facts).unwrap();
    assert_eq!(
        reused.to_string(),
        "+0 F0.0' -0 +1 F1.0' -1 +2 F2.0' R2.0 B2.0 -2 rs2 +1 R1.0 B1.0 -1 rs1 +0 R0.0 B0.0 -0 rs0 opt0 opt1 opt2"
    );
    let ahead = Prefetch {
        depth: 1,
        slots: 2,
        elements: None,
    };
    let prefetched = PassManager::new().with(ahead).run(reused, &facts).unwrap();
    assert_eq!(
        prefetched.to_string(),
        "+0 +1 F0.0' -0 +2 F1.0' -1 F2.0' R2.0 +1 B2.0 -2 rs2 R1.0 +0 B1.0 -1 rs1 R0.0 B0.0 -0 rs0 opt0 opt1 opt2"
    );
}

/// Slots are padded to equal slices; a unit that the ranks do not divide is gathered ahead like any other.
#[test]
fn units_the_ranks_do_not_divide_are_gathered_ahead() {
    let mut uneven = facts(3, 1);
    for u in &mut uneven.units {
        (u.params, u.param_bytes) = (97, 194);
    }
    let ahead = |facts: &Facts| {
        let plan = PassManager::new()
            .with(Place(ZeroStage::Three))
            .with(Updates::default())
            .with(REUSE)
            .with(Prefetch {
                depth: 1,
                slots: 2,
                elements: None,
            })
            .run(RECOMPUTED.parse().unwrap(), facts);
        plan.unwrap().to_string()
    };
    assert_eq!(ahead(&uneven), ahead(&facts(3, 1)));
}

#[test]
fn stage_0_all_reduces_in_buckets_beside_the_backward() {
    let facts = facts(3, 2);
    let pipeline = PassManager::new()
        .with(Place(ZeroStage::Zero))
        .with(Bucket { bytes: 800 })
        .with(Updates {
            norm: true,
            ..Updates::default()
        });
    golden("stage0_buckets_norm", TWO_MICRO_BATCHES, &facts, pipeline);
}

#[test]
fn stages_1_2_and_3() {
    let facts = facts(3, 2);
    for (name, stage) in [("stage1", ZeroStage::One), ("stage2", ZeroStage::Two)] {
        let pipeline = PassManager::new()
            .with(Place(stage))
            .with(Updates::default());
        golden(name, TWO_MICRO_BATCHES, &facts, pipeline);
    }
    let pipeline = PassManager::new()
        .with(Place(ZeroStage::Three))
        .with(Updates {
            early: true,
            lag: true,
            ..Updates::default()
        })
        .with(REUSE)
        .with(Prefetch {
            depth: 1,
            slots: 2,
            elements: None,
        });
    golden("stage3_prefetch_early", TWO_MICRO_BATCHES, &facts, pipeline);
}

/// Each micro-batch is reduced into the slices behind its own backwards, in buckets that end with it; the norm waits for the last.
#[test]
fn stage_2_reduces_each_micro_batch() {
    let facts = facts(3, 2);
    let line = || {
        PassManager::new()
            .with(Place(ZeroStage::Two))
            .with(ReduceEach::default())
    };
    let pipeline = line().with(Bucket { bytes: 800 }).with(Updates {
        norm: true,
        ..Updates::default()
    });
    let plan = golden(
        "stage2_each_micro_batch",
        TWO_MICRO_BATCHES,
        &facts,
        pipeline,
    );
    let reductions = plan.steps.iter().filter_map(|s| match &s.op {
        StepKind::ReduceGrad { units, more, .. } => Some((units.clone(), *more)),
        _ => None,
    });
    let reductions: Vec<_> = reductions.collect();
    let (first, second): (Vec<_>, Vec<_>) = reductions.into_iter().partition(|r| r.1);
    let units =
        |all: Vec<(Vec<u32>, bool)>| -> Vec<Vec<u32>> { all.into_iter().map(|r| r.0).collect() };
    assert_eq!(units(first), units(second));
    // A bucket that is made already cannot be taken apart.
    let late = PassManager::new()
        .with(Place(ZeroStage::Two))
        .with(Bucket { bytes: u64::MAX })
        .with(ReduceEach::default());
    let e = late
        .run(TWO_MICRO_BATCHES.parse().unwrap(), &facts)
        .unwrap_err();
    assert_eq!(e.law, Law::PassOrder);
}

/// On a pipeline stage the gradient that the stage before waits for leaves before the reduction that no one waits for yet.
#[test]
fn a_gradient_is_sent_before_micro_batches_are_reduced() {
    let facts = facts(4, 2);
    let stage = "a1.0<0 F2.0 F3.0 B3.0 B2.0 a1.1<0 g1.0>0 F2.1 F3.1 B3.1 B2.1 g1.1>0";
    let pipeline = PassManager::new()
        .with(Place(ZeroStage::Three))
        .with(ReduceEach::default())
        .with(Updates::default());
    let plan = pipeline.run(stage.parse().unwrap(), &facts).unwrap();
    check(&plan, &facts).unwrap();
    let text = plan.to_string();
    let at = |step: &str| {
        let found = plan.steps.iter().position(|s| s.to_string() == step);
        found.unwrap_or_else(|| panic!("no {step} in {text}"))
    };
    assert!(at("rs3+") < at("B2.0"), "{text}");
    assert!(at("g1.0>0") < at("rs2+"), "{text}");
    assert!(
        at("rs2+") < at("B3.1") && at("g1.1>0") < at("rs2"),
        "{text}"
    );
}

/// Without clipping, a unit is updated one reduction late: its own runs beside the next unit's backward. At once, that backward would
/// stand behind the update, and hence behind the reduction.
#[test]
fn early_updates_leave_the_reduction_beside_the_next_backward() {
    let facts = facts(4, 2);
    let schedule =
        "F0.0 F1.0 F2.0 F3.0 B3.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 F3.1 B3.1 B2.1 B1.1 B0.1";
    for stage in [ZeroStage::Zero, ZeroStage::Two, ZeroStage::Three] {
        let beside = |lag: bool| -> Vec<bool> {
            let pipeline = PassManager::new()
                .with(Place(stage))
                .with(Updates {
                    early: true,
                    lag,
                    ..Updates::default()
                })
                .with(Depend);
            let plan = pipeline.run(schedule.parse().unwrap(), &facts).unwrap();
            check(&plan, &facts).unwrap();
            let order = Order::new(&plan);
            let at = |text: String| {
                let hit = plan.steps.iter().find(|s| s.to_string() == text);
                hit.unwrap_or_else(|| panic!("no {text} in {plan}")).id
            };
            let how = if stage == ZeroStage::Zero { "ar" } else { "rs" };
            let each = |u: u32| {
                let (reduce, next) = (at(format!("{how}{u}")), at(format!("B{}.1", u - 1)));
                assert!(order.before(reduce, at(format!("opt{u}"))));
                !order.before(reduce, next) && !order.before(next, reduce)
            };
            (1..4).map(each).collect()
        };
        assert_eq!(beside(true), [true; 3], "{stage:?}");
        assert_eq!(beside(false), [false; 3], "{stage:?}");
    }
}

/// The head reads and sums into unit 0: both are gathered for it, and unit 0 is reduced and updated once, last.
#[test]
fn a_tied_head() {
    let mut facts = facts(3, 1);
    facts.units[2].ties = vec![0];
    facts.units[2].params = 0;
    facts.units[2].param_bytes = 0;
    facts.units[2].grad_bytes = 0;
    let pipeline = PassManager::new()
        .with(Place(ZeroStage::Three))
        .with(Updates {
            early: true,
            ..Updates::default()
        })
        .with(REUSE)
        .with(Prefetch {
            depth: 2,
            slots: 3,
            elements: None,
        });
    golden("tied_head", RECOMPUTED, &facts, pipeline);
}

/// Updates on the host behind a norm, from files with parameters away, one step late, and kept inputs spilled.
#[test]
fn offload() {
    let mut f = facts(3, 1);
    for u in &mut f.units {
        u.host_state_bytes = u.state_bytes;
    }
    let line = |stage| {
        PassManager::new()
            .with(SpillInputs)
            .with(Place(stage))
            .with(Bucket { bytes: 400 })
            .with(Updates {
                norm: true,
                ..Updates::default()
            })
    };
    let host = HostUpdates {
        ahead: None,
        delayed: false,
        params_away: false,
        sums: false,
    };
    golden(
        "offload_host",
        RECOMPUTED,
        &f,
        line(ZeroStage::Two).with(host),
    );
    let nvme = HostUpdates {
        ahead: Some(1),
        params_away: true,
        ..host
    };
    let away = line(ZeroStage::Three)
        .with(REUSE)
        .with(nvme)
        .with(ParamsAway);
    golden("offload_nvme_params", RECOMPUTED, &f, away);
    let late = HostUpdates {
        delayed: true,
        ..host
    };
    golden(
        "offload_delayed",
        RECOMPUTED,
        &f,
        line(ZeroStage::Zero).with(late),
    );
}
