//! Groups whose members differ from each other in everything, and splits of splits.

use super::desk::{Desk, Place, launch};
use super::special::{done, floats, not_claimed, run};
use super::value::put;
use crate::case::Case;
use crate::ctx::POISON;
use crate::local_ranks::{Answer, COMM_TIMEOUT, Rank};
use crate::raw::{Joining, coll_desc};
use crossweave_abi::*;

/// The cases on `n` ranks.
pub fn cases(n: u32) -> Vec<Case> {
    let differ = Case::new(format!("coll.group.all_differ.r{n}"), move |ctx| {
        run(ctx, n, all_differ)
    });
    let splits = Case::new(format!("coll.split.of_a_split.r{n}"), move |ctx| {
        run(ctx, n, of_a_split)
    });
    [differ, splits].map(|c| c.on_ranks(n).since(9)).into()
}

/// Bytes between the places of two members.
const EACH: u64 = 512;

/// A member of a group: what is asked, and the numbers of a rank.
struct Member {
    desc: CollDesc,
    dtype: DType,
    /// Elements given and got.
    sizes: [u64; 2],
    number: u64,
}

impl Member {
    fn new(number: u64, kind: u32, dtype: DType, reduce: u32, count: u64, n: u64) -> Member {
        let sizes = match kind {
            COLL_ALL_GATHER => [count, n * count],
            COLL_REDUCE_SCATTER => [n * count, count],
            _ => [count, count],
        };
        Member {
            desc: coll_desc(kind, dtype.id(), reduce, count),
            dtype,
            sizes,
            number,
        }
    }

    fn rooted(mut self, root: u32) -> Member {
        self.desc.root = root as i32;
        self
    }

    /// Element `i` of what a rank gives: whole numbers, which every type and order sums exactly.
    fn given(&self, rank: u32, i: u64) -> f64 {
        ((self.number * 5 + u64::from(rank) * 3 + i) % 17 + 1) as f64
    }

    /// What a rank gets; nothing where its output is not written.
    fn wanted(&self, rank: u32, n: u32) -> Option<Vec<f64>> {
        let count = self.desc.count;
        let all = |i: u64| {
            let each = (0..n).map(|k| self.given(k, i));
            match self.desc.reduce {
                RED_MAX => each.fold(f64::MIN, f64::max),
                RED_MIN => each.fold(f64::MAX, f64::min),
                _ => each.sum(),
            }
        };
        let root = self.desc.root as u32;
        Some(match self.desc.kind {
            COLL_BROADCAST => (0..count).map(|i| self.given(root, i)).collect(),
            COLL_REDUCE if rank != root => return None,
            COLL_ALL_GATHER => (0..n)
                .flat_map(|k| (0..count).map(move |i| (k, i)))
                .map(|(k, i)| self.given(k, i))
                .collect(),
            COLL_REDUCE_SCATTER => {
                let from = u64::from(rank) * count;
                (from..from + count).map(all).collect()
            }
            _ => (0..count).map(all).collect(),
        })
    }
}

/// Bytes of numbers in a type.
fn bytes(t: DType, all: impl IntoIterator<Item = f64>) -> Vec<u8> {
    let mut v = vec![];
    all.into_iter().for_each(|x| put(&mut v, t, x));
    v
}

