//! Timeouts of waits: kept from both sides, and without a trace.

use crate::case::{Check, pass, skip};
use crate::ctx::{Ctx, SOON, Stall};
use crossweave_abi as abi;
use std::time::{Duration, Instant};

/// A timeout is kept from both sides: never early, and at its best of several times hardly late; a busy machine is no
/// excuse for all of them.
fn timely(wait: impl Fn(Duration) -> Result<(), String>) -> Result<(), String> {
    const LATE: Duration = Duration::from_millis(100);
    for ms in [0u64, 30, 150] {
        let limit = Duration::from_millis(ms);
        let mut best = Duration::MAX;
        for _ in 0..5 {
            let start = Instant::now();
            wait(limit)?;
            let took = start.elapsed();
            if took < limit || took > limit + SOON / 2 {
                return Err(format!("a timeout of {ms} ms took {took:?}"));
            }
            best = best.min(took);
            if best < limit + LATE {
                break;
            }
        }
        if best >= limit + LATE {
            return Err(format!("a timeout of {ms} ms took {best:?} at its best"));
        }
    }
    Ok(())
}

/// `event_sync` of a record that is not passed.
pub fn event_timeout(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let stall = Stall::new(&rig.stream)?;
    if !stall.certain() {
        return skip("no stream can be held back for certain");
    }
    let e = rig.dev.event()?;
    rig.stream.record(&e)?;
    timely(|limit| match e.sync(Some(limit)) {
        Err(r) if r.status == abi::E_TIMEOUT => Ok(()),
        Err(r) => Err(format!("{r}, and not TIMEOUT")),
        Ok(()) => Err("event_sync answered OK for a record that was not passed".into()),
    })?;
    stall.release();
    // TIMEOUT changes nothing.
    e.sync(Some(SOON))?;
    pass()
}

/// `stream_sync` of a stream that is held back.
pub fn stream_timeout(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let a = rig.area(64)?;
    let stall = Stall::new(&rig.stream)?;
    if !stall.certain() {
        return skip("no stream can be held back for certain");
    }
    rig.stream.fill(a.span(), 9, 1)?;
    timely(|limit| match rig.stream.sync(Some(limit)) {
        Err(r) if r.status == abi::E_TIMEOUT => Ok(()),
        Err(r) => Err(format!("{r}, and not TIMEOUT")),
        Ok(()) => Err("stream_sync answered OK for work that is held back".into()),
    })?;
    stall.release();
    rig.stream.finish()?;
    match a.read(&rig)?.iter().all(|x| *x == 9) {
        true => pass(),
        false => Err("work was lost after a timeout".into()),
    }
}
