//! `leak.*`: a thousand times each, and nothing is left: device memory, memory of the process, descriptors, threads.

use crate::case::{Case, Check, Demanded, Effort, Outcome, Verdict, pass, pass_with, skip};
use crate::ctx::Ctx;
use crate::life::{settles, threads};
use crate::local_ranks::{Answer, COMM_TIMEOUT};
use crate::op::descriptor;
use crate::raw::OpHandle;
use crossweave_abi as abi;
use std::time::{Duration, Instant};

/// The group's cases.
pub fn cases(ranks: &[u32]) -> Vec<Case> {
    let m = Demanded::MINIMAL;
    let mut v = vec![
        Case::new("leak.mem", |ctx| {
            rounds(ctx, MANY, 0, &|rig, i| {
                let kind = [abi::MEM_DEVICE, abi::MEM_HOST_PINNED][i % 2];
                rig.dev
                    .alloc(kind, 65_536, 0)
                    .map(|_| ())
                    .map_err(String::from)
            })
        })
        .demanded(m),
        Case::new("leak.stream", |ctx| {
            rounds(ctx, 3000, 1, &|rig, _| {
                let s = rig.dev.stream()?;
                let p = rig.dev.alloc(abi::MEM_DEVICE, 64, 0)?;
                s.fill(p.whole(), 1, 1)?;
                Ok(s.finish()?)
            })
        })
        .demanded(m),
        Case::new("leak.event", |ctx| {
            rounds(ctx, MANY, 0, &|rig, _| {
                let e = rig.dev.event()?;
                rig.stream.record(&e)?;
                rig.stream.wait(&e)?;
                Ok(rig.stream.finish()?)
            })
        })
        .demanded(m),
        Case::new("leak.copy_and_fill", |ctx| {
            let home = std::sync::Mutex::new(None);
            rounds(ctx, MANY, 0, &move |rig, i| {
                let mut home = home.lock().map_err(|_| "poisoned")?;
                if home.is_none() {
                    *home = Some((
                        rig.dev.alloc(abi::MEM_DEVICE, 256, 0)?,
                        rig.dev.alloc(abi::MEM_DEVICE, 256, 0)?,
                    ));
                }
                if let Some((a, b)) = &*home {
                    rig.stream.fill(a.whole(), 3, 4)?;
                    rig.stream.copy(b.whole(), a.whole())?;
                    if i % 50 == 0 {
                        rig.stream.finish()?;
                    }
                }
                Ok(())
            })
        })
        .demanded(m),
        Case::new("leak.op", op).demanded(Demanded::NOWHERE),
        Case::new("leak.graph", graph),
        Case::new("leak.device", device).demanded(m),
        Case::new("leak.op.launches", op_launches),
        Case::new("leak.op.prepares", op_prepares),
    ];
    for (what, call) in ACCEPTED {
        let home = std::sync::Arc::new(std::sync::Mutex::new(None));
        let case = Case::new(format!("leak.call.{what}"), move |ctx| {
            // Things of an earlier run of the case are of a plugin that may be gone.
            *home.lock().map_err(|_| "poisoned")? = None;
            let done = rounds(ctx, MANY, 0, &|rig, i| {
                let mut home = home.lock().map_err(|_| "poisoned")?;
                let things = match &mut *home {
                    Some(t) => t,
                    none => none.insert(Things::new(rig)?),
                };
                call(rig, things)?;
                // Waited for from time to time.
                match i % 50 {
                    0 => Ok(rig.stream.finish()?),
                    _ => Ok(()),
                }
            });
            *home.lock().map_err(|_| "poisoned")? = None;
            done
        });
        v.push(case.demanded(m));
    }
    for (what, call) in REFUSED {
        v.push(Case::new(format!("leak.refused.{what}"), move |ctx| {
            rounds(ctx, MANY, 0, &|rig, _| {
                call(rig);
                Ok(())
            })
        }));
    }
    for n in ranks.iter().copied() {
        v.push(
            Case::new(format!("leak.communicator.r{n}"), move |ctx| {
                communicator(ctx, n)
            })
            // A minute was too short for a vendor's library.
            .limit(240)
            .on_ranks(n),
        );
        v.push(
            Case::new(format!("leak.collective.r{n}"), move |ctx| {
                collective(ctx, n)
            })
            .limit(240)
            .on_ranks(n),
        );
    }
    v
}

/// What calls that succeed are made on.
struct Things {
    a: crate::raw::Mem,
    b: crate::raw::Mem,
    pinned: crate::raw::Mem,
    events: [crate::raw::Event; 2],
}

