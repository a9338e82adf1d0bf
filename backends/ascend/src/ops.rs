//! Compute: the mandatory ops as calls of aclnn's operators; `fused.rs` has those that have an operator of their own, and the core composes all
//! others of the mandatory ones.
//!
//! What a request may be is checked by the planners that all kernels share (`crossweave_kernels`); here is what it becomes. Arithmetic is in f32
//! whatever the storage: operands of 16 bits are cast, and the result is cast back, which rounds it once.

use crate::fused;
use crate::host;
use crate::launch::{Op, Prepared};
use crate::plan::{Dtype, Number, Plan, Tensor, operand};
use crate::{Ascend, Device};
use crossweave_abi::op;
use crossweave_gpu::{Mem, Stream};
use crossweave_kernels::{self as kernels, Dialect, Facts};
use crossweave_plugin::operand::refuse;
use crossweave_plugin::{Dyn, OpRequest, Ops, Result, Span};
use std::sync::Arc;

/// Compute on the NPU.
pub enum AscendOps {}

/// Facts by which the shared planners check a request; what they plan is not used.
const FACTS: Facts = Facts {
    // Limits of a GPU's launches are none here.
    dialect: Dialect::Host,
    arch: 0,
    sms: 1,
    warp: 32,
    shared: 64 << 10,
    wgmma: false,
};

type Planner = fn(&mut Plan, &OpRequest<'_>) -> Result<()>;

/// The ops, and what they become.
const TABLE: &[(u32, Planner)] = &[
    (op::COPY_STRIDED, copy_strided),
    (op::CAST, cast),
    (op::FILL_STRIDED, fill_strided),
    (op::IOTA, iota),
    (op::UNARY, unary),
    (op::BINARY, binary),
    (op::COMPARE, compare),
    (op::SELECT, select),
    (op::AXPBY, axpby),
    (op::CLAMP, clamp),
    (op::REDUCE, reduce),
    (op::ARG_REDUCE, arg_reduce),
    (op::CUMSUM, cumsum),
    (op::NONFINITE_COUNT, nonfinite_count),
    (op::MATMUL, matmul),
    (op::GATHER_ROWS, gather_rows),
    (op::SCATTER_ADD_ROWS, scatter_add_rows),
    (op::SORT_PAIRS, sort_pairs),
    (op::TOPK, topk),
    (op::HISTOGRAM, histogram),
    (op::PHILOX, philox),
    (op::LAYER_NORM_FWD, fused::layer_norm),
    (op::LAYER_NORM_BWD, fused::layer_norm_backward),
    (op::RMS_NORM_FWD, fused::rms_norm),
    (op::RMS_NORM_BWD, fused::rms_norm_backward),
    (op::SOFTMAX_FWD, fused::softmax),
    (op::SOFTMAX_BWD, fused::softmax_backward),
    (op::ATTENTION_FWD, fused::attention),
    (op::ATTENTION_BWD, fused::attention_backward),
    (op::ACTIVATION_FWD, fused::activation),
    (op::ACTIVATION_BWD, fused::activation_backward),
    (op::SWIGLU_FWD, fused::swiglu),
    (op::SWIGLU_BWD, fused::swiglu_backward),
    (op::ROPE, fused::rope),
];

impl Ops<Ascend> for AscendOps {
    type Prepared = Prepared;

    fn prepare(
        b: &Ascend,
        d: &Device,
        o: &OpRequest<'_>,
    ) -> Result<(Prepared, crossweave_plugin::Plan)> {
        d.dev.alive()?;
        let Some((_, planner)) = TABLE.iter().find(|(id, _)| *id == o.id) else {
            return refuse(o, "composed of the mandatory ops");
        };
        let checked = kernels::prepare(o, &FACTS)?;
        let mut p = Plan::default();
        // The shared planners have found whether there is anything to do.
        if !checked.launches.is_empty() {
            planner(&mut p, o)?;
        }
        let (op, workspace_bytes) = Op::new(b.operators()?, &d.dev, checked.operands, p)?;
        Ok((
            Prepared(Arc::new(op)),
            crossweave_plugin::Plan {
                workspace_bytes,
                ..checked.plan
            },
        ))
    }

    fn launch(
        _: &Ascend,
        p: &Prepared,
        s: &Stream,
        operands: &[Option<Span<'_, Mem>>],
        workspace: Option<Span<'_, Mem>>,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        crossweave_gpu::launch(&p.0, s, operands, workspace, dynamic)
    }
}

/// Refuses a type that the op is not written for.
fn typed(o: &OpRequest<'_>, t: &Tensor, types: &[Dtype]) -> Result<()> {
    match types.contains(&t.dtype) {
        true => Ok(()),
        false => refuse(o, format!("type {} of the operators", t.dtype.0)),
    }
}

const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16];
const MOVED: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::I32];

