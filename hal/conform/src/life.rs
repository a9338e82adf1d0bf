//! `life.*`: handles, threads and whole plugins come and go without leaving anything, and NULL and misuse are refused.

use crate::case::{Case, Demanded, pass, pass_with, skip};
use crate::ctx::{Ctx, Rig, Stall};
use crossweave_abi as abi;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The group's cases.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("life.device.open_close", open_close).demanded(Demanded::MINIMAL),
        Case::new("life.device.same_index_twice", twice).demanded(Demanded::MINIMAL),
        Case::new("life.device.index_beyond", beyond).demanded(Demanded::MINIMAL),
        Case::new("life.null_handles", null_handles),
        Case::new("life.null_out_pointers", null_out),
        Case::new("life.destroy_takes_null", destroy_null),
        Case::new("life.stream.destroy_with_work", destroy_with_work).demanded(Demanded::MINIMAL),
        Case::new("life.event.outlives_its_stream", event_outlives).demanded(Demanded::MINIMAL),
        Case::new("life.event.destroyed_while_waited_for", event_dies).demanded(Demanded::MINIMAL),
        Case::new("life.threads_end_with_their_owner", threads_end),
        Case::new("life.caller_thread_is_left_alone", thread_state),
        Case::new("life.shutdown", shutdown).alone(),
    ]
}

/// Threads of this process.
pub(crate) fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

/// Their names, as the system has them.
fn names() -> Option<Vec<String>> {
    let all = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    // One that ends meanwhile has no name any more.
    let name = |p: std::path::PathBuf| std::fs::read_to_string(p.join("comm")).ok();
    let all = all.filter_map(|e| name(e.path()));
    Some(all.map(|n| n.trim().to_string()).collect())
}

/// A count that settles: threads end a moment after their owners.
pub(crate) fn settles(f: impl Fn() -> Option<usize>, at_most: usize) -> Option<usize> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let n = f()?;
        if n <= at_most || Instant::now() > end {
            return Some(n);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn open_close(ctx: &Ctx) -> crate::Check {
    // The driver of a GPU that others used too did not come to 200 within a minute.
    let begun = Instant::now();
    let mut times = 0;
    while times < 200 && (times < 10 || begun.elapsed() < Duration::from_secs(20)) {
        let dev = ctx.plugin.open(ctx.devices[times % ctx.devices.len()])?;
        if times % 20 == 0 {
            dev.info()?;
        }
        times += 1;
    }
    pass_with(format!("{times} times"))
}

fn twice(ctx: &Ctx) -> crate::Check {
    let (a, b) = (ctx.rig()?, ctx.rig()?);
    if a.dev.handle() == b.dev.handle() {
        return Err("two opens of one device gave the same handle".into());
    }
    let bytes = ctx.rng().bytes(1000);
    let x = a.area_of(&bytes)?;
    drop(b);
    match x.read(&a)? == bytes {
        true => pass(),
        false => Err("closing one open of a device changed memory of the other".into()),
    }
}

fn beyond(ctx: &Ctx) -> crate::Check {
    let n = ctx.plugin.device_count()?;
    for i in [n, n + 1, u32::MAX] {
        match ctx.plugin.open(i) {
            Ok(_) => return Err(format!("device {i} of {n} opened")),
            Err(r) if r.status == abi::E_INVALID => {}
            Err(r) => return Err(format!("device {i} of {n}: {r}, and not INVALID")),
        }
    }
    pass()
}

/// Every slot with a NULL first handle is INVALID, not a crash.
fn null_handles(ctx: &Ctx) -> crate::Check {
    let p = &ctx.plugin;
    let d = &p.d;
    let null = std::ptr::null_mut();
    let s = abi::Span::NULL;
    let mut out: abi::Handle = std::ptr::null_mut();
    let mut at: *mut std::ffi::c_void = std::ptr::null_mut();
    let mut wrong = vec![];
    let mut ask = |name: &'static str, r: crate::raw::Raw<i32>| match r {
        Err(r) if r.status == abi::E_INVALID => {}
        Err(r) => wrong.push(r.to_string()),
        Ok(_) => wrong.push(format!("{name} took a NULL handle")),
    };
    // SAFETY: "a NULL handle is CW_E_INVALID": that is what is asked; out pointers are live.
    unsafe {
        // SAFETY: all-zero integers and text.
        let mut info: abi::DeviceInfo = std::mem::zeroed();
        info.size = size_of::<abi::DeviceInfo>() as u32;
        if let Some(f) = d.device_info {
            ask(
                "device_info",
                p.call("device_info", |e| f(null, &mut info, e)),
            );
        }
        if let Some(f) = d.mem_alloc {
            let r = p.call("mem_alloc", |e| {
                f(null, abi::MEM_DEVICE, 64, 0, &mut out, e)
            });
            ask("mem_alloc", r);
        }
        if let Some(f) = d.mem_map {
            ask("mem_map", p.call("mem_map", |e| f(null, &mut at, e)));
        }
        if let Some(f) = d.stream_create {
            ask(
                "stream_create",
                p.call("stream_create", |e| f(null, 0, 0, &mut out, e)),
            );
        }
        if let Some(f) = d.stream_query {
            ask("stream_query", p.call("stream_query", |e| f(null, e)));
        }
        if let Some(f) = d.stream_sync {
            ask("stream_sync", p.call("stream_sync", |e| f(null, 0, e)));
        }
        if let Some(f) = d.event_create {
            ask(
                "event_create",
                p.call("event_create", |e| f(null, 0, &mut out, e)),
            );
        }
        if let Some(f) = d.event_record {
            ask("event_record", p.call("event_record", |e| f(null, null, e)));
        }
        if let Some(f) = d.event_query {
            ask("event_query", p.call("event_query", |e| f(null, e)));
        }
        if let Some(f) = d.event_sync {
            ask("event_sync", p.call("event_sync", |e| f(null, 0, e)));
        }
        if let Some(f) = d.stream_wait_event {
            ask(
                "stream_wait_event",
                p.call("stream_wait_event", |e| f(null, null, e)),
            );
        }
        if let Some(f) = d.copy {
            ask("copy", p.call("copy", |e| f(null, s, s, e)));
        }
        if let Some(f) = d.copy_2d {
            ask(
                "copy_2d",
                p.call("copy_2d", |e| f(null, s, 1, s, 1, 1, 1, e)),
            );
        }
        if let Some(f) = d.fill {
            ask("fill", p.call("fill", |e| f(null, s, 0, 1, e)));
        }
    }
    match wrong.is_empty() {
        true => pass(),
        false => Err(wrong.join("; ")),
    }
}

