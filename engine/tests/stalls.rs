//! A rank that stalls on purpose, on meshes of data-parallel ranks and pipeline stages: at the timeout it is the one that is named, whichever rank
//! waits for which in between. `CROSSWEAVE_STALLS` and `CROSSWEAVE_SEED` say how many and which in the long run, which is ignored.

use crate::common;
use common::*;
use crossweave_engine::{
    Links, MicroBatch, PipelineOrder, PipelineSpec, RankSpec, ZeroSpec, ZeroStage, dry_run,
};
use crossweave_hal::{CheckerState, Fault, KvStore, LocalKv};
use crossweave_mesh::{FaultKind, FaultRule, Faults};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Far beyond a step of these models. On a busy machine it is as many times what a run without a stall takes there.
const PATIENCE: Duration = Duration::from_secs(2);
const STEPS: u64 = 3;

/// Numbers that a seed repeats.
struct Dice(u64);
impl Dice {
    fn of<T: Copy>(&mut self, sides: &[T]) -> T {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        sides[(self.0 >> 33) as usize % sides.len()]
    }
}

#[derive(Debug)]
struct Case {
    /// The time limit of a collective.
    patience: Duration,
    spec: RankSpec,
    ranks: u32,
    rank: u32,
    rule: FaultRule,
}

fn case(seed: u64, patience: Duration) -> Case {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // A seed's first numbers lie close to its neighbour's.
    for _ in 0..8 {
        dice.of(&[0]);
    }
    let (dp, pp) = dice.of(&[
        (1, 2),
        (2, 2),
        (1, 4),
        (2, 3),
        (2, 4),
        (4, 2),
        (4, 1),
        (2, 1),
    ]);
    let micro_batches = dice.of(&[1, 2, 3]);
    let order = dice.of(&[PipelineOrder::OneFOneB, PipelineOrder::GPipe]);
    let stage = ZeroStage::from_number(dice.of(&[0, 1, 2, 3])).unwrap();
    let spec = RankSpec {
        pipeline: (pp > 1).then(|| PipelineSpec::even(6, pp, order)),
        zero: ZeroSpec { stage, ..by_step() },
        ..spec(dp, micro_batches)
    };
    let ranks = dp * pp;
    let rank = dice.of(&(0..ranks).collect::<Vec<_>>());
    let rule = FaultRule {
        kind: FaultKind::Stall,
        step: Some(dice.of(&[0, 1, 2])),
        call: Some(dice.of(&[1, 2, 3, 4, 5, 6])),
        op: None,
        group: None,
        name: "faults[0]".into(),
    };
    Case {
        spec,
        patience,
        ranks,
        rank,
        rule,
    }
}

/// What a job ended with, and whether its fault struck.
fn run(w: &World, c: &Case) -> (Option<crossweave_hal::Verdict>, Vec<String>, bool) {
    let model = gpt2(4, 0.0);
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let board = CheckerState::default();
    let plugin = w.cpu.with_checker(&board);
    let struck = std::sync::atomic::AtomicBool::new(true);
    let one = |rank: u32| -> std::result::Result<(), String> {
        let s = ranked(&c.spec, rank);
        let units = placed(units(&model), &s);
        let null = w.null.open(0).map_err(|e| e.to_string())?;
        let dry = dry_run(&null, &units, s.compute, s.rows.batch, s.rows.seq_len);
        let dry = dry.map_err(|e| e.to_string())?;
        let device = plugin.open(rank).map_err(|e| e.to_string())?;
        let boot = Boot(kv.clone());
        let links = Links {
            timeout: Some(c.patience),
            ..w.links(&boot)
        };
        let mut t =
            set_up(w.devices(&device), units, &s, &dry, links).map_err(|e| e.to_string())?;
        t.init().map_err(|e| e.to_string())?;
        let faults = (c.rank == rank).then(|| Faults::new(rank, vec![c.rule.clone()], || {}));
        if let Some(f) = &faults {
            t.inject(f.clone());
        }
        let tokens: Vec<i32> = (0..s.rows.batch * SEQ)
            .map(|i| (i * 7 % 37) as i32)
            .collect();
        let mut ran = || -> crossweave_engine::Result<()> {
            for _ in 0..STEPS {
                let one = |m: u32| MicroBatch {
                    tokens: &tokens,
                    targets: &tokens,
                    lengths: &[],
                    images: &[],
                    first_sequence: u64::from(m) * s.rows.batch,
                };
                let all: Vec<MicroBatch<'_>> = (0..s.micro_batches).map(one).collect();
                t.step(&all, 1e-3)?;
                t.metrics()?;
            }
            Ok(())
        };
        let ended = ran().map_err(|e| e.to_string());
        if faults.is_some_and(|f| !f.idle().is_empty()) {
            struck.store(false, Relaxed);
        }
        ended
    };
    let one = &one;
    let ends: Vec<_> = std::thread::scope(|t| {
        let all: Vec<_> = (0..c.ranks).map(|r| t.spawn(move || one(r))).collect();
        let ended = |h: std::thread::ScopedJoinHandle<'_, _>| h.join().expect("no panic");
        all.into_iter().map(ended).collect()
    });
    let said = ends.into_iter().filter_map(std::result::Result::err);
    (board.verdict(), said.collect(), struck.load(Relaxed))
}