impl Plan {
    /// The tensor in f32.
    pub(crate) fn f32(&mut self, t: &Tensor) -> Tensor {
        if t.dtype == Dtype::F32 {
            return t.clone();
        }
        let x = self.temp(Dtype::F32, &t.dims);
        self.cast(t, Dtype::F32, &x);
        x
    }

    /// Where an f32 result for `t` goes: itself, or a tensor that [`Plan::store`] rounds.
    pub(crate) fn wide(&mut self, t: &Tensor) -> Tensor {
        match t.dtype {
            Dtype::F32 => t.clone(),
            _ => self.temp(Dtype::F32, &t.dims),
        }
    }

    pub(crate) fn store(&mut self, x: &Tensor, t: &Tensor) {
        if t.dtype != Dtype::F32 {
            self.cast(x, t.dtype, t);
        }
    }

    /// One element of a value, to be read everywhere.
    pub(crate) fn constant(&mut self, dtype: Dtype, bits: u32) -> Tensor {
        let c = self.temp(dtype, &[1]);
        let whole = c.bits();
        match dtype {
            Dtype::I64 => self.fill(&c, Number::i64(bits.into())),
            _ => self.fill(&whole, Number::bits(whole.dtype, bits)),
        }
        c
    }

    /// Indices as i64, and which of them name one of `n` rows.
    fn rows(&mut self, index: &Tensor, n: i64, p: &op::IndexParams) -> (Tensor, Tensor) {
        let i = self.temp(Dtype::I64, &index.dims);
        self.cast(index, Dtype::I64, &i);
        let i = i.shaped(&[i.count()]);
        let [low, high, both] = [(); 3].map(|()| self.temp(Dtype::BOOL, &i.dims));
        self.ge_scalar(&i, Number::i64(0), &low);
        self.lt_scalar(&i, Number::i64(n), &high);
        self.logical_and(&low, &high, &both);
        if p.flags & op::FLAG_HAS_IGNORE != 0 {
            self.ne_scalar(&i, Number::i64(p.ignore), &low);
            self.logical_and(&both, &low, &high);
            return (i, high);
        }
        (i, both)
    }

    /// Indices of which those that name no row are `instead`.
    fn safe(&mut self, index: &Tensor, valid: &Tensor, instead: u32) -> Tensor {
        let other = self.constant(Dtype::I64, instead).everywhere(&index.dims);
        let safe = self.temp(Dtype::I64, &index.dims);
        self.select(valid, index, &other, &safe);
        safe
    }
}

fn copy_strided(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (dst, src) = (operand(o, 0)?, operand(o, 1)?);
    p.copy(&dst.bits(), &src.bits());
    Ok(())
}

fn cast(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    use crossweave_plugin::DType as D;
    let (dst, src) = (operand(o, 0)?, operand(o, 1)?);
    let (Some(to), Some(from)) = (o.dtype(0), o.dtype(1)) else {
        return refuse(o, "an absent operand");
    };
    let float = |d: D| matches!(d, D::F32 | D::F16 | D::Bf16);
    match (to, from) {
        _ if to == from => p.copy(&dst.bits(), &src.bits()),
        (a, b) if float(a) && float(b) => {
            // One rounding: by way of f32, which holds every number of 16 bits.
            let x = p.f32(&src);
            match a {
                D::F32 if src.dtype != Dtype::F32 => p.copy(&dst.bits(), &x.bits()),
                _ => p.cast(&x, dst.dtype, &dst),
            }
        }
        (D::F32, D::U8 | D::I32) => p.cast(&src, Dtype::F32, &dst),
        (D::F32, D::U32) => {
            let wide = p.temp(Dtype::I64, &src.dims);
            let (low, more, whole) = (
                p.temp(Dtype::BOOL, &src.dims),
                p.temp(Dtype::I64, &src.dims),
                p.temp(Dtype::I64, &src.dims),
            );
            // The operators have no u32: as i32 the upper half is negative.
            p.cast(&src, Dtype::I64, &wide);
            p.lt_scalar(&wide, Number::i64(0), &low);
            // By a tensor: a number beyond 2^24 is added to integers with an error.
            let upper = p.temp(Dtype::I64, &[1]);
            p.fill(&upper, Number::i64(1 << 32));
            let upper = upper.everywhere(&src.dims);
            p.add(&wide, &upper, Number::i64(1), &more);
            p.select(&low, &more, &wide, &whole);
            p.cast(&whole, Dtype::F32, &dst);
        }
        (D::I32, D::F32) => {
            // Cut off, saturated, NaN to 0: what an operator does beyond the range is nowhere written.
            let dims = &src.dims;
            let [x, y] = [(); 2].map(|()| p.temp(Dtype::F32, dims));
            let [known, large] = [(); 2].map(|()| p.temp(Dtype::BOOL, dims));
            let whole = p.temp(Dtype::I32, dims);
            let zero = p.constant(Dtype::F32, 0).everywhere(dims);
            let most = p.constant(Dtype::I32, i32::MAX as u32).everywhere(dims);
            p.eq(&src, &src, &known);
            p.select(&known, &src, &zero, &x);
            p.ge_scalar(&x, Number::f32(2147483648.0), &large);
            p.clamp(
                &x,
                Number::f32(-2147483648.0),
                Number::f32(2147483520.0),
                &y,
            );
            p.cast(&y, Dtype::I32, &whole);
            p.select(&large, &most, &whole, &dst);
        }
        _ => return refuse(o, format!("{} from {}", to.name(), from.name())),
    }
    Ok(())
}