/// A NULL out pointer is INVALID.
fn null_out(ctx: &Ctx) -> crate::Check {
    let rig = ctx.rig()?;
    let p = &ctx.plugin;
    let d = &p.d;
    let dev = rig.dev.handle();
    let mut wrong = vec![];
    let mut ask = |name: &'static str, r: crate::raw::Raw<i32>| match r {
        Err(r) if r.status == abi::E_INVALID => {}
        Err(r) => wrong.push(r.to_string()),
        Ok(_) => wrong.push(format!("{name} took a NULL out pointer")),
    };
    // SAFETY: "a NULL out pointer is CW_E_INVALID": that is what is asked.
    unsafe {
        if let Some(f) = d.device_count {
            ask(
                "device_count",
                p.call("device_count", |e| f(p.raw.self_, std::ptr::null_mut(), e)),
            );
        }
        if let Some(f) = d.device_open {
            ask(
                "device_open",
                p.call("device_open", |e| {
                    f(p.raw.self_, 0, std::ptr::null_mut(), e)
                }),
            );
        }
        if let Some(f) = d.device_info {
            ask(
                "device_info",
                p.call("device_info", |e| f(dev, std::ptr::null_mut(), e)),
            );
        }
        if let Some(f) = d.mem_alloc {
            ask(
                "mem_alloc",
                p.call("mem_alloc", |e| {
                    f(dev, abi::MEM_DEVICE, 64, 0, std::ptr::null_mut(), e)
                }),
            );
        }
        if let Some(f) = d.stream_create {
            ask(
                "stream_create",
                p.call("stream_create", |e| f(dev, 0, 0, std::ptr::null_mut(), e)),
            );
        }
        if let Some(f) = d.event_create {
            ask(
                "event_create",
                p.call("event_create", |e| f(dev, 0, std::ptr::null_mut(), e)),
            );
        }
    }
    match wrong.is_empty() {
        true => pass(),
        false => Err(wrong.join("; ")),
    }
}

