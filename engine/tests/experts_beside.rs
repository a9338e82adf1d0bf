//! Experts beside ranks that cut layers, hidden states and rows: whatever factors of a stage's ranks (`edp`, `ep`, `etp`) experts lie on, a model trains
//! as on ranks that have all of it; the losses of routers are those of whole sequences; and what ranks say to each other is what the formulas count.

use crate::common::*;
use crate::experts_over_ranks::{
    adapters, gradients_apart, mixtral, stages, trained_alike, with_experts,
};
use crossweave_engine::{OffloadDevice, PipelineOrder, RankSpec, Recompute, ReduceGradients};
use crossweave_hal::{CollectiveLine, DType};
use crossweave_mesh::{Axis, Place};
use crossweave_nn::split::{check, context, experts, parts_of_experts};
use crossweave_nn::{Lora, ModelSpec};
use crossweave_tensor::{Layout, Meeting, RowCut, UnitDecl};
use serde_json::json;

/// Tokens of a row, of which two ranks of `cp` have pieces that two of `tp` divide.
pub const TOKENS: u64 = 8;

/// Lengths of dp, cp, tp, ep and etp, and pipeline stages.
pub type Mesh = ([u32; 5], u32);

/// A model on a mesh, as the trainer lays it there, and the adapters that train in the place of it.
pub struct Laid(ModelSpec, Option<Lora>, Place, RowCut);

impl Declares for Laid {
    fn declare(&self) -> Vec<UnitDecl> {
        let Laid(model, lora, place, rows) = self;
        let [tp, ep, etp] = [Axis::Tp, Axis::Ep, Axis::Etp].map(|a| place.length(a));
        let m = model.model();
        check(m, tp.into()).unwrap();
        experts(m, ep.into()).unwrap();
        parts_of_experts(m, etp.into()).unwrap();
        context(m).unwrap();
        let mut units = match lora {
            Some(lora) => lora.units(model, place).unwrap(),
            None => crossweave_nn::units_over(m, place),
        };
        for u in &mut units {
            u.rows = *rows;
            if tp > 1 {
                u.hidden_over = Axis::Tp.into();
            }
        }
        units
    }
}

/// The same ranks on a mesh, and the model on it. Layouts take turns at the ways in which rows are cut.
pub fn laid(model: &ModelSpec, s: &RankSpec, (mesh, _): Mesh, turn: usize) -> (Laid, RankSpec) {
    let [dp, cp, tp, ep, etp] = mesh;
    let axes = [Axis::Dp, Axis::Cp, Axis::Tp, Axis::Ep, Axis::Etp];
    let all: Vec<_> = axes.into_iter().zip([dp, cp, tp, ep, etp]).collect();
    let place = Place::on(&all, 0).unwrap();
    let rows = RowCut {
        layout: [Layout::ZigZag, Layout::Contiguous][turn % 2],
        meeting: match turn % 3 {
            1 if tp == 1 => Meeting::Heads,
            2 => Meeting::Ring { inner: 1 },
            _ => Meeting::Gather,
        },
        causal: true,
    };
    let s = RankSpec { place, ..s.clone() };
    (Laid(model.clone(), None, place, rows), s)
}

/// Factors of the ranks of a stage, given over how many axes of dense layers they lie.
fn factors([dp, cp, tp]: [u32; 3], pp: u32) -> Vec<Mesh> {
    let stage = dp * cp * tp;
    let mut all = vec![];
    for etp in if tp > 1 { vec![1, tp] } else { vec![1] } {
        let fit = |ep: &u32| (stage / etp).is_multiple_of(*ep) && ep.is_power_of_two();
        for ep in (1..=stage / etp).filter(fit) {
            all.push(([dp, cp, tp, ep, etp], pp));
        }
    }
    all
}

