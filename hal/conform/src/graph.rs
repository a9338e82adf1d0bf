//! `order.graph.*`: what a stream is given once and launched again as one (`crossweave.graph/1`). Nothing of it runs before it is launched, each
//! launch is what calling the same again would be, and what a graph does not hold is refused and spoils nothing.
//!
//! A case makes everything it needs before it captures: the thread that captures makes and frees nothing meanwhile.

use crate::case::{Case, Check, pass, pass_with, refused, skip};
use crate::ctx::{Area, Ctx, POISON, Pinned, Rig, Stall};
use crate::raw::{Dev, Graph, OpHandle, Raw, Stream};
use crossweave_abi as abi;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

type Body = fn(&Ctx) -> Check;

/// The group's cases on graphs.
pub fn cases() -> Vec<Case> {
    let all: [(&str, Body); 9] = [
        ("order.graph.same_bytes_as_called", same_bytes),
        ("order.graph.each_launch_sees_memory_as_it_is", in_place),
        ("order.graph.launches_keep_their_streams_order", in_order),
        ("order.graph.capture_leaves_earlier_work", earlier_work),
        ("order.graph.what_none_holds_is_refused", not_held),
        ("order.graph.begin_and_end_in_turn", in_turn),
        ("order.graph.released_while_enqueued", released),
        ("order.graph.stream_destroyed_while_capturing", destroyed),
        ("order.graph.wrong_handles", wrong_handles),
    ];
    let case = |(id, body): (&str, Body)| {
        Case::new(id, move |ctx| offered(ctx, body)).row("order (graphs)")
    };
    let nodes = case(("order.graph.a_thousand_nodes", long)).since(9);
    all.into_iter().map(case).chain([nodes]).collect()
}

/// A plugin may find out that it has no graphs when it is asked for one.
fn offered(ctx: &Ctx, body: Body) -> Check {
    if ctx.plugin.graph.is_none() {
        return skip("no graphs");
    }
    let s = ctx.device()?.stream()?;
    match s.capture() {
        Err(r) if r.unsupported() => return refused(r.to_string()),
        other => other?,
    }
    drop(s.captured()?);
    body(ctx)
}

/// An op whose numbers are given at launch, where the plugin has it.
struct Numbers {
    op: OpHandle,
    scratch: Option<Area>,
}

const NUMBERS: u64 = 64;

impl Numbers {
    fn new(rig: &Rig) -> Result<Option<Numbers>, String> {
        use abi::op::PhiloxParams;
        let Some(spec) = abi::op::by_name("philox") else {
            return Ok(None);
        };
        let layouts = [abi::Layout::contiguous(abi::DType::U32, &[NUMBERS])];
        let params = PhiloxParams {
            kind: abi::op::philox::BITS,
            ..Default::default()
        };
        let desc = abi::OpDesc {
            size: size_of::<abi::OpDesc>() as u32,
            op: spec.id,
            op_revision: spec.revision,
            n_operands: 1,
            operands: layouts.as_ptr(),
            params: std::ptr::from_ref(&params).cast(),
            params_bytes: size_of::<PhiloxParams>() as u64,
            math_flags: 0,
            reserved: 0,
        };
        // SAFETY: layouts and parameters live for the call.
        let (op, plan) = match unsafe { rig.dev.prepare(&desc) } {
            Ok(made) => made,
            Err(r) if r.unsupported() => return Ok(None),
            Err(r) => return Err(r.into()),
        };
        let scratch = match plan.workspace_bytes {
            0 => None,
            n => Some(rig.area(n)?),
        };
        Ok(Some(Numbers { op, scratch }))
    }

    fn draw(&self, s: &Stream, to: abi::Span, offset: u64) -> Raw<()> {
        let given = abi::op::PhiloxDyn {
            seed: 7,
            offset,
            ..Default::default()
        };
        let mut dynamic = given.as_bytes().to_vec();
        let mut spans = [to];
        let scratch = self.scratch.as_ref().map_or(abi::Span::NULL, Area::span);
        let done = s.launch(&self.op, &spans, scratch, &dynamic);
        // What was given is the host's again.
        dynamic.fill(0xEE);
        spans.fill(abi::Span::NULL);
        std::hint::black_box((&dynamic, &spans));
        done
    }
}

