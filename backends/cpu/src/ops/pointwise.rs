//! unary, binary, compare, select, axpby, clamp, add: blocks in, one vector loop, a block out.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::{clones, math};
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest, Plan, Result};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

struct Unary {
    dst: View,
    src: View,
    f: fn(&mut [f32]),
}

/// `unary`.
pub fn unary(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 2..=2)?;
    let f = match o.params::<op::KindParams>()?.kind {
        op::unary::NEG => math::neg_block,
        op::unary::ABS => math::abs_block,
        op::unary::EXP => math::exp_block,
        op::unary::LOG => math::log_block,
        op::unary::SQRT => math::sqrt_block,
        op::unary::RSQRT => math::rsqrt_block,
        op::unary::TANH => math::tanh_block,
        op::unary::ERF => math::erf_block,
        op::unary::SIGMOID => math::sigmoid_block,
        op::unary::SIN => math::sin_block as fn(&mut [f32]),
        op::unary::COS => math::cos_block,
        op::unary::FLOOR => math::floor_block,
        k => return refuse(o, format!("kind {k} is unknown")),
    };
    let (dst, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &src, &dst.shape)?;
    Ok((Box::new(Unary { dst, src, f }), plan(o, 0)))
}

impl Kernel for Unary {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (y, x) = (Ptr(l.operands[0]), Ptr(l.operands[1]));
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            let mut buf = [0f32; BLOCK];
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; tasks write disjoint elements.
                unsafe {
                    self.src.load(x, at, &mut buf[..n]);
                    (self.f)(&mut buf[..n]);
                    self.dst.store(y, at, &buf[..n]);
                }
            });
        });
    }
}

clones! {
    fn vadd(a: &[f32], b: &[f32], y: &mut [f32]) { for ((y, a), b) in y.iter_mut().zip(a).zip(b) { *y = a + b; } }
    fn vsub(a: &[f32], b: &[f32], y: &mut [f32]) { for ((y, a), b) in y.iter_mut().zip(a).zip(b) { *y = a - b; } }
    fn vmul(a: &[f32], b: &[f32], y: &mut [f32]) { for ((y, a), b) in y.iter_mut().zip(a).zip(b) { *y = a * b; } }
    fn vdiv(a: &[f32], b: &[f32], y: &mut [f32]) { for ((y, a), b) in y.iter_mut().zip(a).zip(b) { *y = a / b; } }
    // NaN of either side comes through: `a` when it is NaN, else `b` unless `a` is strictly better.
    fn vmax(a: &[f32], b: &[f32], y: &mut [f32]) {
        for ((y, a), b) in y.iter_mut().zip(a).zip(b) { *y = if *a > *b || a.is_nan() { *a } else { *b }; }
    }
    fn vmin(a: &[f32], b: &[f32], y: &mut [f32]) {
        for ((y, a), b) in y.iter_mut().zip(a).zip(b) { *y = if *a < *b || a.is_nan() { *a } else { *b }; }
    }
    fn vaxpby(x: &[f32], alpha: f32, beta: f32, y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) { *y = alpha * x + beta * *y; }
    }
    fn vscale(x: &[f32], alpha: f32, y: &mut [f32]) { for (y, x) in y.iter_mut().zip(x) { *y = alpha * x; } }
    // Comparisons with NaN are false, so NaN stays.
    fn vclamp(x: &mut [f32], lo: f32, hi: f32) {
        for v in x {
            let m = if *v < lo { lo } else { *v };
            *v = if m > hi { hi } else { m };
        }
    }
}
fn vpow(a: &[f32], b: &[f32], y: &mut [f32]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y = a.powf(*b);
    }
}

struct Binary {
    dst: View,
    a: View,
    b: View,
    f: fn(&[f32], &[f32], &mut [f32]),
}

/// `add`.
pub fn add(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 3..=3)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (dst, a, b) = (
        output(o, 0, FLOATS)?,
        output(o, 1, FLOATS)?,
        output(o, 2, FLOATS)?,
    );
    shape(o, 1, &a, &dst.shape)?;
    shape(o, 2, &b, &dst.shape)?;
    Ok((Box::new(Binary { dst, a, b, f: vadd }), plan(o, 0)))
}

