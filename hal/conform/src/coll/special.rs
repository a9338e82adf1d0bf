//! What a cell cannot show: barriers, mixed groups, several communicators, splits, and that collectives keep the order of their stream.

use super::desk::{Desk, Place, launch};
use super::value::put;
use crate::case::{Case, Check, pass, refused, skip};
use crate::ctx::{Ctx, Stall};
use crate::local_ranks::{Answer, COMM_TIMEOUT, Rank};
use crate::raw::{Joining, coll_desc};
use crossweave_abi::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type Body = fn(&Rank) -> Result<Answer, String>;

/// The cases on `n` ranks.
pub fn cases(n: u32) -> Vec<Case> {
    let mut v = Vec::new();
    let all: [(&str, Body); 15] = [
        ("coll.barrier.holds_all", barrier),
        ("coll.group.mixed", mixed),
        ("coll.group.long", long),
        ("coll.group.empty", empty),
        ("coll.group.refused_as_a_whole", all_or_nothing),
        ("coll.order.stalled_producer", stalled_producer),
        ("coll.order.launch_returns_at_once", returns_at_once),
        ("coll.order.many_in_flight", many),
        ("coll.two_communicators", two_comms),
        ("coll.two_streams", two_streams),
        ("coll.split.colour_and_key", split),
        ("coll.split.two_of_one_parent", two_splits),
        ("coll.loaded_machine", loaded),
        ("coll.bad_root_or_peer", bad_root),
        ("coll.premul_sum.scale_on_device", device_scale),
    ];
    for (id, body) in all {
        let case = Case::new(format!("{id}.r{n}"), move |ctx| run(ctx, n, body));
        v.push(case.on_ranks(n));
    }
    v.push(
        Case::new(format!("coll.init.wrong_rank.r{n}"), move |ctx| {
            wrong_rank(ctx, n)
        })
        .on_ranks(n),
    );
    v
}

pub(super) fn run(ctx: &Ctx, n: u32, body: Body) -> Check {
    if ctx.plugin.coll.is_none() {
        return skip("no collectives: the host carries them");
    }
    let all = ctx.ranks(n, &body)?;
    match all.iter().all(|a| a.claimed) {
        true => pass(),
        false => refused(all[0].note.clone()),
    }
}

pub(super) fn done() -> Result<Answer, String> {
    Ok(Answer {
        claimed: true,
        ..Answer::default()
    })
}

pub(super) fn not_claimed(note: &str) -> Result<Answer, String> {
    Ok(Answer {
        note: note.into(),
        ..Answer::default()
    })
}

const F32: u32 = DType::F32 as u32;

pub(super) fn floats(xs: &[f64]) -> Vec<u8> {
    let mut v = vec![];
    for x in xs {
        put(&mut v, DType::F32, *x);
    }
    v
}

fn place(count: u64) -> Place {
    Place {
        send: count * 4,
        recv: count * 4,
        skew: 0,
        in_place: false,
        own: 0,
    }
}

/// Sum of `base + rank` over the ranks.
fn total(n: u32, base: f64) -> f64 {
    let n = f64::from(n);
    n * base + n * (n - 1.0) / 2.0
}

fn sum(count: u64) -> CollDesc {
    coll_desc(COLL_ALL_REDUCE, F32, RED_SUM, count)
}

/// Nobody passes while one rank's stream is held back.
fn barrier(r: &Rank) -> Result<Answer, String> {
    let d = coll_desc(COLL_BARRIER, 0, 0, 0);
    if r.comm()?.claims(&d)?.is_none() {
        return not_claimed("no barrier: the core composes it");
    }
    let last = r.rank == r.n - 1;
    let stall = match last {
        true => Some(Stall::new(&r.rig.stream)?),
        false => None,
    };
    launch(r, &[d])?;
    r.meet("all are waiting")?;
    std::thread::sleep(Duration::from_millis(15));
    let early = !last && r.rig.stream.query()?;
    // Everyone looks before the last one goes.
    r.meet("all have looked")?;
    let certain = stall.as_ref().is_none_or(Stall::certain);
    drop(stall);
    r.rig.stream.finish()?;
    match early && certain && r.n > 1 {
        true => Err(format!(
            "rank {} passed a barrier that rank {} had not reached",
            r.rank,
            r.n - 1
        )),
        false => done(),
    }
}

