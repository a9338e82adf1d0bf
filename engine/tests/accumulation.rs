//! Gradients added up in 16 bits: every micro-batch's gradient and every sum are rounded once, to the bit; all stages and kinds of
//! recompute alike; with less memory than in f32.
#![forbid(unsafe_code)]

use crate::common;
use common::*;
use crossweave_engine::optimizers::{Optimizer, ParamGroups, Sgd};
use crossweave_engine::{
    Error, MicroBatch, Precision, RankSpec, Recompute, Rows, StateKind, ZeroSpec, ZeroStage,
    dry_run,
};
use crossweave_hal::DType;
use std::collections::BTreeMap;

/// Two sequences, different for each `which`.
fn ids(which: i32) -> (Vec<i32>, Vec<i32>) {
    let at = |i: i32| (which * 11 + i * i * 5 + i * 3) % 37;
    let n = 2 * SEQ as i32;
    ((0..n).map(at).collect(), (1..=n).map(at).collect())
}

/// The gradients of a step over these micro-batches: what a momentum that begins with it holds.
fn gradients(w: &World, accum: DType, which: &[i32]) -> BTreeMap<String, Vec<f32>> {
    let sgd = Sgd {
        momentum: 0.9,
        dampening: 0.0,
        nesterov: false,
    };
    let s = RankSpec {
        compute: DType::Bf16,
        micro_batches: which.len() as u32,
        rows: Rows::new(2, SEQ),
        clip: 0.0,
        optim: ParamGroups::all(Optimizer::Sgd(sgd), 0.0),
        precision: Precision {
            accum,
            ..Precision::default()
        },
        ..spec(1, 1)
    };
    let all = units(&gpt2(2, 0.0));
    let null = w.null.open(0).unwrap();
    let dry = dry_run(&null, &all, s.compute, s.rows.batch, s.rows.seq_len).unwrap();
    let device = w.cpu.open(0).unwrap();
    let mut t = w.rank(&device, all, &s, &dry, &Nobody).unwrap();
    t.init().unwrap();
    let data: Vec<_> = which.iter().map(|k| ids(*k)).collect();
    let batches: Vec<MicroBatch<'_>> = data
        .iter()
        .map(|(tokens, targets)| MicroBatch {
            tokens,
            targets,
            lengths: &[],
            images: &[],
            first_sequence: 0,
        })
        .collect();
    t.step(&batches, 0.0).unwrap();
    t.metrics().unwrap();
    let read = |name: &str| t.read(name, StateKind::Moment1).unwrap();
    let params = t.params();
    params
        .iter()
        .map(|p| (p.name.to_string(), read(&p.name)))
        .collect()
}

/// To the nearest bf16, halves to even.
fn rounded(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

#[test]
fn each_micro_batch_and_each_sum_is_rounded_once() {
    let w = world();
    // A fourth is exact, so that a micro-batch's part of a step is a fourth of its own step's gradient, to the bit.
    let alone: Vec<_> = (0..4).map(|k| gradients(&w, DType::F32, &[k])).collect();
    let together = gradients(&w, DType::Bf16, &[0, 1, 2, 3]);
    let plain = gradients(&w, DType::F32, &[0, 1, 2, 3]);
    let mut differ = 0;
    for (name, got) in &together {
        for (i, got) in got.iter().enumerate() {
            let part = |k: usize| rounded(alone[k][name][i] / 4.0);
            let wanted = (1..4).fold(part(0), |sum, k| rounded(sum + part(k)));
            assert_eq!(
                got.to_bits(),
                wanted.to_bits(),
                "{name}[{i}]: {got} and {wanted}"
            );
            differ += usize::from(*got != plain[name][i]);
        }
    }
    assert!(differ > 1000, "only {differ} values are rounded at all");
    // One micro-batch is rounded too.
    let one = gradients(&w, DType::Bf16, &[0]);
    for (name, got) in &one {
        let wanted: Vec<f32> = alone[0][name].iter().map(|g| rounded(*g)).collect();
        assert_eq!(*got, wanted, "{name}");
    }
}

#[test]
fn every_stage_adds_up_alike_and_the_sum_takes_half() {
    let w = world();
    for (model, compute) in [(gpt2(2, 0.0), DType::Bf16), (llama(2), DType::F16)] {
        let base = |stage: u32, accum, recompute| RankSpec {
            compute,
            recompute,
            precision: Precision {
                accum,
                ..Precision::default()
            },
            zero: ZeroSpec {
                stage: ZeroStage::from_number(stage).unwrap(),
                ..by_step()
            },
            ..spec(2, 3)
        };
        let zero = train(&w, &model, &base(0, compute, Recompute::None), 3);
        for (stage, recompute) in [
            (1, Recompute::Full),
            (2, Recompute::None),
            (3, Recompute::Selective),
        ] {
            let got = train(&w, &model, &base(stage, compute, recompute), 3);
            assert!(got.bits() == zero.bits(), "stage {stage}: {}", got.plan);
        }
        assert_eq!(zero.ledgers[0].device_allocs_after_step_2, 0);
        // Of many units, each is in f32 for its own backward only.
        let deep = llama(6);
        let of = |accum| train(&w, &deep, &base(2, accum, Recompute::None), 2);
        let (wide, narrow) = (of(DType::F32), of(compute));
        assert!(wide.bits() != narrow.bits());
        let peak = |o: &Outcome| o.ledgers[0].memory.tags["grad"].peak as f64;
        let part = peak(&narrow) / peak(&wide);
        assert!(part < 0.75, "{part} of the memory of f32");
    }
}

#[test]
fn a_type_that_cannot_hold_is_refused() {
    let w = world();
    for (compute, accum) in [(DType::F32, DType::Bf16), (DType::Bf16, DType::F16)] {
        let all = units(&gpt2(1, 0.0));
        let null = w.null.open(0).unwrap();
        let s = RankSpec {
            compute,
            precision: Precision {
                accum,
                ..Precision::default()
            },
            ..spec(1, 1)
        };
        let dry = dry_run(&null, &all, compute, s.rows.batch, s.rows.seq_len).unwrap();
        match w.rank(&null, all, &s, &dry, &Nobody) {
            Err(Error::Invalid(what)) => assert!(what.contains("grad_accum_dtype"), "{what}"),
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("{compute:?} in {accum:?} is taken"),
        }
    }
}