/// `binary`.
pub fn binary(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 3..=3)?;
    let kind = o.params::<op::KindParams>()?.kind;
    let (dst, a, b) = (
        output(o, 0, ARITHMETIC)?,
        input(o, 1, ARITHMETIC)?,
        input(o, 2, ARITHMETIC)?,
    );
    for (i, v) in [(1, &a), (2, &b)] {
        shape(o, i, v, &dst.shape)?;
        same_dtype(o, i, v, &dst)?;
    }
    if !(op::binary::ADD..=op::binary::POW).contains(&kind) {
        return refuse(o, format!("kind {kind} is unknown"));
    }
    if !dst.dtype.is_float() {
        return Ok((Box::new(IntBinary { dst, a, b, kind }), plan(o, 0)));
    }
    let f = match kind {
        op::binary::ADD => vadd as fn(&[f32], &[f32], &mut [f32]),
        op::binary::SUB => vsub,
        op::binary::MUL => vmul,
        op::binary::DIV => vdiv,
        op::binary::MAX => vmax,
        op::binary::MIN => vmin,
        _ => vpow,
    };
    Ok((Box::new(Binary { dst, a, b, f }), plan(o, 0)))
}

impl Kernel for Binary {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [y, a, b] = [0, 1, 2].map(|i| Ptr(l.operands[i]));
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            let (mut ba, mut bb, mut by) = ([0f32; BLOCK], [0f32; BLOCK], [0f32; BLOCK]);
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; the inputs are read before the block is written, and tasks write disjoint elements.
                unsafe {
                    let va = self.a.get(a, at, n, &mut ba);
                    let vb = self.b.get(b, at, n, &mut bb);
                    (self.f)(va, vb, &mut by[..n]);
                    self.dst.store(y, at, &by[..n]);
                }
            });
        });
    }
}

struct IntBinary {
    dst: View,
    a: View,
    b: View,
    kind: u32,
}

/// Reads any integer storage as i64 (u64 does not occur here).
///
/// # Safety
/// `p` holds an element of `t` at `off`.
unsafe fn int_at(t: DType, p: Ptr, off: usize) -> i64 {
    // SAFETY: forwarded from the caller's walk.
    unsafe {
        match t {
            DType::U8 => *p.at::<u8>(off) as i64,
            DType::I32 => *p.at::<i32>(off) as i64,
            DType::U32 => *p.at::<u32>(off) as i64,
            _ => *p.at::<i64>(off),
        }
    }
}

impl Kernel for IntBinary {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [y, a, b] = [0, 1, 2].map(|i| Ptr(l.operands[i]));
        let t = self.dst.dtype;
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            for i in start..start + len {
                // SAFETY: in range by the chunking; element `i` is read before it is written, by one task.
                unsafe {
                    let (a, b) = (
                        int_at(t, a, self.a.offset(i)),
                        int_at(t, b, self.b.offset(i)),
                    );
                    // Wraps in the storage width: the low bits of the i64 result are the result. Division by zero gives zero.
                    let v = match self.kind {
                        op::binary::ADD => a.wrapping_add(b),
                        op::binary::SUB => a.wrapping_sub(b),
                        op::binary::MUL => a.wrapping_mul(b),
                        op::binary::DIV => {
                            if b == 0 {
                                0
                            } else {
                                a.wrapping_div(b)
                            }
                        }
                        op::binary::MAX => a.max(b),
                        op::binary::MIN => a.min(b),
                        _ => int_pow(a, b),
                    };
                    match t {
                        DType::U8 => *y.at(i) = v as u8,
                        DType::I32 => *y.at(i) = v as i32,
                        DType::U32 => *y.at(i) = v as u32,
                        _ => *y.at(i) = v,
                    }
                }
            }
        });
    }
}

/// Wrapping power; a negative exponent truncates the fraction (0 unless the base is 1 or -1).
fn int_pow(a: i64, b: i64) -> i64 {
    match (a, b) {
        (1, _) => 1,
        (-1, _) => {
            if b & 1 == 0 {
                1
            } else {
                -1
            }
        }
        (_, b) if b < 0 => 0,
        _ => {
            let (mut r, mut s, mut e) = (1i64, a, b as u64);
            while e > 0 {
                if e & 1 == 1 {
                    r = r.wrapping_mul(s);
                }
                s = s.wrapping_mul(s);
                e >>= 1;
            }
            r
        }
    }
}

struct Compare {
    dst: View,
    a: View,
    b: View,
    kind: u32,
}

