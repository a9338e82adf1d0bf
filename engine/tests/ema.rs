//! The moving average of the weights: PyTorch's rule in f64 from the very weights, the same bits on every layout whose training has them, and
//! an exchange that can be undone to the bit.

use crate::common::{
    Cut, World, alone, cut_over, even, gpt2, job_ranks, llama, offload, one_step, spec, staged,
    train, train_with, units, world,
};
use crossweave_engine::{
    Engine, MicroBatch, OffloadDevice, PipelineOrder, PipelineSpec, RankSpec, StateKind,
};
use crossweave_hal::DType;
use std::path::Path;

const DECAY: f64 = 0.9;

fn averaged(s: RankSpec) -> RankSpec {
    let mut s = s;
    s.optim.base.ema = Some(DECAY);
    s
}

fn hosted(s: RankSpec, folder: &Path, tier: OffloadDevice) -> RankSpec {
    RankSpec {
        offload: Some(offload(folder, tier)),
        ..s
    }
}

fn read(t: &Engine, kind: StateKind) -> Vec<Vec<f32>> {
    let each = t.params();
    each.iter()
        .map(|p| t.read(&p.name, kind).unwrap())
        .collect()
}

/// `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn`: the first call copies, each later one is `lerp(ema, value, 1 - decay)`.
#[test]
fn fifty_steps_are_those_of_pytorchs_rule_in_f64() {
    let w = world();
    let dir = tempfile::tempdir().unwrap();
    for (model, s) in [
        (gpt2(2, 0.0), spec(1, 1)),
        (
            llama(2),
            hosted(spec(1, 1), dir.path(), OffloadDevice::Host),
        ),
    ] {
        let s = averaged(s);
        let mut t = alone(&w, &model, &s);
        let mut want: Vec<Vec<f64>> = vec![];
        for step in 0..50 {
            one_step(&mut t, &s, step).unwrap();
            t.metrics().unwrap();
            let values = read(&t, StateKind::Value);
            let values = values
                .iter()
                .map(|p| p.iter().map(|v| f64::from(*v)).collect());
            let values: Vec<Vec<f64>> = values.collect();
            if want.is_empty() {
                want = values;
                continue;
            }
            for (e, v) in want.iter_mut().flatten().zip(values.iter().flatten()) {
                *e += (1.0 - DECAY) * (v - *e);
            }
        }
        let got = read(&t, StateKind::Ema);
        let values = read(&t, StateKind::Value);
        assert_eq!(got.len(), want.len());
        let mut apart = 0f64;
        for ((g, e), v) in got
            .iter()
            .flatten()
            .zip(want.iter().flatten())
            .zip(values.iter().flatten())
        {
            assert!((f64::from(*g) - e).abs() < 1e-6, "{g}, in f64 {e}");
            apart = apart.max(f64::from((g - v).abs()));
        }
        assert!(
            apart > 1e-3,
            "the average is the weights themselves: {apart}"
        );
    }
}

fn bits(w: &World, model: &Cut, s: &RankSpec) -> (Vec<u64>, Vec<f32>) {
    let out = train(w, model, s, 5);
    let emas = out.state.iter().filter(|((_, kind), _)| *kind == "ema");
    let emas: Vec<f32> = emas.flat_map(|(_, values)| values.clone()).collect();
    (out.bits(), emas)
}

