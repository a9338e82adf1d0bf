//! `order.*`: streams are queues, events are points in them, and nothing runs early, twice or on the caller's time. A stream is held back
//! while the claim is looked at, by a host call or by a word it waits for; where a device has neither, by a pile of copies.

use crate::case::{Case, Check, Demanded, pass, pass_with, skip};
use crate::ctx::{Ctx, Pinned, Rig, SOON, Stall, StallKind, poll};
use crate::raw::Stream;
use crate::timeouts::{elapsed, event_timeout, stream_timeout};
use crossweave_abi as abi;
use std::ffi::c_void;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The group's cases.
pub fn cases() -> Vec<Case> {
    let m = Demanded::MINIMAL;
    vec![
        Case::new("order.enqueue_returns_while_stalled", enqueue_returns).demanded(m),
        Case::new("order.stream_is_in_order", in_order).demanded(m),
        Case::new("order.many_in_flight", many).demanded(m),
        Case::new("order.cross_stream_event", cross_stream).demanded(m),
        Case::new("order.rerecord_does_not_move_a_wait", rerecord).demanded(m),
        Case::new(
            "order.wait_is_for_the_record_before_the_call",
            latest_before,
        )
        .demanded(m),
        Case::new("order.wait_for_an_unrecorded_event", unrecorded).demanded(m),
        Case::new("order.event_query_follows_the_latest_record", query_latest).demanded(m),
        Case::new("order.event_sync_timeout", event_timeout).demanded(m),
        Case::new("order.stream_sync_timeout", stream_timeout).demanded(m),
        Case::new("order.every_priority", priorities).demanded(m),
        Case::new("order.diamond", diamond).demanded(m),
        Case::new("order.two_devices", two_devices),
        Case::new("order.host_call_in_order", host_call),
        Case::new("order.host_call_of_many_runs_each_once", host_call_many),
        Case::new("order.wait_value", wait_value),
        Case::new("order.write_value", write_value),
        Case::new("order.event_elapsed", elapsed),
        Case::new("order.op.arrays_are_read_before_return", dynamic_arrays),
        Case::new("order.random_replay", random_replay)
            .demanded(m)
            .limit(120),
    ]
}

/// The stall must have held while `f` ran; where it cannot be certain the case is tried again.
fn while_held(
    ctx: &Ctx,
    s: &Stream,
    f: &dyn Fn() -> Result<(), String>,
) -> Result<Option<Stall>, String> {
    for _ in 0..3 {
        let stall = Stall::new(s)?;
        f()?;
        if stall.certain() || !s.query()? {
            return Ok(Some(stall));
        }
        s.finish()?;
    }
    let _ = ctx;
    Ok(None)
}

const NOT_HELD: &str = "the stream could not be held back long enough";

fn enqueue_returns(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let (a, b) = (rig.area(1 << 16)?, rig.area(1 << 16)?);
    let kinds: &[StallKind] = match Stall::kind(&ctx.plugin) {
        StallKind::Call if ctx.plugin.d.stream_wait_value.is_some() => {
            &[StallKind::Call, StallKind::Word]
        }
        StallKind::Call => &[StallKind::Call],
        StallKind::Word => &[StallKind::Word],
        StallKind::Work => &[StallKind::Work],
    };
    for kind in kinds {
        let stall = Stall::with(&rig.stream, *kind)?;
        let e = rig.dev.event()?;
        let start = Instant::now();
        // More than a queue of any fixed small size holds.
        for _ in 0..300 {
            rig.stream.fill(a.span(), 0x11, 1)?;
            rig.stream.copy(b.span(), a.span())?;
        }
        rig.stream.record(&e)?;
        let took = start.elapsed();
        if stall.certain() {
            if rig.stream.query()? || e.query()? {
                return Err("a stream that is held back says that it has finished".into());
            }
            if took > Duration::from_secs(10) {
                return Err(format!(
                    "600 enqueues on a stream that stands still took {took:?}"
                ));
            }
        }
        stall.release();
        rig.stream.finish()?;
        if !poll(&e, SOON)? {
            return Err("an event recorded on a finished stream is not complete".into());
        }
        drop(stall);
    }
    match b.read(&rig)?.iter().all(|x| *x == 0x11) {
        true => pass(),
        false => Err("work behind the stall was lost".into()),
    }
}

