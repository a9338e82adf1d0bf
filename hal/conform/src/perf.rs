//! `perf.*`: measurements beside the plugin's own claims. They never fail: a figure beyond twice its claim is said.

use crate::case::{Case, Check, pass_with, skip};
use crate::ctx::{Ctx, Rig};
use crate::local_ranks::Answer;
use crate::raw::{Stream, coll_desc};
use crossweave_abi as abi;
use std::time::{Duration, Instant};

/// The group's cases.
pub fn cases(ranks: &[u32]) -> Vec<Case> {
    let mut v = vec![
        Case::new("perf.enqueue", enqueue),
        Case::new("perf.round_trip", round_trip),
        Case::new("perf.copy.device", |ctx| {
            copy(ctx, abi::MEM_DEVICE, abi::MEM_DEVICE)
        }),
        Case::new("perf.copy.upload", |ctx| {
            copy(ctx, abi::MEM_DEVICE, abi::MEM_HOST_PINNED)
        }),
        Case::new("perf.copy.download", |ctx| {
            copy(ctx, abi::MEM_HOST_PINNED, abi::MEM_DEVICE)
        }),
        Case::new("perf.two_streams", two_streams),
    ];
    for n in ranks.iter().copied().filter(|n| *n > 1) {
        for (kib, word) in [(4u64, "4KiB"), (4096, "4MiB")] {
            let id = format!("perf.all_reduce.{word}.r{n}");
            v.push(Case::new(id, move |ctx| all_reduce(ctx, n, kib << 10)).on_ranks(n));
        }
    }
    v
}

/// The median of `n` runs of `f` in nanoseconds.
fn median(n: usize, mut f: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let mut t = Vec::with_capacity(n);
    for _ in 0..n {
        let start = Instant::now();
        f()?;
        t.push(start.elapsed().as_nanos() as f64);
    }
    t.sort_by(f64::total_cmp);
    Ok(t[n / 2])
}

fn enqueue(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let m = rig.dev.alloc(abi::MEM_DEVICE, 64, 0)?;
    let ns = median(50, || {
        for _ in 0..200 {
            rig.stream.fill(m.whole(), 1, 1)?;
        }
        Ok(())
    })?;
    rig.stream.finish()?;
    pass_with(format!("{:.0} ns to enqueue a fill", ns / 200.0))
}

fn round_trip(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let m = rig.dev.alloc(abi::MEM_DEVICE, 64, 0)?;
    let ns = median(500, || {
        rig.stream.fill(m.whole(), 1, 1)?;
        Ok(rig.stream.finish()?)
    })?;
    pass_with(format!(
        "{:.1} us from enqueue to the end of a wait",
        ns / 1e3
    ))
}

fn gbps(bytes: u64, ns: f64) -> f64 {
    bytes as f64 / ns
}

fn copy(ctx: &Ctx, to: u32, from: u32) -> Check {
    let rig = ctx.rig()?;
    let bytes = 64u64 << 20;
    let (a, b) = match (rig.dev.alloc(to, bytes, 0), rig.dev.alloc(from, bytes, 0)) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(r), _) | (_, Err(r)) => return skip(r.to_string()),
    };
    rig.stream.copy(a.whole(), b.whole())?;
    rig.stream.finish()?;
    let ns = median(7, || {
        rig.stream.copy(a.whole(), b.whole())?;
        Ok(rig.stream.finish()?)
    })?;
    pass_with(format!("{:.1} GB/s for 64 MiB", gbps(bytes, ns)))
}

/// Do two streams run side by side?
fn two_streams(ctx: &Ctx) -> Check {
    let rig: Rig = ctx.rig()?;
    let other = rig.dev.stream()?;
    let bytes = 32u64 << 20;
    let mut mems = vec![];
    for _ in 0..4 {
        match rig.dev.alloc(abi::MEM_DEVICE, bytes, 0) {
            Ok(m) => mems.push(m),
            Err(r) => return skip(r.to_string()),
        }
    }
    let one = |s: &Stream, k: usize| {
        s.copy(mems[k].whole(), mems[k + 1].whole())
            .map_err(String::from)
    };
    one(&rig.stream, 0)?;
    one(&other, 2)?;
    rig.stream.finish()?;
    other.finish()?;
    let after = median(5, || {
        one(&rig.stream, 0)?;
        one(&rig.stream, 2)?;
        Ok(rig.stream.finish()?)
    })?;
    let beside = median(5, || {
        one(&rig.stream, 0)?;
        one(&other, 2)?;
        rig.stream.finish()?;
        Ok(other.finish()?)
    })?;
    pass_with(format!(
        "two copies on two streams take {:.2} of the time on one",
        beside / after
    ))
}

fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let rest = text.rsplit_once(')')?.1;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let ticks: u64 = words.get(11)?.parse::<u64>().ok()? + words.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / 100.0)
}

fn all_reduce(ctx: &Ctx, n: u32, bytes: u64) -> Check {
    if ctx.plugin.coll.is_none() {
        return skip("no collectives");
    }
    let answers = ctx.ranks(n, &|r| {
        let d = &r.rig.dev;
        let (a, b) = (
            d.alloc(abi::MEM_DEVICE, bytes, 0)?,
            d.alloc(abi::MEM_DEVICE, bytes, 0)?,
        );
        r.rig.stream.fill(a.whole(), 0, 4)?;
        let mut x = coll_desc(
            abi::COLL_ALL_REDUCE,
            abi::DType::F32.id(),
            abi::RED_SUM,
            bytes / 4,
        );
        (x.send, x.recv) = (a.whole(), b.whole());
        let comm = r.comm()?;
        let Some(claim) = comm.claims(&x)? else {
            return Ok(Answer::default());
        };
        comm.launch(&r.rig.stream, &[x])?;
        r.rig.stream.finish()?;
        r.meet("warm")?;
        let (cpu, start) = (cpu_seconds(), Instant::now());
        let ns = median(15, || {
            comm.launch(&r.rig.stream, &[x])?;
            Ok(r.rig.stream.finish()?)
        })?;
        let wall = start.elapsed();
        let busy = match (cpu, cpu_seconds()) {
            (Some(a), Some(b)) if wall > Duration::from_millis(50) => (b - a) / wall.as_secs_f64(),
            _ => 0.0,
        };
        let mut note = format!(
            "{:.1} us, {:.2} GB/s of its size",
            ns / 1e3,
            gbps(bytes, ns)
        );
        if busy > 0.0 {
            note += &format!(", {busy:.1} cores busy in the process");
        }
        if claim.latency_ns > 0 && ns > 2.0 * claim.latency_ns as f64 && bytes <= 4096 {
            note += &format!("; beyond twice its claim of {} ns", claim.latency_ns);
        }
        if claim.bytes_per_s > 0 && gbps(bytes, ns) * 2e9 < claim.bytes_per_s as f64 && bytes > 4096
        {
            note += &format!(
                "; less than half its claim of {:.1} GB/s",
                claim.bytes_per_s as f64 / 1e9
            );
        }
        Ok(Answer {
            claimed: true,
            note,
            ..Answer::default()
        })
    })?;
    match answers.iter().find(|a| a.claimed) {
        Some(a) => pass_with(a.note.clone()),
        None => skip("not claimed"),
    }
}
