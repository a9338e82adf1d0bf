//! `activation_checkpointing.partition_activations`: whole runs whose ranks keep parts of the inputs of recomputed layers have the bits of those that
//! keep them whole, move and hold what `plan` predicts, and are warned where the key has no effect.

use crate::support::{Scratch, figures, ledger, same};
use serde_json::Value;

const FULL: [&str; 2] = ["model.recompute=\"full\"", "mesh.sequence_parallel=false"];
const PARTS: &str = "activation_checkpointing.partition_activations=true";

fn activations(ledger: &Value) -> u64 {
    let peak = &ledger["ranks"][0]["memory"]["tags"]["activation"]["peak"];
    peak.as_u64().expect("bytes")
}

#[test]
fn runs_that_keep_parts_have_the_bits_of_those_that_keep_all() {
    let s = Scratch::new();
    for (name, ranks, more) in [
        ("tp2", "2", &["mesh.tp=2"][..]),
        (
            "zero3",
            "4",
            &[
                "mesh.tp=2",
                "zero_optimization.stage=3",
                "run.check=\"values\"",
            ],
        ),
        ("stages", "4", &["mesh.tp=2", "mesh.pp=2"]),
        (
            "host",
            "2",
            &[
                "mesh.tp=2",
                "activation_checkpointing.cpu_checkpointing=true",
            ],
        ),
    ] {
        let [whole, parts] = ["whole", "parts"].map(|kept| format!("{name}-{kept}"));
        let job = |sets: &[&str], out: &str| {
            let sets = [&FULL, more, sets].concat();
            s.job("config.json").ranks(ranks).sets(&sets).run(out);
        };
        job(&[], &whole);
        job(&[PARTS], &parts);
        same(&s.path(&whole), &s.path(&parts));
        assert_eq!(figures(&s.path(&whole)), figures(&s.path(&parts)));
        if name == "tp2" {
            let [all, part] = [&whole, &parts].map(|run| activations(&ledger(&s.path(run))));
            assert!(part < all, "{part} bytes, and {all} of whole inputs");
        }
    }
}

/// Gathers of kept inputs, and the activations that are held at most, are those of the plan.
#[test]
fn kept_parts_are_predicted() {
    let s = Scratch::new();
    let sets = [&FULL[..], &[PARTS, "mesh.tp=2", "run.steps=3"]].concat();
    let sets: Vec<&str> = sets
        .into_iter()
        .chain(["data.validation_fraction=0"])
        .collect();
    let job = || s.job("config.json").ranks("2").sets(&sets);
    let plan = job().plan_of(0);
    job().run("run");
    let ledger = ledger(&s.path("run"));
    let of = |lines: &Value| -> [u64; 2] {
        let all = lines.as_array().expect("lines").iter();
        let gathers = all.filter(|l| l["tag"] == "activation" && l["kind"] == "all_gather");
        gathers.fold([0; 2], |[calls, elements], l| {
            let n = |key: &str| l[key].as_u64().expect("a count");
            [calls + n("calls"), elements + n("elements")]
        })
    };
    let each = of(&plan["collectives"]);
    assert!(each[0] > 0 && each[1] > 0, "{each:?}");
    let run = &ledger["ranks"][0];
    assert_eq!(of(&run["collectives"]), each.map(|n| 3 * n));
    assert_eq!(
        activations(&ledger),
        plan["memory"]["activation"]["peak"]
            .as_u64()
            .expect("bytes")
    );
}

#[test]
fn where_nothing_is_kept_in_parts_it_is_said() {
    let s = Scratch::new();
    for (ranks, sets, says) in [
        ("1", vec![FULL[0], PARTS], "no ranks that share layers"),
        (
            "2",
            vec![
                "mesh.tp=2",
                FULL[0],
                PARTS,
                "mesh.sequence_parallel=true",
                "data.seq_len=16",
            ],
            "has cut what is kept by tokens",
        ),
        ("2", vec!["mesh.tp=2", PARTS], "input of a recomputed unit"),
    ] {
        let said = s
            .job("config.json")
            .ranks(ranks)
            .sets(&sets)
            .steps(1)
            .run(&format!("{ranks}-{}", sets.len()))
            .said;
        assert!(
            said.contains("partition_activations") && said.contains(says),
            "{said}"
        );
    }
}
