//! Every optimizer in a whole training job: the bits of stage 0 at every ZeRO stage, falling loss, frozen parameters left alone, states to
//! the byte, and a resume that goes on where it left.

use crate::common;
use common::*;
use crossweave_engine::optimizers::*;
use crossweave_engine::{Engine, RankSpec, StateKind, ZeroSpec, ZeroStage};
use crossweave_hal::{DType, Tag};
use crossweave_nn::ModelSpec;

fn sgd(momentum: f64, nesterov: bool) -> Optimizer {
    Optimizer::Sgd(Sgd {
        momentum,
        dampening: 0.0,
        nesterov,
    })
}

fn adafactor(beta1: Option<f64>) -> Optimizer {
    Optimizer::Adafactor(Adafactor {
        eps: [1e-30, 1e-3],
        clip_threshold: 1.0,
        decay_rate: -0.8,
        beta1,
        scale_parameter: true,
        relative_step: true,
        warmup_init: false,
    })
}

pub fn muon() -> ParamGroups {
    let muon = Optimizer::Muon(Muon {
        momentum: 0.95,
        nesterov: true,
        ns_steps: 5,
        scale: MuonScale::Spectral,
        extra_scale: 0.2,
    });
    let mut g = ParamGroups::all(muon, 0.1);
    g.fallback = Some(Recipe {
        optimizer: adam(),
        lr_scale: 1.0,
        weight_decay: 0.1,
        ema: None,
    });
    g
}

/// An eps that keeps gradients that are zero but for rounding from becoming whole steps.
fn adam() -> Optimizer {
    Optimizer::Adam(Adam {
        eps: 1e-5,
        ..Default::default()
    })
}

fn lamb() -> Optimizer {
    Optimizer::Lamb(Lamb {
        adam: Adam {
            eps: 1e-5,
            ..Default::default()
        },
        max_coeff: 10.0,
        min_coeff: 0.01,
    })
}

/// Optimizers, and how far ranks may be apart from one rank alone: signs and orthogonal factors magnify roundings.
fn all() -> Vec<(&'static str, ParamGroups, f64)> {
    let one = |o| ParamGroups::all(o, 0.1);
    vec![
        ("adamw", one(adam()), 1e-5),
        ("adam8bit", one(Optimizer::Adam8bit(Adam::default())), 2e-2),
        ("lion", one(Optimizer::Lion { betas: [0.9, 0.99] }), 5e-2),
        ("lamb", one(lamb()), 1e-4),
        ("sgd", fast(one(sgd(0.9, true)), 30.0), 1e-4),
        ("adafactor", one(adafactor(None)), 1e-4),
        ("adafactor with a moment", one(adafactor(Some(0.9))), 1e-4),
        ("muon", muon(), 1e-3),
        ("a mixture", mixture(), 1e-3),
    ]
}

/// A higher rate for what needs one.
fn fast(mut g: ParamGroups, times: f64) -> ParamGroups {
    g.base.lr_scale = times;
    g
}

/// Groups of several kinds in one unit, and frozen parameters among them.
fn mixture() -> ParamGroups {
    let rule = |patterns: &[&str]| GroupRule {
        patterns: patterns.iter().map(|p| p.to_string()).collect(),
        ..Default::default()
    };
    let mut g = ParamGroups::all(adam(), 0.1);
    g.rules = vec![
        GroupRule {
            frozen: true,
            ..rule(&["*wpe*", "*ln_1.bias", "*h.0.attn.c_attn.*"])
        },
        GroupRule {
            optimizer: Some(lamb()),
            lr_scale: Some(0.5),
            ..rule(&["*mlp.c_fc.weight"])
        },
        GroupRule {
            optimizer: Some(adafactor(None)),
            ..rule(&["*mlp.c_proj.weight"])
        },
        GroupRule {
            weight_decay: Some(0.0),
            ..rule(&["*.bias", "*ln*"])
        },
    ];
    g
}

/// Matrices large enough for 8-bit blocks, of sizes nothing divides.
fn model() -> ModelSpec {
    with(&gpt2(2, 0.0), &[("n_embd", 38), ("n_inner", 130)])
}

fn job(ranks: u32, stage: u32, optim: &ParamGroups, compute: DType) -> RankSpec {
    RankSpec {
        optim: optim.clone(),
        compute,
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..small_buckets()
        },
        ..spec(ranks, 1)
    }
}

#[test]
fn stages_have_the_same_bits_and_the_loss_falls() {
    let w = world();
    for (k, (name, optim, near)) in all().into_iter().enumerate() {
        let alone = train(&w, &model(), &job(1, 0, &optim, DType::F32), 8);
        let losses: Vec<f64> = alone.metrics.iter().map(|m| m.loss).collect();
        assert!(losses[7] < losses[0] - 0.02, "{name}: {losses:?}");
        for ranks in [2, 3, 4] {
            let zero = train(&w, &model(), &job(ranks, 0, &optim, DType::F32), 8);
            let last = zero.metrics[7].loss;
            assert!(
                (last - losses[7]).abs() < near * losses[7],
                "{name} on {ranks}: {last} {losses:?}"
            );
            // Stage 3 on all numbers of ranks, 1 and 2 in turns.
            for stage in (1..=3).filter(|&s| s == 3 || turn(s as usize + ranks as usize + k)) {
                let got = train(&w, &model(), &job(ranks, stage, &optim, DType::F32), 8);
                assert!(
                    got.bits() == zero.bits(),
                    "{name}: stage {stage} on {ranks} ranks"
                );
            }
        }
    }
}

