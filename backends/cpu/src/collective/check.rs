//! Validation: a collective as the host describes it becomes one whose addresses and counts are known to fit.

use crate::memory::{Mem, address};
use crossweave_abi::*;
use crossweave_plugin::{Code, Coll, CollShape, Result, Span, fail, unsupported};

/// Names of the kinds, for messages.
pub(super) fn kind_name(kind: u32) -> &'static str {
    coll_name(kind).unwrap_or("unknown")
}

pub(super) fn reduce_name(reduce: u32) -> &'static str {
    match reduce {
        0 => "none",
        r => red_name(r).unwrap_or("unknown"),
    }
}

fn reduces(kind: u32) -> bool {
    matches!(kind, COLL_ALL_REDUCE | COLL_REDUCE_SCATTER | COLL_REDUCE)
}

/// Per-rank elements of a `*_v` collective.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) send: Vec<u64>,
    pub(super) send_at: Vec<u64>,
    pub(super) recv: Vec<u64>,
    pub(super) recv_at: Vec<u64>,
}

/// A validated collective.
pub(super) struct Planned {
    pub(super) kind: u32,
    pub(super) dtype: DType,
    pub(super) reduce: u32,
    pub(super) root: usize,
    pub(super) peer: usize,
    pub(super) count: u64,
    pub(super) send: *const u8,
    pub(super) recv: *mut u8,
    /// Counts, for the kinds that have some.
    pub(super) counts: Option<Box<Counts>>,
    pub(super) scale: f64,
    /// Address and bytes of a factor in memory, read in stream order.
    pub(super) scale_dev: Option<(*const u8, u64)>,
}
// SAFETY: the addresses are operands which the host keeps alive until the stream has passed the collective.
unsafe impl Send for Planned {}

impl Planned {
    pub(super) fn bytes(&self, count: u64) -> usize {
        self.dtype.bytes(count) as usize
    }

    pub(super) fn point_to_point(&self) -> bool {
        matches!(self.kind, COLL_SEND | COLL_RECV)
    }
}