/// Different kinds in one launch.
fn mixed(r: &Rank) -> Result<Answer, String> {
    let n = u64::from(r.n);
    let s = &r.rig.stream;
    let (p, q) = (
        place(100),
        Place {
            send: 4,
            recv: 4 * n,
            skew: 0,
            in_place: false,
            own: 0,
        },
    );
    let (a, b) = (Desk::new(r, 400)?, Desk::new(r, 4 * n)?);
    let x = f64::from(r.rank);
    let mut d = sum(100);
    (d.send, d.recv) = a.lay(s, &p, &floats(&[x + 1.0; 100]))?;
    let mut g = coll_desc(COLL_ALL_GATHER, F32, 0, 1);
    (g.send, g.recv) = b.lay(s, &q, &floats(&[x * 3.0]))?;
    for x in [&d, &g] {
        if r.comm()?.claims(x)?.is_none() {
            return not_claimed("not both of all_reduce and all_gather in f32");
        }
    }
    // The array is the host's again after the launch.
    let mut group = vec![d, g];
    launch(r, &group)?;
    group.fill(coll_desc(99, 0, 0, u64::MAX));
    if a.lift(s, &p)? != floats(&[total(r.n, 1.0); 100]) {
        return Err("the all_reduce of a mixed group is wrong".into());
    }
    let want: Vec<f64> = (0..n).map(|k| k as f64 * 3.0).collect();
    match b.lift(s, &q)? == floats(&want) {
        true => done(),
        false => Err("the all_gather of a mixed group is wrong".into()),
    }
}

/// Groups longer than what a library takes at once, of sums of many sizes.
fn long(r: &Rank) -> Result<Answer, String> {
    const MEMBERS: u64 = 70;
    let s = &r.rig.stream;
    // Member k sums 1 + k % 5 elements of k + rank, each at a place of its own.
    let p = place(8 * MEMBERS);
    let desk = Desk::new(r, p.send)?;
    let mut input = vec![0f64; 8 * MEMBERS as usize];
    let mut want = input.clone();
    for k in 0..MEMBERS as usize {
        input[8 * k..8 * k + 1 + k % 5].fill(k as f64 + f64::from(r.rank));
        want[8 * k..8 * k + 1 + k % 5].fill(total(r.n, k as f64));
    }
    if r.comm()?.claims(&sum(1))?.is_none() {
        return not_claimed("no all_reduce of f32 sums");
    }
    for members in [2, 17, MEMBERS] {
        let (send, recv) = desk.lay(s, &p, &floats(&input))?;
        let group: Vec<CollDesc> = (0..members)
            .map(|k| {
                let part = |x: Span| Span {
                    offset: x.offset + 32 * k,
                    bytes: 4 * (1 + k % 5),
                    ..x
                };
                let mut d = sum(1 + k % 5);
                (d.send, d.recv) = (part(send), part(recv));
                d
            })
            .collect();
        launch(r, &group)?;
        let out = desk.lift(s, &p)?;
        for k in 0..members as usize {
            let (from, to) = (32 * k, 32 * k + 4 * (1 + k % 5));
            if out[from..to] != floats(&want)[from..to] {
                return Err(format!("member {k} of a group of {members} is wrong"));
            }
        }
    }
    done()
}

/// More launches than a ring of them holds, while the streams are held back.
fn many(r: &Rank) -> Result<Answer, String> {
    const LAUNCHES: u64 = 300;
    let s = &r.rig.stream;
    let p = place(LAUNCHES);
    let desk = Desk::new(r, p.send)?;
    if r.comm()?.claims(&sum(1))?.is_none() {
        return not_claimed("no all_reduce of f32 sums");
    }
    let input: Vec<f64> = (0..LAUNCHES)
        .map(|k| k as f64 + f64::from(r.rank))
        .collect();
    let (send, recv) = desk.lay(s, &p, &floats(&input))?;
    s.finish()?;
    let stall = Stall::new(s)?;
    for k in 0..LAUNCHES {
        let part = |x: Span| Span {
            offset: x.offset + 4 * k,
            bytes: 4,
            ..x
        };
        let mut d = sum(1);
        (d.send, d.recv) = (part(send), part(recv));
        launch(r, &[d])?;
    }
    r.meet("enqueued")?;
    stall.release();
    let out = desk.lift(s, &p)?;
    let want: Vec<f64> = (0..LAUNCHES).map(|k| total(r.n, k as f64)).collect();
    match floats(&want)
        .chunks(4)
        .zip(out.chunks(4))
        .position(|(w, o)| w != o)
    {
        None => done(),
        Some(k) => Err(format!("launch {k} of {LAUNCHES} in flight is wrong")),
    }
}