impl Things {
    fn new(rig: &crate::Rig) -> Result<Things, String> {
        let events = [rig.dev.event()?, rig.dev.event()?];
        for e in &events {
            rig.stream.record(e)?;
        }
        rig.stream.finish()?;
        Ok(Things {
            a: rig.dev.alloc(abi::MEM_DEVICE, 256, 0)?,
            b: rig.dev.alloc(abi::MEM_DEVICE, 256, 0)?,
            pinned: rig.dev.alloc(abi::MEM_HOST_PINNED, 256, 0)?,
            events,
        })
    }
}

type Accepted = fn(&crate::Rig, &Things) -> Result<(), crate::raw::Refusal>;

/// Calls that leave nothing behind, or a little work: one slot each, besides those that other cases of the group name. Slots that may be
/// missing, and answers that a device may refuse, are refusals here.
const ACCEPTED: [(&str, Accepted); 15] = [
    ("device_info", |rig, _| rig.dev.info().map(drop)),
    ("device_attr", |rig, _| {
        // Which a device may not know.
        drop(rig.dev.attr(crate::op::FLUSH));
        Ok(())
    }),
    ("device_count", |rig, _| {
        rig.dev.plugin().device_count().map(drop)
    }),
    ("mem_map", |_, t| t.pinned.map().map(drop)),
    ("stream_query", |rig, _| rig.stream.query().map(drop)),
    ("stream_sync", |rig, _| rig.stream.finish()),
    ("event_query", |_, t| t.events[0].query().map(drop)),
    ("event_sync", |_, t| {
        t.events[0].sync(Some(Duration::from_secs(30)))
    }),
    ("event_record", |rig, t| rig.stream.record(&t.events[1])),
    ("stream_wait_event", |rig, t| rig.stream.wait(&t.events[0])),
    ("event_elapsed", |rig, t| {
        let Some(f) = rig.dev.plugin().d.event_elapsed else {
            return Ok(());
        };
        let mut ns = 0u64;
        let (from, to) = (t.events[0].handle(), t.events[0].handle());
        // SAFETY: live events and a live out pointer.
        let call = |e| unsafe { f(from, to, &mut ns, e) };
        // A device without clocks may refuse.
        drop(rig.dev.plugin().call("event_elapsed", call));
        Ok(())
    }),
    ("peers", |rig, t| {
        let p = rig.dev.plugin();
        let (mut flags, mut gbps) = (0u32, 0u32);
        let (d, s) = (rig.dev.handle(), rig.stream.handle());
        if let Some(f) = p.d.peer_access {
            // SAFETY: a live device and live out pointers.
            drop(p.call("peer_access", |e| unsafe {
                f(d, d, &mut flags, &mut gbps, e)
            }));
        }
        if let Some(f) = p.d.copy_peer {
            let (to, from) = (t.a.whole(), t.b.whole());
            // SAFETY: memories that live as long as the case.
            drop(p.call("copy_peer", |e| unsafe { f(s, to, from, e) }));
        }
        Ok(())
    }),
    ("copy_2d", |rig, t| {
        let (a, b) = (t.a.whole(), t.b.whole());
        rig.stream.copy_2d(a, 32, b, 64, 16, 4)
    }),
    ("stream_host_call", |rig, _| {
        unsafe extern "C" fn nothing(_: *mut std::ffi::c_void, _: abi::Status) {}
        let Some(f) = rig.dev.plugin().d.stream_host_call else {
            return Ok(());
        };
        let s = rig.stream.handle();
        // SAFETY: a live stream and a function of this program.
        let call = |e| unsafe { f(s, nothing, std::ptr::null_mut(), e) };
        rig.dev.plugin().call("stream_host_call", call).map(drop)
    }),
    ("stream_values", |rig, t| {
        let p = rig.dev.plugin();
        let (Some(write), Some(wait)) = (p.d.stream_write_value, p.d.stream_wait_value) else {
            return Ok(());
        };
        let (s, word) = (rig.stream.handle(), t.pinned.span(0, 8));
        // SAFETY: a live stream, and a word that lives as long as the case.
        p.call("stream_write_value", |e| unsafe { write(s, word, 7, e) })?;
        // SAFETY: as above.
        p.call("stream_wait_value", |e| unsafe { wait(s, word, 7, e) })
            .map(drop)
    }),
];

/// Rounds of calls that cost little.
const MANY: usize = 10_000;

type Refused = fn(&crate::Rig);

