//! One collective in NCCL's words: which it takes, and the calls it becomes. Data that is only moved is moved as bytes.

use super::Nccl;
use crossweave_plugin::{
    Code, Coll, CollShape, DType, Error, Result, Span, abi, fail, unsupported,
};

/// `ncclUint8`.
pub(crate) const BYTES: u32 = 1;
/// `ncclInt32`, which every library sums.
pub(crate) const WORD: u32 = 2;

/// `ncclDataType_t` of what can be summed.
pub(crate) fn number(d: DType) -> Option<u32> {
    Some(match d {
        DType::I8 => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::Bf16 => 9,
        _ => return None,
    })
}

pub(crate) fn reduces(kind: u32) -> bool {
    matches!(
        kind,
        abi::COLL_ALL_REDUCE | abi::COLL_REDUCE_SCATTER | abi::COLL_REDUCE
    )
}

/// How a reduction combines: a number of `ncclRedOp_t`, or one to be made for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    Built(u32),
    PremulSum,
}

/// What the library does, or why not.
pub(crate) fn supports(x: &CollShape, nranks: u32, of: &Nccl) -> Result<Option<Reduction>> {
    let r = takes(x, nranks)?;
    match &of.other {
        Some(o) if r.is_some() && !(o.reduces)(x.dtype, x.reduce) => {
            let how = abi::red_name(x.reduce).unwrap_or("reduction");
            unsupported(format!("{} has no {how} of {}", of.what, x.dtype.name()))
        }
        _ => Ok(r),
    }
}

/// What NCCL does, or why not.
fn takes(x: &CollShape, nranks: u32) -> Result<Option<Reduction>> {
    if !(abi::COLL_ALL_REDUCE..=abi::COLL_BARRIER).contains(&x.kind) {
        return unsupported(format!("collective kind {}", x.kind));
    }
    if x.flags & !abi::COLLF_ACC_F32 != 0 {
        return unsupported(format!("collective flags {:#x}", x.flags));
    }
    if matches!(x.kind, abi::COLL_ALL_TO_ALL | abi::COLL_ALL_TO_ALL_V) && x.in_place {
        return unsupported("an all-to-all in place");
    }
    if x.dtype.bits() < 8 && x.kind != abi::COLL_BARRIER {
        return unsupported(format!(
            "{}: pieces need not start at a byte",
            x.dtype.name()
        ));
    }
    if !reduces(x.kind) {
        return Ok(None);
    }
    if number(x.dtype).is_none() {
        // Sums of 8-bit floats are composed in f32 by design.
        return unsupported(format!("reductions of {}", x.dtype.name()));
    }
    let narrow = matches!(x.dtype, DType::F16 | DType::Bf16);
    if narrow && x.flags & abi::COLLF_ACC_F32 != 0 && nranks > 2 {
        return unsupported("16-bit sums are rounded at every rank they pass");
    }
    let float = x.dtype.is_float();
    match x.reduce {
        abi::RED_SUM => Ok(Some(Reduction::Built(0))),
        abi::RED_PROD => Ok(Some(Reduction::Built(1))),
        // Its floating maximum and minimum drop NaN.
        abi::RED_MAX | abi::RED_MIN if float => unsupported("floating max and min drop NaN"),
        abi::RED_MAX => Ok(Some(Reduction::Built(2))),
        abi::RED_MIN => Ok(Some(Reduction::Built(3))),
        abi::RED_AVG if float => Ok(Some(Reduction::Built(4))),
        abi::RED_AVG => unsupported(format!("the average of {}", x.dtype.name())),
        abi::RED_PREMUL_SUM if float => Ok(Some(Reduction::PremulSum)),
        abi::RED_PREMUL_SUM => unsupported(format!("scaled sums of {}", x.dtype.name())),
        r => unsupported(format!("reduce operator {r}")),
    }
}

