//! `fault.*`: failures on purpose. Errors are typed and name the peer, what is sticky stays, an abort returns at once and frees who waits,
//! and the process lives on.

use crate::case::{Case, Check, Demanded, pass, pass_with, skip};
use crate::ctx::{Ctx, Rig, SOON};
use crate::local_ranks::{Answer, Rank};
use crate::raw::{Comm, Raw, coll_desc, status_name};
use crossweave_abi as abi;
use std::time::{Duration, Instant};

/// The group's cases.
pub fn cases(ranks: &[u32]) -> Vec<Case> {
    let mut v = vec![
        Case::new("fault.oom_is_not_sticky", oom).demanded(Demanded::MINIMAL),
        Case::new("fault.points.error", |ctx| points(ctx, abi::E_INTERNAL)),
        Case::new("fault.points.oom", |ctx| points(ctx, abi::E_OOM)),
        Case::new("fault.points.device_lost", |ctx| {
            points(ctx, abi::E_DEVICE_LOST)
        })
        .alone(),
        Case::new("fault.points.panic", |ctx| points(ctx, abi::E_PANIC)).alone(),
        Case::new("fault.init_attempt_leaves_nothing", init_fails).alone(),
    ];
    for n in ranks.iter().copied().filter(|n| *n >= 2) {
        let all: [(&str, Body); 9] = [
            ("fault.host_call_after_failure", host_call_after_failure),
            ("fault.missing_rank_is_named", missing_rank),
            ("fault.failure_is_told_again", told_again),
            ("fault.queries_return_at_once", at_once),
            ("fault.missing_member_at_init", missing_member),
            ("fault.abort_from_another_thread", abort),
            ("fault.abort_of_two_communicators", abort_two),
            ("fault.destroy_after_abort", destroy_after_abort),
            ("fault.again_after_failure", again),
        ];
        for (id, body) in all {
            let case = Case::new(format!("{id}.r{n}"), move |ctx| run(ctx, n, body));
            v.push(case.on_ranks(n).limit(120));
        }
    }
    v
}

type Body = fn(&Rank) -> Result<Answer, String>;

/// Ranks that have judged something say that it was claimed; where none has, there was nothing to judge.
fn run(ctx: &Ctx, n: u32, body: Body) -> Check {
    if ctx.plugin.coll.is_none() {
        return skip("no collectives");
    }
    let all = ctx.loose_ranks(n, &body)?;
    let notes = all.iter().map(|a| a.note.as_str());
    let note = notes.into_iter().find(|n| !n.is_empty()).unwrap_or("");
    match all.iter().any(|a| a.claimed) {
        true => pass_with(note),
        false => skip(note),
    }
}

fn done() -> Result<Answer, String> {
    judged("")
}

fn judged(note: impl Into<String>) -> Result<Answer, String> {
    Ok(Answer {
        claimed: true,
        note: note.into(),
        ..Answer::default()
    })
}

/// For ranks that only help, and for cells that are not there.
fn nothing(note: impl Into<String>) -> Result<Answer, String> {
    Ok(Answer {
        note: note.into(),
        ..Answer::default()
    })
}

/// What ranks wait in while a peer does not come; all ranks give the same answer.
fn sums(comm: &Comm) -> Result<bool, String> {
    let d = coll_desc(abi::COLL_ALL_REDUCE, abi::DType::F32.id(), abi::RED_SUM, 16);
    Ok(comm.claims(&d)?.is_some())
}

const NO_SUMS: &str = "no all_reduce of f32 sums to wait in";

fn oom(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let bytes = ctx.rng().bytes(4096);
    for _ in 0..20 {
        match rig.dev.alloc(abi::MEM_DEVICE, 1 << 60, 0) {
            Ok(_) => return skip("the device gives out 2^60 bytes"),
            Err(r) if r.status == abi::E_OOM && !r.sticky() => {}
            Err(r) if r.status == abi::E_OOM => {
                return Err("OOM is marked sticky: the device must stay usable".into());
            }
            Err(r) => return Err(format!("2^60 bytes: {r}, and not OOM")),
        }
        if rig.area_of(&bytes)?.read(&rig)? != bytes {
            return Err("the device does not work on after OOM".into());
        }
    }
    pass()
}