/// No two members are alike in kind, type, reduction, root, count and place: who takes one's for another's comes to other numbers.
fn all_differ(r: &Rank) -> Result<Answer, String> {
    let n = u64::from(r.n);
    let (f, i) = (DType::F32, DType::I32);
    let mut all = vec![
        Member::new(0, COLL_ALL_REDUCE, f, RED_SUM, 7, n),
        Member::new(1, COLL_ALL_GATHER, i, 0, 3, n),
        Member::new(2, COLL_ALL_REDUCE, i, RED_MAX, 5, n),
        Member::new(3, COLL_REDUCE_SCATTER, f, RED_SUM, 2, n),
        Member::new(4, COLL_ALL_REDUCE, f, RED_MIN, 11, n),
        Member::new(5, COLL_REDUCE_SCATTER, i, RED_MAX, 3, n),
    ];
    let reductions = [RED_SUM, RED_MAX, RED_MIN];
    for root in 0..r.n.min(8) {
        let (k, t) = (6 + 2 * u64::from(root), [f, i][root as usize % 2]);
        let reduce = reductions[root as usize % 3];
        all.push(Member::new(k, COLL_BROADCAST, t, 0, 3 + u64::from(root), n).rooted(root));
        all.push(Member::new(k + 1, COLL_REDUCE, t, reduce, 13 - u64::from(root), n).rooted(root));
    }
    let comm = r.comm()?;
    let mut claimed = vec![];
    for m in all {
        if comm.claims(&m.desc)?.is_some() {
            claimed.push(m);
        }
    }
    if claimed.len() < 2 {
        return not_claimed("no two kinds to put into a group");
    }
    let total = EACH * claimed.len() as u64;
    let p = Place {
        send: total,
        recv: total,
        skew: 0,
        in_place: false,
        own: 0,
    };
    let (desk, s) = (Desk::new(r, total)?, &r.rig.stream);
    let mut input = vec![POISON; total as usize];
    for (k, m) in claimed.iter().enumerate() {
        let own = bytes(m.dtype, (0..m.sizes[0]).map(|i| m.given(r.rank, i)));
        input[k * EACH as usize..][..own.len()].copy_from_slice(&own);
    }
    // In the order of the list, and in the other: the first decides for none.
    for backwards in [false, true] {
        let (send, recv) = desk.lay(s, &p, &input)?;
        let part = |x: Span, k: usize, m: &Member, which: usize| Span {
            offset: x.offset + EACH * k as u64,
            bytes: m.dtype.bytes(m.sizes[which]),
            ..x
        };
        let mut group: Vec<CollDesc> = claimed
            .iter()
            .enumerate()
            .map(|(k, m)| CollDesc {
                send: part(send, k, m, 0),
                recv: part(recv, k, m, 1),
                ..m.desc
            })
            .collect();
        if backwards {
            group.reverse();
        }
        launch(r, &group)?;
        let out = desk.lift(s, &p)?;
        for (k, m) in claimed.iter().enumerate() {
            let own = &out[k * EACH as usize..][..EACH as usize];
            let mut want = match m.wanted(r.rank, r.n) {
                Some(v) => bytes(m.dtype, v),
                None => vec![],
            };
            want.resize(EACH as usize, POISON);
            if own != want {
                return Err(format!(
                    "member {k} of {} that all differ is wrong: kind {}, type {}, reduction {}, root {}, {} elements",
                    claimed.len(),
                    m.desc.kind,
                    m.dtype.name(),
                    m.desc.reduce,
                    m.desc.root,
                    m.desc.count
                ));
            }
        }
    }
    done()
}

/// A half is split again, with keys that turn its ranks round: members are those of the half, in the order of the new keys.
fn of_a_split(r: &Rank) -> Result<Answer, String> {
    if r.n < 3 {
        return not_claimed("too few ranks for a split of a split");
    }
    let of = |members: &[u32], prefix: &str| -> Result<_, String> {
        let at = members.iter().position(|k| *k == r.rank).unwrap_or(0);
        let prefix = format!("{}{prefix}/", r.scope);
        Ok((at as u32, members.len() as u32, prefix))
    };
    // All but the last rank, then all but the first of those.
    let half = |k: u32| i32::from(k + 1 == r.n);
    let own: Vec<u32> = (0..r.n).filter(|k| half(*k) == half(r.rank)).collect();
    let (rank, nranks, prefix) = of(&own, "half")?;
    let cfg = Joining {
        rank,
        nranks,
        timeout: COMM_TIMEOUT,
        prefix: &prefix,
        name: "half",
    };
    let Some(child) = r.comm()?.split(half(r.rank), r.rank as i32, &cfg)? else {
        return not_claimed("no comm_split: the core composes it");
    };
    let child = child.ok_or("a rank with a colour became no member")?;
    let second = |k: u32| i32::from(own.iter().position(|o| *o == k).is_some_and(|at| at > 0));
    let mut again: Vec<u32> = own
        .iter()
        .copied()
        .filter(|k| second(*k) == second(r.rank))
        .collect();
    again.reverse();
    let (rank, nranks, prefix) = of(&again, "quarter")?;
    let cfg = Joining {
        rank,
        nranks,
        timeout: COMM_TIMEOUT,
        prefix: &prefix,
        name: "quarter",
    };
    let Some(last) = child.split(second(r.rank), -(r.rank as i32), &cfg)? else {
        return not_claimed("no comm_split of a split: the core composes it");
    };
    let last = last.ok_or("a rank with a colour became no member of the second split")?;
    let n = again.len() as u64;
    let p = Place {
        send: 4,
        recv: 4 * n,
        skew: 0,
        in_place: false,
        own: 0,
    };
    let desk = Desk::new(r, 4 * n)?;
    let mut d = coll_desc(COLL_ALL_GATHER, DType::F32.id(), 0, 1);
    (d.send, d.recv) = desk.lay(&r.rig.stream, &p, &floats(&[f64::from(r.rank)]))?;
    if last.claims(&d)?.is_none() {
        return not_claimed("no all_gather to look through");
    }
    last.launch(&r.rig.stream, &[d])?;
    let want: Vec<f64> = again.iter().map(|k| f64::from(*k)).collect();
    match desk.lift(&r.rig.stream, &p)? == floats(&want) {
        true => done(),
        false => Err(format!(
            "the members of a split of a split are not {again:?}"
        )),
    }
}