/// A scale in the type of the elements, as NCCL reads it.
pub(crate) fn scale_bytes(scale: f64, d: DType) -> [u8; 8] {
    let mut b = [0; 8];
    match d {
        DType::F64 => b = scale.to_ne_bytes(),
        DType::F16 => b[..2].copy_from_slice(&f16_bits(scale as f32).to_ne_bytes()),
        DType::Bf16 => b[..2].copy_from_slice(&bf16_bits(scale as f32).to_ne_bytes()),
        _ => b[..4].copy_from_slice(&(scale as f32).to_ne_bytes()),
    }
    b
}

fn bf16_bits(x: f32) -> u16 {
    let b = x.to_bits();
    if x.is_nan() {
        return (b >> 16) as u16 | 0x40;
    }
    ((b + 0x7fff + (b >> 16 & 1)) >> 16) as u16
}

fn f16_bits(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16 & 0x8000) as u16;
    let a = f64::from(x.abs());
    if x.is_nan() {
        return sign | 0x7e00;
    }
    // Halfway between the largest and what would come next.
    if a >= 65520.0 {
        return sign | 0x7c00;
    }
    // Steps of 2^-24 below the normal range, above it of 2^-10 of the power of two below; both are exact in f64.
    let exponent = (a.to_bits() >> 52) as i32 - 1023;
    if a < 2f64.powi(-14) {
        return sign | (a * 2f64.powi(24)).round_ties_even() as u16;
    }
    let steps = (a * 2f64.powi(10 - exponent)).round_ties_even() as u32;
    sign | ((((exponent + 15) as u32) << 10) + (steps - 1024)) as u16
}

/// One call of NCCL: offsets are bytes from the start of the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    AllReduce {
        count: u64,
    },
    ReduceScatter {
        count: u64,
    },
    AllGather {
        bytes: u64,
    },
    Broadcast {
        bytes: u64,
        root: i32,
    },
    Reduce {
        count: u64,
        root: i32,
    },
    Send {
        at: u64,
        bytes: u64,
        peer: i32,
    },
    Recv {
        at: u64,
        bytes: u64,
        peer: i32,
    },
    /// One of the communicator's own words is summed.
    Barrier,
}

fn room<M>(what: &str, s: &Option<Span<'_, M>>, end: Option<u64>) -> Result<()> {
    let have = s.as_ref().map_or(0, |s| s.bytes);
    match end {
        Some(n) if n <= have => Ok(()),
        _ => fail(
            Code::Invalid,
            format!(
                "{what} holds {have} bytes, the collective names {}",
                end.map_or("more".into(), |n| n.to_string())
            ),
        ),
    }
}