/// `compare`.
pub fn compare(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 3..=3)?;
    let kind = o.params::<op::KindParams>()?.kind;
    if !(op::compare::EQ..=op::compare::GE).contains(&kind) {
        return refuse(o, format!("kind {kind} is unknown"));
    }
    let (dst, a, b) = (
        output(o, 0, &[DType::U8])?,
        input(o, 1, ARITHMETIC)?,
        input(o, 2, ARITHMETIC)?,
    );
    shape(o, 1, &a, &dst.shape)?;
    shape(o, 2, &b, &dst.shape)?;
    same_dtype(o, 2, &b, &a)?;
    Ok((Box::new(Compare { dst, a, b, kind }), plan(o, 0)))
}

fn relation<T: PartialOrd>(kind: u32, a: T, b: T) -> bool {
    match kind {
        op::compare::EQ => a == b,
        op::compare::NE => a != b,
        op::compare::LT => a < b,
        op::compare::LE => a <= b,
        op::compare::GT => a > b,
        _ => a >= b,
    }
}

impl Kernel for Compare {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [y, a, b] = [0, 1, 2].map(|i| Ptr(l.operands[i]));
        let t = self.a.dtype;
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            let (mut ba, mut bb) = ([0f32; BLOCK], [0f32; BLOCK]);
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; tasks write disjoint elements.
                unsafe {
                    let out: &mut [u8] = y.slice_mut(at, n);
                    if t.is_float() {
                        let va = self.a.get(a, at, n, &mut ba);
                        let vb = self.b.get(b, at, n, &mut bb);
                        for (i, o) in out.iter_mut().enumerate() {
                            *o = relation(self.kind, va[i], vb[i]) as u8;
                        }
                    } else {
                        for (i, o) in out.iter_mut().enumerate() {
                            let va = int_at(t, a, self.a.offset(at + i));
                            let vb = int_at(t, b, self.b.offset(at + i));
                            *o = relation(self.kind, va, vb) as u8;
                        }
                    }
                }
            });
        });
    }
}

struct Select {
    dst: View,
    cond: View,
    a: View,
    b: View,
}

/// `select`: moves bits, so any dtype of 1, 2, 4 or 8 bytes.
pub fn select(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 4..=4)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let any = WHOLE_BYTES;
    let (dst, cond) = (output(o, 0, any)?, input(o, 1, &[DType::U8])?);
    let (a, b) = (input(o, 2, any)?, input(o, 3, any)?);
    for (i, v) in [(1, &cond), (2, &a), (3, &b)] {
        shape(o, i, v, &dst.shape)?;
    }
    same_dtype(o, 2, &a, &dst)?;
    same_dtype(o, 3, &b, &dst)?;
    Ok((Box::new(Select { dst, cond, a, b }), plan(o, 0)))
}

impl Select {
    /// # Safety
    /// As `Kernel::run`, with `T` of the dtype's size.
    unsafe fn of<T: Copy>(&self, l: &Launch<'_>) {
        let [y, c, a, b] = [0, 1, 2, 3].map(|i| Ptr(l.operands[i]));
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            for i in start..start + len {
                // SAFETY: in range by the chunking; tasks write disjoint elements.
                unsafe {
                    let v = if *c.at::<u8>(self.cond.offset(i)) != 0 {
                        *a.at::<T>(self.a.offset(i))
                    } else {
                        *b.at::<T>(self.b.offset(i))
                    };
                    *y.at(i) = v;
                }
            }
        });
    }
}

impl Kernel for Select {
    unsafe fn run(&self, l: &Launch<'_>) {
        // SAFETY: forwarded; the type only carries the size.
        unsafe {
            match self.dst.elem() {
                1 => self.of::<u8>(l),
                2 => self.of::<u16>(l),
                4 => self.of::<u32>(l),
                _ => self.of::<u64>(l),
            }
        }
    }
}

struct Axpby {
    y: View,
    x: View,
    alpha: f32,
    beta: f32,
}

/// `axpby`.
pub fn axpby(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 2..=2)?;
    let p = o.params::<op::AxpbyParams>()?;
    flags(o, p.flags, 0)?;
    let (y, x) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &x, &y.shape)?;
    let (alpha, beta) = (p.alpha as f32, p.beta as f32);
    Ok((Box::new(Axpby { y, x, alpha, beta }), plan(o, 0)))
}

