//! What `crossweave plan` rehearses on the null device is what a run holds on the CPU: requested bytes of every rank by tag, on the device and in
//! pinned memory, now and at most, and what each rank's collectives moved, for the jobs of `same_calls`. A sample runs with the suite.

use crate::common::*;
use crate::same_calls::matrix::{Job, jobs};
use crate::same_calls::rank_of;
use crossweave_engine::{MicroBatch, RankLedger, dry_run};
use crossweave_hal::{Bootstrap, CheckerState, Device, KvStore, LocalKv};
use std::sync::Arc;

/// Three steps of a rank, and what it holds behind them.
fn ledger(w: &World, job: &Job, rank: u32, device: &Device, boot: &dyn Bootstrap) -> RankLedger {
    let s = rank_of(job, rank);
    let units = placed((job.units)(), &s);
    let null = w.null.open(0).unwrap();
    let dry = dry_run(&null, &units, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
    let mut t = w.rank(device, units, &s, &dry, boot).unwrap();
    t.init().unwrap();
    (job.before)(&mut t);
    let id = |i: u64| (i * 7 % 11) as i32;
    let tokens: Vec<i32> = (0..s.rows.batch * s.rows.seq_len).map(id).collect();
    let batch = |m: u32| MicroBatch {
        tokens: &tokens,
        targets: &tokens,
        lengths: &[],
        images: &[],
        first_sequence: u64::from(s.own_first() + m) * s.rows.batch,
    };
    let each: Vec<_> = (0..s.own_micro_batches()).map(batch).collect();
    for _ in 0..3 {
        if s.rows.labelled {
            t.count_targets(5, 7).unwrap();
        }
        t.step(&each, 1e-3).unwrap();
        t.metrics().unwrap();
    }
    t.ledger()
}

/// What of a ledger the plan predicts.
fn requested(l: &RankLedger) -> Vec<String> {
    let mut lines = vec![];
    // Scratch of kernels follows the processor.
    for (tag, b) in l.memory.tags.iter().filter(|(tag, _)| *tag != "workspace") {
        lines.push(format!("{tag}: {} now, {} at most", b.now, b.peak));
    }
    for (tag, b) in &l.memory.host {
        lines.push(format!("pinned {tag}: {} now, {} at most", b.now, b.peak));
    }
    for (what, moved) in [("to", &l.memory.to_host), ("from", &l.memory.from_host)] {
        lines.extend(
            moved
                .iter()
                .map(|(tag, n)| format!("{what} pinned {tag}: {n}")),
        );
    }
    for c in &l.collectives {
        let sizes = [c.calls, c.elements, c.bytes, c.wire_elements];
        lines.push(format!(
            "{} {} {} {}: {sizes:?}",
            c.kind, c.group, c.tag, c.ranks
        ));
    }
    lines
}

pub(crate) fn agree(w: &World, job: &Job) {
    let ranks = 0..job_ranks(&job.spec);
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let boot = Boot(kv);
    let run: Vec<RankLedger> = std::thread::scope(|scope| {
        let one = |r: u32| {
            let boot = &boot;
            scope.spawn(move || ledger(w, job, r, &w.cpu.open(r).unwrap(), boot))
        };
        let all: Vec<_> = ranks.clone().map(one).collect();
        all.into_iter().map(|r| r.join().unwrap()).collect()
    });
    for (r, run) in ranks.zip(&run) {
        let null = w.null.with_checker(&CheckerState::default());
        let planned = ledger(w, job, r, &null.open(0).unwrap(), &Nobody);
        assert_eq!(
            requested(run),
            requested(&planned),
            "{}, rank {r}: the run, then the plan",
            job.name
        );
    }
}

/// Every `n`th of the jobs.
fn some(n: usize) {
    let w = world();
    let dir = tempfile::tempdir().unwrap();
    let all = jobs(dir.path());
    let on_null = all.iter().filter(|j| !j.on_cpu);
    on_null.step_by(n).for_each(|job| agree(&w, job));
}

#[test]
fn a_run_holds_what_the_plan_rehearsed() {
    some(13);
}

#[test]
#[ignore = "minutes; for a change of what is allocated, launched or planned"]
fn every_job_holds_what_its_plan_rehearsed() {
    some(1);
}