fn empty(r: &Rank) -> Result<Answer, String> {
    match launch(r, &[]) {
        Ok(()) => {}
        Err(e) if e.contains("INVALID") || e.contains("UNSUPPORTED") => {}
        Err(e) => return Err(format!("a group of nothing: {e}")),
    }
    r.rig.stream.finish()?;
    done()
}

/// One member that is refused refuses the group: the others' outputs stay.
fn all_or_nothing(r: &Rank) -> Result<Answer, String> {
    let s = &r.rig.stream;
    let (a, b) = (Desk::new(r, 64)?, Desk::new(r, 64)?);
    let p = place(16);
    let mut good = sum(16);
    (good.send, good.recv) = a.lay(s, &p, &floats(&[1.0; 16]))?;
    let mut bad = coll_desc(77, F32, RED_SUM, 16);
    (bad.send, bad.recv) = b.lay(s, &p, &floats(&[1.0; 16]))?;
    for group in [[good, bad], [bad, good]] {
        match r.comm()?.launch(s, &group) {
            Err(e) if e.unsupported() => {}
            Err(e) => {
                return Err(format!(
                    "a group with an unknown kind: {e}, and not UNSUPPORTED"
                ));
            }
            Ok(()) => return Err("a group with an unknown kind was accepted".into()),
        }
    }
    for d in [&a, &b] {
        if d.lift(s, &p)?.iter().any(|x| *x != crate::ctx::POISON) {
            return Err("a group was refused, and a part of it ran".into());
        }
    }
    // The communicator is as good as before.
    let mut d = sum(16);
    (d.send, d.recv) = a.lay(s, &p, &floats(&[f64::from(r.rank); 16]))?;
    launch(r, &[d])?;
    match a.lift(s, &p)? == floats(&[total(r.n, 0.0); 16]) {
        true => done(),
        false => Err("after a refused group the next collective is wrong".into()),
    }
}

/// The input is written, and the output read, by work before and after on the same stream, while the stream is held back.
fn stalled_producer(r: &Rank) -> Result<Answer, String> {
    let s = &r.rig.stream;
    let n = 4096u64;
    let p = place(n);
    let desk = Desk::new(r, n * 4)?;
    let src = r
        .rig
        .area_of(&floats(&vec![f64::from(r.rank) + 5.0; n as usize]))?;
    let out = r.rig.area(n * 4)?;
    let mut d = sum(n);
    (d.send, d.recv) = desk.lay(s, &p, &floats(&vec![0.0; n as usize]))?;
    s.finish()?;
    let stall = Stall::new(s)?;
    s.copy(d.send, src.span())?;
    launch(r, &[d])?;
    s.copy(out.span(), d.recv)?;
    r.meet("enqueued")?;
    std::thread::sleep(Duration::from_millis(10));
    stall.release();
    s.finish()?;
    match out.read(&r.rig)? == floats(&vec![total(r.n, 5.0); n as usize]) {
        true => done(),
        false => Err("the collective did not keep the order of its stream".into()),
    }
}

