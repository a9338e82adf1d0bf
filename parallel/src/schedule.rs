//! Schedules: the first list of a plan, forwards and backwards only. Everything else is a pass.

use crate::messages::lay;
pub use crate::work::Order;
use crossweave_plan::{Keep, MicroBatch, PipelineStage, Plan, Runs, StepKind};

/// Gradient accumulation on one rank: for each micro-batch all units forward, then all backward.
pub fn accumulate(units: u32, micro_batches: u32) -> Plan {
    one_f_one_b(&Runs::even(units, 1), 0, micro_batches)
}

/// Validation: every unit forward on every micro-batch, nothing kept.
pub fn evaluate(units: u32, micro_batches: u32) -> Plan {
    let forward = |mb| {
        (0..units).map(move |unit| StepKind::Forward {
            unit,
            mb,
            keep: Keep::Nothing,
        })
    };
    Plan::from_ops((0..micro_batches).flat_map(forward))
}

/// One forward, one backward: a stage runs forwards until its first gradient can arrive, then alternates, then drains.
/// With one stage this is gradient accumulation. A `stage` that does not exist gives an empty plan.
pub fn one_f_one_b(runs: &Runs, stage: PipelineStage, micro_batches: u32) -> Plan {
    in_turn(runs, stage, micro_batches, Order::OneFOneB)
}

/// The schedule of one stage. A `stage` that does not exist gives an empty plan.
///
/// # Errors
/// Runs, or micro-batches, of which there is no such order, in one sentence.
pub fn pipeline(
    runs: &Runs,
    stage: PipelineStage,
    micro_batches: u32,
    order: Order,
) -> Result<Plan, String> {
    let lists = order.work(runs, micro_batches)?;
    match order {
        Order::OneFOneB | Order::GPipe => Ok(in_turn(runs, stage, micro_batches, order)),
        _ => lay(runs, &lists, stage),
    }
}

/// 1F1B and GPipe, where each stage has one run: every message waits for its receiver, next to the work that needs it.
fn in_turn(runs: &Runs, stage: PipelineStage, micro_batches: u32, order: Order) -> Plan {
    let run = stage as usize;
    let units = runs.units(run);
    let (next, previous) = (runs.after(run), runs.before(run));
    if units.is_empty() {
        return Plan::default();
    }
    let mut ops = Vec::new();
    let receive = |ops: &mut Vec<StepKind>, mb: MicroBatch| {
        ops.extend(previous.map(|from| StepKind::RecvAct {
            unit: units.start - 1,
            mb,
            from,
        }));
    };
    let forward = |ops: &mut Vec<StepKind>, mb: MicroBatch| {
        ops.extend(units.clone().map(|unit| StepKind::Forward {
            unit,
            mb,
            keep: Keep::All,
        }));
        ops.extend(next.map(|to| StepKind::SendAct {
            unit: units.end - 1,
            mb,
            to,
        }));
    };
    // The neighbour sends the hidden state of micro-batch `then` before it waits for this gradient: received later, both would wait to send.
    let backward = |ops: &mut Vec<StepKind>, mb: MicroBatch, then: Option<MicroBatch>| {
        ops.extend(next.map(|from| StepKind::RecvGrad {
            unit: units.end - 1,
            mb,
            from,
        }));
        ops.extend(
            units
                .clone()
                .rev()
                .map(|unit| StepKind::Backward { unit, mb }),
        );
        if let Some(mb) = then {
            receive(ops, mb);
        }
        ops.extend(previous.map(|to| StepKind::SendGrad {
            unit: units.start - 1,
            mb,
            to,
        }));
    };
    // Forwards that run ahead of the first backward; from then on one of each in turn.
    let warm = match order {
        Order::GPipe => micro_batches,
        _ => micro_batches.min(runs.stages() - stage),
    };
    let warm = warm.saturating_sub(1);
    for mb in 0..warm {
        receive(&mut ops, mb);
        forward(&mut ops, mb);
    }
    if warm < micro_batches {
        receive(&mut ops, warm);
    }
    for mb in warm..micro_batches {
        forward(&mut ops, mb);
        let then = (mb + 1 < micro_batches).then_some(mb + 1);
        backward(&mut ops, mb - warm, then);
    }
    (micro_batches - warm..micro_batches).for_each(|mb| backward(&mut ops, mb, None));
    Plan::from_ops(ops)
}
