//! Pointwise ops, all on the one walk of `point.cu`; copies that transpose go through tiles of shared memory.

use super::{Answer, blocks, done, launch, nothing};
use crate::args::{CopyArgs, OUTER, Plain, PointHead, PointOperand, zero};
use crate::launch::{Dynamic, Launch, Place, Slot};
use crate::source::{Facts, Family, Kernel};
use crate::view::*;
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest};

/// Dtypes of casts (and E4M3 beside floats).
const CASTS: &[DType] = &[
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
];

/// Threads of a block.
pub(crate) const THREADS: u32 = 256;
/// Neighbours a thread works on at once.
pub(crate) const GROUP: u64 = 8;

/// How a kernel uses an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    In,
    Out,
    InOut,
}

/// One operand of a pointwise kernel.
pub(crate) struct Arg<'a> {
    /// The view, or `None` for an absent one (reads zero).
    pub view: Option<&'a View>,
    pub place: Place,
    pub mode: Use,
    /// Storage type in C.
    pub c: &'static str,
}

impl<'a> Arg<'a> {
    pub(crate) fn new(view: &'a View, i: u32, mode: Use) -> Arg<'a> {
        Arg {
            view: Some(view),
            place: Place::Operand(i),
            mode,
            c: c_type(view.dtype),
        }
    }
    fn bits(view: &'a View, i: u32, mode: Use) -> Arg<'a> {
        Arg {
            c: c_bits(view.dtype),
            ..Arg::new(view, i, mode)
        }
    }
}

/// What a pointwise kernel does: the working type, the functor, a name, further text before the instantiation.
pub(crate) struct Work<'a> {
    pub value: &'a str,
    pub functor: &'a str,
    pub name: &'a str,
    pub text: &'a str,
}

/// The head's free numbers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Numbers {
    pub par: [f64; 2],
    pub bits: u64,
    /// Reads launch-time words.
    pub dynamic: bool,
}

/// The kernel of a pointwise op.
pub(crate) fn kernel(w: &Work<'_>, args: &[Arg<'_>]) -> Kernel {
    let mut entry = format!("cw_{}", w.name);
    let mut body = format!("cw_point<{}, {}", w.value, w.functor);
    for a in args {
        entry += &format!("_{}", a.c);
        body += match a.mode {
            Use::In => ", In<",
            Use::Out => ", Out<",
            Use::InOut => ", InOut<",
        };
        body += a.c;
        body.push('>');
    }
    body.push('>');
    let mut k = Kernel::new(
        Family::Point,
        entry,
        THREADS,
        &format!("PointArgs<{}>", args.len()),
        &body,
    );
    k.text.insert_str(0, w.text);
    k
}

