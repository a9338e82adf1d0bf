//! What a job will hold and move, by rehearsing its first steps on the null device: the very code that will train asks for
//! memory and launches collectives, and the ledgers count. Nothing is computed, sent or allocated on a device.

use super::{Engine, MicroBatch};
use crate::devices::{Devices, Links};
use crate::dry::prepare;
use crate::error::Result;
use crossweave_hal::{Bootstrap, CollectiveLine, Device, MemoryReport};
use crossweave_planner::{Dry, RankSpec, Units};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Ledgers of one rank before anything ran.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Memory before the first step: what lives for the whole run.
    pub start: MemoryReport,
    /// Memory after the last step rehearsed; its peaks are the run's.
    pub steady: MemoryReport,
    /// Collectives of the first step, which may gather what later steps find gathered.
    pub first_step: Vec<CollectiveLine>,
    /// Collectives of every later step.
    pub each_step: Vec<CollectiveLine>,
    /// Bytes from the device to pinned memory in a step, by tag.
    pub to_host: BTreeMap<String, u64>,
    /// Bytes from pinned memory to the device in a step, by tag.
    pub from_host: BTreeMap<String, u64>,
    /// Bytes of the rank's files: reserved, read and written in a step.
    pub files: Option<[u64; 3]>,
}

/// Rehearses three steps of an engine on the null device: the first may differ, the second shows what every later one does, the
/// third proves it.
///
/// # Errors
/// What a step can fail with.
pub fn predict(engine: &mut Engine) -> Result<Prediction> {
    let start = engine.ledger();
    let mut after = vec![start.clone()];
    let mut files = vec![];
    rehearse(engine, 3, &mut |t| {
        after.push(t.ledger());
        files.push(t.files());
    })?;
    let collectives = |i: usize| less(&after[i].collectives, &after[i - 1].collectives);
    let moved = |pick: fn(&MemoryReport) -> &BTreeMap<String, u64>| {
        let (last, before) = (pick(&after[3].memory), pick(&after[2].memory));
        let each = |(tag, n): (&String, &u64)| {
            let n = n - before.get(tag).copied().unwrap_or(0);
            (n > 0).then(|| (tag.clone(), n))
        };
        last.iter().filter_map(each).collect()
    };
    Ok(Prediction {
        start: start.memory,
        first_step: collectives(1),
        each_step: collectives(3),
        files: files[2].zip(files[1]).map(|(now, before)| {
            let moved = [now.read - before.read, now.written - before.written];
            [now.reserved, moved[0], moved[1]]
        }),
        to_host: moved(|m| &m.to_host),
        from_host: moved(|m| &m.from_host),
        steady: after[3].memory.clone(),
    })
}

/// For a rank that meets nobody.
struct Nobody;
impl Bootstrap for Nobody {
    fn set(&self, _: &str, _: &[u8]) -> crossweave_hal::Result<()> {
        Ok(())
    }
    fn get(&self, _: &str, _: Duration) -> crossweave_hal::Result<Vec<u8>> {
        Ok(vec![0; 8])
    }
}

/// A rank that is prepared as for training and set up on a device that computes nothing: it meets nobody and writes no file.
///
/// # Errors
/// The plan breaks a law ([`prepare`]), or the device refuses a buffer or an op ([`Engine::new`]).
pub fn rehearsal(null: &Device, units: Units, spec: &RankSpec, dry: &Dry) -> Result<Engine> {
    let lowered = prepare(null, spec, &units, dry)?;
    let devices = Devices::rehearsal(null);
    let engine = Engine::new(devices, lowered, units, Links::new(&Nobody))?;
    engine.groups.rehearse();
    Ok(engine)
}

/// Walks `steps` steps of an engine on tokens that are all 0, and calls `after` at the end of each. On the null device this costs
/// nothing and asks for all that training would.
///
/// # Errors
/// What a step can fail with.
pub fn rehearse(engine: &mut Engine, steps: u32, after: &mut dyn FnMut(&mut Engine)) -> Result<()> {
    let spec = &engine.lowered.spec;
    let tokens = vec![0i32; spec.rows.tokens() as usize];
    let words = crate::upload::images(&engine.blocks.units).map_or(0, |i| i.words());
    let images = vec![0f32; (spec.rows.batch * words) as usize];
    let batches: Vec<MicroBatch<'_>> = (0..u64::from(spec.own_micro_batches()))
        .map(|m| MicroBatch {
            tokens: &tokens,
            targets: &tokens,
            lengths: &[],
            images: &images,
            first_sequence: m * spec.rows.batch,
        })
        .collect();
    for _ in 0..steps {
        engine.count_targets(1, 1)?;
        engine.step(&batches, 0.0)?;
        engine.metrics()?;
        after(engine);
    }
    Ok(())
}

/// The lines of `now` without what they counted `before`.
fn less(now: &[CollectiveLine], before: &[CollectiveLine]) -> Vec<CollectiveLine> {
    let same = |a: &CollectiveLine, b: &CollectiveLine| {
        (&a.kind, &a.group, &a.tag, a.ranks) == (&b.kind, &b.group, &b.tag, b.ranks)
    };
    let each = |line: &CollectiveLine| {
        let mut line = line.clone();
        if let Some(b) = before.iter().find(|b| same(&line, b)) {
            line.calls -= b.calls;
            line.elements -= b.elements;
            line.bytes -= b.bytes;
            line.wire_elements -= b.wire_elements;
        }
        (line.calls > 0).then_some(line)
    };
    now.iter().filter_map(each).collect()
}