/// What is supported, by kind, dtype and reduction; used by the query and by launch, so that they cannot disagree.
pub(super) fn supported(s: &CollShape) -> Result<()> {
    let what = || {
        format!(
            "{} {} {}",
            kind_name(s.kind),
            s.dtype.name(),
            reduce_name(s.reduce)
        )
    };
    if coll_name(s.kind).is_none() {
        return unsupported(format!("collective kind {}", s.kind));
    }
    if s.flags & !COLLF_ACC_F32 != 0 {
        return unsupported(format!("{}: flags {:#x}", what(), s.flags));
    }
    if s.dtype.bits() < 8 && !s.count.is_multiple_of(2) {
        return unsupported(format!(
            "{}: {} elements end inside a byte",
            what(),
            s.count
        ));
    }
    if s.kind == COLL_ALL_TO_ALL_V && s.in_place {
        return unsupported("all_to_all_v in place");
    }
    if reduces(s.kind) {
        let float = matches!(s.dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
        let ok = match s.reduce {
            RED_SUM | RED_PROD | RED_MIN | RED_MAX => float || !s.dtype.is_float(),
            RED_AVG | RED_PREMUL_SUM => float,
            _ => false,
        };
        if !ok {
            return unsupported(what());
        }
    }
    Ok(())
}

/// Checks one member of a group against the communicator and its spans.
pub(super) fn plan(c: &Coll<'_, Mem>, rank: usize, n: usize) -> Result<Planned> {
    let name = kind_name(c.kind);
    let in_place = matches!((&c.send, &c.recv), (Some(s), Some(r)) if same(s, r));
    supported(&CollShape {
        kind: c.kind,
        dtype: c.dtype,
        reduce: c.reduce,
        count: c.count,
        flags: c.flags,
        in_place,
    })?;
    let rank_of = |what: &str, r: i32| match usize::try_from(r) {
        Ok(r) if r < n => Ok(r),
        _ => fail(Code::Invalid, format!("{name}: {what} {r} of {n} ranks")),
    };
    let mut p = Planned {
        kind: c.kind,
        dtype: c.dtype,
        reduce: if reduces(c.kind) { c.reduce } else { 0 },
        root: 0,
        peer: 0,
        count: c.count,
        send: std::ptr::null(),
        recv: std::ptr::null_mut(),
        counts: None,
        scale: c.scale,
        scale_dev: None,
    };
    if c.kind == COLL_BARRIER {
        p.count = 0;
        return Ok(p);
    }
    if matches!(c.kind, COLL_BROADCAST | COLL_REDUCE) {
        p.root = rank_of("root", c.root)?;
    }
    if p.point_to_point() {
        p.peer = rank_of("peer", c.peer)?;
    }
    let need = |count: Option<u64>| -> Result<u64> {
        let bits = count.and_then(|c| c.checked_mul(p.dtype.bits()));
        match bits {
            Some(b) => Ok(b.div_ceil(8)),
            None => fail(
                Code::Invalid,
                format!("{name}: {} elements are beyond any memory", c.count),
            ),
        }
    };
    let all = c.count.checked_mul(n as u64);
    // Elements read from `send` and written to `recv` by this rank.
    let (reads, writes) = match c.kind {
        COLL_ALL_REDUCE => (Some(c.count), Some(c.count)),
        COLL_REDUCE_SCATTER => (all, Some(c.count)),
        COLL_ALL_GATHER => (Some(c.count), all),
        COLL_BROADCAST => (
            Some(if rank == p.root { c.count } else { 0 }),
            Some(c.count),
        ),
        COLL_REDUCE => (
            Some(c.count),
            Some(if rank == p.root { c.count } else { 0 }),
        ),
        COLL_ALL_TO_ALL => (all, all),
        COLL_SEND => (Some(c.count), Some(0)),
        COLL_RECV => (Some(0), Some(c.count)),
        _ => {
            let mut own = Box::<Counts>::default();
            (own.recv, own.recv_at) =
                counts("recv_counts", c.recv_counts, c.recv_offsets, n, name)?;
            let reads = if c.kind == COLL_ALL_GATHER_V {
                let mine = own.recv[rank];
                if c.count != 0 && c.count != mine {
                    return fail(
                        Code::Invalid,
                        format!(
                            "{name}: rank {rank} sends {} but recv_counts says {mine}",
                            c.count
                        ),
                    );
                }
                p.count = 0;
                Some(mine)
            } else {
                (own.send, own.send_at) =
                    counts("send_counts", c.send_counts, c.send_offsets, n, name)?;
                p.count = 0;
                extent(&own.send, &own.send_at)
            };
            let writes = extent(&own.recv, &own.recv_at);
            p.counts = Some(own);
            (reads, writes)
        }
    };
    let (reads, writes) = (need(reads)?, need(writes)?);
    // One span is enough where in and out have the same shape: in place.
    let twin = matches!(c.kind, COLL_ALL_REDUCE | COLL_BROADCAST | COLL_REDUCE);
    let send = c.send.or(if twin { c.recv } else { None });
    let recv = c.recv.or(if twin { c.send } else { None });
    p.send = span(&send, reads, "send", name)?;
    p.recv = span(&recv, writes, "recv", name)?;
    if c.kind == COLL_ALL_TO_ALL_V && reads > 0 && writes > 0 {
        let (s, r) = (p.send as u64, p.recv as u64);
        if s < r + writes && r < s + reads {
            return unsupported("all_to_all_v in place");
        }
    }
    if c.reduce == RED_PREMUL_SUM
        && let Some(f) = &c.scale_dev
    {
        if !matches!(f.bytes, 4 | 8) && f.bytes != p.bytes(1) as u64 {
            return fail(
                Code::Invalid,
                format!("{name}: a factor of {} bytes; 4 = f32, 8 = f64", f.bytes),
            );
        }
        p.scale_dev = Some((address(f, "scale")?, f.bytes));
    }
    Ok(p)
}

fn same(a: &Span<'_, Mem>, b: &Span<'_, Mem>) -> bool {
    std::ptr::eq(a.mem, b.mem) && a.offset == b.offset && a.bytes == b.bytes
}

fn span(s: &Option<Span<'_, Mem>>, need: u64, which: &str, name: &str) -> Result<*mut u8> {
    match s {
        None if need == 0 => Ok(std::ptr::null_mut()),
        Some(s) if s.bytes >= need => address(s, name),
        given => fail(
            Code::Invalid,
            format!(
                "{name}: {which} needs {need} bytes, its span has {}",
                given.map_or(0, |s| s.bytes)
            ),
        ),
    }
}

/// Counts and offsets; absent offsets mean "one after the other".
fn counts(
    what: &str,
    counts: &[u64],
    at: &[u64],
    n: usize,
    name: &str,
) -> Result<(Vec<u64>, Vec<u64>)> {
    if counts.len() != n || !(at.is_empty() || at.len() == n) {
        return fail(
            Code::Invalid,
            format!(
                "{name}: {what} has {} entries and its offsets {}, for {n} ranks",
                counts.len(),
                at.len()
            ),
        );
    }
    let mut next = 0u64;
    let dense = counts.iter().map(|c| {
        let at = next;
        next = next.saturating_add(*c);
        at
    });
    let at = if at.is_empty() {
        dense.collect()
    } else {
        at.to_vec()
    };
    Ok((counts.to_vec(), at))
}

/// One past the last element touched, or `None` when that is no number.
fn extent(counts: &[u64], at: &[u64]) -> Option<u64> {
    let mut end = 0;
    for (c, a) in counts.iter().zip(at).filter(|(c, _)| **c > 0) {
        end = end.max(a.checked_add(*c)?);
    }
    Some(end)
}
