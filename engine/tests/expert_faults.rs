//! Faults that others have had with experts, a test for each thread of theirs that no test elsewhere holds. Elsewhere are:
//!
//! | thread | test |
//! |---|---|
//! | deepspeedai/DeepSpeed#5618: gradients of experts as many times too large as ranks have others | `experts_over_ranks::gradients_are_those_of_experts_on_each_rank` |
//! | NVIDIA/Megatron-LM#1836, NVIDIA/Megatron-LM#4851, NVIDIA-NeMo/Automodel#3680, NVIDIA-NeMo/Automodel#2995: ranks and experts without a token, whose weights decay all the same | `experts_over_ranks::ranks_to_whose_experts_no_token_goes_take_part`, `mixtures::experts_without_a_token_take_part` |
//! | NVIDIA-NeMo/Automodel#3359: losses of routers times the number of micro-batches | `mixtures::losses_of_routers_are_the_same_however_a_batch_is_divided` |
//! | deepspeedai/DeepSpeed#8147: moments of experts that another number of ranks goes on with | `experts_over_ranks::deepspeed_8147_moments_of_experts_go_where_their_experts_go` of whole runs |
//! | huggingface/transformers#48205: what stands behind the last row of the last group | the kit's cases of `grouped_matmul` |
//! | huggingface/transformers#48687: gradients of routers for slots that nobody was sent to | `capacity::tokens_that_lose_all_their_experts_have_no_gradient` of the tape |

use crate::boxes::{Embed, ranks, start};
use crate::common;
use crate::experts_beside::{Mesh, TOKENS, laid};
use crate::experts_over_ranks::{Spread, over, with_experts};
use common::*;
use crossweave_engine::{Engine, MicroBatch, RankSpec, StateKind};
use crossweave_hal::abi::op;
use crossweave_hal::{DType, LocalKv};
use crossweave_mesh::Axis;
use crossweave_nn::ModelSpec;
use crossweave_tensor::{
    Block, Builder, Capacity, Cx, Env, Flow, Function, Grouped, Init, Param, Pieces, Priority,
    Result, Scope, Spmd, Tensor, Unit, UnitDecl, Var,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Width of hidden states and of what an expert makes of them.
const W: u64 = 4;

/// The sum of all elements times a factor, a mean over tokens.
struct Sum(f64);

impl Sum {
    fn scale(&self, env: &Env<'_>, t: &Tensor, tokens: u64) -> Result<()> {
        let d = op::ScaleDyn {
            scale: self.0 / tokens as f64,
            ..Default::default()
        };
        let none = op::NoParams::default();
        let o = [None, Some(t)];
        env.run
            .launch(op::MULTI_SCALE, &o, none.as_bytes(), d.as_bytes())
    }
}

impl Function for Sum {
    fn forward(&mut self, env: &Env<'_>, ins: &[&Tensor]) -> Result<Tensor> {
        let x = ins[0].rows();
        let y = env.run.empty([1, 1], DType::F32)?;
        let p = op::ReduceParams {
            kind: op::reduce::SUM,
            axes: 3,
            ..Default::default()
        };
        env.run
            .launch(op::REDUCE, &[Some(&y), Some(&x)], p.as_bytes(), &[])?;
        self.scale(env, &y, x.shape().rows())?;
        Ok(y.view([1]))
    }

    fn backward(
        &self,
        env: &Env<'_>,
        ins: &[&Tensor],
        dout: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let x = ins[0].rows();
        let dx = env.run.empty(*x.shape(), DType::F32)?;
        let each = dout.strided(*x.shape(), &[0, 0], 0);
        let none = op::NoParams::default();
        env.run.launch(
            op::COPY_STRIDED,
            &[Some(&dx), Some(&each)],
            none.as_bytes(),
            &[],
        )?;
        self.scale(env, &dx, x.shape().rows())?;
        Ok(vec![Some(dx.view(*ins[0].shape()))])
    }

    fn spmd(&self, ins: &[Spmd]) -> std::result::Result<Spmd, String> {
        Ok(ins[0])
    }
}

/// Holds the stacks of experts.
struct Holds;

impl Block for Holds {
    fn forward(&self, _: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        Ok(flow)
    }
}

/// Both experts of every token, and as the loss the sum of what they make of it.
struct Top {
    router: Param,
    /// Ones, and what is trained.
    stacks: [Param; 2],
}

impl Block for Top {
    fn forward(&self, cx: &mut Cx<'_>, flow: Flow) -> Result<Flow> {
        let x = flow.0[0];
        let scores = cx.router_scores(x, self.router)?;
        let probabilities = cx.softmax(scores)?;
        let room = Capacity {
            over: Scope::Sequence,
            factor: 1.0,
            least: 0,
            first: Priority::Position,
            renormalizes: false,
        };
        let (gates, routing) = cx.choose_within(probabilities, (2, true), &room)?;
        let rows = cx.dispatch(x, &routing)?;
        let both = |cx: &mut Cx<'_>, rows: Var, by: &Grouped| {
            let sums = cx.expert_linear(rows, self.stacks[0], by)?;
            cx.expert_linear(sums, self.stacks[1], by)
        };
        let made = match cx.env.groups.size(Axis::Ep) {
            1 => both(cx, rows, &routing.grouped())?,
            _ => {
                let ways = crossweave_tensor::Spread::of(cx, &routing, 1.0)?;
                let rows = ways.to_experts(cx, rows)?;
                let made = both(cx, rows, &ways.grouped())?;
                ways.from_experts(cx, made, x)?
            }
        };
        let y = cx.combine(made, gates, &routing, x)?;
        // Of expert 0, which has 2.2 times the gate of expert 1, the gradient has a norm of 10, of the other one of 4.5.
        let factor = 1.25f64.sqrt() * (1.0 + 5f64.sqrt()) / W as f64;
        Ok(Flow(vec![cx.apply(Sum(factor), &[y])?]))
    }
}

