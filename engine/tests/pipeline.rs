//! Pipeline stages rehearsed on the null device: what a stage holds, what crosses its boundaries, and what ZeRO moves within it, equal
//! to the formulas; and what cannot be staged. That they train is `stages.rs`.
#![forbid(unsafe_code)]

use crate::common;
use common::*;
use crossweave_engine::{
    Axis, Error, PipelineOrder, PipelineSpec, Place, Prediction, RankSpec, Recompute, Rows,
    Topology, ZeroSpec, ZeroStage, dry_run, predict,
};
use crossweave_hal::{CheckerState, DType};
use crossweave_nn::ModelSpec;
use crossweave_plan::{Facts, Plan, check_world};
use crossweave_zero::estimate::{held, padded};

/// One stage of a job: data-parallel rank 0.
struct Stage {
    plan: Plan,
    facts: Facts,
    /// Parameters of each unit the stage holds, by the model's numbers.
    sizes: Vec<u64>,
    /// Its own units.
    own: std::ops::Range<u32>,
    /// Bytes of what a micro-batch leaves with a kept input of each own unit, and of the loss where it is made.
    inputs: u64,
    /// Elements of what crosses to the next stage.
    crosses: u64,
    predicted: Prediction,
}

fn rehearse(
    w: &World,
    model: &ModelSpec,
    base: &RankSpec,
    pp: u32,
    order: PipelineOrder,
) -> Vec<Stage> {
    let one = |stage: u32| {
        let all = units(model);
        let null = w.null.open(0).unwrap();
        let dry = dry_run(
            &null,
            &all,
            base.compute,
            base.rows.batch,
            base.rows.seq_len,
        )
        .unwrap();
        let pipeline = PipelineSpec::even(all.len() as u32, pp, order);
        let own = pipeline.runs.units(stage as usize);
        let data = base.data_ranks();
        let spec = RankSpec {
            pipeline: Some(pipeline),
            ..base.clone()
        };
        let spec = ranked(&spec, stage * data);
        // On a board of its own: the other stages are not there, and are not missed.
        let device = w
            .null
            .with_checker(&CheckerState::default())
            .open(0)
            .unwrap();
        let mut t = w.rank(&device, all, &spec, &dry, &Nobody).unwrap();
        let predicted = predict(&mut t).unwrap();
        let facts = &t.facts().units;
        Stage {
            plan: t.plan().clone(),
            facts: t.facts().clone(),
            sizes: t.unit_sizes().into_iter().map(|s| s.0).collect(),
            inputs: own
                .clone()
                .map(|u| facts[u as usize].saved_input)
                .chain((stage + 1 == pp).then(|| facts[facts.len() - 1].flow_bytes))
                .sum(),
            crosses: facts[own.end as usize - 1].flow_bytes / base.compute.bytes(1),
            own,
            predicted,
        }
    };
    (0..pp).map(one).collect()
}

/// Calls and elements of one kind of collective under a tag, in each step.
fn moved(s: &Stage, kind: &str, tag: &str) -> (u64, u64) {
    let lines = s.predicted.each_step.iter();
    let hit = lines.filter(|l| l.kind == kind && l.tag == tag);
    hit.fold((0, 0), |a, l| (a.0 + l.calls, a.1 + l.elements))
}

fn spec_of(
    stage: u32,
    dp: u32,
    micro_batches: u32,
    compute: DType,
    recompute: Recompute,
) -> RankSpec {
    RankSpec {
        micro_batches,
        rows: Rows::new(2, SEQ),
        compute,
        recompute,
        clip: if micro_batches.is_multiple_of(2) {
            0.5
        } else {
            0.0
        },
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..by_step()
        },
        ..spec(dp, 1)
    }
}

const WIDTH: [u64; 2] = [18, 20];

#[test]
fn stages_hold_and_move_what_the_formulas_say() {
    let w = world();
    for (model, width) in [gpt2(4, 0.0), llama(4)].into_iter().zip(WIDTH) {
        let tied = width == WIDTH[0];
        for stage in 0..4 {
            for pp in [2u32, 4] {
                for dp in 1..4u32 {
                    let m = [1, 3, 6][dp as usize - 1];
                    let compute = [DType::F32, DType::Bf16][(stage + dp) as usize % 2];
                    let order = [PipelineOrder::OneFOneB, PipelineOrder::GPipe][pp as usize / 4];
                    let recompute =
                        [Recompute::None, Recompute::Full][(stage + pp / 4) as usize % 2];
                    let base = spec_of(stage, dp, m, compute, recompute);
                    let all = rehearse(&w, &model, &base, pp, order);
                    let at = format!("stage {stage}, pp {pp}, dp {dp}, {m} micro-batches");
                    let mesh = Topology::new(&[(Axis::Pp, pp), (Axis::Dp, dp)]).unwrap();
                    let each = all.iter().flat_map(|s| (0..dp).map(move |_| s));
                    let ranks: Vec<_> = each.map(|s| (&s.plan, &s.facts)).collect();
                    check_world(&mesh, &ranks).unwrap_or_else(|e| panic!("{at}: {e}"));
                    for (k, s) in all.iter().enumerate() {
                        let at = format!("{at}, pipeline stage {k}");
                        states(s, &base, &at);
                        let (first, last) = (k == 0, k + 1 == pp as usize);
                        let m = u64::from(m);
                        // One hidden state of B x T x d a micro-batch and boundary, and its gradient back.
                        let elements = base.rows.batch * base.rows.seq_len * width;
                        assert!(last || s.crosses == elements, "{at}");
                        let times = |n: bool| (m * u64::from(n), m * u64::from(n) * elements);
                        assert_eq!(moved(s, "send", "activation"), times(!last), "{at}");
                        assert_eq!(moved(s, "recv", "activation"), times(!first), "{at}");
                        assert_eq!(moved(s, "send", "activation_grad"), times(!first), "{at}");
                        assert_eq!(moved(s, "recv", "activation_grad"), times(!last), "{at}");
                        zero(s, &base, tied && last, order, &at);
                        let shared = tied && (first || last);
                        let part = match stage {
                            0 => s.sizes[0],
                            _ => padded(s.sizes[0], u64::from(dp)).shard,
                        };
                        let tie = u64::from(shared);
                        assert_eq!(moved(s, "all_reduce", "tie"), (tie, tie * part), "{at}");
                    }
                }
            }
        }
    }
}

