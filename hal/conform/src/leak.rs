//! `leak.*`: a thousand times each, and nothing is left: device memory, memory of the process, descriptors, threads.

use crate::case::{Case, Check, Demanded, Outcome, Verdict, pass, pass_with, skip};
use crate::ctx::Ctx;
use crate::life::{settles, threads};
use crate::local_ranks::{Answer, COMM_TIMEOUT};
use crossweave_abi as abi;

/// The group's cases.
pub fn cases(ranks: &[u32]) -> Vec<Case> {
    let m = Demanded::MINIMAL;
    let mut v = vec![
        Case::new("leak.mem", |ctx| {
            rounds(ctx, 1000, 0, &|rig, i| {
                let kind = [abi::MEM_DEVICE, abi::MEM_HOST_PINNED][i % 2];
                rig.dev
                    .alloc(kind, 65_536, 0)
                    .map(|_| ())
                    .map_err(String::from)
            })
        })
        .demanded(m),
        Case::new("leak.stream", |ctx| {
            rounds(ctx, 200, 1, &|rig, _| {
                let s = rig.dev.stream()?;
                let p = rig.dev.alloc(abi::MEM_DEVICE, 64, 0)?;
                s.fill(p.whole(), 1, 1)?;
                Ok(s.finish()?)
            })
        })
        .demanded(m),
        Case::new("leak.event", |ctx| {
            rounds(ctx, 1000, 0, &|rig, _| {
                let e = rig.dev.event()?;
                rig.stream.record(&e)?;
                rig.stream.wait(&e)?;
                Ok(rig.stream.finish()?)
            })
        })
        .demanded(m),
        Case::new("leak.copy_and_fill", |ctx| {
            let home = std::sync::Mutex::new(None);
            rounds(ctx, 2000, 0, &move |rig, _| {
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
                    rig.stream.finish()?;
                }
                Ok(())
            })
        })
        .demanded(m),
        Case::new("leak.op", op).demanded(Demanded::NOWHERE),
        Case::new("leak.graph", graph),
        Case::new("leak.device", device).demanded(m),
        Case::new("leak.refused_calls", |ctx| {
            rounds(ctx, 1000, 0, &|rig, _| {
                let _ = rig.dev.alloc(99, 64, 0);
                let _ = rig.dev.plugin().open(u32::MAX);
                Ok(())
            })
        })
        .demanded(m),
    ];
    for n in ranks.iter().copied() {
        v.push(
            Case::new(format!("leak.communicator.r{n}"), move |ctx| {
                communicator(ctx, n)
            })
            .on_ranks(n),
        );
        v.push(
            Case::new(format!("leak.collective.r{n}"), move |ctx| {
                collective(ctx, n)
            })
            .on_ranks(n),
        );
    }
    v
}

/// What a process holds now.
#[derive(Clone, Copy, Debug)]
struct Held {
    rss: u64,
    fds: usize,
    threads: usize,
    device: u64,
}

fn held(dev: &crate::raw::Dev) -> Result<Held, String> {
    Ok(Held {
        rss: rss().unwrap_or(0),
        fds: std::fs::read_dir("/proc/self/fd").map_or(0, |d| d.count()),
        threads: threads().unwrap_or(0),
        device: dev.info()?.mem_free,
    })
}

/// Bytes of the process that are in memory and its own.
fn rss() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut words = text.split_whitespace().skip(1);
    let (all, shared): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(all.saturating_sub(shared) * 4096)
}

/// Warm up, then two halves of the same length: what grows in both is a leak, and a cache that fills is none.
fn rounds(
    ctx: &Ctx,
    n: usize,
    spare_threads: usize,
    f: &dyn Fn(&crate::Rig, usize) -> Result<(), String>,
) -> Check {
    let rig = ctx.rig()?;
    for i in 0..n / 4 + 2 {
        f(&rig, i)?;
    }
    let start = held(&rig.dev)?;
    for i in 0..n {
        f(&rig, i)?;
    }
    let middle = held(&rig.dev)?;
    for i in 0..n {
        f(&rig, i)?;
    }
    settles(threads, start.threads + spare_threads);
    let end = held(&rig.dev)?;
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
    // Others may use the device too: what shrinks in both halves by much is ours.
    if lost > 1 << 20 && middle.device < start.device && end.device < middle.device {
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

fn op(ctx: &Ctx) -> Check {
    let Some(spec) = abi::op::by_name("fill_strided") else {
        return skip("no op fill_strided in the table");
    };
    if ctx.plugin.ops.is_none() {
        return skip("no ops");
    }
    let layout = [abi::Layout::contiguous(abi::DType::F32, &[16])];
    let params = abi::op::FillParams {
        value: 2.0,
        ..abi::op::FillParams::default()
    };
    let desc = abi::OpDesc {
        size: size_of::<abi::OpDesc>() as u32,
        op: spec.id,
        op_revision: spec.revision,
        n_operands: 1,
        operands: layout.as_ptr(),
        params: std::ptr::from_ref(&params).cast(),
        params_bytes: size_of::<abi::op::FillParams>() as u64,
        math_flags: 0,
        reserved: 0,
    };
    // SAFETY: layouts and parameters live in this function.
    if let Err(r) = unsafe { ctx.device()?.prepare(&desc) } {
        return match r.unsupported() {
            true => skip(r.to_string()),
            false => Err(r.into()),
        };
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
        // SAFETY: as above.
        let (h, plan) = unsafe { rig.dev.prepare(&desc) }?;
        let ws = match plan.workspace_bytes {
            0 => None,
            n => Some(rig.dev.alloc(abi::MEM_DEVICE, n, 0)?),
        };
        let span = ws.as_ref().map_or(abi::Span::NULL, |w| w.whole());
        rig.stream.launch(&h, &[m.whole()], span, &[])?;
        Ok(rig.stream.finish()?)
    })
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
            marks.push(held(&r.rig.dev)?);
        }
        r.meet("over")?;
        if r.rank == 0 {
            // Identifiers and keys of the kit's own store stay; a communicator is more than that.
            return seen(judge(each * 200, marks[0], marks[1], marks[2], 0)?);
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
        let each = 300;
        let mut marks = vec![];
        for i in 0..3 * each {
            if i % each == 0 && i > 0 {
                r.meet(&format!("mark{i}"))?;
                // One looks: a rank that looks holds a descriptor itself.
                if r.rank == 0 {
                    marks.push(held(&r.rig.dev)?);
                }
                r.meet(&format!("marked{i}"))?;
            }
            comm.launch(&r.rig.stream, &[d])?;
            r.rig.stream.finish()?;
        }
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
