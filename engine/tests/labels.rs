//! Targets that do not count: the loss is the mean over those that do, of all ranks and micro-batches together, and so is its gradient.

use crate::common;
use common::{
    Boot, GLOBAL, World, distance, dp_place, gpt2, job_ranks, llama, ranked, spec, train, world,
};
use crossweave_engine::optimizers::{Optimizer, ParamGroups, Sgd};
use crossweave_engine::{
    Engine, LossScaler, MicroBatch, PipelineOrder, PipelineSpec, Precision, RankSpec, Recompute,
    Rows, ScaleRule, StateKind, ZeroSpec, ZeroStage, dry_run,
};
use crossweave_hal::LocalKv;
use crossweave_tensor::{Block, Builder, Cx, Flow, Init, Param, Result, UnitDecl};
use std::sync::Arc;

const V: usize = 11;
const D: usize = 6;
const T: usize = 5;
const ROWS: usize = 12;
const LR: f64 = 0.5;

/// A table of vectors, and a matrix that makes logits of them: small enough to be differentiated by hand.
struct Embed(Param);
impl Block for Embed {
    fn forward(&self, cx: &mut Cx<'_>, _: Flow) -> Result<Flow> {
        Ok(Flow(vec![cx.embedding(self.0, None)?]))
    }
}

struct Head(Param);
impl Block for Head {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let logits = cx.linear(flow.0[0], self.0, None)?;
        Ok(Flow(vec![cx.cross_entropy(logits)?]))
    }
}

fn units() -> Vec<UnitDecl> {
    let mut b = Builder::default();
    let (v, d) = (V as u64, D as u64);
    b.unit("embed", |u| {
        Embed(u.param("weight", &[v, d], Init::Normal(0.5)))
    });
    b.unit("head", |u| {
        Head(u.param("weight", &[v, d], Init::Normal(0.5)))
    });
    b.finish()
}

/// Tokens and targets of a row of a step. Rows differ much in how many targets count, and of some none does.
fn row(step: usize, row: usize) -> (Vec<i32>, Vec<i32>) {
    let at = |i: usize| ((step * 31 + row * 7 + i * i * 5 + i) % V) as i32;
    let counts = |i: usize| match (row + step) % 4 {
        0 => false,
        1 => i == 2,
        2 => true,
        _ => i.is_multiple_of(2),
    };
    let target = |i: usize| if counts(i) { at(i + 1) } else { -100 };
    ((0..T).map(at).collect(), (0..T).map(target).collect())
}

/// Losses of training by plain descent in f64: the mean over the targets that count, as PyTorch's cross entropy takes it of one batch.
fn reference(values: &[Vec<f64>; 2], steps: usize) -> (Vec<f64>, [Vec<f64>; 2]) {
    let [mut table, mut head] = values.clone();
    let mut losses = vec![];
    for step in 0..steps {
        let (mut d_table, mut d_head) = (vec![0.0; V * D], vec![0.0; V * D]);
        let (mut loss, mut counted) = (0.0, 0.0);
        for r in 0..ROWS {
            let (tokens, targets) = row(step, r);
            for (t, y) in tokens.iter().zip(&targets).filter(|(_, y)| **y != -100) {
                let (t, y) = (*t as usize, *y as usize);
                let h = &table[t * D..(t + 1) * D];
                let logit = |v: usize| -> f64 { (0..D).map(|k| head[v * D + k] * h[k]).sum() };
                let logits: Vec<f64> = (0..V).map(logit).collect();
                let sum: f64 = logits.iter().map(|l| l.exp()).sum();
                loss += sum.ln() - logits[y];
                counted += 1.0;
                for v in 0..V {
                    let d = logits[v].exp() / sum - f64::from(u8::from(v == y));
                    for k in 0..D {
                        d_head[v * D + k] += d * h[k];
                        d_table[t * D + k] += d * head[v * D + k];
                    }
                }
            }
        }
        losses.push(loss / counted);
        for (x, d) in table
            .iter_mut()
            .zip(&d_table)
            .chain(head.iter_mut().zip(&d_head))
        {
            *x -= LR * d / counted;
        }
    }
    (losses, [table, head])
}