fn fill_strided(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let dst = operand(o, 0)?;
    typed(o, &dst, MOVED)?;
    let v = o.params::<op::FillParams>()?.value;
    let bits = match dst.dtype {
        Dtype::F32 => (v as f32).to_bits(),
        Dtype::F16 => half::f16::from_f64(v).to_bits().into(),
        Dtype::BF16 => half::bf16::from_f64(v).to_bits().into(),
        _ if o.dtype(0) == Some(crossweave_plugin::DType::I32) => v as i32 as u32,
        _ => return refuse(o, "a type of no profile"),
    };
    let whole = dst.bits();
    p.fill(&whole, Number::bits(whole.dtype, bits));
    Ok(())
}

fn iota(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let dst = operand(o, 0)?;
    let q = o.params::<op::IotaParams>()?;
    let Some(make) = host::iota(o.dtype(0), q.start, q.step) else {
        return refuse(o, "a type of no profile");
    };
    p.host(&dst, make);
    Ok(())
}

fn unary(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    use op::unary as k;
    let (dst, src) = (operand(o, 0)?, operand(o, 1)?);
    let kind = o.params::<op::KindParams>()?.kind;
    let f = match kind {
        k::NEG => Plan::neg,
        k::ABS => Plan::abs,
        k::EXP => Plan::exp,
        k::LOG => Plan::log,
        k::SQRT => Plan::sqrt,
        k::RSQRT => Plan::rsqrt,
        k::TANH => Plan::tanh,
        k::ERF => Plan::erf,
        k::SIGMOID => Plan::sigmoid,
        k::SIN => Plan::sin,
        k::COS => Plan::cos,
        k::FLOOR => Plan::floor,
        _ => return refuse(o, format!("kind {kind}")),
    };
    let (x, y) = (p.f32(&src), p.wide(&dst));
    match kind == k::LOG && !y.is_dense() {
        // Of that operator alone no document says that its output may have gaps.
        true => {
            let whole = p.temp(Dtype::F32, &y.dims);
            f(p, &x, &whole);
            p.copy(&y, &whole);
        }
        false => f(p, &x, &y),
    }
    p.store(&y, &dst);
    Ok(())
}

fn binary(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    use op::binary as k;
    let (dst, a, b) = (operand(o, 0)?, operand(o, 1)?, operand(o, 2)?);
    typed(o, &dst, FLOATS)?;
    let (a, b, y) = (p.f32(&a), p.f32(&b), p.wide(&dst));
    let one = Number::f32(1.0);
    match o.params::<op::KindParams>()?.kind {
        k::ADD => p.add(&a, &b, one, &y),
        k::SUB => p.sub(&a, &b, one, &y),
        k::MUL => p.mul(&a, &b, &y),
        k::DIV => p.div(&a, &b, &y),
        k::MAX => p.maximum(&a, &b, &y),
        k::MIN => p.minimum(&a, &b, &y),
        k::POW => p.pow(&a, &b, &y),
        n => return refuse(o, format!("kind {n}")),
    }
    p.store(&y, &dst);
    Ok(())
}