/// A call of every kind that must be refused, or may be; what a refusal has allocated is freed.
const REFUSED: [(&str, Refused); 13] = [
    ("mem_alloc.kind", |rig| drop(rig.dev.alloc(99, 64, 0))),
    ("mem_alloc.alignment", |rig| {
        drop(rig.dev.alloc(abi::MEM_DEVICE, 64, 3))
    }),
    ("mem_alloc.beyond_memory", |rig| {
        drop(rig.dev.alloc(abi::MEM_DEVICE, 1 << 60, 0))
    }),
    ("mem_map", |rig| {
        if let Ok(m) = rig.dev.alloc(abi::MEM_DEVICE, 64, 0) {
            drop(m.map());
        }
    }),
    ("device_open", |rig| drop(rig.dev.plugin().open(u32::MAX))),
    ("device_attr", |rig| drop(rig.dev.attr("no such attribute"))),
    ("copy", |rig| {
        let (a, b) = (
            rig.dev.alloc(abi::MEM_DEVICE, 64, 0),
            rig.dev.alloc(abi::MEM_DEVICE, 64, 0),
        );
        if let (Ok(a), Ok(b)) = (a, b) {
            drop(rig.stream.copy(a.span(0, 64), b.span(0, 32)));
            // The kit itself keeps memory until a stream has passed it.
            drop(rig.stream.finish());
        }
    }),
    ("fill", |rig| {
        if let Ok(m) = rig.dev.alloc(abi::MEM_DEVICE, 64, 0) {
            drop(rig.stream.fill(m.whole(), 1, 3));
            drop(rig.stream.finish());
        }
    }),
    ("op_prepare.unknown", |rig| prepared(rig, 0xFFFF, &[], &[])),
    ("op_prepare.types", |rig| {
        let l = [abi::Layout::contiguous(abi::DType::F4E2M1, &[16]); 3];
        prepared(
            rig,
            abi::op::MATMUL,
            &l,
            abi::op::MatmulParams::default().as_bytes(),
        );
    }),
    ("op_prepare.operands", |rig| {
        let l = [abi::Layout::contiguous(abi::DType::F32, &[16])];
        prepared(
            rig,
            abi::op::SELECT,
            &l,
            abi::op::NoParams::default().as_bytes(),
        );
    }),
    ("op_prepare.params", |rig| {
        let l = [abi::Layout::contiguous(abi::DType::F32, &[16]); 2];
        prepared(rig, abi::op::UNARY, &l, &[8, 0, 0, 0, 0xFF, 0xFF, 0, 0]);
    }),
    ("op_launch", |rig| {
        let l = [abi::Layout::contiguous(abi::DType::F32, &[16])];
        let p = abi::op::FillParams::default();
        let d = descriptor(abi::op::FILL_STRIDED, &l, p.as_bytes());
        // SAFETY: layouts and parameters live in this function.
        if let Ok((h, _)) = unsafe { rig.dev.prepare(&d) } {
            drop(rig.stream.launch(&h, &[], abi::Span::NULL, &[]));
        }
    }),
];

/// Asks for an op and lets it go.
fn prepared(rig: &crate::Rig, id: u32, layouts: &[abi::Layout], params: &[u8]) {
    let d = descriptor(id, layouts, params);
    // SAFETY: layouts and parameters live in this function.
    drop(unsafe { rig.dev.prepare(&d) });
}

/// What a process holds now.
#[derive(Clone, Copy, Debug)]
struct Held {
    rss: u64,
    /// Bytes that the C library's allocator has given out, where it says: exact to the call.
    heap: u64,
    fds: usize,
    threads: usize,
    device: u64,
}

fn held(dev: &crate::raw::Dev) -> Result<Held, String> {
    Ok(Held {
        rss: rss().unwrap_or(0),
        heap: heap().unwrap_or(0),
        fds: descriptors(),
        threads: threads().unwrap_or(0),
        device: dev.info()?.mem_free,
    })
}

/// Bytes in use of the allocator that C, C++ and Rust plugins share with the kit.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn heap() -> Option<u64> {
    // SAFETY: reads counters.
    let m = unsafe { libc::mallinfo2() };
    Some((m.uordblks + m.hblkhd) as u64)
}
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn heap() -> Option<u64> {
    None
}

/// Open descriptors of this process; the most there can be when the table is so full that it cannot be read.
fn descriptors() -> usize {
    match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries.count(),
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => usize::MAX,
        Err(_) => 0,
    }
}

