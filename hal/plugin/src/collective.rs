//! Typed requests of collectives: a collective as the host describes it becomes one whose ranks, counts and addresses are known to fit.
//!
//! Written for back ends whose collectives run on the host, which reach memory by its address. What a back end supports by kind, dtype and
//! reduction is [`supported`]; it serves the query and the launch, so that the two cannot disagree.

use crate::{Code, Coll, CollShape, Members, Result, Span, fail, unsupported};
use crossweave_abi::*;

/// A kind's name, for messages.
pub fn kind_name(kind: u32) -> &'static str {
    coll_name(kind).unwrap_or("unknown")
}

/// A reduction's name, for messages.
pub fn reduce_name(reduce: u32) -> &'static str {
    match reduce {
        0 => "none",
        r => red_name(r).unwrap_or("unknown"),
    }
}

fn reduces(kind: u32) -> bool {
    matches!(kind, COLL_ALL_REDUCE | COLL_REDUCE_SCATTER | COLL_REDUCE)
}

/// A bf16's value.
fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// An f16's value. Its exponent and mantissa are moved to where an f32 has them and scaled by the difference of the biases, which also makes
/// subnormals right; infinities and NaN have the greatest exponent of both.
fn f16(bits: u16) -> f32 {
    let (sign, rest) = (
        u32::from(bits & 0x8000) << 16,
        u32::from(bits & 0x7fff) << 13,
    );
    let scaled = f32::from_bits(rest) * f32::from_bits((254 - 15) << 23);
    let magnitude = match bits & 0x7c00 {
        0x7c00 => rest | 0x7f80_0000,
        _ => scaled.to_bits(),
    };
    f32::from_bits(sign | magnitude)
}

/// Elements for each rank, of a `*_v` collective, and where they begin.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Elements sent to each rank.
    pub send: Vec<u64>,
    /// First element of each in the sender's span.
    pub send_at: Vec<u64>,
    /// Elements received from each rank.
    pub recv: Vec<u64>,
    /// First element of each in the receiver's span.
    pub recv_at: Vec<u64>,
}

/// A collective of one rank, validated.
pub struct Checked {
    /// `COLL_*`.
    pub kind: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// `RED_*`; 0 where the kind does not reduce.
    pub reduce: u32,
    /// Root of a broadcast or reduce, below the number of ranks.
    pub root: usize,
    /// The other end of a send or receive, below the number of ranks.
    pub peer: usize,
    /// Elements, as the kind counts them; 0 where [`Checked::counts`] does.
    pub count: u64,
    /// The first byte read, and of an operation in place also written; null where this rank reads nothing.
    pub send: *const u8,
    /// The first byte written; null where this rank writes nothing.
    pub recv: *mut u8,
    /// Apart, since few collectives have any and every one is moved into its stream's queue.
    pub counts: Option<Box<Counts>>,
    /// The factor of a scaled sum, where memory has none.
    pub scale: f64,
    /// Address and bytes of a factor in memory, read in stream order.
    pub scale_dev: Option<(*const u8, u64)>,
}
// SAFETY: the addresses are operands which the host keeps alive until the stream has passed the collective.
unsafe impl Send for Checked {}

impl Checked {
    /// Bytes of so many elements.
    pub fn bytes(&self, count: u64) -> usize {
        self.dtype.bytes(count) as usize
    }

    /// A send or a receive.
    pub fn point_to_point(&self) -> bool {
        matches!(self.kind, COLL_SEND | COLL_RECV)
    }

    /// The factor of a scaled sum.
    ///
    /// # Safety
    /// The operand is live, in stream order.
    pub unsafe fn factor(&self) -> f64 {
        // SAFETY: promised by the caller; the length was checked.
        unsafe {
            match (self.scale_dev, self.dtype) {
                (None, _) => self.scale,
                (Some((at, 8)), _) => at.cast::<f64>().read_unaligned(),
                (Some((at, 4)), _) => at.cast::<f32>().read_unaligned().into(),
                (Some((at, _)), DType::Bf16) => bf16(at.cast::<u16>().read_unaligned()).into(),
                (Some((at, _)), _) => f16(at.cast::<u16>().read_unaligned()).into(),
            }
        }
    }

    /// What every rank of the collective says alike, so that a difference is a mistake: `all_reduce sum of 1024 f32`.
    pub fn what(&self, members: &Members) -> String {
        let [peer, root] = [self.peer, self.root].map(|r| members.of(r));
        let (kind, dtype, count) = (kind_name(self.kind), self.dtype.name(), self.count);
        match self.kind {
            COLL_BARRIER => kind.into(),
            COLL_ALL_TO_ALL_V | COLL_ALL_GATHER_V => format!("{kind} {dtype}"),
            COLL_SEND => format!("send of {count} {dtype} to {peer}"),
            COLL_RECV => format!("recv of {count} {dtype} from {peer}"),
            COLL_BROADCAST => format!("{kind} of {count} {dtype} from {root}"),
            COLL_REDUCE => format!(
                "{kind} {} of {count} {dtype} to {root}",
                reduce_name(self.reduce)
            ),
            k if reduces(k) => format!("{kind} {} of {count} {dtype}", reduce_name(self.reduce)),
            _ => format!("{kind} of {count} {dtype}"),
        }
    }