/// A call with its places: seeded lists of them are called on one set of areas and captured on another.
#[derive(Clone, Copy)]
enum Call {
    Fill {
        to: usize,
        at: u64,
        bytes: u64,
        pattern: u64,
        width: u32,
    },
    Copy {
        to: usize,
        at: u64,
        from: usize,
        src: u64,
        bytes: u64,
    },
    Rows {
        to: usize,
        from: usize,
        width: u64,
        height: u64,
    },
    Draw {
        to: usize,
        at: u64,
        offset: u64,
    },
}

const AREAS: usize = 4;
const BYTES: u64 = 4096;

fn calls(ctx: &Ctx, draw: bool, n: usize) -> Vec<Call> {
    let mut rng = ctx.rng();
    let mut list = vec![];
    for i in 0..n {
        let to = rng.below(AREAS as u64) as usize;
        let from = (to + 1 + rng.below(AREAS as u64 - 1) as usize) % AREAS;
        let bytes = 8 * (1 + rng.below(BYTES / 16));
        let at = 8 * rng.below((BYTES - bytes) / 8 + 1);
        let src = 8 * rng.below((BYTES - bytes) / 8 + 1);
        list.push(match i % 4 {
            0 => Call::Fill {
                to,
                at,
                bytes,
                pattern: rng.word(),
                width: 1 << rng.below(4),
            },
            1 => Call::Rows {
                to,
                from,
                width: 1 + rng.below(60),
                height: 1 + rng.below(60),
            },
            2 if draw => Call::Draw {
                to,
                at: 1024 * rng.below(4),
                offset: rng.below(1 << 40),
            },
            _ => Call::Copy {
                to,
                at,
                from,
                src,
                bytes,
            },
        });
    }
    list
}

fn give(s: &Stream, list: &[Call], areas: &[Area], numbers: &Option<Numbers>) -> Raw<()> {
    list.iter().try_for_each(|c| match *c {
        Call::Fill {
            to,
            at,
            bytes,
            pattern,
            width,
        } => s.fill(areas[to].part(at, bytes), pattern, width),
        Call::Copy {
            to,
            at,
            from,
            src,
            bytes,
        } => s.copy(areas[to].part(at, bytes), areas[from].part(src, bytes)),
        Call::Rows {
            to,
            from,
            width,
            height,
        } => s.copy_2d(areas[to].span(), 64, areas[from].span(), 60, width, height),
        Call::Draw { to, at, offset } => match numbers {
            Some(n) => n.draw(s, areas[to].part(at, 4 * NUMBERS), offset),
            None => Ok(()),
        },
    })
}

/// What `f` gives the stream, as a graph.
fn graph_of(s: &Stream, f: impl FnOnce() -> Raw<()>) -> Raw<Graph> {
    s.capture()?;
    let given = f();
    let graph = s.captured();
    given.and(graph)
}

fn same_bytes(ctx: &Ctx) -> Check {
    replays(ctx, 48)
}

/// A thousand nodes of mixed kinds.
fn long(ctx: &Ctx) -> Check {
    replays(ctx, 1000)
}

fn replays(ctx: &Ctx, nodes: usize) -> Check {
    let rig = ctx.rig()?;
    let s = rig.dev.stream()?;
    let numbers = Numbers::new(&rig)?;
    let list = calls(ctx, numbers.is_some(), nodes);
    let mut rng = ctx.rng();
    let (mut called, mut replayed, mut start) = (vec![], vec![], vec![]);
    for _ in 0..AREAS {
        let bytes = rng.bytes(BYTES);
        called.push(rig.area_of(&bytes)?);
        replayed.push(rig.area_of(&bytes)?);
        start.push(bytes);
    }
    let graph = graph_of(&s, || give(&s, &list, &replayed, &numbers))?;
    s.finish()?;
    for (a, bytes) in replayed.iter().zip(&start) {
        if a.read(&rig)? != *bytes {
            return Err("what was captured ran before it was launched".into());
        }
    }
    for launch in 1..=3 {
        give(&s, &list, &called, &numbers)?;
        s.replay(&graph)?;
        s.finish()?;
        for (i, (a, b)) in called.iter().zip(&replayed).enumerate() {
            if a.read(&rig)? != b.read(&rig)? {
                return Err(format!(
                    "launch {launch} left other bytes in area {i} than {} calls",
                    list.len()
                ));
            }
        }
    }
    match numbers {
        Some(_) => pass(),
        None => pass_with("of copies and fills: there is no philox to launch"),
    }
}

