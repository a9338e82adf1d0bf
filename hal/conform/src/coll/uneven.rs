//! Exchanges whose parts differ: all-to-all-v, all-gather-v, and groups of sends and receives that cross.

use super::desk::{Desk, Place, launch};
use crate::case::{Case, Check, Demanded, pass, refused, skip};
use crate::ctx::{Ctx, POISON, Rng, Stall};
use crate::local_ranks::{Answer, Rank};
use crate::raw::coll_desc;
use crossweave_abi::*;

/// The cases on `n` ranks.
pub fn cases(n: u32) -> Vec<Case> {
    let mut v = Vec::new();
    for t in DType::ALL {
        for (kind, name) in [
            (COLL_ALL_TO_ALL_V, "all_to_all_v"),
            (COLL_ALL_GATHER_V, "all_gather_v"),
        ] {
            let id = format!("coll.{name}.{}.r{n}", t.name());
            let case = Case::new(id, move |ctx| {
                run(ctx, n, &|r, seed| v_kind(r, kind, t, seed))
            });
            v.push(case.on_ranks(n));
        }
        let id = format!("coll.send_recv.{}.r{n}", t.name());
        let case = Case::new(id, move |ctx| run(ctx, n, &|r, seed| ring(r, t, seed))).on_ranks(n);
        v.push(match profile::coll_need(COLL_SEND, t.id(), 0, 0) {
            true => case.demanded(Demanded::COLLECTIVE),
            false => case,
        });
    }
    v
}

fn run(ctx: &Ctx, n: u32, body: &(dyn Fn(&Rank, u64) -> Result<Answer, String> + Sync)) -> Check {
    if ctx.plugin.coll.is_none() {
        return skip("no collectives: the host carries them");
    }
    let all = ctx.ranks(n, &|r| body(r, ctx.seed))?;
    match all.iter().all(|a| a.claimed == all[0].claimed) {
        false => Err("ranks disagree on whether the cell is claimed".into()),
        true if all[0].claimed => pass(),
        true => refused(all[0].note.clone()),
    }
}

/// Bytes that rank `from` sends to rank `to`.
fn piece(t: DType, from: u64, to: u64, count: u64, seed: u64) -> Vec<u8> {
    Rng::new(seed ^ (from << 20) ^ (to << 40)).bytes(t.bytes(count))
}

fn refusal(r: &Rank, group: &[CollDesc]) -> Result<Answer, String> {
    match r.comm()?.launch(&r.rig.stream, group) {
        Err(e) if e.unsupported() => Ok(Answer {
            note: e.message,
            ..Answer::default()
        }),
        Err(e) => Err(format!(
            "comm_query refuses it, and {e}: UNSUPPORTED is wanted"
        )),
        Ok(()) => Err("comm_query refuses it and launch accepts it".into()),
    }
}

