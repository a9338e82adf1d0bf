//! One job across back ends: the cpu linked and the same cpu from a plugin file are two islands that cannot reach each other but over the
//! bridge. Their devices compute alike, so in rank order the mixed job must give the bits of the job of one back end.

use crate::support::{Scratch, cpu_plugin, ledger, losses, same};
use serde_json::Value;

/// Bytes put on the bridge for a kind, over all ranks.
fn crossed(ledger: &Value, kind: &str) -> u64 {
    let ranks = ledger["ranks"].as_array().expect("ranks");
    let lines = ranks
        .iter()
        .flat_map(|r| r["bridge"].as_array().into_iter().flatten());
    let of_kind = lines.filter(|l| l["kind"] == kind);
    of_kind.filter_map(|l| l["sent_bytes"].as_u64()).sum()
}

fn train(s: &Scratch, ranks: &str, out: &str, sets: &[&str]) {
    s.job("config.json").ranks(ranks).sets(sets).run(out);
}

#[test]
fn a_mixed_job_trains_to_the_bits_of_one_back_end_at_every_stage() {
    let s = Scratch::new();
    let file = cpu_plugin().display().to_string();
    // Every result is held against the other ranks', bit by bit.
    let check = "run.check=\"values\"";
    for (stage, dtype, layout) in [
        (0, "f32", format!("cpu:2,{file}:2")),
        (1, "bf16", format!("cpu:1,{file}:2,cpu:1")),
        (2, "f32", format!("cpu:3,{file}:1")),
        (3, "bf16", format!("{file}:1,cpu:2,{file}:1")),
    ] {
        let (stage_is, dtype_is) = (
            format!("zero_optimization.stage={stage}"),
            format!("run.dtype={dtype}"),
        );
        let one = format!("one-{stage}");
        let mixed = format!("mixed-{stage}");
        train(&s, "4", &one, &[&stage_is, &dtype_is, check]);
        train(&s, &layout, &mixed, &[&stage_is, &dtype_is, check]);
        same(&s.path(&one), &s.path(&mixed));
        let (a, b) = (ledger(&s.path(&one)), ledger(&s.path(&mixed)));
        let kind = if stage == 0 {
            "all_reduce"
        } else {
            "reduce_scatter"
        };
        assert!(crossed(&b, kind) > 0, "{b:#}");
        for (r, (x, y)) in a["ranks"]
            .as_array()
            .unwrap()
            .iter()
            .zip(b["ranks"].as_array().unwrap())
            .enumerate()
        {
            // What a rank asked of the mesh does not depend on who carries it.
            assert_eq!(x["collectives"], y["collectives"], "rank {r}");
            assert!(
                x.get("bridge").is_none() && y.get("bridge").is_some(),
                "rank {r}"
            );
        }
        let islands = b["backends"].as_array().unwrap();
        assert_eq!(islands.len(), 2, "{islands:?}");
    }
}

/// Rows of experts go from one back end to another, as many as follow from data.
#[test]
fn a_mixed_job_with_experts_over_its_ranks_has_the_bits_of_one_back_end() {
    let s = Scratch::new();
    let file = cpu_plugin().display().to_string();
    let sets = [
        "model.moe={\"experts\": 4}",
        "mesh.ep=2",
        "zero_optimization.stage=2",
        "run.steps=3",
        "run.generate.tokens=0",
    ];
    train(&s, "4", "one", &sets);
    train(&s, &format!("cpu:1,{file}:2,cpu:1"), "mixed", &sets);
    same(&s.path("one"), &s.path("mixed"));
    assert!(crossed(&ledger(&s.path("mixed")), "all_to_all_v") > 0);
}

/// Ranks that share layers are on one island each, and what has pieces of rows is summed there and then between the islands.
#[test]
fn a_mixed_job_of_cut_layers_has_the_bits_of_one_back_end() {
    let s = Scratch::new();
    let file = cpu_plugin().display().to_string();
    for (name, more) in [
        ("zero1", vec!["zero_optimization.stage=1"]),
        ("zero3", vec!["zero_optimization.stage=3"]),
        ("staged", vec!["mesh.pp=2"]),
        ("whole", vec!["mesh.sequence_parallel=false"]),
    ] {
        let own = ["mesh.tp=2", "data.seq_len=16", "run.check=\"values\""];
        let sets = [&own, &more[..]].concat();
        let mixed = format!("{name}-mixed");
        train(&s, "4", name, &sets);
        train(&s, &format!("cpu:2,{file}:2"), &mixed, &sets);
        same(&s.path(name), &s.path(&mixed));
        let all = ledger(&s.path(&mixed));
        let scatters = crossed(&all, "reduce_scatter") + crossed(&all, "all_reduce");
        assert!(scatters > 0, "{name}: {all:#}");
    }
}