fn compare(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    use op::compare as k;
    let (dst, a, b) = (operand(o, 0)?, operand(o, 1)?, operand(o, 2)?);
    let known = matches!(
        o.dtype(1),
        Some(crossweave_plugin::DType::F32 | crossweave_plugin::DType::I32)
    );
    if !known {
        return refuse(o, "a type of no profile");
    }
    // Truths are bytes of 0 and 1.
    let y = dst.as_type(Dtype::BOOL);
    match o.params::<op::KindParams>()?.kind {
        k::EQ => p.eq(&a, &b, &y),
        k::NE => p.ne(&a, &b, &y),
        k::LT => p.lt(&a, &b, &y),
        k::LE => p.le(&a, &b, &y),
        k::GT => p.gt(&a, &b, &y),
        k::GE => p.ge(&a, &b, &y),
        n => return refuse(o, format!("kind {n}")),
    }
    Ok(())
}

fn select(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (dst, c) = (operand(o, 0)?, operand(o, 1)?);
    let (a, b) = (operand(o, 2)?, operand(o, 3)?);
    typed(o, &dst, MOVED)?;
    let truth = p.temp(Dtype::BOOL, &c.dims);
    p.ne_scalar(&c, Number::bits(Dtype::U8, 0), &truth);
    p.select(&truth, &a, &b, &dst);
    Ok(())
}

fn axpby(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (y, x) = (operand(o, 0)?, operand(o, 1)?);
    let q = o.params::<op::AxpbyParams>()?;
    let (x, to) = (p.f32(&x), p.wide(&y));
    if q.beta == 0.0 {
        p.muls(&x, Number::f32(q.alpha), &to);
    } else {
        let was = p.f32(&y);
        let (a, b) = (p.temp(Dtype::F32, &y.dims), p.temp(Dtype::F32, &y.dims));
        p.muls(&x, Number::f32(q.alpha), &a);
        p.muls(&was, Number::f32(q.beta), &b);
        p.add(&a, &b, Number::f32(1.0), &to);
    }
    p.store(&to, &y);
    Ok(())
}

fn clamp(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (dst, src) = (operand(o, 0)?, operand(o, 1)?);
    let q = o.params::<op::ClampParams>()?;
    let (x, y) = (p.f32(&src), p.wide(&dst));
    p.clamp(&x, Number::f32(q.lo), Number::f32(q.hi), &y);
    p.store(&y, &dst);
    Ok(())
}

fn reduce(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    use op::reduce as k;
    let (dst, src) = (operand(o, 0)?, operand(o, 1)?);
    let q = o.params::<op::ReduceParams>()?;
    let dims: Vec<i64> = (0..src.dims.len() as i64)
        .filter(|d| q.axes >> d & 1 == 1)
        .collect();
    let adds = q.flags & op::FLAG_ACCUM != 0;
    let (to, sum) = (p.wide(&dst), p.temp(Dtype::F32, &dst.dims));
    let into = if adds { &sum } else { &to };
    if src.count() == 0 {
        let nothing = match q.kind {
            k::PROD => 1.0,
            k::MAX => f64::NEG_INFINITY,
            k::MIN => f64::INFINITY,
            _ => 0.0,
        };
        p.fill(into, Number::f32(nothing));
    } else {
        let mut x = p.f32(&src);
        if q.kind == k::SUMSQ {
            let y = p.temp(Dtype::F32, &x.dims);
            p.mul(&x, &x, &y);
            x = y;
        }
        match q.kind {
            // An operator takes no dims for all of them.
            _ if dims.is_empty() => p.copy(into, &x),
            k::SUM | k::SUMSQ => p.sum(&x, &dims, true, Dtype::F32, into),
            k::MAX => p.amax(&x, &dims, true, into),
            k::MIN => p.amin(&x, &dims, true, into),
            _ => {
                for (i, d) in dims.iter().enumerate() {
                    let mut shape = x.dims.clone();
                    shape[*d as usize] = 1;
                    let y = match i + 1 == dims.len() {
                        true => into.clone(),
                        false => p.temp(Dtype::F32, &shape),
                    };
                    p.prod(&x, *d, true, Dtype::F32, &y);
                    x = y;
                }
            }
        }
    }
    if adds {
        let was = p.f32(&dst);
        p.add(&was, &sum, Number::f32(1.0), &to);
    }
    p.store(&to, &dst);
    Ok(())
}

