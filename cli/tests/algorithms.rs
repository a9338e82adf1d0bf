//! Training whose sums go between processes by an algorithm that is asked for by name: the losses of threads within rounding, to the bit where the
//! order of ranks stays; what `explain` says of each.

use crate::common;
use common::mpi::{families, mpirun, ok, plugin, text};
use common::{Scratch, losses, same};
use crossweave_tests::system::within;
use std::time::Duration;

/// Losses of a small model in f32 over 8 steps differ by less than this where sums were added in another order (docs/determinism.md).
const CLOSE: f64 = 1e-5;

#[test]
fn training_by_name_is_that_of_threads_within_rounding() {
    plugin();
    let s = Scratch::new();
    for (stage, n) in [("0", 3), ("3", 4)] {
        let threads = format!("threads-{stage}");
        let stage = format!("zero_optimization.stage={stage}");
        let ranks = n.to_string();
        let sizes = ["--set", &stage, "--set", "train_batch_size=24"];
        let base = ["train", "config.json", "--out"];
        s.ok(&[&base[..], &[&threads, "--ranks", &ranks], &sizes].concat());
        let want = losses(&s.path(&threads));
        let each = r#"{"all_reduce": "tree", "reduce_scatter": "halving"}"#;
        for (i, by) in ["ordered", "native", "ring", each].into_iter().enumerate() {
            for (j, family) in families().into_iter().enumerate() {
                // The library's own under both.
                if by != "native" && (i + j) % 2 == 1 {
                    continue;
                }
                let out = format!("{family}-{i}-{}", &stage[stage.len() - 1..]);
                let set = format!("communication.algorithm={by}");
                let args = [&base[..], &[&out, "--set", &set], &sizes].concat();
                let said = ok(mpirun(&s, family, n, &args));
                let note = match by {
                    "ordered" => "in rank order",
                    _ => "give up the order of ranks",
                };
                assert_eq!(said.matches(note).count(), 1, "{by}: {said}");
                if by == "ordered" {
                    same(&s.path(&threads), &s.path(&out));
                    continue;
                }
                let got = losses(&s.path(&out));
                assert_eq!(got.len(), want.len());
                for (a, b) in want.iter().zip(&got) {
                    assert!((a - b).abs() < CLOSE, "{family} {by}: {want:?} {got:?}");
                }
            }
        }
    }
}

/// Ranks that choose different algorithms are named before the first step, and a job of threads says that it has nothing to choose.
#[test]
fn ranks_that_choose_differently_are_named() {
    plugin();
    let s = Scratch::new();
    for family in families() {
        let job = ["train", "config.json", "--out", "out", "--set"];
        let mut c = mpirun(&s, family, 1, &job);
        c.arg("communication.algorithm=ring");
        c.args([":", "-n", "1", env!("CARGO_BIN_EXE_crossweave")]);
        c.args(job).arg("communication.algorithm=native");
        let o = within(Duration::from_secs(60), &mut c);
        let said = text(&o);
        assert!(!o.status.success(), "{family}: {said}");
        let named = "rank 1 runs another config than rank 0: communication.algorithm is \"native\" there and \"ring\" here";
        assert!(said.contains(named), "{family}: {said}");
        assert!(!s.path("out").join("metrics.jsonl").exists(), "{said}");
    }
    let set = ["--set", "communication.algorithm=native", "--ranks", "2"];
    let job = ["train", "config.json", "--out", "threads"];
    let o = within(
        Duration::from_secs(60),
        &mut s.command(&[&job[..], &set].concat()),
    );
    let said = text(&o);
    assert!(o.status.success(), "{said}");
    assert!(said.contains("threads of this process"), "{said}");
}

#[test]
fn explain_shows_the_algorithm_and_what_it_says() {
    let s = Scratch::new();
    let base = ["explain", "config.json", "--ranks", "4"];
    let plain = s.ok(&base);
    assert!(!plain.contains("between processes"), "{plain}");
    let ring = s.ok(&[&base[..], &["--set", "communication.algorithm=ring"]].concat());
    for part in ["between processes", "ring", "given up: within rounding"] {
        assert!(ring.contains(part), "{part}: {ring}");
    }
    let page = s.ok(&[
        &base[..],
        &["--json", "--set", "communication.algorithm=ring"],
    ]
    .concat());
    let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    let all = page["collectives"].as_array().expect("collectives");
    let sums: Vec<_> = all.iter().filter(|r| r["kind"] == "all_reduce").collect();
    assert!(!sums.is_empty());
    for r in sums {
        let by = &r["between_processes"];
        let n = r["ranks"].as_u64().expect("ranks");
        let summed = r["what"].as_str().is_some_and(|w| w.contains("sum"));
        if summed {
            assert_eq!(by["algorithm"], "ring", "{r}");
            assert_eq!(by["messages"], 2 * (n - 1), "{r}");
        }
    }
}