/// All factors of dp8, dp4·tp2, pp2·dp2·tp2, dp2·cp2·tp2, of fewer ranks than eight, and of three that share layers.
pub fn meshes() -> Vec<Mesh> {
    let all = [
        ([8, 1, 1], 1),
        ([4, 1, 2], 1),
        ([2, 1, 2], 2),
        ([2, 2, 2], 1),
        ([1, 2, 1], 1),
        ([2, 2, 1], 1),
        ([1, 1, 2], 1),
    ];
    all.into_iter().flat_map(|(m, pp)| factors(m, pp)).collect()
}

/// Eight experts in one layer at least, the losses of sequences, of micro-batches and of all layers together, MLPs beside them, and dropout.
fn models() -> [ModelSpec; 3] {
    let sequence = json!({"experts": "8,8", "top_k": 2, "width": 6, "normalize": true, "aux_loss_coef": 0.1,
        "aux_loss_scope": "sequence", "z_loss_coef": 0.01});
    let residual = json!({"experts": "8,0", "top_k": 3, "width": 6, "normalize": false, "aux_loss_coef": 0.01,
        "aux_loss_scope": "micro_batch", "z_loss_coef": 0.0, "residual": true});
    [
        mixtral(8, 2),
        with_experts(&llama(2), sequence),
        with_experts(&gpt2(2, 0.1), residual),
    ]
}

/// The figures of routers are near those of the other.
pub fn figures_near(a: &Outcome, b: &Outcome, what: &str) {
    for (a, b) in a.metrics.iter().zip(&b.metrics) {
        let (a, b) = (a.experts.unwrap(), b.experts.unwrap());
        let all = [
            (a.aux_loss, b.aux_loss),
            (a.load_min, b.load_min),
            (a.load_max, b.load_max),
            (a.load_entropy, b.load_entropy),
            (a.z_loss.unwrap_or(0.0), b.z_loss.unwrap_or(0.0)),
        ];
        for (x, y) in all {
            assert!(
                (x - y).abs() <= 2e-5 * y.abs().max(0.1),
                "{what}: {a:?} {b:?}"
            );
        }
    }
}

/// Holds one plain step of models on meshes, of which the moments are the gradients, against ranks that have all of it; `taken` says by the numbers of the
/// model and the mesh which are tried, and `also` what else is alike.
pub fn hold_gradients(
    models: &[ModelSpec],
    taken: impl Fn(usize, usize) -> bool,
    also: impl Fn(&Outcome, &Outcome, &str),
) {
    let w = world();
    for (i, model) in models.iter().enumerate() {
        for (k, mesh) in meshes().into_iter().enumerate() {
            let ([dp, ..], pp) = mesh;
            if pp > 1 || !taken(i, k) {
                continue;
            }
            let s = sgd(of_length(spec(dp, 1), TOKENS));
            let whole = train(&w, model, &s, 1);
            let (laid, s) = laid(model, &s, mesh, k + i);
            let got = train(&w, &laid, &s, 1);
            let what = format!("model {i}, {mesh:?}");
            let far = gradients_apart(&got, &whole);
            assert!(far < 5e-6, "{what}: {far:e}");
            let (a, b) = (&got.metrics[0], &whole.metrics[0]);
            let apart = (a.grad_norm - b.grad_norm).abs() / b.grad_norm;
            assert!(apart < 2e-6, "{what}: norm {apart:e}");
            figures_near(&got, &whole, &what);
            also(&got, &whole, &what);
        }
    }
}