fn in_order(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let n = 1u64 << 20;
    let (a, b) = (rig.area(n)?, rig.area(n)?);
    for round in 0..20u8 {
        // Large and small in turn: who runs them side by side gets the small one first.
        rig.stream.fill(a.span(), u64::from(round), 1)?;
        rig.stream.fill(a.part(n - 8, 8), 0xEE, 1)?;
        rig.stream.copy(b.span(), a.span())?;
        rig.stream.fill(a.part(0, 8), 0xDD, 1)?;
    }
    let mut want = vec![19u8; n as usize];
    want[n as usize - 8..].fill(0xEE);
    if b.read(&rig)? != want {
        return Err("a copy saw work that was enqueued after it, or not what was before it".into());
    }
    want[..8].fill(0xDD);
    match a.read(&rig)? == want {
        true => pass(),
        false => Err("the last fill did not win".into()),
    }
}

/// More is enqueued than a ring of commands holds, while nothing is carried out: no call waits, none is lost.
fn many(ctx: &Ctx) -> Check {
    const CALLS: u64 = 5000;
    let rig = ctx.rig()?;
    let (a, b) = (rig.area(CALLS)?, rig.area(CALLS)?);
    let stall = Stall::new(&rig.stream)?;
    let begun = Instant::now();
    for i in 0..CALLS {
        rig.stream.fill(a.part(i, 1), i * 7 % 251, 1)?;
        if i % 8 == 7 {
            rig.stream.copy(b.part(i - 7, 8), a.part(i - 7, 8))?;
        }
        if stall.certain() && begun.elapsed() > SOON / 2 {
            return Err(format!(
                "after {i} calls on a stream that is held back they took {:?}",
                begun.elapsed()
            ));
        }
    }
    stall.release();
    rig.stream.finish()?;
    let want: Vec<u8> = (0..CALLS).map(|i| (i * 7 % 251) as u8).collect();
    for (area, what) in [(&a, "fills"), (&b, "copies")] {
        let got = area.read(&rig)?;
        if let Some(i) = (0..CALLS as usize).find(|i| got[*i] != want[*i]) {
            return Err(format!("of {CALLS} {what} in flight number {i} was lost"));
        }
    }
    pass()
}

/// Producer held back, consumer behind an event on another stream.
fn cross_stream(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let n = 1u64 << 16;
    let bytes = ctx.rng().bytes(n);
    let src = rig.area_of(&bytes)?;
    let (mid, producer, e) = (rig.area(n)?, rig.dev.stream()?, rig.dev.event()?);
    // One record holds as many streams as wait for it.
    let consumers = (0..5)
        .map(|_| Ok((rig.dev.stream()?, rig.area(n)?)))
        .collect::<Result<Vec<_>, String>>()?;
    let Some(stall) = while_held(ctx, &producer, &|| {
        producer.copy(mid.span(), src.span())?;
        producer.record(&e)?;
        for (consumer, out) in &consumers {
            let start = Instant::now();
            consumer.wait(&e)?;
            if start.elapsed() > SOON {
                return Err("a stream's wait for an event held the host".into());
            }
            consumer.copy(out.span(), mid.span())?;
        }
        Ok(())
    })?
    else {
        return skip(NOT_HELD);
    };
    if stall.certain() {
        // A consumer that does not wait has copied poison by now.
        std::thread::sleep(Duration::from_millis(30));
        for (i, (consumer, _)) in consumers.iter().enumerate() {
            if consumer.query()? {
                let why = "has finished while its producer is held back";
                return Err(format!("consumer {i} {why}"));
            }
        }
    }
    stall.release();
    // Streams that run when they are waited for: the producer comes last.
    for (consumer, _) in &consumers {
        consumer.finish()?;
    }
    producer.finish()?;
    for (i, (_, out)) in consumers.iter().enumerate() {
        if out.read(&rig)? != bytes {
            let why = "read what was there before the producer wrote";
            return Err(format!("consumer {i} {why}"));
        }
    }
    pass()
}