/// The launch of a pointwise kernel over `shape`, which every present operand has. `None` when there is nothing to do.
pub(crate) fn point(
    f: &Facts,
    w: &Work<'_>,
    shape: &[u64],
    args: &[Arg<'_>],
    n: Numbers,
) -> Option<Launch> {
    let none = vec![0i64; shape.len()];
    let strides: Vec<Vec<i64>> = args
        .iter()
        .map(|a| a.view.map_or(none.clone(), |v| v.stride.clone()))
        .collect();
    walk(
        f,
        w,
        &merge(shape, &strides),
        shape.iter().product(),
        args,
        n,
    )
}

fn walk(
    f: &Facts,
    w: &Work<'_>,
    dims: &[(u64, Vec<i64>)],
    total: u64,
    args: &[Arg<'_>],
    n: Numbers,
) -> Option<Launch> {
    if total == 0 {
        return None;
    }
    let ones = (1, vec![1i64; args.len()]);
    let ((inner, inner_strides), outer) = match dims.split_last() {
        Some((last, outer)) => (last, outer),
        None => (&ones, &[][..]),
    };
    let mut h: PointHead = zero();
    h.inner = *inner;
    h.row_groups = inner.div_ceil(GROUP);
    h.groups = h.row_groups * (total / inner);
    h.rank = outer.len() as u32;
    h.par = n.par;
    h.bits = n.bits;
    for (d, (size, _)) in outer.iter().enumerate() {
        h.n[d] = *size;
    }
    let mut bytes = h.bytes().to_vec();
    let mut slots = Vec::with_capacity(args.len());
    for (i, a) in args.iter().enumerate() {
        let mut o: PointOperand = zero();
        o.inner = inner_strides[i];
        for (d, (_, s)) in outer.iter().enumerate().take(OUTER) {
            o.stride[d] = s[i];
        }
        if a.view.is_some() {
            slots.push(Slot {
                at: bytes.len() as u32,
                place: a.place,
            });
        }
        bytes.extend_from_slice(o.bytes());
    }
    let dynamic = n
        .dynamic
        .then_some(std::mem::offset_of!(PointHead, dynamic) as u32);
    Some(Launch {
        kernel: kernel(w, args),
        grid: [blocks(h.groups, THREADS as u64, f) as u32, 1, 1],
        block: [THREADS, 1, 1],
        shared: 0,
        args: bytes,
        slots,
        dynamic,
    })
}

fn finish(o: &OpRequest<'_>, l: Option<Launch>, dynamic: Dynamic) -> Answer {
    done(o, 0, l.into_iter().collect(), dynamic)
}

/// An op without launch-time parameters.
fn fixed(
    o: &OpRequest<'_>,
    f: &Facts,
    value: &str,
    functor: &str,
    name: &str,
    shape: &[u64],
    args: &[Arg<'_>],
    n: Numbers,
) -> Answer {
    let w = Work {
        value,
        functor,
        name,
        text: "",
    };
    finish(o, point(f, &w, shape, args, n), Dynamic::None)
}

fn no_flags(o: &OpRequest<'_>) -> crossweave_plugin::Result<()> {
    flags(o, o.params::<op::NoParams>()?.flags, 0)
}

/// `copy_strided`.
pub(crate) fn copy_strided(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    no_flags(o)?;
    let (dst, src) = (
        output_strided(o, 0, WHOLE_BYTES)?,
        input(o, 1, WHOLE_BYTES)?,
    );
    shape(o, 1, &src, &dst.shape)?;
    same_dtype(o, 1, &src, &dst)?;
    if dst.total == 0 {
        return nothing(o);
    }
    // In the order of the destination's memory, so that writes are sequential.
    let mut order: Vec<usize> = (0..dst.shape.len()).collect();
    order.sort_by_key(|d| std::cmp::Reverse(dst.stride[*d]));
    let (d, s) = (dst.pick(&order), src.pick(&order));
    let dims = merge(&d.shape, &[d.stride.clone(), s.stride.clone()]);
    let transposed = match dims.last() {
        Some((n, st)) if st[0] == 1 && st[1] > 1 && *n >= 8 => {
            dims.iter().position(|(n, st)| st[1] == 1 && *n >= 8)
        }
        _ => None,
    };
    if let Some(j) = transposed
        && dims.len() <= 8
    {
        return done(o, 0, vec![transpose(f, &dst, &dims, j)], Dynamic::None);
    }
    let args = [Arg::bits(&dst, 0, Use::Out), Arg::bits(&src, 1, Use::In)];
    let w = Work {
        value: "raw",
        functor: "Move",
        name: "copy",
        text: "",
    };
    finish(
        o,
        walk(f, &w, &dims, dst.total, &args, Numbers::default()),
        Dynamic::None,
    )
}

/// Side of a transpose tile.
const TILE: u64 = 32;

fn transpose(f: &Facts, dst: &View, dims: &[(u64, Vec<i64>)], j: usize) -> Launch {
    let last = dims.len() - 1;
    let mut a: CopyArgs = zero();
    (a.ni, a.si) = (dims[last].0, dims[last].1[1]);
    (a.nj, a.dj) = (dims[j].0, dims[j].1[0]);
    (a.tiles_i, a.tiles_j) = (a.ni.div_ceil(TILE), a.nj.div_ceil(TILE));
    let mut outer = 1;
    for (_, (n, s)) in dims
        .iter()
        .enumerate()
        .filter(|(d, _)| *d != j && *d != last)
    {
        let r = a.rank as usize;
        (a.n[r], a.ds[r], a.ss[r]) = (*n, s[0], s[1]);
        a.rank += 1;
        outer *= n;
    }
    a.tiles = outer * a.tiles_i * a.tiles_j;
    let c = c_bits(dst.dtype);
    let k = Kernel::new(
        Family::Copy,
        format!("cw_transpose_{c}"),
        256,
        "CopyArgs",
        &format!("cw_transpose<{c}>"),
    );
    let slots = [("dst", Place::Operand(0)), ("src", Place::Operand(1))];
    launch(k, [blocks(a.tiles, 1, f), 1, 1], 256, 0, &a, &slots)
}

/// `cast`.
pub(crate) fn cast(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    no_flags(o)?;
    const E4M3: &[DType] = &[DType::F8E4M3];
    let eight = |i: usize| o.dtype(i) == Some(DType::F8E4M3);
    let (to, from) = match (eight(0), eight(1)) {
        (true, false) => (E4M3, FLOATS),
        (false, true) => (FLOATS, E4M3),
        _ => (CASTS, CASTS),
    };
    let (dst, src) = (output(o, 0, to)?, input(o, 1, from)?);
    shape(o, 1, &src, &dst.shape)?;
    let n = Numbers::default();
    let float = |v: &View| FLOATS.contains(&v.dtype) || v.dtype == DType::F8E4M3;
    if float(&dst) && float(&src) {
        let args = [Arg::new(&dst, 0, Use::Out), Arg::new(&src, 1, Use::In)];
        return fixed(o, f, "float", "Move", "cast", &dst.shape, &args, n);
    }
    let functor = format!("Cast<{}, {}>", c_type(dst.dtype), c_type(src.dtype));
    let name = format!("cast_{}_{}", c_type(dst.dtype), c_type(src.dtype));
    let args = [Arg::bits(&dst, 0, Use::Out), Arg::bits(&src, 1, Use::In)];
    fixed(o, f, "raw", &functor, &name, &dst.shape, &args, n)
}

/// The bits of a value in a storage type, if the type has it (floats round, integers must be exact).
fn bits_of(t: DType, v: f64) -> Option<u64> {
    let int =
        |lo: f64, hi: f64, bits: u64| (v.fract() == 0.0 && v >= lo && v <= hi).then_some(bits);
    let mask = if t.bits() == 64 {
        u64::MAX
    } else {
        (1 << t.bits()) - 1
    };
    Some(
        match t {
            DType::F64 => v.to_bits(),
            DType::F32 => (v as f32).to_bits() as u64,
            DType::Bf16 => sixteen(v, 8),
            DType::F16 => sixteen(v, 5),
            DType::I8 => int(-128.0, 127.0, v as i64 as u64)?,
            DType::U8 => int(0.0, 255.0, v as u64)?,
            DType::I32 => int(i32::MIN as f64, i32::MAX as f64, v as i64 as u64)?,
            DType::U32 => int(0.0, u32::MAX as f64, v as u64)?,
            DType::I64 => int(i64::MIN as f64, i64::MAX as f64, v as i64 as u64)?,
            DType::U64 => int(0.0, u64::MAX as f64, v as u64)?,
            _ => return None,
        } & mask,
    )
}

/// A float of 16 bits with so many exponent bits, rounded to nearest even from f64.
fn sixteen(v: f64, exponent: u32) -> u64 {
    let mantissa = 15 - exponent;
    let sign = (v.to_bits() >> 63) << 15;
    let inf = ((1u64 << exponent) - 1) << mantissa;
    if v.is_nan() {
        return sign | inf | 1 << (mantissa - 1);
    }
    let a = v.abs();
    let bias = (1i32 << (exponent - 1)) - 1;
    // The spacing of the type's numbers around `a`; the least is that of its denormals.
    let e = ((a.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    if e > bias {
        return sign | inf;
    }
    let units = a * 2f64.powi(mantissa as i32 - e);
    // Denormals and normals count on in one line of codes, as does the step to infinity.
    let code = units.round_ties_even() as u64 + (((e + bias - 1) as u64) << mantissa);
    sign | code.min(inf)
}

/// `fill_strided`.
pub(crate) fn fill_strided(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 1..=1)?;
    let p = o.params::<op::FillParams>()?;
    flags(o, p.flags, 0)?;
    let dst = output_strided(o, 0, CASTS)?;
    let Some(bits) = bits_of(dst.dtype, p.value) else {
        return invalid(
            o,
            format!("{} is not a value of {}", p.value, dst.dtype.name()),
        );
    };
    let mut order: Vec<usize> = (0..dst.shape.len()).collect();
    order.sort_by_key(|d| std::cmp::Reverse(dst.stride[*d]));
    let sorted = dst.pick(&order);
    let args = [Arg::bits(&sorted, 0, Use::Out)];
    let n = Numbers {
        bits,
        ..Numbers::default()
    };
    fixed(o, f, "raw", "Fill", "fill", &sorted.shape, &args, n)
}

/// A launch that fills a dense operand with bits.
pub(crate) fn fill_launch(f: &Facts, v: &View, i: u32, bits: u64) -> Option<Launch> {
    let w = Work {
        value: "raw",
        functor: "Fill",
        name: "fill",
        text: "",
    };
    let n = Numbers {
        bits,
        ..Numbers::default()
    };
    point(f, &w, &v.shape, &[Arg::bits(v, i, Use::Out)], n)
}

/// `iota`.
pub(crate) fn iota(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 1..=1)?;
    let p = o.params::<op::IotaParams>()?;
    flags(o, p.flags, 0)?;
    let dst = output(o, 0, CASTS)?;
    let n = Numbers {
        par: [p.start, p.step],
        ..Numbers::default()
    };
    let c = c_type(dst.dtype);
    let args = [Arg::bits(&dst, 0, Use::Out)];
    let (functor, name) = (format!("Iota<{c}>"), format!("iota_{c}"));
    fixed(o, f, "raw", &functor, &name, &dst.shape, &args, n)
}

/// A function of a kind, one float operand in and one out.
fn map(o: &OpRequest<'_>, f: &Facts, kind: u32, functor: &str, name: &str) -> Answer {
    arity(o, 2..=2)?;
    let (dst, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &src, &dst.shape)?;
    let args = [Arg::new(&dst, 0, Use::Out), Arg::new(&src, 1, Use::In)];
    let (functor, name) = (format!("{functor}<{kind}>"), format!("{name}{kind}"));
    let n = Numbers::default();
    fixed(o, f, "float", &functor, &name, &dst.shape, &args, n)
}

/// The kind of a [`op::KindParams`] op, in range.
fn kind(o: &OpRequest<'_>, last: u32) -> crossweave_plugin::Result<u32> {
    let k = o.params::<op::KindParams>()?.kind;
    if k == 0 || k > last {
        return refuse(o, format!("kind {k} is unknown"));
    }
    Ok(k)
}

/// `unary`.
pub(crate) fn unary(o: &OpRequest<'_>, f: &Facts) -> Answer {
    map(o, f, kind(o, op::unary::FLOOR)?, "Unary", "unary")
}

/// `activation_fwd`.
pub(crate) fn activation(o: &OpRequest<'_>, f: &Facts) -> Answer {
    map(o, f, kind(o, op::activation::RELU)?, "Act", "act")
}

/// `activation_bwd`.
pub(crate) fn activation_backward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    let k = kind(o, op::activation::RELU)?;
    let (dx, dy, x) = (
        output(o, 0, FLOATS)?,
        input(o, 1, FLOATS)?,
        input(o, 2, FLOATS)?,
    );
    shape(o, 1, &dy, &dx.shape)?;
    shape(o, 2, &x, &dx.shape)?;
    let args = [
        Arg::new(&dx, 0, Use::Out),
        Arg::new(&dy, 1, Use::In),
        Arg::new(&x, 2, Use::In),
    ];
    let (functor, name) = (format!("ActGrad<{k}>"), format!("act_grad{k}"));
    let n = Numbers::default();
    fixed(o, f, "float", &functor, &name, &dx.shape, &args, n)
}

/// The working type of numbers.
fn value(t: DType) -> &'static str {
    if t.is_float() { "float" } else { "i64" }
}

/// `binary`.
pub(crate) fn binary(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    let k = kind(o, op::binary::POW)?;
    let (dst, a, b) = (
        output(o, 0, ARITHMETIC)?,
        input(o, 1, ARITHMETIC)?,
        input(o, 2, ARITHMETIC)?,
    );
    for (i, v) in [(1, &a), (2, &b)] {
        shape(o, i, v, &dst.shape)?;
        same_dtype(o, i, v, &dst)?;
    }
    two(
        o,
        f,
        &format!("Binary<{k}>"),
        &format!("binary{k}"),
        &dst,
        &a,
        &b,
    )
}

/// `add`.
pub(crate) fn add(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    no_flags(o)?;
    let (dst, a, b) = (
        output(o, 0, FLOATS)?,
        output(o, 1, FLOATS)?,
        output(o, 2, FLOATS)?,
    );
    shape(o, 1, &a, &dst.shape)?;
    shape(o, 2, &b, &dst.shape)?;
    two(o, f, "Binary<1>", "binary1", &dst, &a, &b)
}

fn two(
    o: &OpRequest<'_>,
    f: &Facts,
    functor: &str,
    name: &str,
    dst: &View,
    a: &View,
    b: &View,
) -> Answer {
    let args = [
        Arg::new(dst, 0, Use::Out),
        Arg::new(a, 1, Use::In),
        Arg::new(b, 2, Use::In),
    ];
    let v = value(a.dtype);
    fixed(
        o,
        f,
        v,
        functor,
        name,
        &dst.shape,
        &args,
        Numbers::default(),
    )
}

/// `compare`.
pub(crate) fn compare(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    let k = kind(o, op::compare::GE)?;
    let (dst, a, b) = (
        output(o, 0, &[DType::U8])?,
        input(o, 1, ARITHMETIC)?,
        input(o, 2, ARITHMETIC)?,
    );
    shape(o, 1, &a, &dst.shape)?;
    shape(o, 2, &b, &dst.shape)?;
    same_dtype(o, 2, &b, &a)?;
    two(
        o,
        f,
        &format!("Compare<{k}>"),
        &format!("compare{k}"),
        &dst,
        &a,
        &b,
    )
}

/// `select`: moves bits, so any dtype of 1, 2, 4 or 8 bytes.
pub(crate) fn select(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 4..=4)?;
    no_flags(o)?;
    let (dst, cond) = (output(o, 0, WHOLE_BYTES)?, input(o, 1, &[DType::U8])?);
    let (a, b) = (input(o, 2, WHOLE_BYTES)?, input(o, 3, WHOLE_BYTES)?);
    for (i, v) in [(1, &cond), (2, &a), (3, &b)] {
        shape(o, i, v, &dst.shape)?;
    }
    same_dtype(o, 2, &a, &dst)?;
    same_dtype(o, 3, &b, &dst)?;
    let args = [
        Arg::bits(&dst, 0, Use::Out),
        Arg::bits(&cond, 1, Use::In),
        Arg::bits(&a, 2, Use::In),
        Arg::bits(&b, 3, Use::In),
    ];
    let n = Numbers::default();
    fixed(o, f, "raw", "Select", "select", &dst.shape, &args, n)
}