/// A bit of everything that may pass a fault point.
fn tour(ctx: &Ctx) -> Raw<()> {
    let dev = ctx.plugin.open(ctx.devices[0])?;
    let stream = dev.stream()?;
    let pinned = dev.alloc(abi::MEM_HOST_PINNED, 1024, 0)?;
    pinned.map()?;
    let a = dev.alloc(abi::MEM_DEVICE, 1024, 0)?;
    let b = dev.alloc(abi::MEM_DEVICE, 1024, 0)?;
    stream.fill(a.whole(), 1, 1)?;
    stream.copy(b.whole(), a.whole())?;
    stream.copy(pinned.whole(), b.whole())?;
    stream.copy_2d(b.whole(), 32, a.whole(), 32, 16, 8)?;
    let e = dev.event()?;
    stream.record(&e)?;
    stream.wait(&e)?;
    stream.query()?;
    stream.finish()?;
    e.sync(Some(SOON))
}

/// Each named place fails with `status`: the call says so, nothing ends the process, and without the fault all is well again.
fn points(ctx: &Ctx, status: abi::Status) -> Check {
    tour(ctx)?;
    let names = ctx.host.fault_points();
    if names.is_empty() {
        return skip("the plugin passes no fault point");
    }
    let word = status_name(status);
    let mut met = 0;
    ctx.host.take_failed();
    for name in &names {
        ctx.host.set_fault(name, (-status) as u32);
        let broken = tour(ctx);
        ctx.host.set_fault(name, 0);
        if !ctx.host.take_failed().contains(name) {
            // A place that is passed once in a process does not come again; then nothing may fail.
            broken.map_err(|e| format!("no fault point was met, and {e}"))?;
            continue;
        }
        met += 1;
        match broken {
            Ok(()) => {
                return Err(format!(
                    "fault point {name} was set to fail with {word}, and no call returned it"
                ));
            }
            Err(e) if e.status != status => {
                return Err(format!("fault point {name} with {word}: {e}"));
            }
            Err(e) if status == abi::E_DEVICE_LOST && !e.sticky() => {
                return Err(format!(
                    "fault point {name}: {e}, which is not marked sticky"
                ));
            }
            Err(_) => {}
        }
        if let Err(e) = tour(ctx) {
            return Err(format!(
                "after fault point {name} failed once a freshly opened device does not work: {e}"
            ));
        }
    }
    match met {
        0 => skip("no fault point is passed a second time"),
        n => pass_with(format!("{n} places")),
    }
}

/// The status that a host call received.
type Told = std::sync::Mutex<Vec<abi::Status>>;

unsafe extern "C" fn note(arg: *mut std::ffi::c_void, status: abi::Status) {
    // SAFETY: a list that outlives the stream's work.
    let seen = unsafe { &*arg.cast::<Told>() };
    if let Ok(mut s) = seen.lock() {
        s.push(status);
    }
}

/// A stream that has failed still runs its host calls, with the failure, and says the same every time. A collective whose peer never comes
/// makes a stream fail.
fn host_call_after_failure(r: &Rank) -> Result<Answer, String> {
    let Some(call) = r.rig.dev.plugin().d.stream_host_call else {
        return nothing("no slot stream_host_call");
    };
    let comm = r.join("fails", SHORT)?;
    if !sums(&comm)? {
        return nothing(NO_SUMS);
    }
    r.meet("joined")?;
    let found = match r.rank {
        0 => after_failure(r, &comm, call),
        _ => nothing(""),
    };
    r.meet("seen")?;
    found
}

type HostCall = unsafe extern "C" fn(
    abi::Handle,
    abi::HostFn,
    *mut std::ffi::c_void,
    abi::ErrPtr,
) -> abi::Status;

fn after_failure(r: &Rank, comm: &Comm, call: HostCall) -> Result<Answer, String> {
    let a = r.rig.area_of(&[0; 64])?;
    let b = r.rig.area(64)?;
    // Never freed: a plugin that loses the call may still make it.
    let seen: &'static Told = Box::leak(Box::default());
    launch_sum(comm, r, a.span(), b.span())?;
    let arg = std::ptr::from_ref(seen).cast_mut().cast();
    let s = &r.rig.stream;
    // SAFETY: the list lives for ever.
    r.rig.dev.plugin().call("stream_host_call", |e| unsafe {
        call(s.handle(), note, arg, e)
    })?;
    let Err(first) = s.sync(Some(SOON)) else {
        return Err("a collective without its peer succeeded".into());
    };
    let end = Instant::now() + SOON;
    while seen.lock().map_err(|_| "poisoned")?.is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..3 {
        match s.query() {
            Err(e) if e.status == first.status => {}
            other => {
                let was = status_name(first.status);
                return Err(format!(
                    "the stream failed with {was}, and then says {other:?}"
                ));
            }
        }
    }
    let seen = seen.lock().map_err(|_| "poisoned")?.clone();
    match seen.as_slice() {
        [one] if *one < 0 => judged(format!(
            "{}, and the host call received {}",
            status_name(first.status),
            status_name(*one)
        )),
        other => Err(format!(
            "a host call behind a failure ran as {other:?}: once, with the failure, is right"
        )),
    }
}