fn job(world: u32, micro_batches: u32) -> RankSpec {
    RankSpec {
        seed: 3,
        micro_batches,
        rows: Rows {
            labelled: true,
            ..Rows::new(ROWS as u64 / u64::from(world * micro_batches), T as u64)
        },
        optim: ParamGroups::all(
            Optimizer::Sgd(Sgd {
                momentum: 0.0,
                dampening: 0.0,
                nesterov: false,
            }),
            0.0,
        ),
        ..RankSpec::new(dp_place(world))
    }
}

/// Losses of the engine, and the values before the first step and behind the last.
#[allow(clippy::type_complexity)]
fn engine(w: &World, s: &RankSpec, steps: usize) -> (Vec<f64>, [Vec<f64>; 2], [Vec<f64>; 2]) {
    let kv = Arc::new(LocalKv::default());
    let rank = |rank: u32| {
        let s = ranked(s, rank);
        let (null, device) = (w.null.open(0).unwrap(), w.cpu.open(rank).unwrap());
        let dry = dry_run(&null, &units(), s.compute, s.rows.batch, s.rows.seq_len).unwrap();
        let mut t = w
            .rank(&device, units(), &s, &dry, &Boot(kv.clone()))
            .unwrap();
        t.init().unwrap();
        let values = |t: &mut Engine| -> [Vec<f64>; 2] {
            let names: Vec<_> = t.params().iter().map(|p| p.name.clone()).collect();
            let read = |i: usize| -> Vec<f64> {
                let all = t.read(&names[i], StateKind::Value).unwrap();
                all.into_iter().map(f64::from).collect()
            };
            let all = match rank {
                0 => [read(0), read(1)],
                _ => [vec![], vec![]],
            };
            match rank {
                0 => t.done_reading().unwrap(),
                _ => t.serve_reads().unwrap(),
            }
            all
        };
        let before = values(&mut t);
        let mut losses = vec![];
        for step in 0..steps {
            let own = s.own_replicas();
            let each: Vec<(Vec<i32>, Vec<i32>)> = (own.start * s.micro_batches
                ..own.end * s.micro_batches)
                .map(|m| {
                    let first = m as usize * s.rows.batch as usize;
                    let rows = (first..first + s.rows.batch as usize).map(|r| row(step, r));
                    let (a, b): (Vec<_>, Vec<_>) = rows.unzip();
                    (a.concat(), b.concat())
                })
                .collect();
            let batches: Vec<MicroBatch<'_>> = each
                .iter()
                .map(|(tokens, targets)| MicroBatch {
                    tokens,
                    targets,
                    lengths: &[],
                    images: &[],
                    first_sequence: 0,
                })
                .collect();
            if job_ranks(&s) > 1 {
                let rows = (0..ROWS).flat_map(|r| row(step, r).1);
                let counted = rows.filter(|y| *y != -100).count() as u64;
                t.count_targets(counted, (ROWS * T) as u64).unwrap();
            }
            t.step(&batches, LR).unwrap();
            losses.extend(t.metrics().unwrap().map(|m| m.loss));
        }
        let after = values(&mut t);
        (losses, before, after)
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let all: Vec<_> = (0..job_ranks(s))
            .map(|r| scope.spawn(move || rank(r)))
            .collect();
        let mut all: Vec<_> = all.into_iter().map(|r| r.join().unwrap()).collect();
        assert!(
            all.iter().all(|a| a.0 == all[0].0),
            "ranks read other losses"
        );
        all.swap_remove(0)
    })
}

