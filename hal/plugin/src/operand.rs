//! Operands of an op as back ends want them before they choose a kernel: layouts checked and neighbouring dims merged, and refusals that
//! name the op and the operand.

use crate::{Code, DType, OpRequest, Plan, Result, fail, unsupported};
use crossweave_abi::{Layout, op};

/// The floats of the op table's `f`.
pub const FLOATS: &[DType] = &[DType::F32, DType::Bf16, DType::F16];
/// Just f32.
pub const F32: &[DType] = &[DType::F32];
/// Types of the op table's `any` that arithmetic is defined for.
pub const ARITHMETIC: &[DType] = &[
    DType::F32,
    DType::Bf16,
    DType::F16,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U8,
];
/// Index types.
pub const INDEX: &[DType] = &[DType::I32, DType::I64];

/// Everything whose elements are whole bytes: what moves without being looked at.
pub const WHOLE_BYTES: &[DType] = &[
    DType::I8,
    DType::U8,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
    DType::F16,
    DType::Bf16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::F8E4M3Fnuz,
    DType::F8E5M2Fnuz,
    DType::F8E8M0,
];

/// A strided operand with neighbouring dims merged where they can be.
#[derive(Clone, Debug)]
pub struct View {
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub total: usize,
    /// `(size, stride)` outermost first; empty = one element (or none).
    pub dims: Vec<(usize, usize)>,
    /// The full shape, as given.
    pub shape: Vec<usize>,
    /// The full strides, as given.
    pub stride: Vec<usize>,
}

impl View {
    /// A view of chosen dims.
    pub fn of_dims(dtype: DType, shape: Vec<usize>, stride: Vec<usize>) -> View {
        let mut dims: Vec<(usize, usize)> = Vec::new();
        for (&n, &s) in shape.iter().zip(&stride) {
            if n == 1 {
                continue;
            }
            match dims.last_mut() {
                Some((m, t)) if *t == s * n => {
                    *m *= n;
                    *t = s;
                }
                _ => dims.push((n, s)),
            }
        }
        View {
            dtype,
            total: shape.iter().product(),
            dims,
            shape,
            stride,
        }
    }

    /// The same memory seen through some of the dims only (in the order given).
    pub fn pick(&self, which: &[usize]) -> View {
        View::of_dims(
            self.dtype,
            which.iter().map(|i| self.shape[*i]).collect(),
            which.iter().map(|i| self.stride[*i]).collect(),
        )
    }

    /// Lines along `dim`: the other dims as a view, and the length and stride of that one.
    pub fn lines(&self, dim: usize) -> (View, usize, usize) {
        let others: Vec<usize> = (0..self.shape.len()).filter(|d| *d != dim).collect();
        (self.pick(&others), self.shape[dim], self.stride[dim])
    }

    /// Bytes of an element.
    pub fn elem(&self) -> usize {
        (self.dtype.bits() / 8) as usize
    }

    /// Row-major without gaps?
    pub fn dense(&self) -> bool {
        self.total == 0 || matches!(self.dims[..], [] | [(_, 1)])
    }

    /// Does writing it touch some element twice (as far as strides tell)?
    fn overlaps(&self) -> bool {
        let mut d: Vec<_> = self.dims.clone();
        d.sort_by_key(|(_, s)| *s);
        let mut reach = 1;
        for (n, s) in d {
            if s < reach {
                return true;
            }
            reach += s * (n - 1);
        }
        false
    }
}

