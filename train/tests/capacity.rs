//! `model.moe.capacity_factor` and the keys beside it: whole runs over ranks, samples and folders, and what is refused by key.

use crate::split::near;
use crate::support::oracles::oracle;
use crate::support::{CONFIG, Scratch, ledger, open_json};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A small llama whose experts have these keys.
fn config(moe: Value) -> Value {
    let mut config: Value = serde_json::from_str(CONFIG).unwrap();
    config["model"] = json!({"family": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 20, "max_position_embeddings": 64, "moe": moe});
    config["data"]["seq_len"] = json!(16);
    config["run"]["generate"] = json!({"tokens": 8, "temperature": 0.0});
    config
}

/// The values of a name in the metrics of a run.
fn metrics(s: &Scratch, run: &str, name: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(s.path(run).join("metrics.jsonl")).unwrap();
    let lines = text
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap());
    lines.filter_map(|l| l[name].as_f64()).collect()
}

/// Over two and four ranks a run drops what it drops on one, and over ranks that cut rows, layers and experts; its folder keeps the keys, and goes on.
#[test]
fn runs_with_capacities_are_alike_over_ranks_and_leave_as_folders() {
    let s = Scratch::new();
    let moe =
        json!({"experts": 4, "capacity_factor": 0.8, "min_capacity": 1, "priority": "position"});
    for (out, ranks, sets) in [
        ("one", 2, &[][..]),
        ("ep", 2, &["mesh.ep=2"]),
        (
            "ep-3",
            4,
            &[
                "mesh.ep=2",
                "mesh.pp=2",
                "zero_optimization.stage=3",
                "model.recompute=full",
            ],
        ),
        ("tp", 4, &["mesh.tp=2", "mesh.ep=2"]),
        (
            "cp",
            8,
            &["mesh.cp=2", "mesh.tp=2", "mesh.ep=4", "mesh.etp=1"],
        ),
        ("etp", 2, &["mesh.etp=2"]),
    ] {
        s.job_of(config(moe.clone()))
            .ranks(ranks)
            .sets(sets)
            .run(out);
    }
    let lost = metrics(&s, "one", "drops");
    assert!(lost[0] > 0.05 && lost[0] < 0.9, "{lost:?}");
    for other in ["ep", "ep-3", "tp", "cp", "etp"] {
        near(&s, other, "one", other);
        // The starting weights are the same, and so are the first choices.
        assert!((metrics(&s, other, "drops")[0] - lost[0]).abs() < 1e-6);
    }
    let kept = &open_json(&s.path("one").join("model/config.json"))["crossweave_moe"];
    assert_eq!(kept["capacity_factor"], json!(0.8));
    assert_eq!(kept["priority"], json!("position"));
    assert_eq!(
        kept.get("capacity_scope"),
        None,
        "what is not given is not written"
    );
    let mut on = config(json!({}));
    on["model"] = json!({"hf": "one/model"});
    s.job_of(on).run("on");
    assert!(metrics(&s, "on", "drops")[0] > 0.05);
    // Without a capacity nothing is dropped.
    s.job_of(config(json!({"experts": 4}))).run("free");
    assert!(metrics(&s, "free", "drops").iter().all(|d| *d == 0.0));
}