fn arg_reduce(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (dst, src) = (operand(o, 0)?, operand(o, 1)?);
    let q = o.params::<op::DimParams>()?;
    let x = p.f32(&src);
    let (sorted, order) = (p.temp(Dtype::F32, &x.dims), p.temp(Dtype::I64, &x.dims));
    // A stable sort, as the first of equals wins and NaN is larger than every number.
    p.sort(&x, true, q.dim.into(), q.kind == 0, &sorted, &order);
    p.cast(&order.first(q.dim as usize, 1), dst.dtype, &dst);
    Ok(())
}

fn cumsum(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (dst, src) = (operand(o, 0)?, operand(o, 1)?);
    typed(o, &dst, &[Dtype::F32, Dtype::I32])?;
    let dim = o.params::<op::DimParams>()?.dim;
    p.cumsum(&src, dim.into(), dst.dtype, &dst);
    Ok(())
}

fn nonfinite_count(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let dst = operand(o, 0)?;
    for i in 1..o.operands.len() {
        let x = operand(o, i)?;
        if x.count() == 0 {
            continue;
        }
        p.scoped(|p| {
            let truth = p.temp(Dtype::BOOL, &x.dims);
            let (each, one) = (p.temp(Dtype::I32, &x.dims), vec![1; x.dims.len()]);
            let (finite, less) = (p.temp(Dtype::I32, &one), p.temp(Dtype::I32, &[1]));
            let dims: Vec<i64> = (0..x.dims.len() as i64).collect();
            let unit = Number::bits(Dtype::I32, 1);
            p.is_finite(&x, &truth);
            p.cast(&truth, Dtype::I32, &each);
            p.sum(&each, &dims, true, Dtype::I32, &finite);
            p.sub(&dst.shaped(&[1]), &finite.shaped(&[1]), unit, &less);
            // Modulo 2^32, as everything here. By a tensor: a number beyond 2^24 is added to integers with an error.
            let all = p.constant(Dtype::I32, x.count() as u32);
            p.add(&less, &all, unit, &dst.shaped(&[1]));
        });
    }
    Ok(())
}

fn matmul(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (c, a, b) = (operand(o, 0)?, operand(o, 1)?, operand(o, 2)?);
    let q = o.params::<op::MatmulParams>()?;
    let bias = o.layout(3).map(|_| operand(o, 3)).transpose()?;
    let adds = q.flags & op::FLAG_ACCUM != 0;
    let scaled = q.alpha != 0.0 && q.alpha != 1.0;
    let plain = bias.is_none() && !adds && !scaled;
    let rank = c.dims.len();
    let (mut a, mut b) = match rank {
        3 => (a.batch_of(c.dims[0]), b.batch_of(c.dims[0])),
        _ => (a, b),
    };
    // A product alone is rounded once by the operator, which sums in f32; what comes after it wants the unrounded one.
    let (kind, direct) = match plain && c.dtype == a.dtype {
        true => (c.dtype, c.is_dense()),
        false => (Dtype::F32, plain && c.dtype == Dtype::F32 && c.is_dense()),
    };
    if kind == Dtype::F32 {
        (a, b) = (p.f32(&a), p.f32(&b));
    }
    let mut x = match direct {
        true => c.clone(),
        false => p.temp(kind, &c.dims),
    };
    let empty = a.dims[rank - 1] == 0;
    match rank {
        _ if empty => p.fill(&x.bits(), Number::bits(x.bits().dtype, 0)),
        3 => p.batch_matmul(&a, &b, &x, 0),
        _ => p.matmul(&a, &b, &x, 0),
    }
    if scaled {
        let y = p.temp(Dtype::F32, &c.dims);
        p.muls(&x, Number::f32(q.alpha), &y);
        x = y;
    }
    if let Some(v) = bias {
        let (v, y) = (p.f32(&v), p.temp(Dtype::F32, &c.dims));
        p.add(&x, &v, Number::f32(1.0), &y);
        x = y;
    }
    if adds {
        let (was, y) = (p.f32(&c), p.temp(Dtype::F32, &c.dims));
        p.add(&x, &was, Number::f32(1.0), &y);
        x = y;
    }
    match (direct, x.dtype == c.dtype) {
        (true, _) => {}
        (_, true) => p.copy(&c, &x),
        _ => p.cast(&x, c.dtype, &c),
    }
    Ok(())
}