/// Holds three steps of models on meshes against ranks that have all of it, over ZeRO's stages, micro-batches, recompute, pipelines and offload: of `of` meshes one of
/// each model, and all of them where every layout is asked for.
pub fn hold_layouts(models: &[ModelSpec], of: usize, also: impl Fn(&Outcome, &Outcome, &str)) {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let recompute = [Recompute::None, Recompute::Full, Recompute::Selective];
    let reduce = [ReduceGradients::Auto, ReduceGradients::Step];
    let mut k = 0;
    for (i, model) in models.iter().enumerate() {
        for mesh in meshes() {
            k += 1;
            if k % of != i && !every() {
                continue;
            }
            let ([dp, ..], pp) = mesh;
            let micro_batches = [1, 3][k / (of / 3) % 2];
            let base = of_length(spec(dp, micro_batches), TOKENS);
            let whole = train(&w, model, &base, 3);
            for stage in 0..=3u32 {
                if stage as usize != (k / 3 + i) % 4 && !every() {
                    continue;
                }
                let (laid, s) = laid(model, &base, mesh, k);
                let mut s = RankSpec {
                    recompute: recompute[(k / 2) % 3],
                    ..staged(s, stage)
                };
                s.zero.overlap = k % 4 != 0;
                s.zero.reduce = reduce[k % 2];
                if pp > 1 {
                    let orders = [PipelineOrder::OneFOneB, PipelineOrder::GPipe];
                    s.pipeline = Some(stages(&laid, orders[k % 2]));
                }
                if k.is_multiple_of(5) {
                    s.offload = Some(offload(dir.path(), OffloadDevice::Host));
                }
                let got = train(&w, &laid, &s, 3);
                let what = format!("model {i}, {mesh:?}, stage {stage}, number {k}");
                trained_alike(&got, &whole, &what);
                figures_near(&got, &whole, &what);
                also(&got, &whole, &what);
            }
        }
    }
}

#[test]
fn gradients_are_those_of_whole_layers_and_rows() {
    hold_gradients(&models(), |i, k| taken(3 * k + i), |_, _, _| {});
}

#[test]
fn experts_train_in_every_layout_as_whole_ones() {
    hold_layouts(&models(), 3, |_, _, _| {});
}

/// Losses of routers are of all tokens of a sequence, on whichever ranks these are and whichever labels count (NVIDIA/Megatron-LM#5047).
#[test]
fn losses_of_routers_are_of_whole_sequences_whatever_counts() {
    let w = world();
    let model = &models()[1];
    let counts = |sequence: u64, i: u64| (sequence + i).is_multiple_of(3) || i == 7;
    let s = sgd(of_length(spec(2, 1), TOKENS));
    let plain = train(&w, model, &s, 2);
    let whole = train_with_counts(&w, model, &s, 2, counts);
    let first = |o: &Outcome| o.metrics[0].experts.unwrap().aux_loss;
    assert!((first(&plain) - first(&whole)).abs() < 1e-6);
    for (k, mesh) in [
        ([2, 2, 1, 1, 1], 1),
        ([2, 1, 2, 1, 1], 1),
        ([2, 1, 2, 2, 1], 1),
        ([2, 2, 2, 2, 2], 1),
    ]
    .into_iter()
    .enumerate()
    {
        let (laid, s) = laid(model, &s, mesh, k);
        let got = train_with_counts(&w, &laid, &s, 2, counts);
        let far = gradients_apart(&got, &whole);
        assert!(far < 1e-5, "{mesh:?}: {far:e}");
        figures_near(&got, &whole, &format!("{mesh:?}"));
    }
}

/// Where tokens whose labels count are looked at alone, f and P are those of whole sequences too: here there is no such token in some sequences, and none in most pieces.
#[test]
fn tokens_that_count_are_counted_over_ranks_that_cut_rows() {
    let w = world();
    let counts = |sequence: u64, i: u64| {
        !sequence.is_multiple_of(3) && (i > 4 || sequence == 1) || sequence == 3 && i == 2
    };
    for (scope, alone) in [("sequence", 1), ("micro_batch", 2)] {
        let model = |tokens: &str| {
            with_experts(
                &llama(2),
                json!({"experts": "8,8", "top_k": 2, "width": 6, "normalize": true, "aux_loss_coef": 0.1,
                    "aux_loss_scope": scope, "aux_loss_tokens": tokens, "z_loss_coef": 0.01}),
            )
        };
        let s = |ranks| sgd(of_length(spec(ranks, 1), TOKENS));
        let [whole, all] = ["counted", "all"]
            .map(|tokens| train_with_counts(&w, &model(tokens), &s(alone), 2, counts));
        let first = |o: &Outcome| o.metrics[0].experts.unwrap().aux_loss;
        // A sequence in which none counts adds nothing.
        let apart = (first(&whole) - first(&all)).abs();
        assert!(apart > 1e-2, "{scope}: {apart}");
        for (k, mesh) in [
            ([2, 2, 1, 1, 1], 1),
            ([2, 1, 2, 2, 1], 1),
            ([2, 1, 2, 1, 2], 2),
            ([2, 2, 2, 4, 1], 1),
            ([2, 2, 2, 2, 2], 1),
        ]
        .into_iter()
        .enumerate()
        {
            let (laid, mut s) = laid(&model("counted"), &s(2), mesh, k);
            if mesh.1 > 1 {
                s.pipeline = Some(stages(&laid, PipelineOrder::OneFOneB));
            }
            if k % 2 == 1 {
                s.recompute = Recompute::Full;
            }
            let got = train_with_counts(&w, &laid, &s, 2, counts);
            let (what, far) = (format!("{scope}, {mesh:?}"), gradients_apart(&got, &whole));
            assert!(far < 1e-5, "{what}: {far:e}");
            // Figures of load are means over ranks that see other rows.
            match alone {
                1 => assert!((first(&got) - first(&whole)).abs() < 1e-5, "{what}"),
                _ => figures_near(&got, &whole, &what),
            }
        }
    }
}