    /// The same as numbers.
    pub fn words(&self) -> [u64; 5] {
        let small = [self.kind, self.dtype.id(), self.reduce].map(u64::from);
        [small[0], small[1], small[2], self.root as u64, self.count]
    }
}

/// Whether elements of this type are reduced so: numbers by sum, product, least and greatest, floats also by mean and scaled sum.
pub fn reducible(dtype: DType, reduce: u32) -> bool {
    let float = matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
    match reduce {
        RED_SUM | RED_PROD | RED_MIN | RED_MAX => float || !dtype.is_float(),
        RED_AVG | RED_PREMUL_SUM => float,
        _ => false,
    }
}

/// What is supported, by kind, dtype and reduction.
///
/// # Errors
/// `Unsupported`, with what is not.
pub fn supported(s: &CollShape) -> Result<()> {
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
    if reduces(s.kind) && !reducible(s.dtype, s.reduce) {
        return unsupported(what());
    }
    Ok(())
}

/// Checks one member of a group against the communicator of `n` ranks and its spans. `address` gives a span's first byte, and fails where
/// the span does not lie inside its memory; its second argument says whose span it is.
///
/// # Errors
/// `Unsupported` as [`supported`]; `Invalid` for ranks that are not there, counts beyond any memory, and spans that are too short.
pub fn request<M>(
    c: &Coll<'_, M>,
    (rank, n): (usize, usize),
    address: impl Fn(&Span<'_, M>, &str) -> Result<*mut u8>,
) -> Result<Checked> {
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
    let mut p = Checked {
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
    let (reads, writes) = elements(c, &mut p, (rank, n))?;
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
    let (reads, writes) = (need(reads)?, need(writes)?);
    // One span is enough where in and out have the same shape: in place.
    let twin = matches!(c.kind, COLL_ALL_REDUCE | COLL_BROADCAST | COLL_REDUCE);
    let send = c.send.or(if twin { c.recv } else { None });
    let recv = c.recv.or(if twin { c.send } else { None });
    let first = |s: &Option<Span<'_, M>>, need: u64, which: &str| match s {
        None if need == 0 => Ok(std::ptr::null_mut()),
        Some(s) if s.bytes >= need => address(s, name),
        given => fail(
            Code::Invalid,
            format!(
                "{name}: {which} needs {need} bytes, its span has {}",
                given.as_ref().map_or(0, |s| s.bytes)
            ),
        ),
    };
    p.send = first(&send, reads, "send")?;
    p.recv = first(&recv, writes, "recv")?;
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

/// Elements that this rank reads from `send` and writes to `recv`; `None` where they are more than can be counted.
fn elements<M>(
    c: &Coll<'_, M>,
    p: &mut Checked,
    (rank, n): (usize, usize),
) -> Result<(Option<u64>, Option<u64>)> {
    let name = kind_name(c.kind);
    let all = c.count.checked_mul(n as u64);
    let of_root = Some(if rank == p.root { c.count } else { 0 });
    let one = Some(c.count);
    Ok(match c.kind {
        COLL_ALL_REDUCE => (one, one),
        COLL_REDUCE_SCATTER => (all, one),
        COLL_ALL_GATHER => (one, all),
        COLL_BROADCAST => (of_root, one),
        COLL_REDUCE => (one, of_root),
        COLL_ALL_TO_ALL => (all, all),
        COLL_SEND => (one, Some(0)),
        COLL_RECV => (Some(0), one),
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
                Some(mine)
            } else {
                (own.send, own.send_at) =
                    counts("send_counts", c.send_counts, c.send_offsets, n, name)?;
                extent(&own.send, &own.send_at)
            };
            p.count = 0;
            let writes = extent(&own.recv, &own.recv_at);
            p.counts = Some(own);
            (reads, writes)
        }
    })
}

fn same<M>(a: &Span<'_, M>, b: &Span<'_, M>) -> bool {
    std::ptr::eq(a.mem, b.mem) && a.offset == b.offset && a.bytes == b.bytes
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_sixteen_bits_have_their_values() {
        let of = [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x0001, 5.960_464_5e-8),
            (0x7bff, 65504.0),
            (0x8000, -0.0),
        ];
        for (bits, value) in of {
            assert_eq!(f16(bits).to_bits(), f32::to_bits(value), "{bits:#x}");
        }
        assert_eq!(f16(0x7c00), f32::INFINITY);
        assert!(f16(0x7e01).is_nan() && f16(0xfc01).is_nan());
        assert_eq!((bf16(0x3f80), bf16(0xc0a0)), (1.0, -5.0));
    }
}