fn destroy_null(ctx: &Ctx) -> crate::Check {
    let d = &ctx.plugin.d;
    let null = std::ptr::null_mut();
    let slots = [
        d.device_close,
        d.mem_free,
        d.stream_destroy,
        d.event_destroy,
    ];
    let ops = ctx.plugin.ops.as_ref().and_then(|o| o.op_release);
    let coll = ctx.plugin.coll.as_ref().and_then(|c| c.comm_destroy);
    for f in slots.into_iter().chain([ops, coll]).flatten() {
        // SAFETY: "a destroy function takes NULL and does nothing".
        unsafe { f(null) };
    }
    pass()
}

/// A stream may be destroyed with work queued; memory it used lives on, and other streams work.
fn destroy_with_work(ctx: &Ctx) -> crate::Check {
    let rig = ctx.rig()?;
    let area = rig.area(1 << 16)?;
    for held in [false, true] {
        let s = rig.dev.stream()?;
        let stall = match held {
            true => Some(Stall::new(&s)?),
            false => None,
        };
        for _ in 0..50 {
            s.fill(area.span(), 7, 1)?;
        }
        let start = Instant::now();
        std::thread::scope(|scope| {
            // The thread that holds it back lets go a little later, so that a destroy that waits for the work is right too.
            let stall = stall;
            let t = scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                drop(stall);
            });
            drop(s);
            t.join()
                .map_err(|_| "the kit's thread panicked".to_string())
        })?;
        if start.elapsed() > Duration::from_secs(20) {
            return Err("stream_destroy took more than 20 s".into());
        }
    }
    let bytes = ctx.rng().bytes(1 << 16);
    area.write(&rig, &bytes)?;
    match area.read(&rig)? == bytes {
        true => pass(),
        false => Err("work of a destroyed stream came after its end".into()),
    }
}

fn event_outlives(ctx: &Ctx) -> crate::Check {
    let rig = ctx.rig()?;
    let area = rig.area(4096)?;
    let e = rig.dev.event()?;
    {
        let s = rig.dev.stream()?;
        s.fill(area.span(), 1, 1)?;
        s.record(&e)?;
        s.finish()?;
    }
    if !e.query()? {
        return Err("an event passed before its stream was destroyed is not complete".into());
    }
    e.sync(Some(Duration::from_secs(10)))?;
    rig.stream.wait(&e)?;
    rig.stream.finish()?;
    pass()
}

/// A wait that is queued does not need the event's handle any more.
fn event_dies(ctx: &Ctx) -> crate::Check {
    let rig = ctx.rig()?;
    let area = rig.area(4096)?;
    let bytes = ctx.rng().bytes(4096);
    let (src, out) = (rig.area_of(&bytes)?, rig.area(4096)?);
    let other = rig.dev.stream()?;
    let stall = Stall::new(&other)?;
    other.copy(area.span(), src.span())?;
    {
        let e = rig.dev.event()?;
        other.record(&e)?;
        rig.stream.wait(&e)?;
    }
    rig.stream.copy(out.span(), area.span())?;
    std::thread::sleep(Duration::from_millis(20));
    drop(stall);
    match out.read(&rig)? == bytes {
        true => pass(),
        false => Err("a wait was forgotten when its event was destroyed".into()),
    }
}

fn threads_end(ctx: &Ctx) -> crate::Check {
    let Some(before) = threads() else {
        return skip("threads cannot be counted on this system");
    };
    let used = |ctx: &Ctx| -> Result<(), String> {
        let rig = ctx.rig()?;
        let a = rig.area(1 << 20)?;
        for _ in 0..4 {
            let s = rig.dev.stream()?;
            s.fill(a.span(), 3, 1)?;
            s.finish()?;
        }
        Ok(())
    };
    // What a plugin starts once for the process may stay; what it starts again and again may not.
    used(ctx)?;
    let base = settles(threads, before).unwrap_or(before);
    for _ in 0..10 {
        used(ctx)?;
    }
    match settles(threads, base) {
        Some(n) if n <= base => pass(),
        n => Err(format!(
            "{base} threads after one device was used and closed, {} after eleven",
            n.unwrap_or(0)
        )),
    }
}