/// One half of an adapter of stacks is cut with the experts, and the other is whole on every rank that has parts of these: its gradient is a sum over them.
#[test]
fn adapters_of_experts_train_over_parts_of_these() {
    let w = world();
    let [_, lora] = adapters();
    for (k, mesh) in [
        ([2, 1, 2, 1, 2], 1),
        ([2, 1, 2, 2, 2], 1),
        ([1, 2, 2, 2, 2], 1),
        ([1, 1, 2, 1, 2], 1),
        ([2, 1, 2, 2, 1], 1),
        ([2, 1, 2, 1, 2], 2),
    ]
    .into_iter()
    .enumerate()
    {
        let ([dp, ..], pp) = mesh;
        let model = mixtral(4, 2);
        let base = of_length(spec(dp, 1 + k as u32 % 2), TOKENS);
        let on = |base: &RankSpec| {
            let (Laid(model, _, place, rows), mut s) = laid(&model, base, mesh, k);
            let laid = Laid(model, Some(lora.clone()), place, rows);
            if pp > 1 {
                s.pipeline = Some(stages(&laid, PipelineOrder::OneFOneB));
            }
            (laid, s)
        };
        let (laid, s) = on(&staged(base.clone(), k as u32 % 4));
        let whole = train(&w, &(model.clone(), lora.clone()), &base, 3);
        let got = train(&w, &laid, &s, 3);
        let far = distance(&got, &whole);
        assert!(far < 2e-5, "{mesh:?}: {far:e}");
        // Matrices B begin as zeros: behind a first step A has a gradient too.
        let (laid, s) = on(&sgd(base.clone()));
        let whole = train(&w, &(model.clone(), lora.clone()), &sgd(base), 2);
        let far = gradients_apart(&train(&w, &laid, &s, 2), &whole);
        assert!(far < 1e-5, "{mesh:?}: {far:e}");
    }
}

/// The sum of a rank's lines about experts, of one kind over one group.
pub fn lines(o: &Outcome, rank: usize, (group, kind): (&str, &str)) -> [u64; 3] {
    let all = o.ledgers[rank].collectives.iter();
    let of = |c: &&CollectiveLine| (&*c.group, &*c.tag, &*c.kind) == (group, "experts", kind);
    all.filter(of).fold([0; 3], |[calls, sent, all], c| {
        [calls + c.calls, sent + c.wire_elements, all + c.elements]
    })
}

