//! `run.balance`: ranks take uneven shares of the same global batch, and the curve is that of even ones.

use crate::support::{Job, Scratch, ledger, records};
use serde_json::{Value, json};

/// Micro-batches of four sequences, so that there is something to move; with dropout, accumulation and validation.
const BATCH: [&str; 2] = ["train_batch_size=24", "train_micro_batch_size_per_gpu=4"];

fn train(s: &Scratch, out: &str, sets: &[&str]) -> (Vec<Value>, Value) {
    let job = s.job("config.json").ranks(3);
    job.sets(&BATCH).sets(sets).run(out);
    (records(&s.path(out)), ledger(&s.path(out)))
}

/// Two ranks with micro-batches of eight.
fn wide<'a>(s: &'a Scratch, balance: &str) -> Job<'a> {
    let sets = ["train_batch_size=16", "train_micro_batch_size_per_gpu=8"];
    let job = s.job("config.json").ranks(2).sets(&sets);
    job.set(&format!("run.balance={}", json!(balance)))
}

/// Losses, norms and validation losses of two runs of one curve.
fn close(a: &[Value], b: &[Value], within: f64) {
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b) {
        for key in ["loss", "grad_norm", "val_loss"] {
            let (Some(x), Some(y)) = (x[key].as_f64(), y[key].as_f64()) else {
                assert_eq!(x[key], y[key]);
                continue;
            };
            assert!((x - y).abs() <= within * x.abs(), "{key}: {x} and {y}");
        }
    }
}

#[test]
fn uneven_shares_follow_the_curve_of_even_ones() {
    let s = Scratch::new();
    for (name, sets, within) in [
        ("0", &["gradient_accumulation_steps=2"][..], 1e-5),
        ("3", &["zero_optimization.stage=3"], 1e-5),
        (
            "f16",
            &["fp16.enabled=true", "zero_optimization.stage=1"],
            5e-3,
        ),
    ] {
        let (even, ledger) = train(&s, &format!("even-{name}"), sets);
        assert!(ledger.get("micro_batch").is_none(), "{ledger:#}");
        let weights = "run.balance=\"2.5, 0.5, 1\"";
        let sets = [sets, &[weights][..]].concat();
        let (uneven, ledger) = train(&s, &format!("uneven-{name}"), &sets);
        assert_eq!(ledger["micro_batch"], json!([8, 1, 3]));
        close(&even, &uneven, within);
    }
}

/// Ranks that share layers take the same sequences: as many as the slowest of them.
#[test]
fn ranks_that_share_layers_take_a_share_together() {
    let s = Scratch::new();
    let eps = "optimizer.params.eps=1e-4";
    let job = |sets: &[&str], ranks: u32, out: &str| {
        let sets = [&BATCH, &[eps][..], sets].concat();
        s.job("config.json").ranks(ranks).sets(&sets).run(out);
        (records(&s.path(out)), ledger(&s.path(out)))
    };
    let (even, _) = job(&[], 3, "even");
    for (out, sets) in [
        ("cut", vec!["mesh.tp=2"]),
        (
            "zero3",
            vec![
                "mesh.tp=2",
                "zero_optimization.stage=3",
                "mesh.order=\"tp,dp,pp,cp\"",
            ],
        ),
    ] {
        // Of the ranks by number: pairs of neighbours, or those three apart.
        let weights = match out {
            "cut" => "run.balance=\"5, 2.5, 0.5, 9, 1, 1\"",
            _ => "run.balance=\"5, 0.5, 1, 2.5, 9, 1\"",
        };
        let (uneven, ledger) = job(&[&sets[..], &[weights]].concat(), 6, out);
        assert_eq!(ledger["micro_batch"], json!([8, 1, 3]));
        close(&even, &uneven, 1e-4);
    }
    let speed = s.job("config.json").ranks(4).sets(&BATCH);
    let said = speed.sets(&["mesh.tp=2", "run.balance=\"speed\"", "train_batch_size=8"]);
    let said = said.steps(1).run("speed").said;
    let note = said.lines().find(|l| l.contains("run.balance: ranks do"));
    let list = note.and_then(|n| n.split("run.balance=\"").nth(1));
    let list = list
        .and_then(|l| l.split('"').next())
        .expect("a division to repeat");
    let rows: Vec<u64> = list
        .split(',')
        .map(|n| n.parse().expect("a number"))
        .collect();
    assert!(
        rows.len() == 4 && rows[0] == rows[1] && rows[2] == rows[3],
        "{list}"
    );
    assert_eq!(rows[0] + rows[2], 8, "{list}");
}

#[test]
fn a_measured_division_adds_up_and_can_be_repeated() {
    let s = Scratch::new();
    let said = wide(&s, "speed").steps(2).run("run").said;
    // How fast each is belongs to the machine; that the division adds up and can be repeated does not.
    let note = said
        .lines()
        .find(|l| l.contains("run.balance: ranks do"))
        .expect("a note");
    let list = note
        .split("run.balance=\"")
        .nth(1)
        .and_then(|l| l.split('"').next());
    let list = list.expect("a division to repeat");
    let shares: Vec<u64> = list
        .split(',')
        .map(|n| n.parse().expect("a number"))
        .collect();
    assert_eq!(
        (shares.len(), shares.iter().sum::<u64>()),
        (2, 16),
        "{note}"
    );
    wide(&s, list).steps(2).run("again");
    close(&records(&s.path("run")), &records(&s.path("again")), 0.0);
}

#[test]
fn a_rank_that_cannot_be_measured_is_named_and_nobody_waits_for_it() {
    // A fault of one device: a linked back end has the devices that the first job of a process asks for.
    crossweave_tests::in_own_process!();
    let s = Scratch::new();
    // It fails while the other is being measured.
    let lost = "fault=launch:matmul:10:device_lost@1";
    let said = ["measuring rank 1", "call 10 of op_launch of matmul"];
    wide(&s, "speed").layer(lost).refused(&said);
    // A back end that lacks an op is measured with the host's.
    let host = wide(&s, "speed").layer("lacks=matmul").steps(1);
    host.set("run.allow_host_ops=true").run("run");
}

#[test]
fn a_run_goes_on_with_another_division() {
    let s = Scratch::new();
    let saving = |balance: &str| wide(&s, balance).set("run.checkpoint_every=2");
    saving("3,1").steps(2).run("run");
    saving("1,3").steps(4).resume("run").goes_on();
    let last = records(&s.path("run"))
        .iter()
        .filter_map(|r| r["step"].as_u64())
        .max();
    assert_eq!(last, Some(4));
}

#[test]
fn divisions_that_cannot_be_are_refused_by_their_key() {
    let s = Scratch::new();
    let job = |balance: &str| {
        let set = format!("run.balance={}", json!(balance));
        s.job("config.json").ranks(2).set(&set)
    };
    for (balance, parts) in [
        ("1,2,3", &["run.balance", "3 weights for 2 ranks"][..]),
        ("fast", &["run.balance", "\"fast\"", "speed"]),
        ("1,-2", &["run.balance", "positive number"]),
    ] {
        job(balance).refused(parts);
    }
    let shards = job("speed").set("run.canonical_shards=4");
    shards.refused(&["run.balance", "canonical"]);
}