/// R8: a launch does not wait for peers.
fn returns_at_once(r: &Rank) -> Result<Answer, String> {
    let s = &r.rig.stream;
    let p = place(16);
    let desk = Desk::new(r, 64)?;
    let mut d = sum(16);
    (d.send, d.recv) = desk.lay(s, &p, &floats(&[1.0; 16]))?;
    if r.rank == 0 {
        let start = std::time::Instant::now();
        launch(r, &[d])?;
        let took = start.elapsed();
        if r.n > 1 && took > Duration::from_secs(4) {
            return Err(format!("launch took {took:?} while no peer had come"));
        }
        // Had it waited for the others, nobody would come to this point in time.
        r.meet("first is back")?;
    } else {
        r.meet("first is back")?;
        launch(r, &[d])?;
    }
    match desk.lift(s, &p)? == floats(&[f64::from(r.n); 16]) {
        true => done(),
        false => Err("the sum is wrong".into()),
    }
}

/// Two communicators of the same ranks, launches interleaved, each on a stream of its own, in another order on odd ranks.
fn two_comms(r: &Rank) -> Result<Answer, String> {
    let other = r.join("second", COMM_TIMEOUT)?;
    let s2 = r.rig.dev.stream()?;
    let (a, b) = (Desk::new(r, 64)?, Desk::new(r, 64)?);
    let p = place(16);
    for round in 0..20 {
        let base = f64::from(round);
        let mut x = sum(16);
        (x.send, x.recv) = a.lay(&r.rig.stream, &p, &floats(&[base + f64::from(r.rank); 16]))?;
        let mut y = sum(16);
        (y.send, y.recv) = b.lay(&s2, &p, &floats(&[base * 2.0 + f64::from(r.rank); 16]))?;
        let first = || r.comm()?.launch(&r.rig.stream, &[x]).map_err(String::from);
        let second = || other.launch(&s2, &[y]).map_err(String::from);
        if r.rank.is_multiple_of(2) {
            first()?;
            second()?;
        } else {
            second()?;
            first()?;
        }
        let (got, more) = (a.lift(&r.rig.stream, &p)?, b.lift(&s2, &p)?);
        if got != floats(&[total(r.n, base); 16]) || more != floats(&[total(r.n, base * 2.0); 16]) {
            return Err(format!("round {round}: two communicators mix their data"));
        }
    }
    done()
}

/// One communicator on two streams: launches keep the order they were made in.
fn two_streams(r: &Rank) -> Result<Answer, String> {
    let s2 = r.rig.dev.stream()?;
    let (a, b) = (Desk::new(r, 64)?, Desk::new(r, 64)?);
    let p = place(16);
    for round in 0..10 {
        let base = f64::from(round);
        let mut x = sum(16);
        (x.send, x.recv) = a.lay(&r.rig.stream, &p, &floats(&[base + f64::from(r.rank); 16]))?;
        let mut y = sum(16);
        (y.send, y.recv) = b.lay(&s2, &p, &floats(&[base + 100.0 + f64::from(r.rank); 16]))?;
        launch(r, &[x])?;
        r.comm()?.launch(&s2, &[y])?;
        let (got, more) = (a.lift(&r.rig.stream, &p)?, b.lift(&s2, &p)?);
        if got != floats(&[total(r.n, base); 16]) || more != floats(&[total(r.n, base + 100.0); 16])
        {
            return Err(format!(
                "round {round}: launches on two streams change places"
            ));
        }
    }
    done()
}