/// `axpby`.
pub(crate) fn axpby(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    let p = o.params::<op::AxpbyParams>()?;
    flags(o, p.flags, 0)?;
    let (y, x) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &x, &y.shape)?;
    let n = Numbers {
        par: [p.alpha, p.beta],
        ..Numbers::default()
    };
    // What is not read may hold anything, NaN included.
    let (functor, name, mode) = if p.beta as f32 == 0.0 {
        ("Scaled", "scaled", Use::Out)
    } else {
        ("Axpby", "axpby", Use::InOut)
    };
    let args = [Arg::new(&y, 0, mode), Arg::new(&x, 1, Use::In)];
    fixed(o, f, "float", functor, name, &y.shape, &args, n)
}

/// `clamp`.
pub(crate) fn clamp(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    let p = o.params::<op::ClampParams>()?;
    flags(o, p.flags, 0)?;
    let (dst, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &src, &dst.shape)?;
    let n = Numbers {
        par: [p.lo, p.hi],
        ..Numbers::default()
    };
    let args = [Arg::new(&dst, 0, Use::Out), Arg::new(&src, 1, Use::In)];
    fixed(o, f, "float", "Clamp", "clamp", &dst.shape, &args, n)
}

/// `swiglu_fwd`.
pub(crate) fn swiglu(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    no_flags(o)?;
    let (y, gate, up) = (
        output(o, 0, FLOATS)?,
        input(o, 1, FLOATS)?,
        input(o, 2, FLOATS)?,
    );
    shape(o, 1, &gate, &y.shape)?;
    shape(o, 2, &up, &y.shape)?;
    two(o, f, "Swiglu", "swiglu", &y, &gate, &up)
}