/// The signal mask and the floating-point mode of the calling thread belong to the caller.
fn thread_state(ctx: &Ctx) -> crate::Check {
    #[cfg(unix)]
    {
        let mask = || {
            // SAFETY: a query into a zeroed set.
            unsafe {
                let mut m: libc::sigset_t = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut m);
                (1..32)
                    .map(|s| libc::sigismember(&m, s))
                    .collect::<Vec<_>>()
            }
        };
        let handlers = || {
            let signals = [
                libc::SIGSEGV,
                libc::SIGINT,
                libc::SIGTERM,
                libc::SIGABRT,
                libc::SIGFPE,
                libc::SIGBUS,
                libc::SIGILL,
                libc::SIGPIPE,
                libc::SIGCHLD,
                libc::SIGUSR1,
                libc::SIGUSR2,
            ];
            // SAFETY: queries of handlers.
            signals.map(|s| unsafe {
                let mut a: libc::sigaction = std::mem::zeroed();
                libc::sigaction(s, std::ptr::null(), &mut a);
                a.sa_sigaction
            })
        };
        let tiny = || std::hint::black_box(f32::MIN_POSITIVE) / std::hint::black_box(4.0) != 0.0;
        // To nearest: three quarters of a step go up, a quarter goes down, of either sign.
        let step = |part: f32| {
            let (one, part) = (std::hint::black_box(1f32), std::hint::black_box(part));
            one + part * f32::EPSILON != 1.0
        };
        let nearest = || step(0.75) && !step(0.25) && step(-0.4) && !step(-0.2);
        let (m, h) = (mask(), handlers());
        let rig = ctx.rig()?;
        let a = rig.area(4096)?;
        rig.stream.fill(a.span(), 1, 1)?;
        rig.stream.finish()?;
        if !tiny() {
            return Err("the calling thread now flushes subnormal numbers to zero".into());
        }
        if !nearest() {
            return Err("the calling thread now rounds another way than to nearest".into());
        }
        if mask() != m {
            return Err("the calling thread's signal mask was changed".into());
        }
        if handlers() != h {
            return Err("a signal handler was installed".into());
        }
        pass()
    }
    #[cfg(not(unix))]
    {
        let _ = ctx;
        skip("nothing to look at on this system")
    }
}

/// Ends the plugin's threads.
fn shutdown(ctx: &Ctx) -> crate::Check {
    let Some(f) = ctx.plugin.raw.shutdown else {
        return skip("no shutdown slot");
    };
    let of_libraries = {
        let rig: Rig = ctx.rig()?;
        let a = rig.area(1 << 20)?;
        rig.stream.fill(a.span(), 1, 1)?;
        rig.stream.finish()?;
        // A vendor's library may keep threads until the process ends; the plugin says what they are called.
        let said = rig.dev.attr("threads.of_libraries").ok().flatten();
        String::from_utf8(said.unwrap_or_default()).map_err(|e| e.to_string())?
    };
    ctx.shut.store(true, Ordering::Relaxed);
    let start = Instant::now();
    // SAFETY: all handles are gone, and it is called once.
    ctx.plugin
        .call("shutdown", |e| unsafe { f(ctx.plugin.raw.self_, e) })?;
    if start.elapsed() > Duration::from_secs(10) {
        return Err(format!("it took {:?}", start.elapsed()));
    }
    // Threads the host started for the plugin have ended; so have those it started itself.
    let running = || Some(ctx.host.threads().1);
    match settles(running, 0) {
        Some(0) => {}
        n => {
            return Err(format!(
                "{} threads of the host still run the plugin's code",
                n.unwrap_or(0)
            ));
        }
    }
    let Some(before) = ctx.threads else {
        return pass_with("threads cannot be counted on this system");
    };
    let theirs = |name: &str| {
        let mut all = of_libraries.split(',').map(str::trim);
        all.any(|of| !of.is_empty() && name.starts_with(of))
    };
    let ours = || Some(names()?.iter().filter(|n| !theirs(n)).count());
    match settles(ours, before) {
        Some(n) if n > before => Err(format!(
            "{} threads are left; the process has {}; threads that a vendor's library keeps are named by the attribute threads.of_libraries",
            n - before,
            names().unwrap_or_default().join(", ")
        )),
        _ if of_libraries.is_empty() => pass(),
        _ => pass_with(format!("beside threads of libraries: {of_libraries}")),
    }
}