/// A wait on record #1 is not held up by record #2 of the same event: neither one that has begun, nor one its stream comes to later.
fn rerecord(ctx: &Ctx) -> Check {
    for gated in [false, true] {
        if let Some(why) = rerecorded(ctx, gated)? {
            return skip(why);
        }
    }
    pass()
}

/// With `gated` the consumer comes to its wait only when the event has been recorded again. Answers why it cannot be tried.
fn rerecorded(ctx: &Ctx, gated: bool) -> Result<Option<&'static str>, String> {
    let rig = ctx.rig()?;
    let n = 4096u64;
    let bytes = ctx.rng().bytes(n);
    let src = rig.area_of(&bytes)?;
    let (mid, out) = (rig.area(n)?, rig.area(n)?);
    let (a, b, consumer) = (rig.dev.stream()?, rig.dev.stream()?, rig.dev.stream()?);
    let (e, gate) = (rig.dev.event()?, rig.dev.event()?);
    let first = Stall::new(&a)?;
    if !first.certain() {
        return Ok(Some("no stream can be held back for certain"));
    }
    if gated {
        a.record(&gate)?;
        consumer.wait(&gate)?;
    }
    a.copy(mid.span(), src.span())?;
    a.record(&e)?;
    consumer.wait(&e)?;
    // The event moves on to a stream that stands still; the wait stays with the first record.
    let second = Stall::new(&b)?;
    b.record(&e)?;
    consumer.copy(out.span(), mid.span())?;
    std::thread::sleep(Duration::from_millis(20));
    if consumer.query()? {
        return Err("recording the event again forgot the wait for its first record".into());
    }
    first.release();
    if consumer.sync(Some(Duration::from_secs(5))).is_err() {
        second.release();
        return Err(
            "wait saw record #2: recording again moved a wait that was there before".into(),
        );
    }
    if e.query()? {
        second.release();
        return Err(
            "the event says that record #2 has been passed, and its stream is held back".into(),
        );
    }
    second.release();
    b.finish()?;
    match out.read(&rig)? == bytes {
        true => Ok(None),
        false => Err("the consumer did not wait for record #1".into()),
    }
}

/// Work recorded after the wait was enqueued is not waited for, and a later record before a second wait is.
fn latest_before(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let n = 4096u64;
    let one = rig.area_of(&vec![1; n as usize])?;
    let two = rig.area_of(&vec![2; n as usize])?;
    let (mid, out) = (rig.area(n)?, rig.area(n)?);
    let (producer, consumer) = (rig.dev.stream()?, rig.dev.stream()?);
    let e = rig.dev.event()?;
    producer.copy(mid.span(), one.span())?;
    producer.record(&e)?;
    producer.finish()?;
    let Some(stall) = while_held(ctx, &producer, &|| {
        producer.copy(mid.span(), two.span())?;
        producer.record(&e)?;
        consumer.wait(&e)?;
        consumer.copy(out.span(), mid.span())?;
        Ok(())
    })?
    else {
        return skip(NOT_HELD);
    };
    std::thread::sleep(Duration::from_millis(20));
    stall.release();
    consumer.finish()?;
    producer.finish()?;
    match out.read(&rig)?.iter().all(|x| *x == 2) {
        true => pass(),
        false => Err("the wait was satisfied by an older record of the event".into()),
    }
}

fn unrecorded(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let e = rig.dev.event()?;
    if !e.query()? {
        return Err("an event that was never recorded is not complete".into());
    }
    e.sync(Some(Duration::ZERO))?;
    let a = rig.area(64)?;
    rig.stream.wait(&e)?;
    rig.stream.fill(a.span(), 5, 1)?;
    rig.stream
        .sync(Some(Duration::from_secs(10)))
        .map_err(|r| {
            format!("a wait for an event that was never recorded holds the stream: {r}")
        })?;
    pass()
}