/// A failed attempt to initialise leaves nothing behind: the next one may succeed.
fn init_fails(ctx: &Ctx) -> Check {
    let mut h = ctx.host.table();
    h.min_plugin_minor = 900;
    h.abi_minor = 900;
    let h: &'static abi::Host = Box::leak(Box::new(h));
    for _ in 0..3 {
        // SAFETY: a zeroed table of the stated size.
        let mut out: abi::Plugin = unsafe { std::mem::zeroed() };
        out.size = size_of::<abi::Plugin>() as u32;
        // SAFETY: live tables of the stated sizes.
        let r = ctx
            .plugin
            .call("entry", |e| unsafe { (ctx.plugin.entry)(h, &mut out, e) });
        if r.is_ok() {
            return Err("a host that needs plugin 1.900 was accepted".into());
        }
        tour(ctx)?;
    }
    pass()
}

const SHORT: Duration = Duration::from_millis(600);

fn launch_sum(comm: &Comm, r: &Rank, send: abi::Span, recv: abi::Span) -> Result<(), String> {
    let count = send.bytes / 4;
    let mut d = coll_desc(
        abi::COLL_ALL_REDUCE,
        abi::DType::F32.id(),
        abi::RED_SUM,
        count,
    );
    (d.send, d.recv) = (send, recv);
    Ok(comm.launch(&r.rig.stream, &[d])?)
}

/// Waits for a failure of the communicator or of the stream.
fn failure(comm: &Comm, rig: &Rig, within: Duration) -> Result<crate::raw::Refusal, String> {
    let end = Instant::now() + within;
    loop {
        if let Err(e) = comm.health() {
            return Ok(e);
        }
        if let Err(e) = rig.stream.sync(Some(Duration::from_millis(5)))
            && e.status != abi::E_TIMEOUT
        {
            // The communicator knows more than the stream.
            return Ok(comm.health().err().unwrap_or(e));
        }
        if Instant::now() > end {
            return Err(format!("no failure within {within:?}"));
        }
    }
}

/// The last rank does not come to a collective: every other one fails within the timeout (and some), and who names a rank names a right
/// one: with two ranks there is only one to name, with more a ring knows its neighbour, and somebody must name the missing one itself.
fn missing_rank(r: &Rank) -> Result<Answer, String> {
    let comm = r.join("missing", SHORT)?;
    if !sums(&comm)? {
        return nothing(NO_SUMS);
    }
    let a = r.rig.area_of(&[0; 64])?;
    let b = r.rig.area(64)?;
    let last = r.n - 1;
    r.meet("joined")?;
    let mut found = nothing("");
    let named = |rank: u32| format!("{}named/{rank}", r.scope);
    if r.rank != last {
        launch_sum(&comm, r, a.span(), b.span())?;
        let mut peer = WRONG;
        found = failure(&comm, &r.rig, SOON / 2).and_then(|e| {
            if !matches!(e.status, abi::E_COMM | abi::E_TIMEOUT | abi::E_ABORTED) {
                return Err(format!("{e}: COMM or TIMEOUT is wanted"));
            }
            if !e.sticky() {
                return Err(format!(
                    "{e}: the communicator is dead, and the error is not sticky"
                ));
            }
            if e.peer != -1 && (e.peer as u32 >= r.n || e.peer as u32 == r.rank) {
                return Err(format!("{e}: names rank {} of {}", e.peer, r.n));
            }
            peer = e.peer;
            judged(e.message)
        });
        let told = r.kv.set(&named(r.rank), &peer.to_le_bytes());
        told.map_err(|e| e.to_string())?;
    }
    r.meet("seen")?;
    let mine = found?;
    let mut names = vec![];
    for rank in 0..last {
        let text = r.kv.get(&named(rank), Some(SOON));
        let text = text.map_err(|e| e.to_string())?;
        names.push(text.try_into().map_or(WRONG, i32::from_le_bytes));
    }
    // A rank that has found something wrong reports it itself.
    if names.contains(&WRONG) {
        return Ok(mine);
    }
    if names.iter().all(|p| *p == -1) {
        return nothing(
            "all fail in time and for good, and none knows the missing rank: peer_rank is -1",
        );
    }
    match names.contains(&(last as i32)) {
        true => Ok(mine),
        false => Err(format!(
            "ranks 0 to {} name {names:?}, and rank {last} is missing",
            last - 1
        )),
    }
}