/// Every token goes to all experts. Over `ep` a rank sends and receives a row of each of its tokens to and from every expert elsewhere twice, a third time
/// where the forward runs again; over `etp` the ranks of an expert give each other all that came, and what they make of it, forward and backward. Counts
/// are said once. Of the balance ranks that cut a sequence sum a number for each expert and sequence, once for each forward.
#[test]
fn ranks_say_what_the_formulas_count() {
    let w = world();
    let (steps, layers, h, n) = (2, 2, 20, 8);
    let sequence = json!({"experts": "8,8", "top_k": n, "width": 6, "normalize": true, "aux_loss_coef": 0.1,
        "aux_loss_scope": "sequence", "z_loss_coef": 0.0});
    let model = with_experts(&llama(2), sequence);
    for (k, mesh) in [
        ([2, 2, 1, 4, 1], 1),
        ([2, 1, 2, 2, 1], 1),
        ([2, 1, 2, 4, 1], 1),
        ([2, 1, 2, 2, 2], 1),
        ([1, 2, 2, 2, 2], 1),
        ([2, 1, 2, 1, 2], 1),
    ]
    .into_iter()
    .enumerate()
    {
        for (recompute, times) in [(Recompute::None, 2), (Recompute::Full, 3)] {
            let ([dp, cp, tp, ep, etp], _) = mesh;
            let base = of_length(spec(dp, 2), TOKENS);
            let figures = train(&w, &model, &base, steps).ledgers[0].memory.to_host["staging"];
            let (laid, s) = laid(&model, &base, mesh, k);
            let s = RankSpec { recompute, ..s };
            let got = train(&w, &laid, &s, steps);
            let [ep, etp] = [ep, etp].map(u64::from);
            let runs = steps * u64::from(s.micro_batches) * layers;
            let own = s.rows.tokens() / u64::from(cp * tp) * n;
            for rank in 0..4 {
                let what = format!("{mesh:?}, rank {rank}");
                let moved = |group| lines(&got, rank, (group, "all_to_all_v"));
                // There and back, which the same numbers go.
                let rows = |with: u64| if with > 1 { own * (with - 1) / with } else { 0 };
                let calls = |with: u64| if with > 1 { runs * times * 2 } else { 0 };
                let [called, sent, _] = moved("ep");
                assert_eq!(sent, runs * times * h * 2 * rows(ep), "{what}");
                assert_eq!(called, calls(ep), "{what}");
                let [called, sent, _] = moved("etp");
                assert_eq!(sent, runs * times * h * 2 * own * (etp - 1), "{what}");
                assert_eq!(called, calls(etp), "{what}");
                let [called, _, counts] = lines(&got, rank, ("ep", "all_to_all"));
                assert_eq!(
                    [called, counts],
                    [runs, runs * n].map(|n| n * u64::from(ep > 1))
                );
                let [called, _, counts] = lines(&got, rank, ("etp", "all_gather"));
                let some = u64::from(etp > 1);
                assert_eq!([called, counts], [runs, runs * n * etp].map(|n| n * some));
                let forwards = if times == 3 { 2 } else { 1 };
                for (axis, ranks) in [("cp", cp), ("tp", tp)] {
                    let [called, _, counts] = lines(&got, rank, (axis, "all_reduce"));
                    let said = [forwards * runs, forwards * runs * n * s.rows.batch];
                    // Steps alone: a validation says it too.
                    let all = said.map(|n| n * u64::from(ranks > 1));
                    assert!(called >= all[0] && counts >= all[1], "{what}, {axis}");
                }
                let read = got.ledgers[rank].memory.to_host["staging"];
                let some = u64::from(ep * etp > 1);
                assert_eq!(read, figures + 4 * (n + n * etp) * runs * some, "{what}");
            }
        }
    }
}

/// 16-bit rows, which ranks that have parts of an expert add up in f32.
#[test]
fn sixteen_bits_beside_other_axes() {
    let w = world();
    let model = &models()[1];
    let s = RankSpec {
        compute: DType::Bf16,
        ..of_length(spec(2, 1), TOKENS)
    };
    let whole = train(&w, model, &s, 2);
    for mesh in [
        ([2, 1, 2, 2, 2], 1),
        ([2, 2, 1, 2, 1], 1),
        ([2, 1, 2, 4, 1], 1),
    ] {
        let (laid, s) = laid(model, &s, mesh, 0);
        let got = train(&w, &laid, &s, 2);
        let far = distance(&got, &whole);
        assert!(far < 4e-2, "{mesh:?}: {far:e}");
    }
}