#[test]
fn sixteen_bit_parameters_have_the_same_bits_at_every_stage() {
    let w = world();
    for (name, optim, _) in all() {
        let zero = train(&w, &model(), &job(2, 0, &optim, DType::Bf16), 4);
        for stage in [1, 3] {
            let got = train(&w, &model(), &job(2, stage, &optim, DType::Bf16), 4);
            assert!(got.bits() == zero.bits(), "{name}: stage {stage} in bf16");
        }
    }
}

#[test]
fn frozen_parameters_stay_and_keep_nothing() {
    let w = world();
    let start = train(&w, &model(), &job(1, 0, &mixture(), DType::F32), 0);
    let end = train(&w, &model(), &job(2, 3, &mixture(), DType::F32), 4);
    let (mut stayed, mut moved) = (0, 0);
    for ((name, kind), values) in &end.state {
        let frozen = ["wpe", "ln_1.bias", "h.0.attn.c_attn"]
            .iter()
            .any(|f| name.contains(f));
        if *kind == "value" {
            assert_eq!(
                *values == start.state[&(name.clone(), *kind)],
                frozen,
                "{name}"
            );
            (stayed, moved) = (stayed + usize::from(frozen), moved + usize::from(!frozen));
        } else if frozen {
            assert!(values.is_empty(), "{name} keeps {kind}");
        }
    }
    assert!(stayed == 5 && moved > 10, "{stayed} stayed, {moved} moved");
}

#[test]
fn moments_take_what_the_optimizer_says_to_the_byte() {
    let w = world();
    let shapes: Vec<(String, Vec<u64>)> = units(&model())
        .iter()
        .flat_map(|u| {
            u.params
                .iter()
                .map(|p| (p.name.clone(), p.shape.dims().to_vec()))
        })
        .collect();
    for (name, optim, _) in all() {
        let params: Vec<Assigned<'_>> = shapes
            .iter()
            .map(|(name, dims)| Assigned {
                name,
                dims,
                no_decay: dims.len() < 2,
                frozen: false,
            })
            .collect();
        let recipes = optim.assign(&params).unwrap();
        let bytes = |(r, (_, dims)): (&Option<Recipe>, &(String, Vec<u64>))| -> u64 {
            let states = r.map_or(vec![], |r| r.optimizer.states(dims));
            states.iter().map(State::bytes).sum()
        };
        let want: u64 = recipes.iter().zip(&shapes).map(bytes).sum();
        let got = train(&w, &model(), &job(1, 0, &optim, DType::F32), 1);
        let tags = &got.ledgers[0].memory.tags;
        let moments = tags.get(Tag::Moment.name()).map_or(0, |t| t.now);
        assert_eq!(moments, want, "{name}");
    }
}

/// All of an engine's state by shards, as checkpoints hold it.
fn save(t: &Engine) -> Vec<(StateKind, String, u64, Vec<u8>)> {
    let mut out = vec![];
    for s in t.shards() {
        let mut bytes = vec![];
        t.read_shard::<crossweave_engine::Error>(&s, 1000, |b| {
            bytes.extend_from_slice(b);
            Ok(())
        })
        .unwrap();
        for p in &s.parts {
            let n = p.of_param.end - p.of_param.start;
            let here = bytes[4 * p.at as usize..4 * (p.at + n) as usize].to_vec();
            out.push((s.kind, p.param.clone(), p.of_param.start, here));
        }
    }
    out
}

#[test]
fn a_resumed_run_goes_on_with_the_same_bits() {
    use std::sync::Mutex;
    let w = world();
    for (name, optim, _) in all() {
        let spec = job(1, 0, &optim, DType::F32);
        let saved = Mutex::new(vec![]);
        let whole = train_with(&w, &model(), &spec, 4, |_| {});
        let first = train_over(
            &w,
            &model(),
            &spec,
            0..2,
            |_| {},
            |t| *saved.lock().unwrap() = save(t),
        );
        let saved = saved.into_inner().unwrap();
        let rest = train_over(
            &w,
            &model(),
            &spec,
            2..4,
            |t| {
                assert_eq!(
                    t.wanted().len(),
                    saved.len(),
                    "{name}: everything saved is wanted"
                );
                for (kind, param, from, bytes) in &saved {
                    t.load_part(param, *kind, *from, bytes).unwrap();
                }
                t.publish().unwrap();
                t.set_step(2);
            },
            |_| {},
        );
        let losses = |o: &Outcome| {
            o.metrics
                .iter()
                .map(|m| m.loss.to_bits())
                .collect::<Vec<_>>()
        };
        let joined = [losses(&first), losses(&rest)].concat();
        assert_eq!(losses(&whole), joined, "{name}");
        assert!(
            whole.state == rest.state,
            "{name}: states differ after a resume"
        );
    }
}