#[test]
fn every_layout_keeps_the_same_bits() {
    let w = world();
    let dir = tempfile::tempdir().unwrap();
    for dtype in [DType::F32, DType::Bf16] {
        let typed = |s: RankSpec| RankSpec {
            compute: dtype,
            ..averaged(s)
        };
        for model in [gpt2(2, 0.0), llama(2)] {
            let whole = Cut(model.clone(), None, 1);
            let (base, emas) = bits(&w, &whole, &typed(spec(2, 2)));
            assert!(emas.iter().any(|e| *e != 0.0));
            let mut jobs: Vec<RankSpec> = (1..=3).map(|stage| staged(spec(2, 2), stage)).collect();
            // A sum of gradients that leaves in 16 bits is another training.
            for (stage, tier) in [(1, OffloadDevice::Host), (3, OffloadDevice::Nvme)] {
                let s = hosted(staged(spec(2, 2), stage), dir.path(), tier);
                jobs.push(s.clone());
                let mut part = s;
                part.offload
                    .as_mut()
                    .unwrap()
                    .optimizer
                    .as_mut()
                    .unwrap()
                    .ratio = 0.4;
                jobs.push(part);
            }
            for s in jobs {
                let s = typed(s);
                let (got, _) = bits(&w, &whole, &s);
                assert!(
                    got == base,
                    "{dtype:?}, {:?}, {:?}",
                    s.zero.stage,
                    s.offload.is_some()
                );
            }
        }
    }
    // Over ranks of a layer and over stages training itself is near, and so is the average.
    let model = even(llama(3));
    let (_, base) = bits(&w, &Cut(model.clone(), None, 1), &averaged(spec(1, 2)));
    let n = units(&model).len() as u32;
    let stages = RankSpec {
        pipeline: Some(PipelineSpec::even(n, 2, PipelineOrder::OneFOneB)),
        ..averaged(spec(1, 2))
    };
    let cut = cut_over(averaged(spec(1, 2)), 2);
    for (tp, s) in [(1, stages), (2, cut)] {
        let (_, got) = bits(&w, &Cut(model.clone(), None, tp), &s);
        assert_eq!(got.len(), base.len());
        for (a, b) in got.iter().zip(&base) {
            assert!(
                (a - b).abs() < 1e-5,
                "{} ranks: {a}, on one {b}",
                job_ranks(&s)
            );
        }
    }
}

/// Weights that are exchanged for their average give its loss, and come back to the bit.
#[test]
fn exchanged_weights_are_run_and_come_back_to_the_bit() {
    let w = world();
    let dir = tempfile::tempdir().unwrap();
    let jobs = [
        spec(1, 1),
        staged(spec(1, 1), 3),
        hosted(spec(1, 1), dir.path(), OffloadDevice::Host),
        hosted(staged(spec(1, 1), 3), dir.path(), OffloadDevice::Nvme),
    ];
    for dtype in [DType::F32, DType::Bf16] {
        let mut losses = vec![];
        for s in jobs.clone() {
            let s = RankSpec {
                compute: dtype,
                ..averaged(s)
            };
            let model = llama(2);
            let mut t = alone(&w, &model, &s);
            assert!(t.has_ema());
            let n = (s.rows.batch * s.rows.seq_len) as usize;
            let ids: Vec<i32> = (0..n as i32).map(|i| i * 7 % 37).collect();
            let batch = MicroBatch {
                tokens: &ids,
                targets: &ids,
                lengths: &[],
                images: &[],
                first_sequence: 0,
            };
            for step in 0..4 {
                one_step(&mut t, &s, step).unwrap();
                t.metrics().unwrap();
            }
            let before = (read(&t, StateKind::Value), read(&t, StateKind::Ema));
            let plain = t.evaluate(&batch).unwrap();
            t.exchange_ema().unwrap();
            let swapped = (read(&t, StateKind::Ema), read(&t, StateKind::Value));
            assert!(swapped == before);
            let ema = t.evaluate(&batch).unwrap();
            t.exchange_ema().unwrap();
            assert!((read(&t, StateKind::Value), read(&t, StateKind::Ema)) == before);
            assert_eq!(t.evaluate(&batch).unwrap(), plain);
            assert!((plain - ema).abs() > 1e-4, "{plain} and {ema}");
            // Training goes on as if nothing had been exchanged.
            one_step(&mut t, &s, 4).unwrap();
            losses.push((plain, ema, t.metrics().unwrap().unwrap().loss));
        }
        assert!(
            losses.iter().all(|l| *l == losses[0]),
            "{dtype:?}: {losses:?}"
        );
    }
    let mut plain = alone(&w, &llama(1), &spec(1, 1));
    assert!(!plain.has_ema());
    plain.exchange_ema().unwrap();
}

/// Training itself does not know of the average.
#[test]
fn an_average_changes_no_bit_of_the_training() {
    let w = world();
    let model = gpt2(2, 0.1);
    let with = train_with(&w, &model, &averaged(spec(2, 1)), 4, |_| {});
    let without = train(&w, &model, &spec(2, 1), 4);
    assert_eq!(with.metrics, without.metrics);
    for ((name, kind), values) in &without.state {
        if *kind != "ema" {
            assert!(
                with.state[&(name.clone(), *kind)] == *values,
                "{name} {kind}"
            );
        }
    }
}