impl Kernel for Axpby {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (y, x) = (Ptr(l.operands[0]), Ptr(l.operands[1]));
        chunks(l.team, self.y.total, CHUNK, &|start, len| {
            let (mut bx, mut by) = ([0f32; BLOCK], [0f32; BLOCK]);
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; tasks write disjoint elements.
                unsafe {
                    let vx = self.x.get(x, at, n, &mut bx);
                    if self.beta == 0.0 {
                        vscale(vx, self.alpha, &mut by[..n]);
                    } else {
                        self.y.load(y, at, &mut by[..n]);
                        vaxpby(vx, self.alpha, self.beta, &mut by[..n]);
                    }
                    self.y.store(y, at, &by[..n]);
                }
            });
        });
    }
}

struct Clamp {
    dst: View,
    src: View,
    lo: f32,
    hi: f32,
}

/// `clamp`.
pub fn clamp(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 2..=2)?;
    let p = o.params::<op::ClampParams>()?;
    flags(o, p.flags, 0)?;
    let (dst, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &src, &dst.shape)?;
    let (lo, hi) = (p.lo as f32, p.hi as f32);
    Ok((Box::new(Clamp { dst, src, lo, hi }), plan(o, 0)))
}

impl Kernel for Clamp {
    unsafe fn run(&self, l: &Launch<'_>) {
        let (y, x) = (Ptr(l.operands[0]), Ptr(l.operands[1]));
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            let mut buf = [0f32; BLOCK];
            blocks(start, len, |at, n| {
                // SAFETY: in range by the chunking; tasks write disjoint elements.
                unsafe {
                    self.src.load(x, at, &mut buf[..n]);
                    vclamp(&mut buf[..n], self.lo, self.hi);
                    self.dst.store(y, at, &buf[..n]);
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crossweave_plugin::Code;

    fn kind(kind: u32) -> op::KindParams {
        op::KindParams {
            kind,
            ..Default::default()
        }
    }

    fn erf(x: f64) -> f64 {
        let (mut t, mut s, mut n) = (x, x, 0.0);
        while t.abs() > 1e-18 {
            n += 1.0;
            t *= -x * x / n;
            s += t / (2.0 * n + 1.0);
        }
        s * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn unary_over_storages_sizes_and_strides() {
        let all: [(u32, fn(f64) -> f64); 12] = [
            (op::unary::NEG, |x| -x),
            (op::unary::ABS, f64::abs),
            (op::unary::EXP, f64::exp),
            (op::unary::LOG, f64::ln),
            (op::unary::SQRT, f64::sqrt),
            (op::unary::RSQRT, |x| 1.0 / x.sqrt()),
            (op::unary::TANH, f64::tanh),
            (op::unary::ERF, erf),
            (op::unary::SIGMOID, |x| 1.0 / (1.0 + (-x).exp())),
            (op::unary::SIN, f64::sin),
            (op::unary::COS, f64::cos),
            (op::unary::FLOOR, f64::floor),
        ];
        let mut rng = Rng(1);
        for (k, f) in all {
            for t in STORAGES {
                for n in SIZES {
                    let x = Tensor::strided(
                        t,
                        &[n],
                        &[if n % 2 == 0 { 1 } else { 3 }],
                        &rng.floats(n, 3.0),
                    );
                    let want: Vec<f64> = x.values().into_iter().map(f).collect();
                    for out in STORAGES {
                        let mut ops = [Tensor::poison(out, &[n]), x.clone()];
                        run(op::UNARY, kind(k).as_bytes(), &[], &mut ops);
                        close(&format!("unary {k} {t:?}"), &ops[0].values(), &want, |i| {
                            rounding(out, want[i], 4.0)
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn binary_broadcasts_aliases_and_keeps_nan() {
        let all: [(u32, fn(f64, f64) -> f64); 7] = [
            (op::binary::ADD, |a, b| a + b),
            (op::binary::SUB, |a, b| a - b),
            (op::binary::MUL, |a, b| a * b),
            (op::binary::DIV, |a, b| a / b),
            (op::binary::MAX, f64::max),
            (op::binary::MIN, f64::min),
            (op::binary::POW, f64::powf),
        ];
        let mut rng = Rng(2);
        for (k, f) in all {
            for t in STORAGES {
                for (a, b) in [(1, 1), (3, 5), (33, 130), (700, 57), (0, 4)] {
                    let full = |rng: &mut Rng| {
                        rng.floats(a * b, 2.0)
                            .iter()
                            .map(|v| v.abs() + 0.1)
                            .collect::<Vec<_>>()
                    };
                    let row: Vec<f64> = (0..a * b)
                        .map(|i| 0.5 + (i % b.max(1)) as f64 / 64.0)
                        .collect();
                    let col: Vec<f64> = (0..a * b)
                        .map(|i| 0.5 + (i / b.max(1)) as f64 / 64.0)
                        .collect();
                    for (rhs, stride) in [
                        (full(&mut rng), strides(a, b)[0]),
                        (full(&mut rng), strides(a, b)[1]),
                        (full(&mut rng), strides(a, b)[2]),
                        (row, [0, 1]),
                        (col, [1, 0]),
                        (vec![1.5; a * b], [0, 0]),
                    ] {
                        let y = Tensor::strided(t, &[a, b], &stride, &rhs);
                        let x = Tensor::new(t, &[a, b], &full(&mut rng));
                        let want: Vec<f64> = x
                            .values()
                            .iter()
                            .zip(y.values())
                            .map(|(a, b)| f(*a, b))
                            .collect();
                        let mut ops = [Tensor::poison(t, &[a, b]), x.clone(), y.clone()];
                        run(op::BINARY, kind(k).as_bytes(), &[], &mut ops);
                        close("binary", &ops[0].values(), &want, |i| {
                            rounding(t, want[i], 1.0)
                        });
                        // dst is a.
                        let mut ops = [x.clone(), x.clone(), y];
                        run_aliased(op::BINARY, kind(k).as_bytes(), &[], &mut ops, &[(1, 0)]);
                        close("binary in place", &ops[0].values(), &want, |i| {
                            rounding(t, want[i], 1.0)
                        });
                    }
                }
            }
        }
        for k in [op::binary::MAX, op::binary::MIN] {
            let (nan, inf) = (f64::NAN, f64::INFINITY);
            let mut ops = [
                Tensor::poison(DType::F32, &[4]),
                Tensor::new(DType::F32, &[4], &[nan, 1.0, inf, -inf]),
                Tensor::new(DType::F32, &[4], &[1.0, nan, 1.0, 1.0]),
            ];
            run(op::BINARY, kind(k).as_bytes(), &[], &mut ops);
            let (c, d) = if k == op::binary::MAX {
                (inf, 1.0)
            } else {
                (1.0, -inf)
            };
            close("nan", &ops[0].values(), &[nan, nan, c, d], |_| 0.0);
        }
    }

    #[test]
    fn integers_wrap_and_never_trap() {
        let a = [7.0, -7.0, 2147483647.0, -2147483648.0, 5.0, 2.0];
        let b = [2.0, 2.0, 1.0, -1.0, 0.0, 10.0];
        for (k, want) in [
            (
                op::binary::ADD,
                [9.0, -5.0, -2147483648.0, 2147483647.0, 5.0, 12.0],
            ),
            (
                op::binary::DIV,
                [3.0, -3.0, 2147483647.0, -2147483648.0, 0.0, 0.0],
            ),
            (
                op::binary::POW,
                [49.0, 49.0, 2147483647.0, 0.0, 1.0, 1024.0],
            ),
            (op::binary::MAX, [7.0, 2.0, 2147483647.0, -1.0, 5.0, 10.0]),
        ] {
            let mut ops = [
                Tensor::poison(DType::I32, &[6]),
                Tensor::new(DType::I32, &[6], &a),
                Tensor::new(DType::I32, &[6], &b),
            ];
            run(op::BINARY, kind(k).as_bytes(), &[], &mut ops);
            close("i32", &ops[0].values(), &want, |_| 0.0);
        }
    }

    #[test]
    fn compare_select_axpby_clamp_add() {
        let mut rng = Rng(3);
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        for t in STORAGES {
            for n in SIZES {
                let mut v = rng.floats(n, 2.0);
                if n > 5 {
                    v[3] = nan;
                    v[5] = -inf;
                }
                let x = Tensor::strided(t, &[n], &[2], &v);
                let y = Tensor::new(t, &[n], &rng.floats(n, 2.0));
                let (xv, yv) = (x.values(), y.values());
                for (k, f) in [
                    (op::compare::EQ, (|a, b| a == b) as fn(f64, f64) -> bool),
                    (op::compare::NE, |a, b| a != b),
                    (op::compare::LT, |a, b| a < b),
                    (op::compare::LE, |a, b| a <= b),
                    (op::compare::GT, |a, b| a > b),
                    (op::compare::GE, |a, b| a >= b),
                ] {
                    let mut ops = [Tensor::poison(DType::U8, &[n]), x.clone(), y.clone()];
                    run(op::COMPARE, kind(k).as_bytes(), &[], &mut ops);
                    let want: Vec<f64> = (0..n).map(|i| f(xv[i], yv[i]) as u8 as f64).collect();
                    close("compare", &ops[0].values(), &want, |_| 0.0);
                    let mut ops = [
                        Tensor::poison(t, &[n]),
                        ops[0].clone(),
                        x.clone(),
                        y.clone(),
                    ];
                    run(
                        op::SELECT,
                        op::NoParams::default().as_bytes(),
                        &[],
                        &mut ops,
                    );
                    let want: Vec<f64> = (0..n)
                        .map(|i| if f(xv[i], yv[i]) { xv[i] } else { yv[i] })
                        .collect();
                    close("select", &ops[0].values(), &want, |_| 0.0);
                }
                for (alpha, beta) in [(0.5, 2.0), (3.0, 0.0), (-1.0, 1.0)] {
                    let p = op::AxpbyParams {
                        alpha,
                        beta,
                        ..Default::default()
                    };
                    let y0 = if beta == 0.0 {
                        Tensor::poison(t, &[n])
                    } else {
                        y.clone()
                    };
                    let mut ops = [y0, x.clone()];
                    run(op::AXPBY, p.as_bytes(), &[], &mut ops);
                    let want: Vec<f64> = (0..n)
                        .map(|i| alpha * xv[i] + if beta == 0.0 { 0.0 } else { beta * yv[i] })
                        .collect();
                    close("axpby", &ops[0].values(), &want, |i| {
                        rounding(t, want[i], 1.0) + 1e-6
                    });
                }
                let p = op::ClampParams {
                    lo: -0.5,
                    hi: 0.75,
                    ..Default::default()
                };
                let mut ops = [Tensor::poison(t, &[n]), x.clone()];
                run(op::CLAMP, p.as_bytes(), &[], &mut ops);
                let want: Vec<f64> = xv
                    .iter()
                    .map(|v| if v.is_nan() { nan } else { v.clamp(-0.5, 0.75) })
                    .collect();
                close("clamp", &ops[0].values(), &want, |_| 0.0);
                let xd = Tensor::new(t, &[n], &xv);
                let mut ops = [Tensor::poison(t, &[n]), xd, y.clone()];
                run(op::ADD, op::NoParams::default().as_bytes(), &[], &mut ops);
                let want: Vec<f64> = (0..n).map(|i| xv[i] + yv[i]).collect();
                close("add", &ops[0].values(), &want, |i| {
                    rounding(t, want[i], 1.0)
                });
            }
        }
    }

    #[test]
    fn refusals() {
        let f = |t, s: &[usize]| Tensor::poison(t, s);
        let k = kind(op::binary::ADD);
        let two =
            |a: Tensor, b: Tensor| refusal(op::BINARY, k.as_bytes(), &[f(DType::F32, &[3]), a, b]);
        assert_eq!(two(f(DType::F32, &[3]), f(DType::F32, &[3])), None);
        assert_eq!(
            two(f(DType::F32, &[4]), f(DType::F32, &[3])),
            Some(Code::Invalid)
        );
        assert_eq!(
            two(f(DType::F32, &[3]), f(DType::Bf16, &[3])),
            Some(Code::Unsupported)
        );
        assert_eq!(
            two(f(DType::F32, &[3]), Tensor::absent()),
            Some(Code::Invalid)
        );
        let bad = kind(99);
        assert_eq!(
            refusal(
                op::BINARY,
                bad.as_bytes(),
                &[
                    f(DType::F32, &[1]),
                    f(DType::F32, &[1]),
                    f(DType::F32, &[1])
                ]
            ),
            Some(Code::Unsupported)
        );
        let mut neg = f(DType::F32, &[3]);
        neg.layout.stride[0] = -1;
        assert_eq!(two(neg, f(DType::F32, &[3])), Some(Code::Unsupported));
    }
}