/// A table of ones, and two experts whose weights are zeros, so that theirs are the only gradients.
struct Two(u32);

impl Declares for Two {
    fn declare(&self) -> Vec<UnitDecl> {
        let mut b = Builder::default();
        b.unit("embed", |u| Embed(u.param("weight", &[37, W], Init::Ones)));
        b.unit("experts", |u: &mut Unit<'_>| {
            let ones = u.param("ones", &[2, W, W], Init::Ones);
            let stack = u.param("stack", &[2, W, W], Init::Zeros);
            for (p, dim) in [(ones, 1), (stack, 2)].into_iter().filter(|_| self.0 > 1) {
                u.split(p, Axis::Ep, 0, Pieces::Each);
                u.split(p, Axis::Etp, dim, Pieces::One);
            }
            u.lends();
            Holds
        });
        b.unit("top", |u: &mut Unit<'_>| Top {
            router: u.param("router", &[2, W], Init::Zeros),
            stacks: ["experts.ones", "experts.stack"].map(|p| u.borrow(p).unwrap()),
        });
        b.finish()
    }
}

/// Norms of 10 and 4.47 on two ranks are 10.954 together: not 7.236, their mean, which deepspeedai/DeepSpeed#8475 has clipped by, and not that of the experts
/// of one rank (NVIDIA/Megatron-LM#5916).
#[test]
fn deepspeed_8475_the_norm_of_experts_on_two_ranks_is_the_root_of_120() {
    let w = world();
    // The first expert's gate is the root of 5 times the second's.
    let router = |t: &mut Engine| {
        let mut values = vec![0.0; 2 * W as usize];
        values[0] = 5f32.sqrt().ln();
        t.load("top.router", StateKind::Value, 0, &values).unwrap();
        t.publish().unwrap();
    };
    for (dp, ep) in [(1, 1), (2, 1), (2, 2), (4, 2)] {
        for stage in 0..=3 {
            let s = RankSpec {
                clip: 1.0,
                ..sgd(staged(spec(dp, 1), stage))
            };
            let s = if ep == 1 { s } else { over(&s, ep) };
            let got = train_with(&w, &Two(ep), &s, 1, router);
            let (norm, what) = (
                got.metrics[0].grad_norm,
                format!("dp {dp}, ep {ep}, stage {stage}"),
            );
            // Gates are rounded: the norm by some parts in a million.
            assert!((norm - 120f64.sqrt()).abs() < 5e-5, "{what}: {norm}");
            let moved = &got.state[&("experts.stack".to_string(), "value")];
            for (i, v) in moved.iter().enumerate() {
                // The step's rate, and elements of gradients of 2.5 and 1.118.
                let element = if i < 16 { 2.5 } else { 1.25f64.sqrt() };
                let want = -3e-3 * element / 120f64.sqrt();
                assert!(
                    (f64::from(*v) - want).abs() < 1e-7,
                    "{what}, {i}: {v} {want}"
                );
            }
        }
    }
}