/// `swiglu_bwd`.
pub(crate) fn swiglu_backward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 5..=5)?;
    no_flags(o)?;
    let (dgate, dup) = (output_strided(o, 0, FLOATS)?, output_strided(o, 1, FLOATS)?);
    let (dy, gate, up) = (
        input(o, 2, FLOATS)?,
        input(o, 3, FLOATS)?,
        input(o, 4, FLOATS)?,
    );
    for (i, v) in [(1, &dup), (2, &dy), (3, &gate), (4, &up)] {
        shape(o, i, v, &dgate.shape)?;
    }
    let args = [
        Arg::new(&dgate, 0, Use::Out),
        Arg::new(&dup, 1, Use::Out),
        Arg::new(&dy, 2, Use::In),
        Arg::new(&gate, 3, Use::In),
        Arg::new(&up, 4, Use::In),
    ];
    let n = Numbers::default();
    fixed(
        o,
        f,
        "float",
        "SwigluGrad",
        "swiglu_grad",
        &dgate.shape,
        &args,
        n,
    )
}

/// `philox`.
pub(crate) fn philox(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 1..=1)?;
    let p = o.params::<op::PhiloxParams>()?;
    let (dtypes, value, functor): (&[DType], _, _) = match p.kind {
        op::philox::BITS => (&[DType::U32], "raw", "Bits"),
        op::philox::UNIFORM => (FLOATS, "float", "Uniform"),
        op::philox::NORMAL => (FLOATS, "float", "Normal"),
        k => return refuse(o, format!("kind {k} is unknown")),
    };
    let dst = output(o, 0, dtypes)?;
    let w = Work {
        value,
        functor,
        name: &format!("philox{}", p.kind),
        text: "",
    };
    let n = Numbers {
        par: [p.lo, p.hi],
        dynamic: true,
        ..Numbers::default()
    };
    let args = [Arg::new(&dst, 0, Use::Out)];
    finish(o, point(f, &w, &dst.shape, &args, n), Dynamic::Philox)
}

