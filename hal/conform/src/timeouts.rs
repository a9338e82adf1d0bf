//! Time: timeouts of waits, kept from both sides and without a trace, and what lies between two records.

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

/// Between records of one stream and of two.
pub fn elapsed(ctx: &Ctx) -> Check {
    let Some(f) = ctx.plugin.d.event_elapsed else {
        return skip("no slot event_elapsed");
    };
    let rig = ctx.rig()?;
    let (a, b) = (rig.dev.event()?, rig.dev.event()?);
    let ask = |x: &crate::raw::Event, y: &crate::raw::Event| {
        let mut ns = u64::MAX;
        // SAFETY: live events.
        let r = ctx.plugin.call("event_elapsed", |e| unsafe {
            f(x.handle(), y.handle(), &mut ns, e)
        });
        r.map(|_| ns)
    };
    rig.stream.record(&a)?;
    // Passed before time is taken: a busy machine may come to it late.
    a.sync(Some(SOON))?;
    let stall = Stall::new(&rig.stream)?;
    let start = Instant::now();
    rig.stream.record(&b)?;
    if stall.certain() {
        match ask(&a, &b) {
            Err(r) if r.status == abi::E_INVALID => {}
            other => return Err(format!("a pending record: {other:?}, and not INVALID")),
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    let held = start.elapsed();
    stall.release();
    rig.stream.finish()?;
    let ns = ask(&a, &b)?;
    let most = start.elapsed() + Duration::from_secs(5);
    if Duration::from_nanos(ns) > most {
        return Err(format!(
            "{ns} ns between two records, of which the host saw at most {most:?}"
        ));
    }
    if stall.certain() && Duration::from_nanos(ns) < held / 4 {
        return Err(format!(
            "{ns} ns between two records that lie at least {held:?} apart"
        ));
    }
    // On another stream too, and there it has passed since.
    let other = rig.dev.stream()?;
    std::thread::sleep(Duration::from_millis(5));
    other.record(&b)?;
    other.finish()?;
    let later = ask(&a, &b)?;
    match later > ns {
        true => pass(),
        false => Err(format!(
            "{later} ns to a record on another stream, and {ns} ns to one before it"
        )),
    }
}