/// Two layers of llama, the first of which has experts, with these keys beside theirs.
fn first_layer(keys: Value) -> ModelSpec {
    let mut moe = json!({"experts": "8,0", "top_k": 2, "width": 6, "normalize": true, "aux_loss_coef": 0.1,
        "aux_loss_scope": "sequence", "z_loss_coef": 0.01});
    let all = moe.as_object_mut().unwrap();
    all.extend(keys.as_object().unwrap().clone());
    // A layer without experts that two ranks can cut.
    with_experts(&with(&llama(2), &[("intermediate_size", 28)]), moe)
}

/// A balance of slots that are all filled up is 1 whatever was chosen: it is judged by the choices (NVIDIA/Megatron-LM#1617).
#[test]
fn megatron_lm_1617_slots_that_are_filled_up_are_not_choices() {
    let w = world();
    let figures = |keys: Value| {
        let got = train(&w, &first_layer(keys), &spec(2, 2), 1);
        got.metrics[0].experts.unwrap()
    };
    let free = figures(json!({}));
    assert!(free.aux_loss > 1.001, "{free:?}");
    for factor in [0.4, 1.0, 4.0] {
        let mut limited = figures(json!({"capacity_factor": factor}));
        assert_eq!(limited.drops > 0.0, factor < 4.0, "{limited:?}");
        limited.drops = 0.0;
        assert_eq!(limited, free, "{factor}");
    }
}

/// Tokens whose labels do not count, as those of prompts and padding, have no part in the balance where that is asked for, however a batch is divided.
#[test]
fn megatron_lm_1984_tokens_that_do_not_count_have_no_part_in_the_balance() {
    let w = world();
    let counts = |s: u64, i: u64| s.is_multiple_of(3) || i < 2;
    let run = |tokens: &str, ranks: u32, micro_batches: u32| {
        let model = first_layer(json!({"aux_loss_tokens": tokens}));
        let s = RankSpec {
            clip: 0.0,
            ..spec(ranks, micro_batches)
        };
        train_with_counts(&w, &model, &s, 2, counts)
    };
    let [all, one] = ["all", "counted"].map(|tokens| run(tokens, 1, 1));
    let aux = |o: &Outcome| o.metrics[0].experts.unwrap().aux_loss;
    // Two tokens of a sequence cannot go to eight experts evenly.
    assert!(aux(&one) > aux(&all) + 0.1, "{} {}", aux(&one), aux(&all));
    for (ranks, micro_batches) in [(1, 4), (2, 3), (4, 1)] {
        let got = run("counted", ranks, micro_batches);
        let far = distance(&one, &got);
        assert!(far < 2e-5, "{ranks} ranks, {micro_batches}: {far:e}");
        assert!((aux(&got) - aux(&one)).abs() < 1e-5);
    }
}