/// The calls of a collective. Everything is checked before the first is made.
pub(crate) fn calls<M>(x: &Coll<'_, M>, rank: u32, nranks: u32, out: &mut Vec<Call>) -> Result<()> {
    let n = u64::from(nranks);
    let width = x.dtype.bits() / 8;
    let bytes = |count: u64| {
        count.checked_mul(width).ok_or_else(|| {
            Error::new(
                Code::Invalid,
                format!("{count} elements are more than memory holds"),
            )
        })
    };
    let all = |count: u64| count.checked_mul(n).and_then(|c| c.checked_mul(width));
    let one = bytes(x.count)?;
    if x.scale_dev.is_some() {
        room("the scale", &x.scale_dev, Some(width))?;
    }
    let known = |what: &str, r: i32| match (0..nranks as i32).contains(&r) {
        true => Ok(r),
        false => fail(Code::Invalid, format!("{what} {r} of {nranks} ranks")),
    };
    match x.kind {
        abi::COLL_ALL_REDUCE => {
            room("the input", &x.send, Some(one))?;
            room("the output", &x.recv, Some(one))?;
            out.push(Call::AllReduce { count: x.count });
        }
        abi::COLL_REDUCE_SCATTER => {
            room("the input", &x.send, all(x.count))?;
            room("the output", &x.recv, Some(one))?;
            out.push(Call::ReduceScatter { count: x.count });
        }
        abi::COLL_ALL_GATHER => {
            room("the input", &x.send, Some(one))?;
            room("the output", &x.recv, all(x.count))?;
            out.push(Call::AllGather { bytes: one });
        }
        abi::COLL_BROADCAST => {
            let root = known("root", x.root)?;
            if root == rank as i32 {
                room("the input", &x.send, Some(one))?;
            } else {
                room("the output", &x.recv, Some(one))?;
            }
            out.push(Call::Broadcast { bytes: one, root });
        }
        abi::COLL_REDUCE => {
            let root = known("root", x.root)?;
            room("the input", &x.send, Some(one))?;
            if root == rank as i32 {
                room("the output", &x.recv, Some(one))?;
            }
            out.push(Call::Reduce {
                count: x.count,
                root,
            });
        }
        abi::COLL_ALL_TO_ALL => {
            room("the input", &x.send, all(x.count))?;
            room("the output", &x.recv, all(x.count))?;
            for peer in 0..nranks {
                let at = u64::from(peer) * one;
                out.push(Call::Send {
                    at,
                    bytes: one,
                    peer: peer as i32,
                });
                out.push(Call::Recv {
                    at,
                    bytes: one,
                    peer: peer as i32,
                });
            }
        }
        abi::COLL_ALL_TO_ALL_V | abi::COLL_ALL_GATHER_V => {
            let to_all = x.kind == abi::COLL_ALL_TO_ALL_V;
            let whole = |v: &[u64]| v.len() == nranks as usize;
            if !whole(x.recv_counts)
                || !whole(x.recv_offsets)
                || (to_all && (!whole(x.send_counts) || !whole(x.send_offsets)))
            {
                return fail(
                    Code::Invalid,
                    format!("counts and offsets must have {nranks} entries"),
                );
            }
            for peer in 0..nranks as usize {
                let (at, n) = match to_all {
                    true => (bytes(x.send_offsets[peer])?, bytes(x.send_counts[peer])?),
                    false => (0, one),
                };
                room(
                    "the input",
                    &x.send,
                    at.checked_add(n).filter(|_| n > 0).or(Some(0)),
                )?;
                let (from, m) = (bytes(x.recv_offsets[peer])?, bytes(x.recv_counts[peer])?);
                room(
                    "the output",
                    &x.recv,
                    from.checked_add(m).filter(|_| m > 0).or(Some(0)),
                )?;
                // Both sides know a piece of nothing, and leave it out.
                if n > 0 {
                    out.push(Call::Send {
                        at,
                        bytes: n,
                        peer: peer as i32,
                    });
                }
                if m > 0 {
                    out.push(Call::Recv {
                        at: from,
                        bytes: m,
                        peer: peer as i32,
                    });
                }
            }
        }
        abi::COLL_SEND => {
            room("the input", &x.send, Some(one))?;
            out.push(Call::Send {
                at: 0,
                bytes: one,
                peer: known("peer", x.peer)?,
            });
        }
        abi::COLL_RECV => {
            room("the output", &x.recv, Some(one))?;
            out.push(Call::Recv {
                at: 0,
                bytes: one,
                peer: known("peer", x.peer)?,
            });
        }
        abi::COLL_BARRIER => out.push(Call::Barrier),
        k => return unsupported(format!("collective kind {k}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::nccl::sys as bindings;

    fn shape(kind: u32, dtype: DType, reduce: u32, flags: u32) -> CollShape {
        CollShape {
            kind,
            dtype,
            reduce,
            count: 4,
            flags,
            in_place: false,
        }
    }

    #[test]
    fn numbers_are_those_of_the_public_bindings() {
        use bindings::{ncclDataType_t as T, ncclRedOp_t as R};
        for (d, t) in [
            (DType::I8, T::ncclInt8),
            (DType::U8, T::ncclUint8),
            (DType::I32, T::ncclInt32),
            (DType::U32, T::ncclUint32),
            (DType::I64, T::ncclInt64),
            (DType::U64, T::ncclUint64),
            (DType::F16, T::ncclFloat16),
            (DType::F32, T::ncclFloat32),
            (DType::F64, T::ncclFloat64),
            (DType::Bf16, T::ncclBfloat16),
        ] {
            assert_eq!(number(d), Some(t as u32), "{}", d.name());
        }
        assert_eq!(BYTES, T::ncclUint8 as u32);
        for (r, d, t) in [
            (abi::RED_SUM, DType::F32, R::ncclSum),
            (abi::RED_PROD, DType::F32, R::ncclProd),
            (abi::RED_MAX, DType::I32, R::ncclMax),
            (abi::RED_MIN, DType::I32, R::ncclMin),
            (abi::RED_AVG, DType::Bf16, R::ncclAvg),
        ] {
            let got = takes(&shape(abi::COLL_ALL_REDUCE, d, r, 0), 4).unwrap();
            assert_eq!(got, Some(Reduction::Built(t as u32)));
        }
    }

    #[test]
    fn what_nccl_would_do_otherwise_than_the_contract_is_refused() {
        let no = |x: CollShape, n: u32| takes(&x, n).unwrap_err().code == Code::Unsupported;
        let sum = |d, f| shape(abi::COLL_ALL_REDUCE, d, abi::RED_SUM, f);
        assert!(
            no(sum(DType::Bf16, abi::COLLF_ACC_F32), 3)
                && no(sum(DType::F8E4M3, 0), 2)
                && no(sum(DType::F32, 2), 2)
        );
        assert!(takes(&sum(DType::Bf16, abi::COLLF_ACC_F32), 2).is_ok());
        assert!(no(shape(abi::COLL_REDUCE, DType::F32, abi::RED_MAX, 0), 2));
        assert!(no(
            shape(abi::COLL_ALL_REDUCE, DType::I32, abi::RED_AVG, 0),
            2
        ));
        assert!(no(shape(99, DType::F32, 0, 0), 2));
        let mut x = shape(abi::COLL_ALL_TO_ALL, DType::F32, 0, 0);
        x.in_place = true;
        assert!(no(x, 2));
        // Moving is not summing.
        assert_eq!(
            takes(&shape(abi::COLL_ALL_GATHER, DType::F8E5M2, 0, 0), 2),
            Ok(None)
        );
    }

    #[test]
    fn scales_are_rounded_to_the_nearest_even_of_the_elements_type() {
        let bits = |x: f64, d| u16::from_ne_bytes([scale_bytes(x, d)[0], scale_bytes(x, d)[1]]);
        for (x, want) in [
            (1.0, 0x3c00),
            (0.5, 0x3800),
            (-2.0, 0xc000),
            (65504.0, 0x7bff),
            (65520.0, 0x7c00),
            (1.0 / 3.0, 0x3555),
            (6e-8, 1),
            (2e-8, 0),
            (1.00048828125, 0x3c00),
            (2047.9999, 0x6800),
        ] {
            assert_eq!(bits(x, DType::F16), want, "{x}");
        }
        for (x, want) in [
            (1.0, 0x3f80),
            (1.0 / 3.0, 0x3eab),
            (1.00390625, 0x3f80),
            (1.01171875, 0x3f82),
        ] {
            assert_eq!(bits(x, DType::Bf16), want, "{x}");
        }
        assert_eq!(scale_bytes(0.25, DType::F32)[..4], 0.25f32.to_ne_bytes());
        assert_eq!(scale_bytes(0.1, DType::F64), 0.1f64.to_ne_bytes());
    }

    fn coll<'a>(mem: &'a (), kind: u32, send: u64, recv: u64, count: u64) -> Coll<'a, ()> {
        let span = |bytes| {
            Some(Span {
                mem,
                offset: 0,
                bytes,
            })
        };
        Coll {
            kind,
            dtype: DType::F32,
            reduce: abi::RED_SUM,
            root: 0,
            peer: 0,
            count,
            send: span(send),
            recv: span(recv),
            send_counts: &[],
            send_offsets: &[],
            recv_counts: &[],
            recv_offsets: &[],
            scale: 1.0,
            scale_dev: None,
            flags: 0,
            seq: 0,
        }
    }

    fn asked(x: &Coll<'_, ()>, rank: u32) -> Result<Vec<Call>> {
        let mut out = vec![];
        calls(x, rank, 3, &mut out)?;
        Ok(out)
    }

    #[test]
    fn every_kind_becomes_its_calls_and_short_buffers_are_refused() {
        let m = ();
        assert_eq!(
            asked(&coll(&m, abi::COLL_ALL_REDUCE, 16, 16, 4), 0),
            Ok(vec![Call::AllReduce { count: 4 }])
        );
        assert!(asked(&coll(&m, abi::COLL_ALL_REDUCE, 16, 12, 4), 0).is_err());
        assert_eq!(
            asked(&coll(&m, abi::COLL_REDUCE_SCATTER, 48, 16, 4), 0),
            Ok(vec![Call::ReduceScatter { count: 4 }])
        );
        assert!(asked(&coll(&m, abi::COLL_REDUCE_SCATTER, 47, 16, 4), 0).is_err());
        assert_eq!(
            asked(&coll(&m, abi::COLL_ALL_GATHER, 16, 48, 4), 0),
            Ok(vec![Call::AllGather { bytes: 16 }])
        );
        assert!(asked(&coll(&m, abi::COLL_ALL_GATHER, 16, 48, u64::MAX / 4), 0).is_err());
        let mut b = coll(&m, abi::COLL_BROADCAST, 0, 16, 4);
        assert!(asked(&b, 0).is_err() && asked(&b, 1).is_ok());
        b.root = 3;
        assert!(asked(&b, 1).is_err());
        let all = asked(&coll(&m, abi::COLL_ALL_TO_ALL, 24, 24, 2), 1).unwrap();
        assert_eq!(all.len(), 6);
        assert_eq!(
            all[4],
            Call::Send {
                at: 16,
                bytes: 8,
                peer: 2
            }
        );
        assert_eq!(
            asked(&coll(&m, abi::COLL_BARRIER, 0, 0, 0), 1),
            Ok(vec![Call::Barrier])
        );
    }

    #[test]
    fn uneven_pieces_go_by_their_counts_and_empty_ones_not_at_all() {
        let m = ();
        let mut x = coll(&m, abi::COLL_ALL_TO_ALL_V, 40, 40, 0);
        (x.send_counts, x.send_offsets) = (&[1, 0, 2], &[0, 1, 8]);
        (x.recv_counts, x.recv_offsets) = (&[0, 3, 1], &[0, 0, 3]);
        assert_eq!(
            asked(&x, 0),
            Ok(vec![
                Call::Send {
                    at: 0,
                    bytes: 4,
                    peer: 0
                },
                Call::Recv {
                    at: 0,
                    bytes: 12,
                    peer: 1
                },
                Call::Send {
                    at: 32,
                    bytes: 8,
                    peer: 2
                },
                Call::Recv {
                    at: 12,
                    bytes: 4,
                    peer: 2
                },
            ])
        );
        x.send_offsets = &[0, 1, 9];
        assert!(asked(&x, 0).is_err());
        x.send_offsets = &[0];
        assert!(asked(&x, 0).is_err());
        let mut g = coll(&m, abi::COLL_ALL_GATHER_V, 8, 24, 2);
        (g.recv_counts, g.recv_offsets) = (&[2, 1, 3], &[0, 2, 3]);
        let got = asked(&g, 0).unwrap();
        assert_eq!(
            got[0],
            Call::Send {
                at: 0,
                bytes: 8,
                peer: 0
            }
        );
        assert_eq!(
            got[5],
            Call::Recv {
                at: 12,
                bytes: 12,
                peer: 2
            }
        );
    }
}
