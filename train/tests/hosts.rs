//! What `plan` says that hosts send in a step: by the formulas of docs/launching.md, worked out here for whole jobs. What jobs over imitated
//! hosts send is held against the same figures in `cli/tests/hosts_traffic.rs`.

use crate::support::{Job, Scratch};
use serde_json::Value;

/// A model whose units are long vectors, in f32.
fn job<'a>(s: &'a Scratch, ranks: u32, sets: &[&str]) -> Job<'a> {
    let sizes = [
        "model.n_embd=192",
        "model.n_head=4",
        "train_batch_size=24",
        "train_micro_batch_size_per_gpu=1",
    ];
    s.job("config.json").ranks(ranks).sets(&sizes).sets(sets)
}

fn bytes(list: &Value) -> Vec<f64> {
    let all = list.as_array().expect("a list").iter();
    all.map(|b| b.as_f64().expect("bytes")).collect()
}

fn axis<'a>(v: &'a Value, name: &str) -> &'a Value {
    let mut all = v["axes"].as_array().expect("axes").iter();
    all.find(|a| a["axis"] == name)
        .unwrap_or_else(|| panic!("{name}: {v}"))
}

#[track_caller]
fn near(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: {got:?}");
    for (g, w) in got.iter().zip(want) {
        assert!(
            (g - w).abs() <= 0.01 * w.abs(),
            "{what}: {got:?} of {want:?}"
        );
    }
}

/// Data parallelism: what leaves each host, over the model's bytes. A unit's gradient is one vector, and ZeRO-3 gathers each unit twice.
#[test]
fn data_parallelism_sends_what_the_formulas_say() {
    let s = Scratch::new();
    let cases: &[(&str, u32, u32, &[f64])] = &[
        ("4", 4, 0, &[1.5; 4]),
        ("2x2", 4, 0, &[1.0; 2]),
        ("4x2", 8, 0, &[1.0, 2.0, 2.0, 1.0]),
        ("2x4", 8, 0, &[1.0; 2]),
        ("1", 4, 0, &[0.0]),
        // Gathers r (H - 1) / n twice, and sums along the chain: the last host sends what others own.
        ("4x2", 8, 3, &[2.5, 2.5, 2.5, 2.25]),
    ];
    for (hosts, ranks, stage, want) in cases {
        let stage = format!("zero_optimization.stage={stage}");
        let sets = ["train_micro_batch_size_per_gpu=3", &stage];
        let job = job(&s, *ranks, &sets[..]).set("gradient_accumulation_steps=1");
        let job = job.set(&format!("train_batch_size={}", 3 * ranks));
        let model = 4.0 * job.plan()["params"].as_f64().expect("parameters");
        let v = job.plan_over(hosts);
        let dp: Vec<f64> = bytes(&axis(&v, "dp")["between"]);
        let dp: Vec<f64> = dp.iter().map(|b| b / model).collect();
        near(&dp, want, &format!("{hosts}, {stage}"));
        assert_eq!(v["notes"].as_array().map(Vec::len), Some(0));
    }
}

/// Cut layers stay within a host where tp is last in the order, and stages send each micro-batch's hidden state to the next host.
#[test]
fn axes_lie_where_the_order_puts_them() {
    let s = Scratch::new();
    let sets = ["mesh.tp=2", "mesh.pp=2"];
    let v = job(&s, 8, &sets).plan_over("2x4");
    let lies = |v: &Value, name: &str| axis(v, name)["hosts"].as_u64();
    assert_eq!(
        (lies(&v, "tp"), lies(&v, "dp"), lies(&v, "pp")),
        (Some(1), Some(1), Some(2))
    );
    assert_eq!(bytes(&axis(&v, "tp")["between"]), [0.0; 2]);
    assert!(bytes(&axis(&v, "tp")["within"]).iter().all(|b| *b > 0.0));
    // 24 sequences a step over 2 data ranks; of rows of 16 tokens in pieces over tp each rank sends its half.
    let hidden = 24.0 * 16.0 * 192.0 * 4.0;
    near(&bytes(&axis(&v, "pp")["between"]), &[hidden; 2], "pp");
    // By the other order the same calls leave the host.
    let other = job(&s, 8, &sets)
        .set("mesh.order=\"tp,dp,cp,pp\"")
        .plan_over("2x4");
    assert_eq!((lies(&other, "tp"), lies(&other, "pp")), (Some(2), Some(1)));
    assert_eq!(bytes(&axis(&other, "pp")["between"]), [0.0; 2]);
    assert!(
        bytes(&axis(&other, "tp")["between"])
            .iter()
            .all(|b| *b > 0.0)
    );
    assert!(
        other["notes"][0]
            .as_str()
            .is_some_and(|n| n.starts_with("mesh.tp: "))
    );
    // All is the sum of its axes.
    let sum = |name: &str, host: usize| -> f64 {
        let all = v["axes"].as_array().expect("axes").iter();
        all.map(|a| bytes(&a[name])[host]).sum()
    };
    for host in 0..2 {
        assert_eq!(sum("between", host), bytes(&v["between"])[host]);
        assert_eq!(sum("within", host), bytes(&v["within"])[host]);
    }
}

/// Second copies of the parameters (hpZ) of a host keep gathers on it.
#[test]
fn hpz_keeps_gathers_on_a_host() {
    let s = Scratch::new();
    let stage = ["zero_optimization.stage=3"];
    let plain = job(&s, 8, &stage).plan_over("2x4");
    let node = "zero_optimization.zero_hpz_partition_size=4";
    let hpz = job(&s, 8, &stage).set(node).plan_over("2x4");
    assert_eq!(axis(&hpz, "dp.node")["hosts"], 1);
    assert_eq!(bytes(&axis(&hpz, "dp.node")["between"]), [0.0; 2]);
    let [less, more] = [&hpz, &plain].map(|v| bytes(&v["between"])[0]);
    assert!(less < more, "{less} of {more}");
    let wide = "zero_optimization.zero_hpz_partition_size=8";
    let wide = job(&s, 8, &stage).set(wide).plan_over("2x4");
    assert!(
        wide["notes"][0]
            .as_str()
            .is_some_and(|n| n.contains("hpz_partition_size"))
    );
}