fn query_latest(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let e = rig.dev.event()?;
    rig.stream.record(&e)?;
    rig.stream.finish()?;
    if !e.query()? {
        return Err("a passed record is not complete".into());
    }
    let stall = Stall::new(&rig.stream)?;
    if !stall.certain() {
        return skip("no stream can be held back for certain");
    }
    rig.stream.record(&e)?;
    if e.query()? {
        return Err("the event still answers for its older record".into());
    }
    stall.release();
    e.sync(Some(SOON))?;
    match e.query()? {
        true => pass(),
        false => Err("event_sync returned before the record was passed".into()),
    }
}

/// A priority is a wish: any number is taken, negative ones too, and streams of all of them work.
fn priorities(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let wishes = [0, -1, 1, -5, 5, -1000, 1000, i32::MIN, i32::MAX];
    let mut streams = Vec::new();
    for p in wishes {
        let s = rig.dev.stream_of(p);
        streams.push((p, s.map_err(|r| format!("priority {p}: {r}"))?));
    }
    let area = rig.area(64 * wishes.len() as u64)?;
    for (i, (p, s)) in streams.iter().enumerate() {
        s.fill(area.part(64 * i as u64, 64), i as u64 + 1, 1)
            .map_err(|r| format!("priority {p}: {r}"))?;
    }
    for (p, s) in &streams {
        s.finish().map_err(|r| format!("priority {p}: {r}"))?;
    }
    let want: Vec<u8> = (0..wishes.len()).flat_map(|i| [i as u8 + 1; 64]).collect();
    match area.read(&rig)? == want {
        true => pass(),
        false => Err("work of a stream of some priority was lost".into()),
    }
}

/// One stream forks into two, which join in a fourth.
fn diamond(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let n = 1u64 << 14;
    let bytes = ctx.rng().bytes(n);
    let src = rig.area_of(&bytes)?;
    let areas = [rig.area(n)?, rig.area(n)?, rig.area(n)?];
    let out = rig.area(2 * n)?;
    let streams = [
        rig.dev.stream()?,
        rig.dev.stream()?,
        rig.dev.stream()?,
        rig.dev.stream()?,
    ];
    let events = [rig.dev.event()?, rig.dev.event()?, rig.dev.event()?];
    let [top, left, right, bottom] = &streams;
    let Some(stall) = while_held(ctx, top, &|| {
        top.copy(areas[0].span(), src.span())?;
        top.record(&events[0])?;
        for (side, at) in [(left, 1), (right, 2)] {
            side.wait(&events[0])?;
            side.copy(areas[at].span(), areas[0].span())?;
            side.record(&events[at])?;
        }
        bottom.wait(&events[1])?;
        bottom.wait(&events[2])?;
        bottom.copy(out.part(0, n), areas[1].span())?;
        bottom.copy(out.part(n, n), areas[2].span())?;
        Ok(())
    })?
    else {
        return skip(NOT_HELD);
    };
    std::thread::sleep(Duration::from_millis(10));
    stall.release();
    bottom.finish()?;
    let got = out.read(&rig)?;
    match got[..n as usize] == bytes && got[n as usize..] == bytes {
        true => pass(),
        false => Err("a branch ran before the stream it waits for".into()),
    }
}

/// An event of one device holds a stream of another.
fn two_devices(ctx: &Ctx) -> Check {
    let [a, b, ..] = ctx.devices.as_slice() else {
        return skip("one device");
    };
    let (one, two) = (
        Rig::on(ctx.plugin.open(*a)?)?,
        Rig::on(ctx.plugin.open(*b)?)?,
    );
    let e = one.dev.event()?;
    let area = two.area(4096)?;
    let stall = Stall::new(&one.stream)?;
    if !stall.certain() {
        return skip("no stream can be held back for certain");
    }
    one.stream.record(&e)?;
    two.stream.wait(&e)?;
    two.stream.fill(area.span(), 3, 1)?;
    std::thread::sleep(Duration::from_millis(20));
    if two.stream.query()? {
        return Err("a stream did not wait for an event of another device".into());
    }
    stall.release();
    two.stream.finish()?;
    match area.read(&two)?.iter().all(|x| *x == 3) {
        true => pass(),
        false => Err("work behind the wait was lost".into()),
    }
}

/// What host calls saw.
struct Log {
    seen: Mutex<Vec<(u64, abi::Status)>>,
}