/// Two colours with keys that turn the order round; a rank of no colour.
fn split(r: &Rank) -> Result<Answer, String> {
    // The last of three or more takes part without a colour.
    let color = |k: u32| match (k == r.n - 1 && r.n >= 3, r.n >= 4) {
        (true, _) => -1,
        (_, true) => (k % 2) as i32,
        _ => 0,
    };
    let key = |k: u32| -(k as i32) * 10;
    let mine = color(r.rank);
    let mut members: Vec<u32> = (0..r.n).filter(|k| color(*k) == mine).collect();
    members.sort_by_key(|k| (key(*k), *k));
    let at = members.iter().position(|k| *k == r.rank).unwrap_or(0);
    let prefix = format!("{}split/", r.scope);
    let cfg = Joining {
        rank: if mine < 0 { 0 } else { at as u32 },
        nranks: if mine < 0 { 1 } else { members.len() as u32 },
        timeout: COMM_TIMEOUT,
        prefix: &prefix,
        name: "half",
    };
    let Some(child) = r.comm()?.split(mine, key(r.rank), &cfg)? else {
        return not_claimed("no comm_split: the core composes it");
    };
    let child = match (child, mine) {
        (None, -1) => return done(),
        (Some(_), -1) => return Err("a rank without a colour became a member".into()),
        (None, _) => return Err("a rank with a colour became no member".into()),
        (Some(c), _) => c,
    };
    // Who is where shows in a gather: ordered by key.
    let n = members.len() as u64;
    let p = Place {
        send: 4,
        recv: 4 * n,
        skew: 0,
        in_place: false,
        own: 0,
    };
    let desk = Desk::new(r, 4 * n)?;
    let mut d = coll_desc(COLL_ALL_GATHER, F32, 0, 1);
    (d.send, d.recv) = desk.lay(&r.rig.stream, &p, &floats(&[f64::from(r.rank)]))?;
    if child.claims(&d)?.is_none() {
        return not_claimed("no all_gather to look through");
    }
    child.launch(&r.rig.stream, &[d])?;
    let want: Vec<f64> = members.iter().map(|k| f64::from(*k)).collect();
    let out = desk.lift(&r.rig.stream, &p)?;
    match out == floats(&want) {
        true => done(),
        false => Err(format!(
            "the members of colour {mine} are not in the order of their keys: {:?} is wanted",
            members
        )),
    }
}

/// Two splits of one parent live side by side: one of all ranks (equal colours), one by colour. Neither mixes with the
/// other, nor with the parent.
fn two_splits(r: &Rank) -> Result<Answer, String> {
    let part = |name: &str, color: i32, members: &[u32]| -> Result<_, String> {
        let prefix = format!("{}{name}/", r.scope);
        let cfg = Joining {
            rank: members.iter().position(|k| *k == r.rank).unwrap_or(0) as u32,
            nranks: members.len() as u32,
            timeout: COMM_TIMEOUT,
            prefix: &prefix,
            name,
        };
        Ok(r.comm()?.split(color, r.rank as i32, &cfg)?)
    };
    let all: Vec<u32> = (0..r.n).collect();
    let half: Vec<u32> = all
        .iter()
        .copied()
        .filter(|k| k % 2 == r.rank % 2)
        .collect();
    let (Some(whole), Some(part)) = (
        part("whole", 3, &all)?,
        part("half", (r.rank % 2) as i32, &half)?,
    ) else {
        return not_claimed("no comm_split: the core composes it");
    };
    let (Some(whole), Some(part)) = (whole, part) else {
        return Err("a rank with a colour became no member".into());
    };
    let s2 = r.rig.dev.stream()?;
    let s3 = r.rig.dev.stream()?;
    let p = place(16);
    let desks = [Desk::new(r, 64)?, Desk::new(r, 64)?, Desk::new(r, 64)?];
    for round in 0..10 {
        let base = f64::from(round);
        let (mine, of) = (f64::from(r.rank), |xs: &[u32]| {
            xs.iter().map(|k| f64::from(*k)).sum::<f64>()
        });
        let each = [
            (r.comm()?, &r.rig.stream, base, of(&all), r.n),
            (&whole, &s2, base + 100.0, of(&all), r.n),
            (&part, &s3, base + 1000.0, of(&half), half.len() as u32),
        ];
        for ((comm, s, base, ..), desk) in each.iter().zip(&desks) {
            let mut d = sum(16);
            (d.send, d.recv) = desk.lay(s, &p, &floats(&[base + mine; 16]))?;
            if comm.claims(&d)?.is_none() {
                return not_claimed("no all_reduce of f32 sums");
            }
            comm.launch(s, &[d])?;
        }
        for (i, ((_, s, base, ranks, n), desk)) in each.iter().zip(&desks).enumerate() {
            let want = base * f64::from(*n) + ranks;
            if desk.lift(s, &p)? != floats(&[want; 16]) {
                let name = [
                    "the parent",
                    "the split of equal colours",
                    "the split by colour",
                ][i];
                return Err(format!("round {round}: {name} does not add up to {want}"));
            }
        }
    }
    done()
}

