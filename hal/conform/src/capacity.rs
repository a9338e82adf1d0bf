//! Many at once: memories, events and waits, each with numbers of its own, so that one that takes the place of another shows.

use crate::case::{Case, Check, Effort, pass_with};
use crate::ctx::{Ctx, Stall};
use crossweave_abi as abi;

/// The group's cases; those of ops are `op.many_prepared` and `op.*.launches`, that of graphs is `order.graph.a_thousand_nodes`.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("mem.many_alive", memories).since(9),
        Case::new("order.many_events_alive", events).since(9),
    ]
}

fn many(ctx: &Ctx) -> u64 {
    match ctx.effort {
        Effort::Quick => 500,
        _ => 2000,
    }
}

/// Memories of many sizes, each filled with its number: afterwards each holds it.
fn memories(ctx: &Ctx) -> Check {
    let (rig, n) = (ctx.rig()?, many(ctx));
    let mut all = Vec::new();
    for i in 0..n {
        let mem = rig.dev.alloc(abi::MEM_DEVICE, 64 * (1 + i % 37), 0);
        let mem = mem.map_err(|e| format!("memory {i} of {n}: {e}"))?;
        rig.stream
            .fill(mem.whole(), i * 2_654_435_761 % (1 << 32), 4)?;
        all.push(mem);
    }
    let total: u64 = all.iter().map(|m| m.bytes).sum();
    let out = rig.pinned(total)?;
    let mut at = 0;
    for mem in &all {
        rig.stream.copy(out.mem.span(at, mem.bytes), mem.whole())?;
        at += mem.bytes;
    }
    rig.stream.finish()?;
    let mut at = 0;
    for (i, mem) in all.iter().enumerate() {
        let want = (i as u64 * 2_654_435_761 % (1 << 32)) as u32;
        let got = out.get(at, mem.bytes);
        if got
            .as_chunks::<4>()
            .0
            .iter()
            .any(|w| u32::from_le_bytes(*w) != want)
        {
            return Err(format!("of {n} memories number {i} holds something else"));
        }
        at += mem.bytes;
    }
    pass_with(format!("{n} memories"))
}

/// Events of one stream that is held back, each waited for by another before it reads what stands before the record.
fn events(ctx: &Ctx) -> Check {
    let (rig, n) = (ctx.rig()?, many(ctx));
    let reader = rig.dev.stream()?;
    let (words, read) = (rig.area(4 * n)?, rig.area(4 * n)?);
    let stall = Stall::new(&rig.stream)?;
    let mut all = Vec::new();
    for i in 0..n {
        let event = rig
            .dev
            .event()
            .map_err(|e| format!("event {i} of {n}: {e}"))?;
        rig.stream.fill(words.part(4 * i, 4), i + 1, 4)?;
        rig.stream.record(&event)?;
        reader.wait(&event)?;
        reader.copy(read.part(4 * i, 4), words.part(4 * i, 4))?;
        all.push(event);
    }
    if stall.certain() {
        for i in [0, n / 2, n - 1] {
            if all[i as usize].query()? {
                return Err(format!(
                    "of {n} events number {i} is complete before its stream came to it"
                ));
            }
        }
    }
    stall.release();
    rig.stream.finish()?;
    reader.finish()?;
    if let Some(i) = all.iter().position(|e| !matches!(e.query(), Ok(true))) {
        return Err(format!("of {n} events number {i} is not complete"));
    }
    let got = read.read(&rig)?;
    let wrong = got
        .as_chunks::<4>()
        .0
        .iter()
        .zip(1..)
        .position(|(w, i): (_, u32)| u32::from_le_bytes(*w) != i);
    match wrong {
        None => pass_with(format!("{n} events")),
        Some(i) => Err(format!(
            "of {n} waits number {i} did not wait for its event"
        )),
    }
}