/// Bytes of the process that are in memory and its own.
fn rss() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut words = text.split_whitespace().skip(1);
    let (all, shared): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(all.saturating_sub(shared) * 4096)
}

/// Rounds of the warm-up that are timed together.
const BATCH: usize = 25;

/// Warm up, then two halves of the same length: what grows in both is a leak, and a cache that fills is none. Fewer rounds
/// than `n` where they would take long, or little effort is wanted: 3,333 still show 8 bytes a call.
fn rounds(
    ctx: &Ctx,
    n: usize,
    spare_threads: usize,
    f: &dyn Fn(&crate::Rig, usize) -> Result<(), String>,
) -> Check {
    let (n, long) = match ctx.effort {
        Effort::Quick => (n / 3, Duration::from_secs(1)),
        _ => (n, Duration::from_secs(4)),
    };
    let rig = ctx.rig()?;
    let began = Instant::now();
    let (mut warm, mut each) = (0, f64::MAX);
    // Descriptors are counted before the warm-up too: one a round is at the process's limit after it, and grows no more.
    let cold = held(&rig.dev)?.fds;
    while warm < n / 4 + 2 && (warm < 100 || began.elapsed() < long / 4) {
        let (first, batch) = (warm, Instant::now());
        while warm < (first + BATCH).min(n / 4 + 2) {
            f(&rig, warm)?;
            warm += 1;
        }
        rig.stream.finish()?;
        // The fastest batch: that the machine is busy with other work is no reason to look less closely.
        each = each.min(batch.elapsed().as_secs_f64() / (warm - first) as f64);
    }
    let n = n.min(((long.as_secs_f64() / each) as usize).max(200));
    rig.stream.finish()?;
    let start = held(&rig.dev)?;
    for i in 0..n {
        f(&rig, i)?;
    }
    rig.stream.finish()?;
    let middle = held(&rig.dev)?;
    for i in 0..n {
        f(&rig, i)?;
    }
    // What is freed behind this is used by no stream any more.
    rig.stream.finish()?;
    settles(threads, start.threads + spare_threads);
    let end = held(&rig.dev)?;
    if end.fds > cold + warm / 4 + 16 {
        return Err(format!("{cold} descriptors before, {} after", end.fds));
    }
    judge(n, start, middle, end, spare_threads)
}

fn judge(n: usize, start: Held, middle: Held, end: Held, spare_threads: usize) -> Check {
    let first = middle.rss.saturating_sub(start.rss);
    let second = end.rss.saturating_sub(middle.rss);
    // Pages come in fours and more; 24 bytes a round is the least that can be distinguished from noise.
    let least = (n as u64 * 24).max(128 << 10);
    if second > least && first > least {
        return Err(format!(
            "the process grew by {first} and {second} bytes in two times {n} rounds"
        ));
    }
    // Of the allocator itself 8 bytes a round are seen: the least it gives is more.
    let (first, second) = (
        middle.heap.saturating_sub(start.heap),
        end.heap.saturating_sub(middle.heap),
    );
    let least = (n as u64 * 8).max(64 << 10);
    if second > least && first > least {
        return Err(format!(
            "{first} and {second} bytes more were in use of the allocator after two times {n} rounds"
        ));
    }
    if end.fds > start.fds {
        return Err(format!(
            "{} descriptors before, {} after",
            start.fds, end.fds
        ));
    }
    if end.threads > start.threads + spare_threads {
        return Err(format!(
            "{} threads before, {} after",
            start.threads, end.threads
        ));
    }
    let lost = start.device.saturating_sub(end.device);
    let (first, second) = (
        start.device.saturating_sub(middle.device),
        middle.device.saturating_sub(end.device),
    );
    // Others may use the device too: what shrinks in both halves, and by about the same, is ours.
    let alike = first.max(second) <= 2 * first.min(second) || lost > 1 << 20;
    if lost > n as u64 * 8 && first > 0 && second > 0 && alike {
        return Err(format!(
            "{lost} bytes of device memory are gone after {} rounds",
            2 * n
        ));
    }
    let blind = [
        (start.rss == 0, "memory of the process"),
        (start.fds == 0, "descriptors"),
        (start.threads == 0, "threads"),
        (start.device == 0, "device memory"),
    ];
    let unseen: Vec<&str> = blind.iter().filter(|b| b.0).map(|b| b.1).collect();
    let note = format!("not to be read here: {}", unseen.join(", "));
    match unseen.len() {
        0 => pass(),
        4 => skip(note),
        _ => pass_with(note),
    }
}