/// In place of a rank's number: what it saw was wrong otherwise.
const WRONG: i32 = i32::MIN;

/// What must not block may take this long, at its best of several times: a busy machine is no excuse for all of them.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The failure of a collective whose peer never comes is the answer every time it is asked for, of the communicator, of
/// the stream, and of an event behind it.
fn told_again(r: &Rank) -> Result<Answer, String> {
    let comm = r.join("again", SHORT)?;
    if !sums(&comm)? {
        return nothing(NO_SUMS);
    }
    let (a, b) = (r.rig.area_of(&[0; 64])?, r.rig.area(64)?);
    r.meet("joined")?;
    let look = || -> Result<Answer, String> {
        launch_sum(&comm, r, a.span(), b.span())?;
        let event = r.rig.dev.event()?;
        r.rig.stream.record(&event)?;
        let first = failure(&comm, &r.rig, SOON / 2)?;
        let comm_says = || comm.health().map_err(|e| (e.status, e.sticky()));
        let known = comm_says();
        for time in 2..5 {
            let now = comm_says();
            if now.is_ok() || now != known {
                let first = status_name(first.status);
                return Err(format!(
                    "comm_async_error said {first} and sticky, and the {time}th time says {now:?}"
                ));
            }
        }
        // The stream has failed too, sooner or later, and so has what was recorded behind it.
        match r.rig.stream.sync(Some(SOON)) {
            Ok(()) => return Err("a stream whose collective failed synchronised".into()),
            Err(e) if e.status == abi::E_TIMEOUT && !e.sticky() => {
                return Err("a stream whose collective failed does not end".into());
            }
            Err(_) => {}
        }
        let started = Instant::now();
        match event.sync(Some(SOON / 2)) {
            Ok(()) => return Err("event_sync of a failed stream answered OK".into()),
            Err(_) if started.elapsed() >= SOON / 2 => {
                return Err("event_sync of a failed stream waited until its timeout".into());
            }
            Err(_) => {}
        }
        done()
    };
    let found = match r.rank {
        0 => look(),
        _ => nothing(""),
    };
    r.meet("seen")?;
    found
}

/// `comm_async_error`, `stream_query` and `event_query` do not block, whatever is going on: well, waiting for a peer, or aborted.
fn at_once(r: &Rank) -> Result<Answer, String> {
    let comm = r.join("asked", 4 * SOON)?;
    if !sums(&comm)? {
        return nothing(NO_SUMS);
    }
    let (a, b) = (r.rig.area_of(&[0; 64])?, r.rig.area(64)?);
    let event = r.rig.dev.event()?;
    r.meet("joined")?;
    let quick = |when: &str| -> Result<(), String> {
        let asked: [(&str, &dyn Fn()); 3] = [
            ("comm_async_error", &|| drop(comm.health())),
            ("stream_query", &|| drop(r.rig.stream.query())),
            ("event_query", &|| drop(event.query())),
        ];
        for (slot, ask) in asked {
            let took = (0..5).map(|_| {
                let start = Instant::now();
                ask();
                start.elapsed()
            });
            let best = took.min().unwrap_or_default();
            if best > AT_ONCE {
                return Err(format!("{slot} took {best:?} at its best, {when}"));
            }
        }
        Ok(())
    };
    let look = || -> Result<Answer, String> {
        quick("on a communicator that is well")?;
        launch_sum(&comm, r, a.span(), b.span())?;
        r.rig.stream.record(&event)?;
        quick("while a collective waits for its peer")?;
        comm.abort()?;
        quick("after an abort")?;
        done()
    };
    let found = match r.rank {
        0 => look(),
        _ => nothing(""),
    };
    r.meet("seen")?;
    found
}

