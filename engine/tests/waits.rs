//! The plan has ordered whatever waits: every wait that the HAL puts between two streams because of data lies between two plan steps that
//! lanes and `after` edges order. A wait that no edge predicts would be overlap that the plan promises and the run does not have.
#![forbid(unsafe_code)]

use crate::common;
use common::*;
use crossweave_engine::{
    OffloadDevice, OffloadSpec, OptimizerOffload, PipelineOrder, PipelineSpec, RankSpec, Recompute,
    Trace, ZeroSpec, ZeroStage,
};
use crossweave_hal::DType;
use crossweave_plan::{Order, Plan, StepId};
use std::collections::HashMap;
use std::sync::Mutex;

/// What was found in the waits of one step.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// Between two steps of the plan, for data.
    ordered: usize,
    /// Within one step, or for what came before the plan's first step or the step of training before.
    outside: usize,
    /// For memory whose former owner had used it elsewhere.
    reuse: usize,
}

/// Holds each wait against the plan's order.
fn hold(plan: &Plan, trace: &Trace, at: &str) -> Found {
    let order = Order::new(plan);
    let mut step_of = HashMap::new();
    for (k, calls) in trace.steps.iter().enumerate() {
        for (stream, numbers) in calls {
            step_of.extend(numbers.clone().map(|n| ((*stream, n), k)));
        }
    }
    assert_eq!(trace.steps.len(), plan.steps.len(), "{at}");
    let mut found = Found::default();
    for (stream, wait) in &trace.waits {
        let later = step_of.get(&(*stream, wait.call));
        let earlier = step_of.get(&(wait.stream, wait.behind));
        let (Some(&later), Some(&earlier)) = (later, earlier) else {
            found.outside += 1;
            continue;
        };
        if earlier == later {
            found.outside += 1;
        } else if wait.reuse {
            found.reuse += 1;
        } else {
            let (a, b) = (StepId(earlier as u32), StepId(later as u32));
            assert!(
                order.before(a, b),
                "{at}: {} waits for {}, and no edge says so\n{}",
                plan.steps[later],
                plan.steps[earlier],
                plan.table(None)
            );
            found.ordered += 1;
        }
    }
    found
}

#[test]
fn every_wait_of_a_real_step_is_implied_by_the_plans_edges() {
    let w = world();
    let mut all = Found::default();
    for (stage, clip, recompute, compute, away) in cases() {
        let folder = tempfile::tempdir().unwrap();
        let offload = away.map(|(tier, params)| OffloadSpec {
            optimizer: Some(OptimizerOffload {
                tier,
                ratio: 1.0,
                delayed: false,
                grad_f32: false,
                pin: false,
                group: None,
            }),
            params,
            activations: recompute == Recompute::Full,
            folder: folder.path().to_path_buf(),
            files: Default::default(),
        });
        let s = RankSpec {
            clip,
            recompute,
            compute,
            offload,
            zero: ZeroSpec {
                stage: ZeroStage::from_number(stage).unwrap(),
                ..by_step()
            },
            ..spec(2, 2)
        };
        let at = format!("stage {stage}, clip {clip}, {recompute:?}, {compute:?}, {away:?}");
        let traces = Mutex::new(vec![]);
        train_traced(&w, &gpt2(2, 0.0), &s, 2, |plan, t| {
            traces.lock().unwrap().push((plan.clone(), t));
        });
        for (plan, trace) in traces.into_inner().unwrap() {
            let found = hold(&plan, &trace, &at);
            all.ordered += found.ordered;
            all.outside += found.outside;
            all.reuse += found.reuse;
            // A run of one stream would wait for nothing, and prove nothing.
            assert!(found.ordered > 0, "{at}: {found:?}");
        }
    }
    assert!(all.ordered > 200, "{all:?}");
}

/// The same of pipeline stages, which wait for what travels between them.
#[test]
fn every_wait_of_a_stage_is_implied_by_the_plans_edges() {
    let w = world();
    for (stage, pp, clip, order) in [
        (0, 2, 0.5, PipelineOrder::OneFOneB),
        (1, 4, 0.0, PipelineOrder::GPipe),
        (2, 3, 0.5, PipelineOrder::GPipe),
        (3, 2, 0.0, PipelineOrder::OneFOneB),
    ] {
        let model = gpt2(2, 0.0);
        let s = RankSpec {
            clip,
            pipeline: Some(PipelineSpec::even(units(&model).len() as u32, pp, order)),
            recompute: [Recompute::Full, Recompute::None][pp as usize % 2],
            zero: ZeroSpec {
                stage: ZeroStage::from_number(stage).unwrap(),
                ..by_step()
            },
            ..spec(2, 4)
        };
        let at = format!("stage {stage}, {pp} pipeline stages, clip {clip}, {order:?}");
        let traces = Mutex::new(vec![]);
        train_traced(&w, &model, &s, 2, |plan, t| {
            traces.lock().unwrap().push((plan.clone(), t));
        });
        let traces = traces.into_inner().unwrap();
        assert_eq!(traces.len(), 2 * pp as usize);
        for (plan, trace) in traces {
            let found = hold(&plan, &trace, &at);
            assert!(found.ordered > 0, "{at}: {found:?}");
        }
    }
}

type Away = Option<(OffloadDevice, bool)>;

fn cases() -> Vec<(u32, f64, Recompute, DType, Away)> {
    let mut out = vec![];
    for stage in 0..4 {
        let kinds: &[Away] = match stage {
            3 => &[
                None,
                Some((OffloadDevice::Host, false)),
                Some((OffloadDevice::Host, true)),
                Some((OffloadDevice::Nvme, true)),
            ],
            _ => &[
                None,
                Some((OffloadDevice::Host, false)),
                Some((OffloadDevice::Nvme, false)),
            ],
        };
        for (k, away) in kinds.iter().enumerate() {
            let k = k + stage as usize;
            let clip = [0.0, 0.5][k % 2];
            let recompute = [Recompute::Full, Recompute::None, Recompute::Selective][k % 3];
            let compute = [DType::F32, DType::Bf16][k / 2 % 2];
            out.push((stage, clip, recompute, compute, *away));
        }
        // What has most to run side by side: nothing is away, updates are early, and with a norm.
        out.push((stage, 0.0, Recompute::Full, DType::Bf16, None));
        out.push((stage, 0.5, Recompute::None, DType::F32, None));
    }
    out
}