/// A ring of pieces that one launch turns by one place: every launch counts, also of two that follow each other at once.
fn in_place(ctx: &Ctx) -> Check {
    const PIECES: u64 = 5;
    let n = 256u64;
    let rig = ctx.rig()?;
    let s = rig.dev.stream()?;
    let (ring, spare) = (rig.area(PIECES * n)?, rig.area(n)?);
    let piece = |i: u64| ring.part(i * n, n);
    let graph = graph_of(&s, || {
        s.copy(spare.span(), piece(0))?;
        (1..PIECES).try_for_each(|i| s.copy(piece(i - 1), piece(i)))?;
        s.copy(piece(PIECES - 1), spare.span())
    })?;
    let mut rng = ctx.rng();
    for launches in [1usize, 2, 7, 43] {
        // Changed behind the graph's back: it holds places, not what is in them.
        let mut want = rng.bytes(PIECES * n);
        ring.write(&rig, &want)?;
        for _ in 0..launches {
            s.replay(&graph)?;
        }
        s.finish()?;
        want.rotate_left(launches % PIECES as usize * n as usize);
        if ring.read(&rig)? != want {
            return Err(format!(
                "{launches} launches in a row did not do their work {launches} times on what was there"
            ));
        }
    }
    pass()
}

/// A launch waits for what is before it on its stream, and what comes after waits for it; any stream of the device will do.
fn in_order(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let (s, other) = (rig.dev.stream()?, rig.dev.stream()?);
    let n = 1u64 << 16;
    let bytes = ctx.rng().bytes(n);
    let src = rig.area_of(&bytes)?;
    let (mid, end, out) = (rig.area(n)?, rig.area(n)?, rig.area(n)?);
    let graph = graph_of(&s, || {
        s.copy(end.span(), mid.span())?;
        s.fill(mid.span(), 0x11, 1)
    })?;
    for on in [&s, &other] {
        mid.write(&rig, &vec![POISON; n as usize])?;
        let stall = Stall::new(on)?;
        on.copy(mid.span(), src.span())?;
        on.replay(&graph)?;
        on.copy(out.span(), mid.span())?;
        if stall.certain() {
            std::thread::sleep(Duration::from_millis(20));
            if on.query()? {
                return Err("a graph did not wait for the stream it was launched on".into());
            }
        }
        stall.release();
        on.finish()?;
        if end.read(&rig)? != bytes {
            return Err("a graph ran before what its stream was given ahead of it".into());
        }
        if out.read(&rig)?.iter().any(|b| *b != 0x11) {
            return Err("what a stream was given behind a graph ran before it".into());
        }
    }
    pass()
}

/// A stream may have work when it begins, others may ask for its state, and its events stand.
fn earlier_work(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let s = rig.dev.stream()?;
    let (a, b) = (rig.area(4096)?, rig.area(4096)?);
    let e = rig.dev.event()?;
    let stall = Stall::new(&s)?;
    s.fill(a.span(), 3, 1)?;
    s.record(&e)?;
    s.capture()?;
    let given = s.fill(b.span(), 4, 1);
    let asked = std::thread::scope(|scope| {
        let ask = || -> Result<(), String> {
            if (s.query()? || e.query()?) && stall.certain() {
                return Err("a stream that is held back says that it has finished".into());
            }
            stall.release();
            e.sync(Some(crate::ctx::SOON))
                .map_err(|r| format!("an event recorded before the capture: {r}"))
        };
        scope.spawn(ask).join()
    });
    let graph = s.captured();
    asked.map_err(|_| "the kit's thread panicked")??;
    given?;
    let graph = graph.map_err(|r| format!("another thread asked for the state of streams: {r}"))?;
    s.finish()?;
    if a.read(&rig)?.iter().any(|x| *x != 3) {
        return Err("work from before a capture was lost".into());
    }
    b.untouched(&rig)?;
    s.replay(&graph)?;
    s.finish()?;
    match b.read(&rig)?.iter().all(|x| *x == 4) {
        true => pass(),
        false => Err("the graph did not do what was captured".into()),
    }
}

unsafe extern "C" fn count(arg: *mut c_void, _: abi::Status) {
    // SAFETY: a share of the counter, made for this one call.
    let counter = unsafe { Arc::from_raw(arg.cast::<AtomicU64>()) };
    counter.fetch_add(1, Ordering::SeqCst);
}