struct Mark<'a> {
    log: &'a Log,
    number: u64,
}

unsafe extern "C" fn note(arg: *mut c_void, status: abi::Status) {
    // SAFETY: a mark that lives until the stream has been synchronised.
    let m = unsafe { &*arg.cast::<Mark<'_>>() };
    let mut seen = m
        .log
        .seen
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    seen.push((m.number, status));
}

fn call_host(s: &Stream, m: &Mark<'_>) -> Result<bool, String> {
    let p = s.dev().plugin();
    let Some(f) = p.d.stream_host_call else {
        return Ok(false);
    };
    let arg = std::ptr::from_ref(m).cast_mut().cast();
    // SAFETY: the caller keeps the mark until the stream has passed.
    p.call("stream_host_call", |e| unsafe {
        f(s.handle(), note, arg, e)
    })?;
    Ok(true)
}

fn host_call(ctx: &Ctx) -> Check {
    if ctx.plugin.d.stream_host_call.is_none() {
        return skip("no slot stream_host_call: the core polls");
    }
    let rig = ctx.rig()?;
    let log = Log {
        seen: Mutex::default(),
    };
    let mark = Mark {
        log: &log,
        number: 1,
    };
    let n = 1u64 << 20;
    let a = rig.area(n)?;
    let out = Pinned::new(&rig.dev, n)?;
    out.put(0, &vec![0; n as usize]);
    let stall = Stall::new(&rig.stream)?;
    rig.stream.fill(a.span(), 0x42, 1)?;
    rig.stream.copy(out.mem.span(0, n), a.span())?;
    call_host(&rig.stream, &mark)?;
    std::thread::sleep(Duration::from_millis(20));
    let early = log.seen.lock().map_err(|_| "poisoned")?.len();
    stall.release();
    rig.stream.finish()?;
    if early != 0 {
        return Err("the host call ran before the work enqueued ahead of it".into());
    }
    let seen = log.seen.lock().map_err(|_| "poisoned")?.clone();
    if seen != [(1, abi::OK)] {
        return Err(format!("one host call ran as {seen:?} (number, status)"));
    }
    match out.get(0, n).iter().all(|x| *x == 0x42) {
        true => pass(),
        false => Err("the host call ran before the copy ahead of it had arrived".into()),
    }
}

fn host_call_many(ctx: &Ctx) -> Check {
    if ctx.plugin.d.stream_host_call.is_none() {
        return skip("no slot stream_host_call: the core polls");
    }
    let rig = ctx.rig()?;
    let log = Log {
        seen: Mutex::default(),
    };
    let marks: Vec<Mark<'_>> = (0..200).map(|number| Mark { log: &log, number }).collect();
    let a = rig.area(256)?;
    for m in &marks {
        rig.stream.fill(a.span(), 1, 1)?;
        call_host(&rig.stream, m)?;
    }
    rig.stream.finish()?;
    let seen = log.seen.lock().map_err(|_| "poisoned")?.clone();
    let want: Vec<_> = (0..200).map(|n| (n, abi::OK)).collect();
    if seen == want {
        return pass();
    }
    Err(format!(
        "200 host calls ran {} times, first out of order at {:?}",
        seen.len(),
        seen.iter().zip(&want).position(|(a, b)| a != b)
    ))
}

fn wait_value(ctx: &Ctx) -> Check {
    let Some(f) = ctx.plugin.d.stream_wait_value else {
        return skip("no slot stream_wait_value");
    };
    let rig = ctx.rig()?;
    let p = &ctx.plugin;
    let word = Pinned::new(&rig.dev, 64)?;
    word.put(0, &[0; 64]);
    let a = rig.area(64)?;
    // SAFETY: the word outlives the stream's work.
    p.call("stream_wait_value", |e| unsafe {
        f(rig.stream.handle(), word.mem.span(16, 8), 5, e)
    })?;
    rig.stream.fill(a.span(), 8, 1)?;
    let at = word.word(16);
    for less in [1u64, 4] {
        at.store(less, std::sync::atomic::Ordering::Release);
        std::thread::sleep(Duration::from_millis(10));
        if rig.stream.query()? {
            at.store(9, std::sync::atomic::Ordering::Release);
            return Err(format!("a wait for at least 5 ended at {less}"));
        }
    }
    // "At least": 6 is enough, and the comparison is of 64 bits.
    at.store((1 << 40) + 2, std::sync::atomic::Ordering::Release);
    if let Err(r) = rig.stream.finish() {
        at.store(5, std::sync::atomic::Ordering::Release);
        return Err(format!(
            "a wait for at least 5 did not end at 2^40 + 2: {r}"
        ));
    }
    if !a.read(&rig)?.iter().all(|x| *x == 8) {
        return Err("work behind the wait was lost".into());
    }
    // What is waited for has 64 bits too, and no sign; what a device that compares in a circle cannot order, it refuses.
    for (less, wanted) in [(7u64, (1 << 40) + 5), (1 << 40, (1 << 63) + 1)] {
        at.store(less, std::sync::atomic::Ordering::Release);
        // SAFETY: the word outlives the stream's work.
        let put = p.call("stream_wait_value", |e| unsafe {
            f(rig.stream.handle(), word.mem.span(16, 8), wanted, e)
        });
        match put {
            Err(r) if wanted >> 63 != 0 && r.unsupported() => continue,
            put => put.map(drop)?,
        }
        std::thread::sleep(Duration::from_millis(10));
        let early = rig.stream.query()?;
        at.store(wanted, std::sync::atomic::Ordering::Release);
        if early {
            return Err(format!(
                "a wait for at least {wanted:#x} ended at {less:#x}"
            ));
        }
        rig.stream.finish()?;
    }
    pass()
}

fn write_value(ctx: &Ctx) -> Check {
    let Some(f) = ctx.plugin.d.stream_write_value else {
        return skip("no slot stream_write_value");
    };
    let rig = ctx.rig()?;
    let word = Pinned::new(&rig.dev, 64)?;
    word.put(0, &[0xC3; 64]);
    let stall = Stall::new(&rig.stream)?;
    let value = 0x0123_4567_89AB_CDEFu64;
    // SAFETY: the word outlives the stream's work.
    ctx.plugin.call("stream_write_value", |e| unsafe {
        f(rig.stream.handle(), word.mem.span(24, 8), value, e)
    })?;
    std::thread::sleep(Duration::from_millis(10));
    let early = stall.certain() && word.get(24, 8) != [0xC3; 8];
    stall.release();
    rig.stream.finish()?;
    if early {
        return Err("the word was written before the work ahead of it".into());
    }
    let mut want = [0xC3u8; 64];
    want[24..32].copy_from_slice(&value.to_le_bytes());
    match word.get(0, 64) == want {
        true => pass(),
        false => Err("not the 64-bit word, or more than it, was written".into()),
    }
}

/// R8: launch-time parameters are copied before return, so the host may overwrite them at once.
fn dynamic_arrays(ctx: &Ctx) -> Check {
    use crossweave_abi::op;
    let rig = ctx.rig()?;
    let Some(spec) = op::by_name("axpby") else {
        return skip("no op axpby in the table");
    };
    let n = 256u64;
    let layout = [abi::Layout::contiguous(abi::DType::F32, &[n]); 2];
    let params = op::AxpbyParams {
        size: size_of::<op::AxpbyParams>() as u32,
        flags: 0,
        alpha: 2.0,
        beta: 0.0,
    };
    let mut layouts = layout;
    let mut params = params;
    let desc = abi::OpDesc {
        size: size_of::<abi::OpDesc>() as u32,
        op: spec.id,
        op_revision: spec.revision,
        n_operands: 2,
        operands: layouts.as_ptr(),
        params: std::ptr::from_ref(&params).cast(),
        params_bytes: size_of::<op::AxpbyParams>() as u64,
        math_flags: 0,
        reserved: 0,
    };
    // SAFETY: layouts and parameters live for the call.
    let prepared = unsafe { rig.dev.prepare(&desc) };
    let (h, plan) = match prepared {
        Ok(x) => x,
        Err(r) if r.unsupported() => return skip(r.to_string()),
        Err(r) => return Err(r.into()),
    };
    // What was given at prepare is the host's again.
    params.alpha = f64::NAN;
    layouts[0].shape[0] = 1;
    let _ = (params.alpha, layouts[0].shape[0]);
    let x: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let (home, a, out) = (rig.area_of(&x)?, rig.area(n * 4)?, rig.area(n * 4)?);
    let ws = match plan.workspace_bytes {
        0 => None,
        w => Some(rig.area(w)?),
    };
    let stall = Stall::new(&rig.stream)?;
    // What it reads is made by the stream before it, and overwritten behind it.
    rig.stream.copy(a.span(), home.span())?;
    let mut spans = vec![out.span(), a.span()];
    let w = ws.as_ref().map_or(abi::Span::NULL, crate::ctx::Area::span);
    rig.stream.launch(&h, &spans, w, &[])?;
    spans.fill(abi::Span::NULL);
    rig.stream.fill(a.span(), 0, 4)?;
    // "Launches already enqueued stay valid."
    drop(h);
    stall.release();
    let got = out.read(&rig)?;
    let want: Vec<u8> = (0..n)
        .flat_map(|i| (2.0 * i as f32).to_le_bytes())
        .collect();
    match got == want {
        true => pass(),
        false => Err(
            "the launch used arrays of the host after it had returned, or did not run in its turn"
                .into(),
        ),
    }
}

/// Threads with streams of their own, on one or two devices, do random fills and copies, and hand areas over by events; a replay in
/// sequence must give the same bytes.
fn random_replay(ctx: &Ctx) -> Check {
    const THREADS: u64 = 4;
    const STEPS: u64 = 250;
    const AREAS: usize = 6;
    let n = 2048u64;
    std::thread::scope(|scope| {
        let each: Vec<_> = (0..THREADS)
            .map(|t| {
                scope.spawn(move || -> Result<(), String> {
                    let device = ctx.devices[t as usize % ctx.devices.len()];
                    let rig = Rig::on(ctx.plugin.open(device)?)?;
                    let mut rng = crate::ctx::Rng::new(ctx.seed ^ (t << 32));
                    let streams = [rig.dev.stream()?, rig.dev.stream()?, rig.dev.stream()?];
                    let events = [rig.dev.event()?, rig.dev.event()?, rig.dev.event()?];
                    let mut areas = Vec::new();
                    let mut model = Vec::new();
                    for _ in 0..AREAS {
                        let bytes = rng.bytes(n);
                        areas.push(rig.area_of(&bytes)?);
                        model.push(bytes);
                    }
                    let mut now = 0;
                    for step in 0..STEPS {
                        // Each step may move to another stream, which then waits for the one before.
                        let next = rng.below(3) as usize;
                        if next != now {
                            streams[now].record(&events[now])?;
                            streams[next].wait(&events[now])?;
                            now = next;
                        }
                        let (d, s) = (
                            rng.below(AREAS as u64) as usize,
                            rng.below(AREAS as u64) as usize,
                        );
                        let at = rng.below(n);
                        let len = rng.below(n - at) + 1;
                        if d == s || step % 3 == 0 {
                            let p = rng.word() as u8;
                            streams[now].fill(areas[d].part(at, len), u64::from(p), 1)?;
                            model[d][at as usize..(at + len) as usize].fill(p);
                        } else {
                            let from = rng.below(n - len + 1);
                            streams[now].copy(areas[d].part(at, len), areas[s].part(from, len))?;
                            let piece = model[s][from as usize..(from + len) as usize].to_vec();
                            model[d][at as usize..(at + len) as usize].copy_from_slice(&piece);
                        }
                    }
                    streams[now].finish()?;
                    for (i, (a, m)) in areas.iter().zip(&model).enumerate() {
                        if a.read(&rig)? != *m {
                            return Err(format!(
                                "thread {t}: area {i} differs from the replay in sequence"
                            ));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        for t in each {
            t.join()
                .map_err(|_| "the kit's thread panicked".to_string())??;
        }
        Ok::<(), String>(())
    })?;
    pass_with(format!("{THREADS} threads, {STEPS} steps each"))
}
