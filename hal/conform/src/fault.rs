//! `fault.*`: failures on purpose. Errors are typed and name the peer, what is sticky stays, an abort returns at once and frees who waits,
//! and the process lives on.

use crate::case::{Case, Check, Demanded, pass, pass_with, skip};
use crate::crew::{Answer, Rank};
use crate::ctx::{Ctx, Rig, SOON};
use crate::raw::{Comm, coll_desc, status_name};
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
        let all: [(&str, fn(&Rank) -> Result<Answer, String>); 7] = [
            ("fault.host_call_after_failure", host_call_after_failure),
            ("fault.missing_rank_is_named", missing_rank),
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

fn run(ctx: &Ctx, n: u32, body: fn(&Rank) -> Result<Answer, String>) -> Check {
    if ctx.plugin.coll.is_none() {
        return skip("no collectives");
    }
    let all = ctx.loose_ranks(n, &body)?;
    pass_with(
        all.iter()
            .map(|a| a.note.as_str())
            .find(|n| !n.is_empty())
            .unwrap_or(""),
    )
}

fn done() -> Result<Answer, String> {
    Ok(Answer::default())
}

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
fn tour(ctx: &Ctx) -> Result<(), String> {
    let rig = ctx.rig()?;
    let a = rig.area(1024)?;
    let b = rig.area(1024)?;
    rig.stream.fill(a.span(), 1, 1)?;
    rig.stream.copy(b.span(), a.span())?;
    rig.stream.copy_2d(b.span(), 32, a.span(), 32, 16, 8)?;
    let e = rig.dev.event()?;
    rig.stream.record(&e)?;
    rig.stream.wait(&e)?;
    rig.stream.query()?;
    rig.stream.finish()?;
    e.sync(Some(SOON))?;
    Ok(())
}

/// Each named place fails with `status`: the call says so, nothing ends the process, and without the fault all is well again.
fn points(ctx: &Ctx, status: abi::Status) -> Check {
    tour(ctx)?;
    let names = ctx.host.fault_points();
    if names.is_empty() {
        return skip("the plugin passes no fault point");
    }
    let sticky = status == abi::E_DEVICE_LOST;
    for name in &names {
        ctx.host.set_fault(name, (-status) as u32);
        let broken = tour(ctx);
        ctx.host.set_fault(name, 0);
        let Err(why) = broken else {
            // Places that are passed once in a process do not come again.
            continue;
        };
        if !why.contains(&status_name(status)) && !why.contains("TIMEOUT") {
            return Err(format!(
                "fault point {name} with {}: {why}",
                status_name(status)
            ));
        }
        if let Err(e) = tour(ctx) {
            return Err(format!(
                "after fault point {name} failed once a freshly opened device does not work: {e}"
            ));
        }
        let _ = sticky;
    }
    pass_with(format!("{} places", names.len()))
}

/// What a host call was told.
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
        return Ok(Answer {
            note: "no slot stream_host_call".into(),
            ..Answer::default()
        });
    };
    let comm = r.join("fails", SHORT)?;
    r.meet("joined")?;
    let found = match r.rank {
        0 => after_failure(r, &comm, call),
        _ => done(),
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
        [one] if *one < 0 => Ok(Answer {
            note: format!(
                "{}, and the host call was told {}",
                status_name(first.status),
                status_name(*one)
            ),
            ..Answer::default()
        }),
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

/// The last rank does not come to a collective: every other one fails within the timeout (and some), and names it.
fn missing_rank(r: &Rank) -> Result<Answer, String> {
    let comm = r.join("missing", SHORT)?;
    let a = r.rig.area_of(&[0; 64])?;
    let b = r.rig.area(64)?;
    let last = r.n - 1;
    r.meet("joined")?;
    let mut said = Answer::default();
    let mut found = Ok(());
    if r.rank != last {
        launch_sum(&comm, r, a.span(), b.span())?;
        match failure(&comm, &r.rig, SOON / 2) {
            Err(e) => found = Err(e),
            Ok(e) => {
                if !matches!(e.status, abi::E_COMM | abi::E_TIMEOUT | abi::E_ABORTED) {
                    found = Err(format!("{e}: COMM or TIMEOUT is wanted"));
                } else if e.peer != -1 && e.peer as u32 >= r.n {
                    found = Err(format!("{e}: names rank {} of {}", e.peer, r.n));
                } else if r.n == 2 && e.peer != -1 && e.peer as u32 != last {
                    found = Err(format!(
                        "{e}: names rank {}, and rank {last} is missing",
                        e.peer
                    ));
                } else if !e.sticky() {
                    found = Err(format!(
                        "{e}: the communicator is dead, and the error is not sticky"
                    ));
                }
                said.note = e.message;
            }
        }
    }
    r.meet("seen")?;
    found.map(|()| said)
}

/// Not all come to the communicator itself.
fn missing_member(r: &Rank) -> Result<Answer, String> {
    if !r.threads {
        // A process that stays away from a launcher's world cannot be told from a slow one.
        return done();
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
    let mut found = Ok(());
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
            Err(e) if matches!(e.status, abi::E_COMM | abi::E_TIMEOUT) => Ok(()),
            Err(e) => Err(format!("{e}: COMM or TIMEOUT is wanted")),
            Ok(comm) => loop {
                match comm.health() {
                    Ok(true) => {
                        break Err("a communicator short of one rank says that it is ready".into());
                    }
                    Err(e) if matches!(e.status, abi::E_COMM | abi::E_TIMEOUT) => break Ok(()),
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
    found.map(|()| Answer::default())
}

/// Blocks rank 0 in a collective nobody else comes to, and aborts it from another thread.
fn abort(r: &Rank) -> Result<Answer, String> {
    let comm = r.join("aborted", 4 * SOON)?;
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
    found.map(|()| Answer::default())
}

fn aborted(comm: &Comm, r: &Rank) -> Result<(), String> {
    // The fastest of a few: a busy machine may hold any single call up.
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
                if let Err(e) = s2.sync(Some(SOON))
                    && e.status == abi::E_TIMEOUT
                    && !e.sticky()
                {
                    found = Err("abort did not release the second communicator".into());
                }
            }
        }
    }
    r.meet("seen")?;
    found.map(|()| Answer::default())
}

/// Destroying an aborted communicator does not wait for peers.
fn destroy_after_abort(r: &Rank) -> Result<Answer, String> {
    let comm = r.join("destroyed", 4 * SOON)?;
    r.meet("joined")?;
    let mut found = Ok(());
    if r.rank == 0 {
        comm.abort()?;
        let start = Instant::now();
        drop(comm);
        if start.elapsed() > Duration::from_secs(5) {
            found = Err(format!(
                "comm_destroy after abort took {:?}",
                start.elapsed()
            ));
        }
        r.meet("destroyed")?;
    } else {
        r.meet("destroyed")?;
        drop(comm);
    }
    found.map(|()| Answer::default())
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