/// What ranks say of slots, choices and balance follows from shapes: a run says what `plan` does, to the element, and `plan` names the gather of choices.
#[test]
fn plans_know_all_that_is_said_of_slots() {
    let s = Scratch::new();
    let mut all = config(json!({"experts": 4, "capacity_factor": 1.2}));
    all["run"]["generate"] = json!({"tokens": 0});
    all["run"]["steps"] = json!(3);
    all["data"]["validation_fraction"] = json!(0);
    all["run"]["validate_every"] = json!(0);
    for (out, sets) in [
        ("whole", &["mesh.tp=2", "mesh.ep=2"][..]),
        (
            "folded",
            &[
                "mesh.cp=2",
                "mesh.tp=2",
                "mesh.ep=2",
                "mesh.etp=1",
                "model.recompute=full",
            ],
        ),
    ] {
        let job = s.job_of(all.clone()).ranks(4).sets(sets);
        let plan = job.plan();
        job.run(out);
        let ran = ledger(&s.path(out));
        let of = |lines: &Value, steps: u64| {
            let mut sums: BTreeMap<String, [u64; 3]> = BTreeMap::new();
            let lines = lines.as_array().unwrap().iter();
            for l in lines.filter(|l| l["tag"] == "experts") {
                let sum = sums.entry(format!("{} {}", l["kind"], l["group"]));
                let fields = ["calls", "elements", "wire_elements"];
                for (sum, field) in sum.or_default().iter_mut().zip(fields) {
                    *sum += steps * l[field].as_u64().unwrap();
                }
            }
            sums
        };
        let (planned, said) = (
            of(&plan["collectives"], 3),
            of(&ran["ranks"][0]["collectives"], 1),
        );
        assert_eq!(planned, said, "{out}");
        let gathers = "\"all_gather\" \"tp\"";
        assert!(said.contains_key(gathers), "{said:?}");
    }
}

#[test]
fn capacities_that_cannot_be_are_refused_by_key() {
    let s = Scratch::new();
    for (keys, parts) in [
        (
            json!({"capacity_factor": 0}),
            &["model.moe.capacity_factor"][..],
        ),
        (
            json!({"capacity_factor": -1.5}),
            &["model.moe.capacity_factor"],
        ),
        (
            json!({"capacity_factor": 1, "min_capacity": -1}),
            &["model.moe.min_capacity"],
        ),
        (
            json!({"capacity_factor": 1, "priority": "lot"}),
            &["model.moe.priority", "probs", "position"],
        ),
        (
            json!({"capacity_factor": 1, "capacity_scope": "batch"}),
            &["model.moe.capacity_scope", "micro_batch"],
        ),
        (
            json!({"capacity_factor": 1, "top_k": 5}),
            &["model.moe.top_k", "5 experts of a token"],
        ),
        (
            json!({"min_capacity": 4}),
            &["model.moe.min_capacity", "without moe.capacity_factor"],
        ),
        (
            json!({"priority": "position"}),
            &["model.moe.priority", "without moe.capacity_factor"],
        ),
        (
            json!({"renormalize": true}),
            &["model.moe.renormalize", "without moe.capacity_factor"],
        ),
        (
            json!({"capacity_factor": 1, "renormalize": true, "normalize": false}),
            &["model.moe.renormalize", "moe.normalize"],
        ),
        (
            json!({"capacity_factor": 1, "use_rts": true}),
            &["model.moe.use_rts"],
        ),
        (
            json!({"eval_capacity_factor": 2}),
            &["model.moe.eval_capacity_factor", "validation"],
        ),
        (
            json!({"aux_loss_tokens": "labels"}),
            &["model.moe.aux_loss_tokens", "counted"],
        ),
        (
            json!({"drop_tokens": false}),
            &["model.moe.drop_tokens", "capacity_factor"],
        ),
        (
            json!({"noisy_gate_policy": "RSample"}),
            &["model.moe.noisy_gate_policy"],
        ),
        (
            json!({"moe_expert_capacity_factor": 1}),
            &["model.moe.moe_expert_capacity_factor", "capacity_factor"],
        ),
    ] {
        let mut moe = json!({"experts": 4});
        let given = keys.as_object().unwrap().clone();
        moe.as_object_mut().unwrap().extend(given);
        s.job_of(config(moe)).refused(parts);
    }
    // These families have no capacity in their files, and their keys say how many experts they have.
    for family in ["mixtral", "qwen3_moe"] {
        let mut own = config(json!({"experts": 4, "capacity_factor": 1}));
        own["model"]["family"] = json!(family);
        s.job_of(own).refused(&["model.moe", "experts of its own"]);
    }
    let mut folder = config(json!({}));
    folder["model"] =
        json!({"hf": oracle("mixtral-v5").join("model"), "moe": {"capacity_factor": 1}});
    s.job_of(folder).refused(&["model.moe"]);
}