/// Ranks that have parts of rows are on two islands: keys go around both, and heads are exchanged within each.
#[test]
fn a_mixed_job_of_cut_rows_has_the_bits_of_one_back_end() {
    let s = Scratch::new();
    let file = cpu_plugin().display().to_string();
    for (name, more) in [
        ("gather", vec!["mesh.cp=4"]),
        ("ring", vec!["mesh.cp=4", "mesh.cp_comm=\"p2p\""]),
        (
            "both",
            vec![
                "mesh.cp=4",
                "mesh.cp_comm=\"a2a+p2p\"",
                "mesh.cp_inner=2",
                "zero_optimization.stage=2",
            ],
        ),
        ("heads", vec!["mesh.cp=2", "mesh.cp_comm=\"a2a\""]),
    ] {
        let sets = [&["data.seq_len=16"], &more[..]].concat();
        let checked = [&sets[..], &["run.check=\"values\""]].concat();
        let mixed = format!("{name}-mixed");
        train(&s, "4", name, &sets);
        train(&s, &format!("cpu:2,{file}:2"), &mixed, &checked);
        same(&s.path(name), &s.path(&mixed));
        let all = ledger(&s.path(name));
        for rank in all["ranks"].as_array().unwrap() {
            assert_eq!(rank["device_allocs_after_step_2"], 0, "{name}: {rank:#}");
        }
    }
}

#[test]
fn plan_order_crosses_less_and_stages_agree_in_every_bit() {
    let s = Scratch::new();
    let file = cpu_plugin().display().to_string();
    let layout = format!("cpu:2,{file}:2");
    let plan = "collectives.order=\"plan\"";
    train(&s, &layout, "rank", &[]);
    train(&s, &layout, "plan", &[plan, "run.check=\"values\""]);
    let once = "zero_optimization.reduce_gradients=step";
    train(
        &s,
        &layout,
        "plan-2",
        &[plan, "zero_optimization.stage=2", once],
    );
    same(&s.path("plan"), &s.path("plan-2"));
    let (by_rank, by_plan) = (losses(&s.path("rank")), losses(&s.path("plan")));
    for (a, b) in by_rank.iter().zip(&by_plan) {
        assert!((a - b).abs() < 1e-3, "{a} {b}");
    }
    let (a, b) = (ledger(&s.path("rank")), ledger(&s.path("plan")));
    // Steps take no device memory; only the check of bits does.
    for rank in a["ranks"].as_array().unwrap() {
        assert_eq!(rank["device_allocs_after_step_2"], 0, "{rank:#}");
    }
    assert!(
        crossed(&b, "all_reduce") < crossed(&a, "all_reduce"),
        "{a:#} {b:#}"
    );
}

#[test]
fn checkpoints_go_on_on_any_islands() {
    let s = Scratch::new();
    let file = cpu_plugin().display().to_string();
    let (mixed, other) = (format!("cpu:1,{file}:1"), format!("{file}:1,cpu:1"));
    train(&s, "2", "whole", &[]);
    for (first, then, out) in [
        ("2", mixed.as_str(), "a"),
        (&mixed, "2", "b"),
        (&mixed, &other, "c"),
    ] {
        s.job("config.json").ranks(first).steps(4).run(out);
        s.job("config.json").ranks(then).resume(out).goes_on();
        same(&s.path("whole"), &s.path(out));
    }
}

#[test]
fn back_ends_that_cannot_take_part_are_refused_with_their_ranks() {
    let s = Scratch::new();
    s.write("broken.so", "not a plugin");
    let job = |ranks: &str| s.job("config.json").ranks(ranks);
    for (ranks, part) in [
        ("cpu:1,nosuch:3", "ranks 1 to 3 (nosuch)"),
        ("cpu:1,nosuch:3", "no back end named"),
    ] {
        job(ranks).refused(&[part]);
    }
    for (cpu, file, place, count) in [
        (3, "broken.so", "rank 3", ""),
        (2, "missing.so", "ranks 2 to 3", ":2"),
    ] {
        let file = s.path(file).display().to_string();
        let named = format!("{place} ({file})");
        job(&format!("cpu:{cpu},{file}{count}")).refused(&[&named]);
    }
    let mut twice = job("cpu:1,cpu:1");
    twice.backend.name = Some("cpu".into());
    twice.refused(&["--ranks names the back end", "drop --backend"]);
    let twice = job("cpu:2").plugin(cpu_plugin());
    twice.refused(&["drop --plugin"]);
}
