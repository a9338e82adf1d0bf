//! Schedules: the first list of a plan, forwards and backwards only. Everything else is a pass.

use crossweave_plan::{Keep, MicroBatch, PipelineStage, Plan, StepKind, UnitId};
use std::ops::Range;

/// Gradient accumulation on one rank: for each micro-batch all units forward, then all backward.
pub fn accumulate(units: u32, micro_batches: u32) -> Plan {
    one_f_one_b(&Stages::single(units), 0, micro_batches)
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

/// How the units of a model are cut over pipeline stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stages {
    /// The units of each stage, in order.
    pub stages: Vec<Range<UnitId>>,
}

impl Stages {
    /// One stage of all units.
    pub fn single(units: u32) -> Stages {
        Stages::even(units, 1)
    }

    /// `units` units over so many stages as evenly as they go, the longer stages first.
    pub fn even(units: u32, stages: u32) -> Stages {
        let count = stages.max(1);
        let (each, more) = (units / count, units % count);
        let mut start = 0;
        let stages = (0..count).map(|k| {
            let end = start + each + u32::from(k < more);
            let range = start..end;
            start = end;
            range
        });
        Stages {
            stages: stages.collect(),
        }
    }
}

/// How a stage's forwards and backwards follow each other over the micro-batches of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Forwards until the first gradient can arrive, then one forward and one backward in turn, then the rest of the backwards: as few
    /// micro-batches in flight as keep every stage busy.
    #[default]
    OneFOneB,
    /// All forwards, then all backwards.
    GPipe,
}

impl Order {
    /// The order of that name, as configurations write it.
    pub fn from_name(name: &str) -> Option<Order> {
        match name {
            "1f1b" => Some(Order::OneFOneB),
            "gpipe" => Some(Order::GPipe),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Order::OneFOneB => "1f1b",
            Order::GPipe => "gpipe",
        }
    }

    /// Micro-batches that are forward but not backward on `stage` of `stages`, at most: what multiplies saved activations.
    pub fn in_flight(self, stages: usize, stage: usize, micro_batches: u32) -> u32 {
        match self {
            Order::OneFOneB => micro_batches.min(stages.saturating_sub(stage) as u32),
            Order::GPipe => micro_batches,
        }
    }
}

/// One forward, one backward: a stage runs forwards until its first gradient can arrive, then alternates, then drains.
/// With one stage this is gradient accumulation. A `stage` that does not exist gives an empty plan.
pub fn one_f_one_b(stages: &Stages, stage: usize, micro_batches: u32) -> Plan {
    pipeline(stages, stage, micro_batches, Order::OneFOneB)
}

/// The schedule of one stage. A `stage` that does not exist gives an empty plan.
pub fn pipeline(stages: &Stages, stage: usize, micro_batches: u32, order: Order) -> Plan {
    let Some(units) = stages.stages.get(stage).cloned() else {
        return Plan::default();
    };
    let next = (stage + 1 < stages.stages.len()).then_some(stage as PipelineStage + 1);
    let previous = stage.checked_sub(1).map(|s| s as PipelineStage);
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
    let ahead = order.in_flight(stages.stages.len(), stage, micro_batches);
    let warm = ahead.saturating_sub(1);
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
