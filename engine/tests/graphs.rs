//! Steps replayed as graphs: the same bits as call by call, whatever the plan, and replayed is what repeats and nothing else.
#![forbid(unsafe_code)]

mod common;

use common::*;
use crossweave_engine::{GraphCounts, RankSpec, Recompute, ZeroSpec, ZeroStage};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;

/// Enough for every list of calls to be met, recorded and replayed: operands of steps in flight take turns.
const STEPS: u64 = 10;

fn counts(o: &Outcome) -> Vec<GraphCounts> {
    let each = o.ledgers.iter().map(|l| l.graphs.clone());
    each.map(|g| g.expect("graphs are on")).collect()
}

/// Trains with and without, and answers what was replayed.
fn both(w: &World, model: &ModelSpec, spec: &RankSpec, at: &str) -> Vec<GraphCounts> {
    let plain = train(w, model, spec, STEPS);
    assert!(plain.ledgers.iter().all(|l| l.graphs.is_none()), "{at}");
    let on = RankSpec {
        graphs: true,
        ..spec.clone()
    };
    let got = train(w, model, &on, STEPS);
    assert!(got.bits() == plain.bits(), "{at}: {:?}", counts(&got));
    let late = |o: &Outcome| -> Vec<u64> {
        let each = o.ledgers.iter().map(|l| l.device_allocs_after_step_2);
        each.collect()
    };
    assert_eq!(late(&got), late(&plain), "{at}");
    counts(&got)
}

#[test]
fn replayed_steps_have_the_bits_of_called_ones() {
    let w = world();
    let mut turn = 0;
    for model in [gpt2(2, 0.0), llama(2)] {
        for stage in 0..=3 {
            for ranks in [1, 2] {
                turn += 1;
                let recompute = [Recompute::None, Recompute::Full, Recompute::Selective][turn % 3];
                let compute = [DType::F32, DType::Bf16][turn / 2 % 2];
                let spec = RankSpec {
                    compute,
                    recompute,
                    clip: [0.0, 0.5][turn / 3 % 2],
                    zero: ZeroSpec {
                        stage: ZeroStage::from_number(stage).unwrap(),
                        ..Default::default()
                    },
                    ..spec(ranks, 1 + turn as u32 % 2)
                };
                let at = format!(
                    "stage {stage}, {ranks} ranks, {recompute:?}, {compute:?}, turn {turn}"
                );
                for c in both(&w, &model, &spec, &at) {
                    eprintln!("{at}: {c:?}");
                    assert!(c.replayed > 0, "{at}: {c:?}");
                    assert!(c.launches_saved >= c.replayed, "{at}: {c:?}");
                }
            }
        }
    }
}