fn device(ctx: &Ctx) -> Check {
    let keep = ctx.rig()?;
    let round = || -> Result<(), String> {
        let rig = ctx.rig()?;
        let a = rig.dev.alloc(abi::MEM_DEVICE, 4096, 0)?;
        rig.stream.fill(a.whole(), 1, 1)?;
        rig.stream.finish()?;
        Ok(())
    };
    let n = 60;
    for _ in 0..20 {
        round()?;
    }
    let start = held(&keep.dev)?;
    for _ in 0..n {
        round()?;
    }
    let middle = held(&keep.dev)?;
    for _ in 0..n {
        round()?;
    }
    settles(threads, start.threads);
    let end = held(&keep.dev)?;
    judge(n * 100, start, middle, end, 0)
}

/// Prepare, launch, release.
fn graph(ctx: &Ctx) -> Check {
    if ctx.plugin.graph.is_none() {
        return skip("no graphs");
    }
    let home = std::sync::Mutex::new(None);
    rounds(ctx, 1000, 0, &|rig, _| {
        let mut home = home.lock().map_err(|_| "poisoned")?;
        if home.is_none() {
            *home = Some(rig.dev.alloc(abi::MEM_DEVICE, 64, 0)?);
        }
        let Some(m) = &*home else {
            return Ok(());
        };
        rig.stream.capture()?;
        let given = rig.stream.fill(m.whole(), 1, 1);
        let graph = rig.stream.captured()?;
        given?;
        rig.stream.replay(&graph)?;
        Ok(rig.stream.finish()?)
    })
}

/// An op that every device has, prepared as often as it is called for.
struct Small {
    layout: [abi::Layout; 1],
    params: abi::op::FillParams,
}

impl Small {
    fn new() -> Small {
        Small {
            layout: [abi::Layout::contiguous(abi::DType::F32, &[16])],
            params: abi::op::FillParams {
                value: 2.0,
                ..abi::op::FillParams::default()
            },
        }
    }

    /// `None`: it is not claimed.
    fn prepare(&self, rig: &crate::Rig) -> Result<Option<(OpHandle, u64)>, String> {
        let d = descriptor(abi::op::FILL_STRIDED, &self.layout, self.params.as_bytes());
        // SAFETY: layouts and parameters live in `self`.
        match unsafe { rig.dev.prepare(&d) } {
            Ok((h, plan)) => Ok(Some((h, plan.workspace_bytes))),
            Err(r) if r.unsupported() => Ok(None),
            Err(r) => Err(r.into()),
        }
    }
}

/// Memory of a round and the op, made by the first.
type Shared = std::sync::Mutex<Option<(crate::raw::Mem, Option<crate::raw::Mem>, OpHandle)>>;

/// Rounds in which `each` uses an op that is prepared once; nothing where the device does not claim it.
fn with_op(
    ctx: &Ctx,
    n: usize,
    each: &dyn Fn(
        &crate::Rig,
        &Small,
        &mut (crate::raw::Mem, Option<crate::raw::Mem>, OpHandle),
        usize,
    ) -> Result<(), String>,
) -> Check {
    let small = Small::new();
    if ctx.plugin.ops.is_none() || small.prepare(&ctx.rig()?)?.is_none() {
        return skip("no fill_strided of f32");
    }
    let home: Shared = Shared::default();
    rounds(ctx, n, 0, &|rig, i| {
        let mut home = home.lock().map_err(|_| "poisoned")?;
        if home.is_none() {
            let Some((h, workspace)) = small.prepare(rig)? else {
                return Ok(());
            };
            let scratch = match workspace {
                0 => None,
                w => Some(rig.dev.alloc(abi::MEM_DEVICE, w, 0)?),
            };
            *home = Some((rig.dev.alloc(abi::MEM_DEVICE, 64, 0)?, scratch, h));
        }
        match &mut *home {
            Some(h) => each(rig, &small, h, i),
            None => Ok(()),
        }
    })
}

/// Prepare, launch, release.
fn op(ctx: &Ctx) -> Check {
    with_op(ctx, 1000, &|rig, small, (m, scratch, _), _| {
        let Some((h, _)) = small.prepare(rig)? else {
            return Ok(());
        };
        let span = scratch.as_ref().map_or(abi::Span::NULL, |w| w.whole());
        rig.stream.launch(&h, &[m.whole()], span, &[])?;
        Ok(rig.stream.finish()?)
    })
}