/// Runs `count` stalls, a few at a time; those that were not named right, and how many ways had more than one link.
fn stalls(first: u64, count: u64) -> (Vec<String>, u64) {
    const AT_ONCE: u64 = 3;
    let w = world();
    let began = Instant::now();
    // One of them, with a stall that never comes.
    let mut clean = case(first, 100 * PATIENCE);
    (clean.rule.step, clean.rank) = (Some(STEPS + 1), 0);
    run(&w, &clean);
    let patience = PATIENCE.max(20 * began.elapsed());
    let (next, left) = (AtomicU64::new(first), AtomicU64::new(count));
    let chains = AtomicU64::new(0);
    let wrong = std::sync::Mutex::new(vec![]);
    std::thread::scope(|s| {
        for _ in 0..AT_ONCE.min(count) {
            s.spawn(|| {
                while left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok() {
                    // A call that a rank does not make in that step is no stall: the next seed.
                    let (seed, c, verdict, said) = loop {
                        let seed = next.fetch_add(1, Relaxed);
                        let c = case(seed, patience);
                        let (verdict, said, struck) = run(&w, &c);
                        if struck {
                            break (seed, c, verdict, said);
                        }
                    };
                    // A stall on purpose ends with the job: the rank may be seen to have left by then.
                    let named = verdict.as_ref().is_some_and(|v| {
                        let first = format!("rank {} ", c.rank);
                        let says = |s: &String| s.contains(&v.sentence) || s.contains("stalled");
                        matches!(v.fault, Fault::Late | Fault::Ended)
                            && v.culprits == [c.rank]
                            && v.sentence.starts_with(&first)
                            && said.iter().all(says)
                    });
                    let sentence = verdict.map(|v| v.sentence).unwrap_or_default();
                    if sentence.contains("waits for nobody") {
                        chains.fetch_add(1, Relaxed);
                    }
                    if !named {
                        let z = c.spec.zero.stage;
                        let pp = c.ranks / c.spec.data_ranks();
                        let mut wrong = wrong.lock().expect("nobody panics here");
                        wrong.push(format!(
                            "seed {seed}: dp {} pp {pp} {z:?}, rank {} at {:?}: {sentence:?}; {said:#?}",
                            c.spec.data_ranks(), c.rank, c.rule.call
                        ));
                    }
                }
            });
        }
    });
    (
        wrong.into_inner().expect("nobody panics here"),
        chains.into_inner(),
    )
}

#[test]
fn a_rank_that_stalls_is_named_and_not_who_waits_for_it() {
    let (mut first, mut count, mut chains) = (1000, 6, 0);
    // Whose timeout ends first is chance: that of the rank beside the one that stalls, or of a rank further off.
    while chains == 0 {
        assert!(first < 1100, "no stall was further than one wait away");
        let (wrong, more) = stalls(first, count);
        assert!(wrong.is_empty(), "{wrong:#?}");
        chains += more;
        (first, count) = (first + 20, 3);
    }
}

#[test]
#[ignore = "minutes: CROSSWEAVE_STALLS=200 CROSSWEAVE_SEED=1"]
fn of_many_stalls_all_but_one_in_two_hundred_are_named() {
    let number = |name: &str, or: u64| {
        let text = std::env::var(name).ok();
        text.map_or(or, |t| t.parse().expect("a number"))
    };
    let (count, seed) = (
        number("CROSSWEAVE_STALLS", 200),
        number("CROSSWEAVE_SEED", 1),
    );
    let (wrong, chains) = stalls(seed, count);
    println!(
        "{count} stalls from seed {seed}: {} named wrong, {chains} by a chain",
        wrong.len()
    );
    assert!(wrong.len() as u64 <= count / 200, "{wrong:#?}");
}