/// Sums, gathers and barriers while every core is busy with something else.
fn loaded(r: &Rank) -> Result<Answer, String> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = || {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        // Of all ranks together more than there are cores.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..cores / r.n as usize + 1 {
            scope.spawn(busy);
        }
        let mut found = done();
        for _ in 0..15 {
            found = mixed(r);
            if !matches!(&found, Ok(a) if a.claimed) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        found
    })
}

fn bad_root(r: &Rank) -> Result<Answer, String> {
    let s = &r.rig.stream;
    let p = place(4);
    let desk = Desk::new(r, 16)?;
    let spans = desk.lay(s, &p, &floats(&[1.0; 4]))?;
    let mut asked = 0;
    for (kind, reduce) in [
        (COLL_BROADCAST, 0),
        (COLL_REDUCE, RED_SUM),
        (COLL_SEND, 0),
        (COLL_RECV, 0),
    ] {
        let mut d = coll_desc(kind, F32, reduce, 4);
        if r.comm()?.claims(&d)?.is_none() {
            continue;
        }
        (d.send, d.recv) = spans;
        asked += 1;
        for who in [r.n as i32, -1, i32::MAX] {
            (d.root, d.peer) = (who, who);
            match r.comm()?.launch(s, &[d]) {
                Err(e) if e.status == E_INVALID => {}
                Err(e) => return Err(format!("kind {kind} with rank {who}: {e}, and not INVALID")),
                Ok(()) => {
                    return Err(format!(
                        "kind {kind} with rank {who} of {} was accepted",
                        r.n
                    ));
                }
            }
        }
    }
    match desk.lift(s, &p)?.iter().all(|x| *x == crate::ctx::POISON) {
        true if asked == 0 => not_claimed("no collective with a root or a peer"),
        true => done(),
        false => Err("a refused collective wrote its output".into()),
    }
}

/// The factor is read in stream order, not at the call.
fn device_scale(r: &Rank) -> Result<Answer, String> {
    let s = &r.rig.stream;
    let p = place(8);
    let desk = Desk::new(r, 32)?;
    let mut d = coll_desc(COLL_ALL_REDUCE, F32, RED_PREMUL_SUM, 8);
    if r.comm()?.claims(&d)?.is_none() {
        return not_claimed("no premul_sum: the core composes it");
    }
    (d.send, d.recv) = desk.lay(s, &p, &floats(&[f64::from(r.rank); 8]))?;
    let factor = r.rig.area_of(&4f32.to_le_bytes())?;
    let later = r.rig.area_of(&0.25f32.to_le_bytes())?;
    d.scale = 1000.0;
    d.scale_dev = factor.span();
    let stall = Stall::new(s)?;
    s.copy(factor.span(), later.span())?;
    match r.comm()?.launch(s, &[d]) {
        Ok(()) => {}
        Err(e) if e.unsupported() => {
            drop(stall);
            s.finish()?;
            return not_claimed("no factor on the device");
        }
        Err(e) => return Err(e.into()),
    }
    r.meet("enqueued")?;
    drop(stall);
    match desk.lift(s, &p)? == floats(&[total(r.n, 0.0) * 0.25; 8]) {
        true => done(),
        false => Err("the factor was not the one the stream had written".into()),
    }
}

/// A rank beyond the ranks, or no ranks at all.
fn wrong_rank(ctx: &Ctx, n: u32) -> Check {
    if ctx.plugin.coll.is_none() {
        return skip("no collectives");
    }
    ctx.loose_ranks(n, &|r| {
        if r.rank > 0 {
            return done();
        }
        let id = r.rig.dev.unique_id()?;
        for (rank, nranks) in [(n, n), (0, 0), (u32::MAX, 2), (1, u32::MAX)] {
            let cfg = Joining {
                rank,
                nranks,
                timeout: Duration::from_secs(1),
                prefix: "kit/wrong/",
                name: "wrong",
            };
            match r.rig.dev.join(&id, &cfg) {
                Err(e) if e.status == E_INVALID => {}
                Err(e) => {
                    return Err(format!(
                        "rank {} of {}: {e}, and not INVALID",
                        rank as i32, nranks as i32
                    ));
                }
                Ok(_) => return Err(format!("rank {} of {} joined", rank as i32, nranks as i32)),
            }
        }
        done()
    })?;
    pass()
}