/// Not all come to the communicator itself.
fn missing_member(r: &Rank) -> Result<Answer, String> {
    if r.launched {
        return nothing("a launcher's world has all its ranks: threads and fork can leave one out");
    }
    let key = format!("{}id", r.scope);
    let id = match r.rank {
        0 => {
            let id = r.rig.dev.unique_id()?;
            r.kv.set(&key, &id).map_err(|e| e.to_string())?;
            id
        }
        _ => r.kv.get(&key, Some(SOON)).map_err(|e| e.to_string())?,
    };
    let mut found = nothing("");
    if r.rank != r.n - 1 {
        let prefix = format!("{}comm/", r.scope);
        let cfg = crate::raw::Joining {
            rank: r.rank,
            nranks: r.n,
            timeout: SHORT,
            prefix: &prefix,
            name: "short of one",
        };
        let start = Instant::now();
        found = match r.rig.dev.join(&id, &cfg) {
            Err(e) if matches!(e.status, abi::E_COMM | abi::E_TIMEOUT) => done(),
            Err(e) => Err(format!("{e}: COMM or TIMEOUT is wanted")),
            Ok(comm) => loop {
                match comm.health() {
                    Ok(true) => {
                        break Err("a communicator short of one rank says that it is ready".into());
                    }
                    Err(e) if matches!(e.status, abi::E_COMM | abi::E_TIMEOUT) => break done(),
                    Err(e) => break Err(format!("{e}: COMM or TIMEOUT is wanted")),
                    Ok(false) if start.elapsed() > SOON / 2 => {
                        break Err(format!(
                            "still connecting after {SOON:?} / 2, with a timeout of {SHORT:?}"
                        ));
                    }
                    Ok(false) => std::thread::sleep(Duration::from_millis(2)),
                }
            },
        };
    }
    r.meet("seen")?;
    found
}

/// Blocks rank 0 in a collective nobody else comes to, and aborts it from another thread.
fn abort(r: &Rank) -> Result<Answer, String> {
    let comm = r.join("aborted", 4 * SOON)?;
    if !sums(&comm)? {
        return nothing(NO_SUMS);
    }
    let a = r.rig.area_of(&[0; 64])?;
    let b = r.rig.area(64)?;
    r.meet("joined")?;
    let mut found = Ok(());
    if r.rank == 0 {
        launch_sum(&comm, r, a.span(), b.span())?;
        std::thread::sleep(Duration::from_millis(30));
        found = aborted(&comm, r);
    }
    r.meet("seen")?;
    found.and_then(|()| done())
}

fn aborted(comm: &Comm, r: &Rank) -> Result<(), String> {
    let took = std::thread::scope(|s| {
        let t = s.spawn(|| {
            let start = Instant::now();
            comm.abort().map(|()| start.elapsed()).map_err(String::from)
        });
        t.join()
            .map_err(|_| "the kit's thread panicked".to_string())?
    })?;
    if took > Duration::from_secs(2) {
        return Err(format!(
            "comm_abort took {took:?}: it must only mark and release"
        ));
    }
    let start = Instant::now();
    match r.rig.stream.sync(Some(SOON)) {
        Ok(()) => return Err("an aborted collective succeeded".into()),
        Err(e) if e.status == abi::E_TIMEOUT && start.elapsed() >= SOON => {
            return Err("abort did not release the collective that waits".into());
        }
        Err(_) => {}
    }
    match comm.health() {
        Err(e) if e.status == abi::E_ABORTED || e.status == abi::E_COMM => {}
        Err(e) => return Err(format!("an aborted communicator says {e}, and not ABORTED")),
        Ok(_) => return Err("an aborted communicator says that it is well".into()),
    }
    let d = coll_desc(abi::COLL_BARRIER, 0, 0, 0);
    let s = r.rig.dev.stream()?;
    match comm.launch(&s, &[d]) {
        Err(e) if e.status == abi::E_ABORTED || e.status == abi::E_COMM || e.unsupported() => {
            Ok(())
        }
        Err(e) => Err(format!("a launch after abort: {e}, and not ABORTED")),
        Ok(()) => Err("a launch after abort was accepted".into()),
    }
}