fn v_kind(r: &Rank, kind: u32, t: DType, seed: u64) -> Result<Answer, String> {
    let (n, me) = (u64::from(r.n), u64::from(r.rank));
    let unit = if t.bits() < 8 { 2 } else { 1 };
    let mut a = Answer {
        claimed: true,
        ..Answer::default()
    };
    // Beyond the pieces in which transports send, once.
    let rounds = if t == DType::U8 { 4 } else { 3 };
    for round in 0..rounds {
        let times = [1, 38, 75, 30_011][round as usize];
        // Zero for some pairs, and in the last round for whole ranks.
        let count = |from: u64, to: u64| {
            let to = if kind == COLL_ALL_GATHER_V { 0 } else { to };
            match (round, from) {
                (2, 0) => 0,
                _ => ((from * 3 + to * 5 + round) % 4) * times * unit,
            }
        };
        let gap = 3 * unit;
        let send_counts: Vec<u64> = (0..n).map(|q| count(me, q)).collect();
        let recv_counts: Vec<u64> = (0..n).map(|q| count(q, me)).collect();
        let offsets = |counts: &[u64], from: u64| -> Vec<u64> {
            let mut at = from;
            let each = counts.iter().map(|c| {
                let here = at;
                at += c + gap;
                here
            });
            each.collect()
        };
        let mut send_offsets = offsets(&send_counts, gap);
        let mut recv_offsets = offsets(&recv_counts, 0);
        // Out of order: the piece of rank 0 lies last.
        if n > 1 && round > 0 {
            let ends = recv_offsets[n as usize - 1] + recv_counts[n as usize - 1] + gap;
            recv_offsets[0] = ends;
        }
        let end = |c: &[u64], o: &[u64]| c.iter().zip(o).map(|(c, o)| c + o).max().unwrap_or(0);
        let gives = match kind {
            COLL_ALL_GATHER_V => count(me, 0),
            _ => end(&send_counts, &send_offsets),
        };
        let takes = end(&recv_counts, &recv_offsets);
        let p = Place {
            send: t.bytes(gives),
            recv: t.bytes(takes),
            skew: 0,
            in_place: false,
            own: 0,
        };
        let mut input = vec![0u8; p.send as usize];
        if kind == COLL_ALL_GATHER_V {
            input = piece(t, me, 0, gives, seed ^ round);
        } else {
            for q in 0..n {
                let at = t.bytes(send_offsets[q as usize]) as usize;
                let x = piece(t, me, q, send_counts[q as usize], seed ^ round);
                input[at..at + x.len()].copy_from_slice(&x);
            }
        }
        let mut want = vec![POISON; p.recv as usize];
        for q in 0..n {
            let at = t.bytes(recv_offsets[q as usize]) as usize;
            let to = if kind == COLL_ALL_GATHER_V { 0 } else { me };
            let x = piece(t, q, to, recv_counts[q as usize], seed ^ round);
            want[at..at + x.len()].copy_from_slice(&x);
        }
        let desk = Desk::new(r, p.send.max(p.recv).max(8))?;
        let (send, recv) = desk.lay(&r.rig.stream, &p, &input)?;
        let mut send_counts = send_counts;
        let mut recv_counts = recv_counts;
        let mut d = coll_desc(kind, t.id(), 0, 0);
        (d.send, d.recv) = (send, recv);
        if kind == COLL_ALL_TO_ALL_V {
            d.send_counts = send_counts.as_ptr();
            d.send_offsets = send_offsets.as_ptr();
        } else {
            d.count = gives;
        }
        d.recv_counts = recv_counts.as_ptr();
        d.recv_offsets = recv_offsets.as_ptr();
        if round == 0 && r.comm()?.claims(&d)?.is_none() {
            return refusal(r, &[d]);
        }
        // Held back until the arrays are the host's again: who reads them late reads what they hold then.
        let s = &r.rig.stream;
        s.finish()?;
        let stall = Stall::new(s)?;
        launch(r, &[d])?;
        // R8: the arrays are the host's again.
        for v in [
            &mut send_counts,
            &mut recv_counts,
            &mut send_offsets,
            &mut recv_offsets,
        ] {
            v.fill(u64::MAX);
        }
        drop(stall);
        let out = desk
            .lift(&r.rig.stream, &p)
            .map_err(|e| format!("round {round}: {e}"))?;
        if let Some(i) = out.iter().zip(&want).position(|(a, b)| a != b) {
            return Err(format!(
                "round {round}: byte {i} of {} is {:#04x}, and {:#04x} is right{}",
                want.len(),
                out[i],
                want[i],
                if want[i] == POISON {
                    " (it lies between pieces)"
                } else {
                    ""
                }
            ));
        }
    }
    a.note.clear();
    Ok(a)
}