/// Host calls, words, events, graphs: each is refused, nothing comes of it, and the capture goes on. So it does behind a wrong call.
fn not_held(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let (p, s) = (&ctx.plugin, rig.dev.stream()?);
    let (a, b) = (rig.area(256)?, rig.area(256)?);
    let (passed, fresh) = (rig.dev.event()?, rig.dev.event()?);
    let word = Pinned::new(&rig.dev, 8)?;
    word.put(0, &[0; 8]);
    let ran = Arc::new(AtomicU64::new(0));
    let nothing = graph_of(&s, || Ok(()))?;
    s.record(&passed)?;
    s.finish()?;
    let refused: [(&str, &dyn Fn() -> Option<Raw<()>>); 6] = [
        ("event_record", &|| Some(s.record(&passed))),
        ("stream_wait_event", &|| Some(s.wait(&fresh))),
        ("graph_launch", &|| Some(s.replay(&nothing))),
        ("stream_host_call", &|| {
            let f = p.d.stream_host_call?;
            let arg = Arc::into_raw(ran.clone()).cast_mut().cast();
            // SAFETY: `count` takes the share back in its one call.
            let said = p.call("stream_host_call", |e| unsafe {
                f(s.handle(), count, arg, e)
            });
            if said.is_err() {
                // SAFETY: refused, so nobody will take it.
                drop(unsafe { Arc::from_raw(arg.cast::<AtomicU64>()) });
            }
            Some(said.map(|_| ()))
        }),
        ("stream_wait_value", &|| {
            let f = p.d.stream_wait_value?;
            // SAFETY: the word lives as long as the case.
            let said = p.call("stream_wait_value", |e| unsafe {
                f(s.handle(), word.mem.span(0, 8), 0, e)
            });
            Some(said.map(|_| ()))
        }),
        ("stream_write_value", &|| {
            let f = p.d.stream_write_value?;
            // SAFETY: as above.
            let said = p.call("stream_write_value", |e| unsafe {
                f(s.handle(), word.mem.span(0, 8), 9, e)
            });
            Some(said.map(|_| ()))
        }),
    ];
    let mut wrong = vec![];
    let graph = graph_of(&s, || {
        s.fill(a.part(0, 128), 1, 1)?;
        for (slot, call) in refused {
            match call() {
                None => {}
                Some(Err(r)) if r.unsupported() => {}
                Some(Err(r)) => wrong.push(format!("{r}, and not UNSUPPORTED")),
                Some(Ok(())) => wrong.push(format!("{slot} on a stream that captures is OK")),
            }
        }
        match s.copy(b.span(), a.part(0, 64)) {
            Err(r) if r.status == abi::E_INVALID => {}
            other => wrong.push(format!(
                "a copy of other lengths: {other:?}, and not INVALID"
            )),
        }
        s.fill(a.part(128, 128), 2, 1)
    });
    if !wrong.is_empty() {
        return Err(wrong.join("; "));
    }
    let graph = graph.map_err(|r| format!("refused calls have spoilt a capture: {r}"))?;
    s.replay(&graph)?;
    s.finish()?;
    let got = a.read(&rig)?;
    if got[..128].iter().any(|x| *x != 1) || got[128..].iter().any(|x| *x != 2) {
        return Err("the graph is not what was taken before and behind refused calls".into());
    }
    b.untouched(&rig)?;
    if ran.load(Ordering::SeqCst) > 0 || word.get(0, 8) != [0; 8] {
        return Err("a call that was refused ran".into());
    }
    if !passed.query()? || !fresh.query()? {
        return Err("a refused record has changed its event".into());
    }
    // And the stream is a stream again.
    s.record(&fresh)?;
    s.wait(&passed)?;
    s.finish()?;
    fresh.sync(Some(crate::ctx::SOON))?;
    pass()
}

fn invalid(what: &str, said: Raw<()>) -> Result<(), String> {
    match said {
        Err(r) if r.status == abi::E_INVALID => Ok(()),
        Err(r) => Err(format!("{what}: {r}, and not INVALID")),
        Ok(()) => Err(format!("{what} is OK")),
    }
}

fn in_turn(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let s = rig.dev.stream()?;
    let a = rig.area(256)?;
    invalid("an end without a beginning", s.captured().map(drop))?;
    let mut twice = Ok(());
    let graph = graph_of(&s, || {
        s.fill(a.part(0, 128), 1, 1)?;
        twice = invalid("a second beginning", s.capture());
        s.fill(a.part(128, 128), 1, 1)
    });
    twice?;
    let graph = graph.map_err(|r| format!("a second beginning has spoilt the first: {r}"))?;
    invalid("a second end", s.captured().map(drop))?;
    s.finish()?;
    a.untouched(&rig)?;
    s.replay(&graph)?;
    s.finish()?;
    if a.read(&rig)?.iter().any(|x| *x != 1) {
        return Err("the graph lacks what was given on one side of a second beginning".into());
    }
    // Two streams of one device at a time, and a graph of nothing.
    let other = rig.dev.stream()?;
    let nothing = graph_of(&other, || Ok(()))?;
    s.fill(a.span(), 2, 1)?;
    s.replay(&nothing)?;
    s.finish()?;
    match a.read(&rig)?.iter().all(|x| *x == 2) {
        true => pass(),
        false => Err("a graph of nothing did something".into()),
    }
}