fn gather_rows(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (dst, table, index) = (operand(o, 0)?, operand(o, 1)?, operand(o, 2)?);
    typed(o, &dst, MOVED)?;
    let q = o.params::<op::IndexParams>()?;
    let zero = p.constant(dst.dtype, 0);
    if table.dims[0] == 0 {
        p.copy(&dst, &zero.everywhere(&dst.dims));
        return Ok(());
    }
    let (index, valid) = p.rows(&index, table.dims[0], &q);
    let safe = p.safe(&index, &valid, 0);
    let row = &table.dims[1..];
    let dims = [&index.dims[..], row].concat();
    let rows = p.temp(dst.dtype, &dims);
    p.index_select(&table, 0, &safe, &rows);
    let (valid, zero) = (valid.along(row), zero.everywhere(&dims));
    p.select(&valid, &rows, &zero, &dst.shaped(&dims));
    Ok(())
}

fn scatter_add_rows(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (table, src, index) = (operand(o, 0)?, operand(o, 1)?, operand(o, 2)?);
    typed(o, &table, &[Dtype::F32])?;
    let q = o.params::<op::IndexParams>()?;
    if table.dims[0] == 0 {
        return Ok(());
    }
    let of = index.dims.clone();
    let (index, valid) = p.rows(&index, table.dims[0], &q);
    let safe = p.safe(&index, &valid, 0);
    let row = &table.dims[1..];
    let src = p.f32(&src);
    let zero = p.constant(Dtype::F32, 0).everywhere(&src.dims);
    let rows = p.temp(Dtype::F32, &src.dims);
    // What names no row adds nothing: not its NaN either. An index of rank 0 is a row by itself.
    let valid = match o.layout(2).is_some_and(|l| l.rank == 0) {
        true => valid.everywhere(&src.dims),
        false => valid.shaped(&of).along(row),
    };
    p.select(&valid, &src, &zero, &rows);
    let rows = rows.shaped(&[&index.dims[..], row].concat());
    // In a fixed order, as the run time is set to compute deterministically.
    p.index_add(&table, 0, &safe, &rows, Number::f32(1.0), &table);
    Ok(())
}

fn sort_pairs(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (to, values_to) = (operand(o, 0)?, operand(o, 1)?);
    let (keys, values) = (operand(o, 2)?, operand(o, 3)?);
    typed(o, &to, &[Dtype::F32, Dtype::I32])?;
    typed(o, &values_to, &[Dtype::I32])?;
    let down = o.params::<op::DimParams>()?.flags & op::FLAG_DESCENDING != 0;
    let last = keys.dims.len() as i64 - 1;
    let order = p.temp(Dtype::I64, &keys.dims);
    p.sort(&keys, true, last, down, &to, &order);
    p.gather(&values, last, &order, &values_to);
    Ok(())
}

fn topk(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (values, index, src) = (operand(o, 0)?, operand(o, 1)?, operand(o, 2)?);
    typed(o, &values, &[Dtype::F32])?;
    let last = src.dims.len() - 1;
    let k = values.dims[last];
    let (sorted, order) = (p.temp(Dtype::F32, &src.dims), p.temp(Dtype::I64, &src.dims));
    // All of it, stably: the operator for the largest few does not say which of equals it takes.
    p.sort(&src, true, last as i64, true, &sorted, &order);
    p.copy(&values, &sorted.first(last, k));
    p.cast(&order.first(last, k), index.dtype, &index);
    Ok(())
}

fn histogram(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (dst, index) = (operand(o, 0)?, operand(o, 1)?);
    let bins = dst.count();
    let zero = Number::bits(Dtype::I32, 0);
    if index.count() == 0 {
        p.fill(&dst, zero);
        return Ok(());
    }
    let (index, valid) = p.rows(&index, bins, &op::IndexParams::default());
    // What counts nowhere counts in a bin more.
    let safe = p.safe(&index, &valid, bins as u32);
    let unit = Number::bits(Dtype::I32, 1);
    let counts = p.temp(Dtype::I32, &[bins + 1]);
    let ones = p.temp(Dtype::I32, &index.dims);
    p.fill(&counts, zero);
    p.fill(&ones, unit);
    p.index_add(&counts, 0, &safe, &ones, unit, &counts);
    p.copy(&dst.shaped(&[bins]), &counts.first(0, bins));
    Ok(())
}

fn philox(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let dst = operand(o, 0)?;
    let Some(make) = host::philox(o.dtype(0), &o.params::<op::PhiloxParams>()?) else {
        return refuse(o, "a type of no profile");
    };
    p.host(&dst, make);
    Ok(())
}