/// `dropout`.
pub(crate) fn dropout(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=3)?;
    let p = o.params::<op::DropoutParams>()?;
    flags(o, p.flags, 0)?;
    if !(0.0..=1.0).contains(&p.p) {
        return invalid(o, format!("p = {} is not a probability", p.p));
    }
    let (y, x) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &x, &y.shape)?;
    let residual = optional(o, 2, FLOATS)?;
    if let Some(r) = &residual {
        shape(o, 2, r, &y.shape)?;
    }
    let n = Numbers {
        par: [1.0 - p.p, 0.0],
        // keep(e) = word >> 8 >= p 2^24 over the reals.
        bits: (p.p * 16_777_216.0).ceil() as u64,
        dynamic: true,
    };
    let args = [
        Arg::new(&y, 0, Use::Out),
        Arg::new(&x, 1, Use::In),
        Arg {
            view: residual.as_ref(),
            place: Place::Operand(2),
            mode: Use::In,
            c: residual.as_ref().map_or("float", |r| c_type(r.dtype)),
        },
    ];
    let w = Work {
        value: "float",
        functor: "Dropout",
        name: "dropout",
        text: "",
    };
    finish(o, point(f, &w, &y.shape, &args, n), Dynamic::Philox)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_values() {
        for (t, v, want) in [
            (DType::Bf16, 1.0, Some(0x3f80)),
            (DType::Bf16, -2.5, Some(0xc020)),
            (DType::Bf16, 1.0 + 1.0 / 256.0, Some(0x3f80)),
            (DType::Bf16, 1.0 + 3.0 / 256.0, Some(0x3f82)),
            (DType::Bf16, 1e39, Some(0x7f80)),
            (DType::F16, 65504.0, Some(0x7bff)),
            (DType::F16, 65520.0, Some(0x7c00)),
            (DType::F16, 2f64.powi(-24), Some(1)),
            (DType::F16, 2f64.powi(-25), Some(0)),
            (DType::F16, f64::NEG_INFINITY, Some(0xfc00)),
            (DType::F16, f64::NAN, Some(0x7e00)),
            (DType::I32, -7.0, Some(0xffff_fff9)),
            (DType::I32, 0.5, None),
            (DType::U8, 256.0, None),
            (DType::F8E4M3, 1.0, None),
        ] {
            assert_eq!(bits_of(t, v), want, "{t:?} {v}");
        }
    }
}