/// Launches of one prepared op, waited for from time to time.
fn op_launches(ctx: &Ctx) -> Check {
    with_op(ctx, MANY, &|rig, _, (m, scratch, h), i| {
        let span = scratch.as_ref().map_or(abi::Span::NULL, |w| w.whole());
        rig.stream.launch(h, &[m.whole()], span, &[])?;
        match i % 50 {
            0 => Ok(rig.stream.finish()?),
            _ => Ok(()),
        }
    })
}

/// Prepared and released without a launch.
fn op_prepares(ctx: &Ctx) -> Check {
    with_op(ctx, MANY, &|rig, small, _, _| small.prepare(rig).map(drop))
}

fn communicator(ctx: &Ctx, n: u32) -> Check {
    if ctx.plugin.coll.is_none() {
        return skip("no collectives");
    }
    let answers = ctx.loose_ranks(n, &|r| {
        let mut marks = vec![];
        let each = if r.threads { 40 } else { 15 };
        for i in 0..3 * each {
            if i % each == 0 && i > 0 {
                r.meet(&format!("mark{i}"))?;
                // One looks: a rank that looks holds a descriptor itself.
                if r.rank == 0 {
                    marks.push(held(&r.rig.dev)?);
                }
                r.meet(&format!("marked{i}"))?;
            }
            let comm = r.join(&format!("round{i}"), COMM_TIMEOUT)?;
            drop(comm);
        }
        r.meet("last")?;
        if r.rank == 0 {
            // A thread that has been waited for may still be counted.
            settles(threads, marks[0].threads);
            marks.push(held(&r.rig.dev)?);
        }
        r.meet("over")?;
        if r.rank == 0 {
            // Identifiers, which may be long, and each rank's keys in the kit's own store stay; a communicator is more than that.
            let rounds = each * (200 + 16 * n as usize + r.rig.dev.unique_id()?.len() / 8);
            return seen(judge(rounds, marks[0], marks[1], marks[2], 0)?);
        }
        Ok(Answer::default())
    })?;
    of_first(&answers)
}

/// What the rank that looks has seen, for the others to know.
fn seen(v: Verdict) -> Result<Answer, String> {
    Ok(Answer {
        claimed: v.outcome == Outcome::Pass,
        note: v.note,
        ..Answer::default()
    })
}

fn of_first(answers: &[Answer]) -> Check {
    match answers {
        [first, ..] if first.claimed => pass_with(first.note.clone()),
        [first, ..] => skip(first.note.clone()),
        [] => skip("no rank"),
    }
}

fn collective(ctx: &Ctx, n: u32) -> Check {
    if ctx.plugin.coll.is_none() {
        return skip("no collectives");
    }
    let answers = ctx.ranks(n, &|r| {
        let bytes: Vec<u8> = (0..64u32).flat_map(|_| 1f32.to_le_bytes()).collect();
        let (a, b) = (r.rig.area_of(&bytes)?, r.rig.area(256)?);
        let mut d =
            crate::raw::coll_desc(abi::COLL_ALL_REDUCE, abi::DType::F32.id(), abi::RED_SUM, 64);
        (d.send, d.recv) = (a.span(), b.span());
        let comm = r.comm()?;
        if comm.claims(&d)?.is_none() {
            return Ok(Answer {
                note: "no all_reduce of f32 sums".into(),
                ..Answer::default()
            });
        }
        // Two ranks show 8 bytes a call; more show what a launch on many ranks holds.
        let each = match (r.n, ctx.effort) {
            (3.., _) => 300,
            (_, Effort::Quick) => MANY / 3,
            _ => MANY,
        };
        let mut marks = vec![];
        for i in 0..3 * each {
            if i % each == 0 && i > 0 {
                r.rig.stream.finish()?;
                r.meet(&format!("mark{i}"))?;
                // One looks: a rank that looks holds a descriptor itself.
                if r.rank == 0 {
                    marks.push(held(&r.rig.dev)?);
                }
                r.meet(&format!("marked{i}"))?;
            }
            comm.launch(&r.rig.stream, &[d])?;
            comm.claims(&d)?;
            comm.health()?;
            // Waited for from time to time.
            if i % 8 == 7 {
                r.rig.stream.finish()?;
            }
        }
        r.rig.stream.finish()?;
        r.meet("last")?;
        if r.rank == 0 {
            marks.push(held(&r.rig.dev)?);
        }
        r.meet("over")?;
        if r.rank == 0 {
            return seen(judge(each, marks[0], marks[1], marks[2], 0)?);
        }
        Ok(Answer::default())
    })?;
    of_first(&answers)
}