/// "Launches already enqueued stay valid", and what the graph was made of may go with it.
fn released(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let s = rig.dev.stream()?;
    let numbers = Numbers::new(&rig)?;
    let (called, replayed) = (rig.area(4 * NUMBERS)?, rig.area(4 * NUMBERS)?);
    let give = |to: &Area| match &numbers {
        Some(n) => n.draw(&s, to.span(), 11),
        None => s.fill(to.span(), 0x0123_4567_89AB_CDEF, 8),
    };
    give(&called)?;
    s.finish()?;
    let graph = graph_of(&s, || give(&replayed))?;
    let stall = Stall::new(&s)?;
    s.replay(&graph)?;
    s.replay(&graph)?;
    drop(graph);
    let scratch = numbers.map(|n| {
        drop(n.op);
        n.scratch
    });
    stall.release();
    s.finish()?;
    drop(scratch);
    match replayed.read(&rig)? == called.read(&rig)? {
        true => pass(),
        false => Err("a launch was lost when its graph was released".into()),
    }
}

fn destroyed(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let a = rig.area(4096)?;
    let s = rig.dev.stream()?;
    s.capture()?;
    s.fill(a.span(), 1, 1)?;
    drop(s);
    a.untouched(&rig)?;
    // Another stream captures as if nothing had been.
    let s = rig.dev.stream()?;
    let graph = graph_of(&s, || s.fill(a.span(), 2, 1))?;
    s.replay(&graph)?;
    s.finish()?;
    match a.read(&rig)?.iter().all(|x| *x == 2) {
        true => pass(),
        false => Err("the graph did not do what was captured".into()),
    }
}

/// NULL, and a stream of another device.
fn wrong_handles(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let (p, s) = (&ctx.plugin, rig.dev.stream()?);
    let Some(t) = &p.graph else {
        return skip("no graphs");
    };
    let null = std::ptr::null_mut();
    let a = rig.area(256)?;
    let graph = graph_of(&s, || s.fill(a.span(), 1, 1))?;
    let ask = |slot, f: &dyn Fn(abi::ErrPtr) -> abi::Status| p.call(slot, f).map(|_| ());
    if let (Some(begin), Some(end), Some(launch), Some(release)) = (
        t.capture_begin,
        t.capture_end,
        t.graph_launch,
        t.graph_release,
    ) {
        let mut out = null;
        let at = &raw mut out;
        // SAFETY: a NULL handle and a NULL out pointer are INVALID, which is what is asked; what is not NULL is live.
        unsafe {
            invalid(
                "a beginning on NULL",
                ask("capture_begin", &|e| begin(null, e)),
            )?;
            invalid("an end on NULL", ask("capture_end", &|e| end(null, at, e)))?;
            invalid(
                "NULL as a graph",
                ask("graph_launch", &|e| launch(null, s.handle(), e)),
            )?;
            invalid(
                "a launch on NULL",
                ask("graph_launch", &|e| launch(graph.handle(), null, e)),
            )?;
            release(null);
        }
        // The capture is over also where nobody can be given the graph.
        s.capture()?;
        // SAFETY: as above.
        let said = unsafe { ask("capture_end", &|e| end(s.handle(), std::ptr::null_mut(), e)) };
        invalid("an end that has nowhere to go", said)?;
        invalid("an end behind a failed one", s.captured().map(drop))?;
    }
    if let Some(index) = ctx.devices.get(1) {
        let there = Rig::on(p.open(*index)?)?;
        elsewhere(&there.dev, &graph)?;
    }
    s.finish()?;
    a.untouched(&rig)?;
    match ctx.devices.len() {
        1 => pass_with("one device: no foreign stream to launch on"),
        _ => pass(),
    }
}

fn elsewhere(dev: &Dev, graph: &Graph) -> Result<(), String> {
    let foreign = dev.stream()?;
    invalid(
        "a launch on a stream of another device",
        foreign.replay(graph),
    )?;
    Ok(foreign.finish()?)
}