/// The op's name in the op table.
pub fn name(o: &OpRequest<'_>) -> &'static str {
    op::spec(o.id).map_or("op", |s| s.name)
}

/// The operand's name in the op table, or its group's.
pub fn named(o: &OpRequest<'_>, i: usize) -> String {
    let n = op::spec(o.id)
        .and_then(|s| s.operands.get(i))
        .and_then(|s| s.split(':').next());
    match n {
        Some(n) => format!("operand {i} ({n})"),
        None => format!("operand {i}"),
    }
}

/// `Err(Invalid)` naming the op.
pub fn invalid<T>(o: &OpRequest<'_>, what: impl std::fmt::Display) -> Result<T> {
    fail(Code::Invalid, format!("{}: {what}", name(o)))
}

/// `Err(Unsupported)` naming the op.
pub fn refuse<T>(o: &OpRequest<'_>, what: impl std::fmt::Display) -> Result<T> {
    unsupported(format!("{}: {what}", name(o)))
}

/// Refuses params flags the op does not define.
pub fn flags(o: &OpRequest<'_>, given: u32, known: u32) -> Result<()> {
    if given & !known != 0 {
        return refuse(o, format!("flags {:#x} are not known here", given & !known));
    }
    Ok(())
}

/// Checks how many operands there are, of an op in its first revision.
pub fn arity(o: &OpRequest<'_>, n: std::ops::RangeInclusive<usize>) -> Result<()> {
    arity_up_to(o, n, 1)
}

/// The same of an op that this back end has up to the revision `newest`.
pub fn arity_up_to(
    o: &OpRequest<'_>,
    n: std::ops::RangeInclusive<usize>,
    newest: u32,
) -> Result<()> {
    if !n.contains(&o.operands.len()) {
        return invalid(
            o,
            format!(
                "{} operands, {} to {} wanted",
                o.operands.len(),
                n.start(),
                n.end()
            ),
        );
    }
    if !(1..=newest).contains(&o.revision) {
        return refuse(
            o,
            format!("revision {} (this backend knows {newest})", o.revision),
        );
    }
    Ok(())
}

/// Reads an operand that must be there, of one of the dtypes, with non-negative strides.
pub fn input(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    let Some(l) = o.layout(i) else {
        return invalid(o, format!("{} is absent", named(o, i)));
    };
    view(o, i, l, dtypes)
}

/// Reads an operand that may be absent.
pub fn optional(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<Option<View>> {
    o.layout(i).map(|l| view(o, i, l, dtypes)).transpose()
}

fn view(o: &OpRequest<'_>, i: usize, l: &Layout, dtypes: &[DType]) -> Result<View> {
    let who = || named(o, i);
    let Some(dtype) = DType::from_id(l.dtype) else {
        return refuse(o, format!("{}: dtype {:#x} is unknown", who(), l.dtype));
    };
    if !dtypes.contains(&dtype) {
        return refuse(
            o,
            format!("{}: dtype {} is not supported", who(), dtype.name()),
        );
    }
    let rank = l.rank as usize;
    if rank > 8 {
        return invalid(o, format!("{}: rank {rank} is more than 8", who()));
    }
    let (mut shape, mut stride) = (Vec::with_capacity(rank), Vec::with_capacity(rank));
    let (mut total, mut reach) = (1u128, 0u128);
    for d in 0..rank {
        if l.shape[d] < 0 {
            return invalid(o, format!("{}: dim {d} has size {}", who(), l.shape[d]));
        }
        if l.stride[d] < 0 {
            return refuse(
                o,
                format!("{}: dim {d} has negative stride {}", who(), l.stride[d]),
            );
        }
        shape.push(l.shape[d] as usize);
        stride.push(l.stride[d] as usize);
        total = total.saturating_mul(l.shape[d] as u128);
        reach += (l.shape[d].max(1) - 1) as u128 * l.stride[d] as u128;
    }
    if total > i64::MAX as u128 / 8 || reach > i64::MAX as u128 / 8 {
        return invalid(o, format!("{}: more elements than memory has", who()));
    }
    Ok(View::of_dims(dtype, shape, stride))
}

/// Reads an output with any strides that write each element once.
pub fn output_strided(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    let v = input(o, i, dtypes)?;
    if v.total > 0 && v.overlaps() {
        return invalid(
            o,
            format!("{}: strides write an element twice", named(o, i)),
        );
    }
    Ok(v)
}

/// Reads an output that must be dense row-major.
pub fn output(o: &OpRequest<'_>, i: usize, dtypes: &[DType]) -> Result<View> {
    dense(o, i, input(o, i, dtypes)?)
}

/// Refuses what is not dense row-major.
pub fn dense(o: &OpRequest<'_>, i: usize, v: View) -> Result<View> {
    if !v.dense() {
        return refuse(o, format!("{} must be dense row-major", named(o, i)));
    }
    Ok(v)
}

/// Checks that operand `i` has this shape.
pub fn shape(o: &OpRequest<'_>, i: usize, v: &View, want: &[usize]) -> Result<()> {
    if v.shape != want {
        return invalid(
            o,
            format!("{}: shape {:?}, {want:?} wanted", named(o, i), v.shape),
        );
    }
    Ok(())
}

/// Checks that operand `i` has one element.
pub fn scalar(o: &OpRequest<'_>, i: usize, v: &View) -> Result<()> {
    match v.total {
        1 => Ok(()),
        n => invalid(o, format!("{}: {n} elements, 1 wanted", named(o, i))),
    }
}

/// Checks that two operands have one dtype.
pub fn same_dtype(o: &OpRequest<'_>, i: usize, a: &View, b: &View) -> Result<()> {
    if a.dtype != b.dtype {
        return refuse(
            o,
            format!(
                "{}: dtype {} beside {}",
                named(o, i),
                a.dtype.name(),
                b.dtype.name()
            ),
        );
    }
    Ok(())
}

/// The plan of an op that runs natively and promises what the op table asks.
pub fn plan(o: &OpRequest<'_>, workspace_bytes: u64) -> Plan {
    Plan {
        tier: 1,
        workspace_bytes,
        est_ns: 0,
        error_class: op::spec(o.id).map_or(op::class::EXACT, |s| s.error),
    }
}