#[test]
fn the_mean_is_over_what_counts_on_any_layout() {
    let w = world();
    const STEPS: usize = 20;
    let mut jobs: Vec<RankSpec> = [(1, 1), (1, 4), (2, 1), (2, 3), (3, 2), (4, 3)]
        .map(|(n, m)| job(n, m))
        .into();
    for stage in [ZeroStage::One, ZeroStage::Two, ZeroStage::Three] {
        let zero = ZeroSpec {
            stage,
            ..common::by_step()
        };
        jobs.push(RankSpec { zero, ..job(2, 2) });
    }
    let mut shards = job(2, 3);
    (shards.canonical, shards.rows.batch) = (Some(4), 1);
    jobs.push(shards);
    jobs.push(RankSpec {
        pipeline: Some(PipelineSpec::even(2, 2, PipelineOrder::OneFOneB)),
        ..job(2, 3)
    });
    jobs.push(RankSpec {
        precision: Precision {
            scaler: Some(LossScaler::new(ScaleRule::Static, 256.0, 1, 1, 1.0)),
            predivide: Some(2.0),
            ..Precision::default()
        },
        ..job(4, 1)
    });
    jobs.push(RankSpec {
        recompute: Recompute::Full,
        ..job(2, 2)
    });
    for s in jobs {
        let what = format!(
            "{} ranks, {} micro-batches, {:?}, canonical {:?}, stages {}",
            s.data_ranks(),
            s.micro_batches,
            s.zero.stage,
            s.canonical,
            s.pipeline.is_some()
        );
        let (losses, before, after) = engine(&w, &s, STEPS);
        let (wanted, values) = reference(&before, STEPS);
        assert_eq!(losses.len(), STEPS);
        for (step, (a, b)) in losses.iter().zip(&wanted).enumerate() {
            assert!(
                (a - b).abs() < 1e-5 * b,
                "{what}, step {step}: {a}, in f64 {b}"
            );
        }
        for (a, b) in after.iter().flatten().zip(values.iter().flatten()) {
            assert!((a - b).abs() < 1e-5, "{what}: {a}, in f64 {b}");
        }
        assert!(wanted[STEPS - 1] < wanted[0]);
    }
}

/// With a count of all targets the bits are those of a run without labels.
#[test]
fn where_all_count_no_bit_changes() {
    let w = world();
    for model in [gpt2(2, 0.1), llama(2)] {
        let plain = train(&w, &model, &spec(2, 2), 4);
        let counted = common::train_with_counts(&w, &model, &spec(2, 2), 4, |_, _| true);
        assert_eq!(plain.bits(), counted.bits());
    }
}

#[test]
fn models_train_alike_on_any_ranks_and_stages() {
    let w = world();
    let counts = |sequence: u64, i: u64| (sequence * 5 + i) % 7 < sequence % 4;
    for model in [gpt2(3, 0.0), llama(3)] {
        let run = |s: &RankSpec| common::train_with_counts(&w, &model, s, 4, counts);
        let one = run(&spec(1, 1));
        assert_ne!(one.metrics, train(&w, &model, &spec(1, 1), 4).metrics);
        let stages = PipelineSpec::even(5, 2, PipelineOrder::OneFOneB);
        let pipe = RankSpec {
            pipeline: Some(stages),
            ..spec(2, 3)
        };
        for s in [spec(1, 4), spec(2, 3), spec(4, 2), pipe] {
            let off = distance(&run(&s), &one);
            assert!(
                off < 2e-4,
                "{} x {}: {off}",
                s.data_ranks(),
                s.micro_batches
            );
        }
    }
}

#[test]
fn counts_that_cannot_be_are_refused() {
    let w = world();
    let mut s = spec(1, 1);
    s.rows.labelled = true;
    let mut t = common::alone(&w, &gpt2(1, 0.0), &s);
    for (counted, all) in [(0, 9), (10, 9)] {
        let e = t.count_targets(counted, all).unwrap_err().to_string();
        assert!(e.contains(&format!("{counted} of {all}")), "{e}");
    }
    let n = (GLOBAL * common::SEQ) as usize;
    let (tokens, targets) = (vec![1; n], vec![-100; n]);
    let silent = MicroBatch {
        tokens: &tokens,
        targets: &targets,
        lengths: &[],
        images: &[],
        first_sequence: 0,
    };
    let e = t.step(&[silent], 0.1).unwrap_err().to_string();
    assert!(e.contains(&format!("0 of {n}")), "{e}");
}