/// Parameters, masters and moments are those of the stage's units over the data-parallel ranks.
fn states(s: &Stage, base: &RankSpec, at: &str) {
    if base.zero.stage == ZeroStage::Zero && base.data_ranks() > 1 {
        // What nothing shards is not padded.
        return;
    }
    let w = base.compute.bytes(1);
    let f = held(
        &s.sizes,
        u64::from(base.data_ranks()),
        base.zero.stage,
        w,
        [8, 0],
    );
    let got = |tag: &str| s.predicted.steady.tags[tag].now;
    assert_eq!(got("param"), f.param, "{at}: parameters");
    assert_eq!(got("master"), f.master, "{at}: masters");
    assert_eq!(got("moment"), f.moment1 + f.moment2, "{at}: moments");
    assert_eq!(got("grad"), 0, "{at}: gradients end with the step");
}

/// ZeRO's traffic in a stage: gradients once a step whatever the micro-batches; parameters once a step, at stage 3 for each forward and each
/// backward. A tied embedding is used on the last stage by the head alone, which keeps it from its forward to its backward where one
/// follows the other.
fn zero(s: &Stage, base: &RankSpec, borrows: bool, order: PipelineOrder, at: &str) {
    let n = u64::from(base.data_ranks());
    if n == 1 {
        return;
    }
    let m = u64::from(base.micro_batches);
    let full = |u: usize| padded(s.sizes[u], n).full;
    let own: u64 = s.own.clone().map(|u| full(u as usize)).sum();
    let lent = if borrows { full(0) } else { 0 };
    let twice = match order {
        PipelineOrder::GPipe if m > 1 => 2,
        _ => 1,
    };
    let gathered = match base.zero.stage {
        ZeroStage::Zero => 0,
        ZeroStage::One | ZeroStage::Two => own + lent,
        ZeroStage::Three => 2 * m * own + twice * m * lent,
    };
    assert_eq!(moved(s, "all_gather", "param").1, gathered, "{at}: gathers");
    let (kind, whole) = match base.zero.stage {
        ZeroStage::Zero => ("all_reduce", s.sizes.iter().sum()),
        _ => ("reduce_scatter", own + lent),
    };
    assert_eq!(moved(s, kind, "grad").1, whole, "{at}: gradients");
}

/// Kept inputs of `min(P - stage, m)` micro-batches with 1F1B and of all with GPipe; token ids and targets of every micro-batch beside.
#[test]
fn activations_grow_with_what_is_in_flight() {
    let w = world();
    for model in [gpt2(4, 0.0), llama(4)] {
        for order in [PipelineOrder::OneFOneB, PipelineOrder::GPipe] {
            let pp = 3;
            let stages = PipelineSpec::even(units(&model).len() as u32, pp, order);
            let peaks = |m: u32| -> Vec<(u64, u64, u64)> {
                let base = spec_of(2, 2, m, DType::F32, Recompute::Full);
                let all = rehearse(&w, &model, &base, pp, order);
                let ids = 8 * base.rows.batch * base.rows.seq_len;
                let peak = |s: &Stage| s.predicted.steady.tags["activation"].peak;
                all.iter().map(|s| (peak(s), s.inputs, ids)).collect()
            };
            let mut before = peaks(2);
            for m in 3..7 {
                let now = peaks(m);
                for (k, (a, b)) in before.iter().zip(&now).enumerate() {
                    let flies = stages.in_flight(k as u32, m) - stages.in_flight(k as u32, m - 1);
                    let more = u64::from(flies) * a.1 + a.2;
                    assert_eq!(b.0 - a.0, more, "{order:?}, stage {k}, {m} micro-batches");
                }
                before = now;
            }
        }
    }
}

#[test]
fn what_cannot_be_staged_is_refused_in_a_sentence() {
    let w = world();
    let model = llama(2);
    let null = w.null.open(0).unwrap();
    let refused = |pp: u32, ranks: u32, canonical: Option<u32>| -> String {
        let all = units(&model);
        let base = spec_of(1, 1, 2, DType::F32, Recompute::None);
        let dry = dry_run(
            &null,
            &all,
            base.compute,
            base.rows.batch,
            base.rows.seq_len,
        )
        .unwrap();
        let pipeline = PipelineSpec::even(all.len() as u32, pp, PipelineOrder::OneFOneB);
        let spec = RankSpec {
            place: Place::on(&[(Axis::Pp, ranks)], 0).unwrap(),
            pipeline: Some(pipeline),
            canonical,
            ..base
        };
        match w.rank(&null, all, &spec, &dry, &Nobody) {
            Err(Error::Invalid(what)) => what,
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("{pp} stages are taken"),
        }
    };
    let sums = refused(2, 2, Some(2));
    assert!(
        sums.contains("logical shards and pipeline stages"),
        "{sums}"
    );
    // Two layers, an embedding and a head.
    let many = refused(5, 5, None);
    assert!(
        many.contains("every stage needs one unit at least, of 4"),
        "{many}"
    );
    let other = refused(2, 3, None);
    assert!(
        other.contains("divided over 2 pipeline stages, and the mesh is pp3"),
        "{other}"
    );
}
