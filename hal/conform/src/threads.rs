//! Several threads at once: every function may be called from any thread (R7). Threads begin each round together, and what each finds is
//! judged as if it were alone.

use crate::case::{Case, Check, Effort, pass_with};
use crate::ctx::{Ctx, Rig};
use crossweave_abi as abi;
use std::sync::{Barrier, Mutex, PoisonError};

/// Threads at once, at most.
pub const MOST: usize = 8;

/// The cases of devices; those of ops are `op.*.threads`.
pub fn cases() -> Vec<Case> {
    vec![Case::new("order.threads_at_once", device_calls).since(9)]
}

/// Calls `round(state, thread, round)` in `threads` threads at once, each with a state of its own, and all threads begin each
/// round together.
///
/// # Errors
/// The first that a thread met, with its number.
pub fn at_once<S>(
    threads: usize,
    rounds: usize,
    state: impl Fn(usize) -> Result<S, String> + Sync,
    round: impl Fn(&mut S, usize, usize) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let (barrier, first) = (Barrier::new(threads), Mutex::new(None::<String>));
    let note = |thread: usize, e: String| {
        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(format!("thread {thread} of {threads}: {e}"));
    };
    let work = |thread: usize| {
        let mut own = state(thread).map_err(|e| note(thread, e)).ok();
        for n in 0..rounds {
            // Who has failed still comes, so that the others do.
            barrier.wait();
            let done = own.as_mut().map_or(Ok(()), |s| round(s, thread, n));
            if let Err(e) = done {
                note(thread, e);
                own = None;
            }
        }
    };
    let work = &work;
    std::thread::scope(|s| {
        let all: Vec<_> = (0..threads).map(|t| s.spawn(move || work(t))).collect();
        all.into_iter().for_each(|t| {
            if t.join().is_err() {
                note(threads, "a thread panicked".into());
            }
        });
    });
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(()),
        Some(e) => Err(e),
    }
}

/// Memory, maps, fills, copies, events, queries and refusals of one device from 2 and from 8 threads, each on a stream of its own.
fn device_calls(ctx: &Ctx) -> Check {
    let dev = ctx.device()?;
    let rounds = match ctx.effort {
        Effort::Quick => 10,
        _ => 40,
    };
    for threads in [2, MOST] {
        at_once(threads, rounds, |_| Rig::on(dev.clone()), round)?;
    }
    pass_with(format!("2 and {MOST} threads, {rounds} rounds"))
}

/// What one thread does in a round: the numbers are its own.
fn round(rig: &mut Rig, thread: usize, n: usize) -> Result<(), String> {
    let bytes = 64 * (1 + (thread * 7 + n) as u64 % 60);
    let pattern = (thread * 1000 + n) as u64 + 1;
    let (a, b) = (
        rig.dev.alloc(abi::MEM_DEVICE, bytes, 0)?,
        rig.dev.alloc(abi::MEM_DEVICE, bytes, 0)?,
    );
    let (out, event) = (rig.pinned(bytes)?, rig.dev.event()?);
    rig.stream.fill(a.whole(), pattern, 4)?;
    rig.stream.copy(b.whole(), a.whole())?;
    rig.stream.record(&event)?;
    rig.stream.copy(out.mem.span(0, bytes), b.whole())?;
    // A refusal between them: its record is this thread's.
    match rig.dev.alloc(99, bytes, 0) {
        Ok(_) => return Err("a kind of memory that is none was given out".into()),
        Err(r) if [abi::E_UNSUPPORTED, abi::E_INVALID].contains(&r.status) => {}
        Err(r) => return Err(format!("a kind of memory that is none: {r}")),
    }
    event.sync(None)?;
    rig.stream.finish()?;
    if !event.query()? || !rig.stream.query()? {
        return Err("what was waited for is not complete".into());
    }
    let got = out.get(0, bytes);
    match got
        .as_chunks::<4>()
        .0
        .iter()
        .position(|w| u32::from_le_bytes(*w) != pattern as u32)
    {
        None => Ok(()),
        Some(i) => Err(format!(
            "word {i} of {bytes} bytes is not what this thread wrote"
        )),
    }
}
