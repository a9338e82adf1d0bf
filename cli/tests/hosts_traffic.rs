//! What jobs over several hosts send between them, as the interfaces of imitated hosts count it.

use crate::common;
use crate::hosts::{HUNG, Hosts, args, sets};
use common::mpi::{families, plugin};
use common::{Scratch, model_bytes};
use crossweave_tests::system::within;

/// Sizes at which heads of packets and what else a step says are little beside gradients.
const SIZES: [&str; 6] = [
    "run.comm_timeout_s=900",
    "model.n_embd=192",
    "model.n_head=4",
    "train_batch_size=24",
    "run.checkpoint_every=1000",
    "run.validate_every=1000",
];

/// Bytes that each host has sent.
fn sent(hosts: &Hosts) -> Vec<f64> {
    let of = |host: u32| {
        let text = hosts.call(&["sent", &host.to_string()], &[]);
        text.expect("a link").trim().parse().expect("bytes")
    };
    (1..=hosts.count).map(of).collect()
}

/// What a step sends from each host, over the bytes of the model in f32: the interfaces' counts of a long run less those of a short one.
fn sent_by_a_step(hosts: &Hosts, family: &str, each: u32, sizes: &[String]) -> Vec<f64> {
    let run = |steps: u32| -> (Vec<f64>, f64) {
        let s = Scratch::of_hosts();
        let mut c = hosts.job(&s, family, each, &args(sizes, steps));
        let before = sent(hosts);
        let o = within(HUNG, &mut c);
        let said = String::from_utf8_lossy(&o.stderr).into_owned();
        assert!(o.status.success(), "{family}: {said}");
        let all = sent(hosts).into_iter().zip(before).map(|(a, b)| a - b);
        let model: u64 = model_bytes(&s.path("out")).len() as u64;
        (all.collect(), model as f64)
    };
    let ((long, model), (short, _)) = (run(9), run(1));
    let step = long.iter().zip(short).map(|(l, s)| (l - s) / 8.0 / model);
    step.collect()
}

/// The bytes that each host sends to others in a step by `plan`, over those of the model in f32.
fn planned(hosts: &Hosts, each: u32, sizes: &[String]) -> Vec<f64> {
    let s = Scratch::of_hosts();
    let spread = format!("{}x{each}", hosts.count);
    let mut args = vec!["plan", "config.json", "--hosts", &spread, "--json"];
    args.extend(sizes.iter().flat_map(|set| ["--set", set.as_str()]));
    let plan: serde_json::Value = serde_json::from_str(&s.ok(&args)).expect("JSON");
    let model = 4.0 * plan["params"].as_f64().expect("parameters");
    let between = plan["hosts"]["between"].as_array().expect("hosts").iter();
    between
        .map(|b| b.as_f64().expect("bytes") / model)
        .collect()
}

/// Gradients in f32 over hosts of two ranks each: along the chain the first and the last host send the model once, those between them twice,
/// where owners would send it 2 times (on two hosts) or 2.67 (on three). Heads of packets and what else a step says stay within 2 %.
#[test]
fn what_leaves_a_host_does_not_grow_with_its_ranks() {
    plugin();
    let sizes = sets(&SIZES);
    let cases = [(2, vec![1.0, 1.0]), (3, vec![1.0, 2.0, 1.0])];
    for (family, (count, want)) in families().into_iter().zip(cases) {
        let Some(hosts) = Hosts::up(count, &[]) else {
            return;
        };
        let got = sent_by_a_step(&hosts, family, 2, &sizes);
        println!("{family}, {count} hosts of 2 ranks: {got:.3?} model sizes a step");
        let planned = planned(&hosts, 2, &sizes);
        for (got, want) in got.iter().zip(&want).chain(got.iter().zip(&planned)) {
            assert!(
                (got / want - 1.0).abs() < 0.02,
                "{family}: {got:?} of {want:?}"
            );
        }
    }
}

/// Algorithms that are asked for by name: two hosts of two ranks send what `plan` says of each, by either family.
#[test]
fn what_leaves_a_host_by_name_is_what_plan_says() {
    plugin();
    for (family, by) in families().into_iter().zip(["ring", "halving"]) {
        let Some(hosts) = Hosts::up(2, &[]) else {
            return;
        };
        let by_name = format!("communication.algorithm={by}");
        let sizes = sets(&[&SIZES[..], &[by_name.as_str()]].concat());
        let got = sent_by_a_step(&hosts, family, 2, &sizes);
        let planned = planned(&hosts, 2, &sizes);
        println!("{family}, {by}: {got:.3?} model sizes a step of {planned:.3?}");
        for (got, want) in got.iter().zip(&planned) {
            assert!(
                (got / want - 1.0).abs() < 0.02,
                "{family}, {by}: {got:?} of {want:?}"
            );
        }
    }
}

/// A layer cut over hosts, by an order of the mesh, is said before the first step, and by rank 0 alone; cut within them nothing is.
#[test]
fn layers_cut_over_hosts_are_said() {
    plugin();
    let Some((family, hosts)) = families().into_iter().next().zip(Hosts::up(2, &[])) else {
        return;
    };
    for (order, times) in [("pp,tp,cp,dp", 1), ("pp,dp,cp,tp", 0)] {
        let s = Scratch::of_hosts();
        let order = format!("mesh.order={order:?}");
        let sizes = sets(&["run.comm_timeout_s=900", "mesh.tp=2", &order]);
        let mut c = hosts.job(&s, family, 2, &args(&sizes, 1));
        let o = within(HUNG, &mut c);
        let out = String::from_utf8_lossy(&o.stdout);
        let said = format!("{out}{}", String::from_utf8_lossy(&o.stderr));
        assert!(o.status.success(), "{family}: {said}");
        let note = "mesh.tp: a group that sums inside every block lies on several hosts (rank 0 is on h1, rank 2 on h2)";
        assert_eq!(said.matches(note).count(), times, "{order}: {said}");
        let lies = match times {
            0 => "2 hosts of 2 ranks each: dp over 2, tp within a host",
            _ => "2 hosts of 2 ranks each: tp over 2, dp within a host",
        };
        assert_eq!(said.matches(lies).count(), 1, "{order}: {said}");
    }
}