/// A gradient of routers that was not added up over ranks set these apart after the first step (pytorch/torchtitan#2387). Every rank has one loss of one batch, to
/// the bit, with the routers that it has itself.
#[test]
fn torchtitan_2387_routers_stay_the_same_on_all_ranks() {
    let w = world();
    for keys in [json!({}), json!({"capacity_factor": 0.9})] {
        let model = Spread(first_layer(keys), 2);
        for stage in [0, 2] {
            let s = over(&staged(spec(4, 1), stage), 2);
            let kv = Arc::new(LocalKv::default());
            let losses = ranks(&s, |s| {
                let mut t = start(&w, &s, units(&model), &kv);
                let tokens = s.rows.tokens() as i32;
                let rank = s.place.job_rank() as i32;
                let batch = |seed: i32| -> [Vec<i32>; 2] {
                    [5, 11].map(|by| (0..tokens).map(|i| (i * by + seed * 13) % 37).collect())
                };
                for step in 0..2 {
                    let [ids, targets] = batch(rank + 7 * step);
                    t.step(&[of(&ids, &targets)], 3e-3).unwrap();
                    t.metrics().unwrap();
                }
                let [ids, targets] = batch(99);
                t.evaluate(&of(&ids, &targets)).unwrap()
            });
            let first = losses[0].to_bits();
            assert!(losses.iter().all(|l| l.to_bits() == first), "{losses:?}");
        }
    }
}

/// Losses of routers have been as many times too strong as predictions count on a rank, so that they depended on masks, on micro-batches and on the ranks that cut layers
/// and rows (NVIDIA/Megatron-LM#3672, NVIDIA/Megatron-LM#5047). What they add to gradients is the same on all of them.
#[test]
fn megatron_lm_3672_5047_losses_of_routers_weigh_the_same_whatever_cuts_and_counts() {
    let w = world();
    let counts: [fn(u64, u64) -> bool; 3] = [
        |_, _| true,
        |s, i| (s + i).is_multiple_of(3) || i == 7,
        |s, i| s.is_multiple_of(5) && i < 4,
    ];
    // Gradients with these losses less those without.
    let added = |mesh: Mesh, micro_batches: u32, counts: fn(u64, u64) -> bool| -> Vec<f64> {
        let run = |[balance, z]: [f64; 2]| {
            let model = first_layer(json!({"aux_loss_coef": balance, "z_loss_coef": z}));
            let s = sgd(of_length(spec(mesh.0[0], micro_batches), TOKENS));
            let (laid, s) = laid(&model, &s, mesh, 0);
            train_with_counts(&w, &laid, &s, 1, counts).state
        };
        let [with, without] = [[0.5, 0.05], [0.0, 0.0]].map(run);
        let of = with.iter().filter(|((_, kind), _)| *kind != "value");
        of.flat_map(|(k, v)| v.iter().zip(&without[k]))
            .map(|(a, b)| f64::from(a - b))
            .collect()
    };
    let one = added(([1, 1, 1, 1, 1], 1), 1, counts[0]);
    let top = one.iter().fold(0f64, |m, x| m.max(x.abs()));
    assert!(top > 1e-3, "{top}");
    for (i, (mesh, micro_batches)) in [
        (([1, 1, 1, 1, 1], 1), 4),
        (([2, 1, 1, 2, 1], 1), 3),
        (([1, 2, 1, 1, 1], 1), 2),
        (([1, 1, 2, 2, 1], 1), 1),
        (([1, 2, 2, 2, 2], 1), 2),
        (([2, 1, 2, 4, 1], 1), 1),
    ]
    .into_iter()
    .enumerate()
    {
        for counts in [counts[1 + i % 2], counts[0]] {
            let got = added(mesh, micro_batches, counts);
            let far = one.iter().zip(&got).map(|(a, b)| (a - b).abs());
            let far = far.fold(0.0, f64::max);
            // A factor would be as far off as they are large, and differences of f32 gradients are rounded.
            assert!(far < 1e-2 * top, "{mesh:?}: {far:e} of {top:e}");
        }
    }
}

fn of<'a>(tokens: &'a [i32], targets: &'a [i32]) -> MicroBatch<'a> {
    MicroBatch {
        tokens,
        targets,
        lengths: &[],
        images: &[],
        first_sequence: 0,
    }
}