/// Every rank sends to the next and receives from the one before, in one group, several messages deep.
fn ring(r: &Rank, t: DType, seed: u64) -> Result<Answer, String> {
    let (n, me) = (u64::from(r.n), u64::from(r.rank));
    let (next, prev) = ((me + 1) % n, (me + n - 1) % n);
    let unit = if t.bits() < 8 { 2 } else { 1 };
    let probe = coll_desc(COLL_SEND, t.id(), 0, 64);
    let claimed = r.comm()?.claims(&probe)?.is_some();
    let recv = r
        .comm()?
        .claims(&coll_desc(COLL_RECV, t.id(), 0, 64))?
        .is_some();
    if claimed != recv {
        return Err("one of send and recv is claimed and the other is not".into());
    }
    // Beyond the pieces in which transports send, of one type.
    let most = if t == DType::U8 { 300_001 } else { 5000 };
    for count in [0u64, 1, 77, most] {
        let count = count * unit;
        let bytes = t.bytes(count);
        // Two messages, so that their order shows.
        let p = Place {
            send: 2 * bytes,
            recv: 2 * bytes,
            skew: 0,
            in_place: false,
            own: 0,
        };
        let desk = Desk::new(r, p.send.max(8))?;
        let words = |from: u64, k: u64| piece(t, from, k, count, seed ^ count);
        let input = [words(me, 0), words(me, 1)].concat();
        let (send, recv) = desk.lay(&r.rig.stream, &p, &input)?;
        let mut group = Vec::new();
        for k in 0..2u64 {
            let mut s = coll_desc(COLL_SEND, t.id(), 0, count);
            s.peer = next as i32;
            s.send = Span {
                offset: send.offset + k * bytes,
                bytes,
                ..send
            };
            let mut g = coll_desc(COLL_RECV, t.id(), 0, count);
            g.peer = prev as i32;
            g.recv = Span {
                offset: recv.offset + k * bytes,
                bytes,
                ..recv
            };
            // Receives first on even ranks: no order between the members of a group may matter.
            match me % 2 {
                0 => group.extend([g, s]),
                _ => group.extend([s, g]),
            }
        }
        if !claimed {
            return refusal(r, &group);
        }
        launch(r, &group)?;
        let out = desk.lift(&r.rig.stream, &p)?;
        if out != [words(prev, 0), words(prev, 1)].concat() {
            return Err(format!(
                "{count} elements: what rank {prev} sent is not what arrived"
            ));
        }
    }
    everyone(r, t, seed)?;
    Ok(Answer {
        claimed: true,
        ..Answer::default()
    })
}

/// In one group a rank sends to every rank and receives from every rank, itself too; the messages are of different lengths.
fn everyone(r: &Rank, t: DType, seed: u64) -> Result<(), String> {
    let (n, me) = (u64::from(r.n), u64::from(r.rank));
    let count = |from: u64, to: u64| 2 * (7 + 3 * from + 11 * to);
    // Every piece at a place of its own, which is large enough for any.
    let each = t.bytes(count(n, n)).next_multiple_of(8);
    let p = Place {
        send: n * each,
        recv: n * each,
        skew: 0,
        in_place: false,
        own: 0,
    };
    let desk = Desk::new(r, p.send)?;
    let (mut input, mut want) = (vec![0; p.send as usize], vec![POISON; p.recv as usize]);
    for q in 0..n {
        let at = (q * each) as usize;
        for (all, from, to) in [(&mut input, me, q), (&mut want, q, me)] {
            let x = piece(t, from, to, count(from, to), seed);
            all[at..at + x.len()].copy_from_slice(&x);
        }
    }
    let (send, recv) = desk.lay(&r.rig.stream, &p, &input)?;
    let mut group = Vec::new();
    for k in 0..n {
        // Every rank begins with another one.
        let q = (me + k) % n;
        for (kind, count) in [(COLL_SEND, count(me, q)), (COLL_RECV, count(q, me))] {
            let mut d = coll_desc(kind, t.id(), 0, count);
            let part = |x: Span| Span {
                offset: x.offset + q * each,
                bytes: t.bytes(count),
                ..x
            };
            d.peer = q as i32;
            match kind {
                COLL_SEND => d.send = part(send),
                _ => d.recv = part(recv),
            }
            group.push(d);
        }
    }
    launch(r, &group)?;
    let out = desk.lift(&r.rig.stream, &p)?;
    match out.iter().zip(&want).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(i) => Err(format!(
            "one group with all ranks: what rank {} sent is not what arrived",
            i as u64 / each
        )),
    }
}