fn abort_two(r: &Rank) -> Result<Answer, String> {
    let one = r.join("one", 4 * SOON)?;
    let two = r.join("two", 4 * SOON)?;
    if !sums(&one)? {
        return nothing(NO_SUMS);
    }
    let a = r.rig.area_of(&[0; 64])?;
    let (b, c) = (r.rig.area(64)?, r.rig.area(64)?);
    r.meet("joined")?;
    let mut found = Ok(());
    if r.rank == 0 {
        let s2 = r.rig.dev.stream()?;
        launch_sum(&one, r, a.span(), b.span())?;
        let mut d = coll_desc(abi::COLL_ALL_REDUCE, abi::DType::F32.id(), abi::RED_SUM, 16);
        (d.send, d.recv) = (a.span(), c.span());
        two.launch(&s2, &[d])?;
        std::thread::sleep(Duration::from_millis(20));
        found = aborted(&one, r);
        if found.is_ok() {
            // The second goes on waiting until it is aborted itself.
            let still = s2.query();
            if let Ok(true) = still {
                found = Err(
                    "a collective of the second communicator succeeded without its peers".into(),
                );
            } else if still.is_err() {
                found = Err("aborting one communicator failed the other".into());
            } else {
                two.abort()?;
                match s2.sync(Some(SOON)) {
                    Ok(()) => found = Err("an aborted collective succeeded".into()),
                    Err(e) if e.status == abi::E_TIMEOUT && !e.sticky() => {
                        found = Err("abort did not release the second communicator".into());
                    }
                    Err(_) => {}
                }
            }
        }
    }
    r.meet("seen")?;
    found.and_then(|()| done())
}

/// Aborting marks, and destroying what is aborted does not wait for peers: neither takes long at its best.
fn destroy_after_abort(r: &Rank) -> Result<Answer, String> {
    let (mut abort, mut destroy) = (Duration::MAX, Duration::MAX);
    for time in 0..4 {
        let comm = r.join(&format!("destroyed{time}"), 4 * SOON)?;
        let claimed = sums(&comm)?;
        let (a, b) = (r.rig.area_of(&[0; 64])?, r.rig.area(64)?);
        r.meet(&format!("joined{time}"))?;
        if r.rank == 0 {
            // A stream of its own: it ends in a failure.
            let rig = Rig::on(r.rig.dev.clone())?;
            if claimed {
                let mut d = coll_desc(abi::COLL_ALL_REDUCE, abi::DType::F32.id(), abi::RED_SUM, 16);
                (d.send, d.recv) = (a.span(), b.span());
                comm.launch(&rig.stream, &[d])?;
            }
            let start = Instant::now();
            comm.abort()?;
            abort = abort.min(start.elapsed());
            let _ = rig.stream.sync(Some(SOON));
            let start = Instant::now();
            drop(comm);
            destroy = destroy.min(start.elapsed());
            r.meet(&format!("destroyed{time}"))?;
        } else {
            r.meet(&format!("destroyed{time}"))?;
            drop(comm);
        }
    }
    if r.rank > 0 {
        return done();
    }
    for (slot, best) in [("comm_abort", abort), ("comm_destroy after abort", destroy)] {
        if best > AT_ONCE {
            return Err(format!("{slot} took {best:?} at its best of four times"));
        }
    }
    done()
}

/// After a failure the same ranks make a new communicator, in the same process, and it works.
fn again(r: &Rank) -> Result<Answer, String> {
    for round in 0..2 {
        let comm = r.join(&format!("dead{round}"), SOON)?;
        r.meet(&format!("joined{round}"))?;
        comm.abort()?;
        // Not before all have seen it alive is it let go.
        r.meet(&format!("aborted{round}"))?;
        drop(comm);
    }
    let comm = r.join("alive", SOON)?;
    if !sums(&comm)? {
        return nothing(NO_SUMS);
    }
    let rig = Rig::on(r.rig.dev.clone())?;
    let x: Vec<u8> = (0..16)
        .flat_map(|_| (f32::from(r.rank as u8) + 1.0).to_le_bytes())
        .collect();
    let a = rig.area_of(&x)?;
    let b = rig.area(64)?;
    let mut d = coll_desc(abi::COLL_ALL_REDUCE, abi::DType::F32.id(), abi::RED_SUM, 16);
    (d.send, d.recv) = (a.span(), b.span());
    comm.launch(&rig.stream, &[d])?;
    let want = (1..=r.n).sum::<u32>() as f32;
    let got = b.read(&rig)?;
    r.meet("read")?;
    match got.chunks(4).all(|c| c == want.to_le_bytes()) {
        true => done(),
        false => Err("a communicator made after a failure gives a wrong sum".into()),
    }
}
