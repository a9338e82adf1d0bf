//! Optimizers of matrices that ranks have cut: Muon gathers each matrix of which they have parts, orthogonalises it as one rank does and keeps its part;
//! 8-bit moments are of a rank's own elements.

use crate::common::*;
use crate::optimizers::muon;
use crossweave_engine::optimizers::{Adam, GroupRule, Optimizer, ParamGroups};
use crossweave_engine::{RankSpec, Recompute};
use crossweave_hal::DType;
use crossweave_nn::{Lora, ModelSpec, Targets};

const STEPS: u64 = 5;

/// Fused projections, tall and wide matrices, of which 2, 3, 4 and 6 ranks have equal parts.
fn models() -> [ModelSpec; 2] {
    let sizes = [("n_head", 12), ("n_embd", 24), ("n_inner", 60)];
    let gated = [
        ("num_attention_heads", 12),
        ("num_key_value_heads", 12),
        ("head_dim", 4),
        ("intermediate_size", 24),
    ];
    [with(&gpt2(2, 0.0), &sizes), with(&llama(2), &gated)]
}

fn job(dp: u32, optim: &ParamGroups) -> RankSpec {
    RankSpec {
        optim: optim.clone(),
        ..of_length(spec(dp, 1), 12)
    }
}

/// Momentum and its orthogonal factor of cut matrices, in every ZeRO stage, with clipping, and where a group alone has them.
#[test]
fn muon_sees_cut_matrices_whole() {
    let w = world();
    let mut group = muon();
    let own = group.base.optimizer;
    group.base.optimizer = Optimizer::Adam(Adam {
        eps: 1e-5,
        ..Adam::default()
    });
    group.rules = vec![GroupRule {
        patterns: vec!["*mlp*weight".into()],
        optimizer: Some(own),
        ..GroupRule::default()
    }];
    for (k, model) in models().into_iter().enumerate() {
        for (what, optim) in [("all", muon()), ("a group", group.clone())] {
            let alone = train(&w, &model, &job(1, &optim), STEPS);
            let other = train(&w, &model, &job(1, &optim), STEPS - 1);
            let shown = distance(&other, &alone);
            assert!(shown > 2e-3, "a step that is left out is {shown:e} away");
            for (dp, tp) in [(1, 2), (2, 2), (1, 3), (1, 6), (2, 4)] {
                let stage = [0, 1, 2, 3][(dp + tp) as usize % 4];
                let s = cut_over(staged(job(dp, &optim), stage), tp);
                let got = train(&w, &Cut(model.clone(), None, tp), &s, STEPS);
                let far = distance(&got, &alone);
                assert!(
                    far < 1e-3,
                    "{what} of model {k}, dp {dp}, tp {tp}, stage {stage}: {far:e}"
                );
            }
        }
    }
}

/// Stages have the same bits over a cut model too, in 16 bits and with sequence parallelism's sums beside the gathers.
#[test]
fn stages_of_muon_over_a_cut_model_have_the_same_bits() {
    let w = world();
    let [gpt2, _] = models();
    for compute in [DType::F32, DType::Bf16] {
        let runs = [0, 1, 3].map(|stage| {
            let s = RankSpec {
                compute,
                recompute: Recompute::Full,
                ..cut_over(staged(job(2, &muon()), stage), 2)
            };
            train(&w, &ByTokens(Cut(gpt2.clone(), None, 2)), &s, STEPS).bits()
        });
        assert!(runs.iter().all(|r| *r == runs[0]), "{compute:?}");
    }
}

/// The same model with the tokens of its hidden states cut over the ranks that share its layers.
struct ByTokens(Cut);

impl Declares for ByTokens {
    fn declare(&self) -> Vec<crossweave_tensor::UnitDecl> {
        let mut units = self.0.declare();
        let over = crossweave_mesh::Axis::Tp.into();
        units.iter_mut().for_each(|u| u.hidden_over = over);
        units
    }
}

/// Halves of adapters: one is cut, the other is whole on every rank.
#[test]
fn muon_updates_adapters_of_a_cut_model() {
    let w = world();
    let lora = Lora {
        r: 4,
        alpha: 8.0,
        dropout: 0.0,
        rslora: false,
        targets: Targets::Family,
        parameters: vec![],
    };
    for model in models() {
        let alone = train(&w, &(model.clone(), lora.clone()), &job(1, &muon()), STEPS);
        for (dp, tp) in [(1, 2), (2, 3)] {
            let cut = Cut(model.clone(), Some(lora.clone()), tp);
            let got = train(&w, &cut, &cut_over(job(dp, &muon()), tp), STEPS);
            let far = distance(&got, &alone);
            assert!(far < 1e-3, "dp {dp}, tp {tp}: {far:e}");
        }
    }
}

/// A matrix of n elements over t ranks: each sends n (t-1)/t of it in f32, once a step.
#[test]
fn muon_gathers_each_cut_matrix_once_a_step() {
    let w = world();
    let [gpt2, _] = models();
    for tp in [2, 4] {
        let s = cut_over(job(1, &muon()), tp);
        let got = train(&w, &Cut(gpt2.clone(), None, tp), &s, STEPS);
        // Of each layer: queries, keys and values, their output, and both of the MLP.
        let matrices = 2 * (24 * 72 + 24 * 24 + 2 * 24 * 60);
        for l in &got.ledgers {
            let of = l.collectives.iter();
            let of = of.filter(|c| c.tag == "optimizer" && c.kind == "all_gather");
            let sent: u64 = of.map(|c| c.wire_elements).sum();
            let tp = u64::from(tp);
            assert_eq!(sent, STEPS * matrices * (tp - 1) / tp, "over {tp}");
        }
    }
}

/// Blocks of 8-bit moments are of the elements that a rank has, so that a cut model rounds them otherwise, and no further.
#[test]
fn moments_in_8_bits_of_a_cut_model_are_near_those_of_a_whole_one() {
    let w = world();
    let optim = ParamGroups::all(Optimizer::Adam8bit(Adam::default()), 0.1);
    let exact = ParamGroups::all(Optimizer::Adam(Adam::default()), 0.1);
    let model = with(
        &gpt2(2, 0.0),
        &[("n_head", 4), ("n_embd", 48), ("n_inner", 192)],
    );
    let [whole, in_f32] = [&optim, &exact].map(|o| train(&w, &model, &job(1, o), STEPS));
    let rounded = apart(&whole, &in_f32, |_| true).norm;
    assert!(rounded > 0.0);
    for (dp, tp, stage) in [(1, 2, 0), (2, 2, 1), (1, 4, 0), (2, 2, 3)] {
        let s = cut_over(staged(job(dp, &optim), stage), tp);
        let got = train(&w, &Cut(model.clone(), None, tp), &s, STEPS);
        let far = distance(&got, &whole);
        assert!(far < 2e-2, "dp {dp}, tp {tp}: {far:e}");
        let own = apart(&got, &in_f32, |_| true).norm;
        assert!(
            own < 1.5 * rounded,
            "dp {dp}, tp {tp}: {own:e} and {rounded:e}"
        );
    }
}
