//! Fused ops by aclnn's fused operators, where an operator's document defines what the op is; what is left to the mandatory ops, and why, is in
//! ADR 0096.
//!
//! Norms, softmax, activations and rotations are computed in f32 whatever the storage, as everywhere here. Attention goes in the storage's type,
//! which is what its operator is for: it sums in f32.

use crate::host;
use crate::plan::{Dtype, Number, Plan, Tensor, operand};
use crossweave_abi::op;
use crossweave_plugin::operand::refuse;
use crossweave_plugin::{DType, OpRequest, Result};

impl Plan {
    /// An f32 result, rounded into a tensor.
    fn put(&mut self, x: &Tensor, to: &Tensor) {
        match to.dtype {
            Dtype::F32 => self.copy(to, x),
            dtype => self.cast(x, dtype, to),
        }
    }

    /// The sum of two f32 tensors, rounded into a tensor.
    fn put_sum(&mut self, a: &Tensor, b: &Tensor, to: &Tensor) {
        let y = self.wide(to);
        self.add(a, b, Number::f32(1.0), &y);
        self.store(&y, to);
    }
}

/// An operand that may be absent, in f32.
fn optional(p: &mut Plan, o: &OpRequest<'_>, i: usize) -> Result<Option<Tensor>> {
    match o.layout(i) {
        Some(_) => Ok(Some(p.f32(&operand(o, i)?))),
        None => Ok(None),
    }
}

/// A statistic of each row, as a column beside the rows.
fn column(statistic: &Tensor, rows: &Tensor) -> Tensor {
    let mut dims = rows.dims.clone();
    if let Some(d) = dims.last_mut() {
        *d = 1;
    }
    statistic.shaped(&dims)
}

/// `layer_norm_fwd`: `y mean rstd x w b?`.
pub(crate) fn layer_norm(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (y, mean, rstd) = (operand(o, 0)?, operand(o, 1)?, operand(o, 2)?);
    let (x, w) = (p.f32(&operand(o, 3)?), p.f32(&operand(o, 4)?));
    let (b, to) = (optional(p, o, 5)?, p.wide(&y));
    let eps = o.params::<op::NormParams>()?.eps;
    let (mean, rstd) = (column(&mean, &x), column(&rstd, &x));
    p.layer_norm(&x, &w.dims, &w, b.as_ref(), eps, &to, &mean, &rstd);
    p.store(&to, &y);
    Ok(())
}

/// `rms_norm_fwd`: `y rstd x w`.
pub(crate) fn rms_norm(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (y, rstd) = (operand(o, 0)?, operand(o, 1)?);
    let (x, w) = (p.f32(&operand(o, 2)?), p.f32(&operand(o, 3)?));
    let to = p.wide(&y);
    let eps = o.params::<op::NormParams>()?.eps;
    p.rms_norm(&x, &w, eps, &to, &column(&rstd, &x));
    p.store(&to, &y);
    Ok(())
}

/// The gradient of x with that of another way beside it, as what is written may lie in either.
fn gradient(p: &mut Plan, o: &OpRequest<'_>, own: &Tensor, dres: usize) -> Result<()> {
    let dx = operand(o, 0)?;
    match optional(p, o, dres)? {
        Some(r) => p.put_sum(own, &r, &dx),
        None => p.put(own, &dx),
    }
    Ok(())
}

/// `layer_norm_bwd`: `dx dw db? dy x w mean rstd dres?`.
pub(crate) fn layer_norm_backward(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (dw, db) = (operand(o, 1)?, optional(p, o, 2)?);
    let [dy, x, w, mean, rstd] = [3, 4, 5, 6, 7].map(|i| operand(o, i));
    let (dy, x, w) = (p.f32(&dy?), p.f32(&x?), p.f32(&w?));
    let (mean, rstd) = (column(&mean?, &x), column(&rstd?, &x));
    let own = p.temp(Dtype::F32, &x.dims);
    let [sw, sb] = [(); 2].map(|()| p.temp(Dtype::F32, &dw.dims));
    let to_bias = db.as_ref().map(|_| &sb);
    let mask = [true, true, db.is_some()];
    p.layer_norm_backward(
        &dy, &x, &w.dims, &mean, &rstd, &w, None, &mask, &own, &sw, to_bias,
    );
    p.put_sum(&dw, &sw, &dw);
    if let Some(db) = db {
        p.put_sum(&db, &sb, &db);
    }
    gradient(p, o, &own, 8)
}

/// `rms_norm_bwd`: `dx dw dy x w rstd dres?`.
pub(crate) fn rms_norm_backward(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let dw = operand(o, 1)?;
    let [dy, x, w, rstd] = [2, 3, 4, 5].map(|i| operand(o, i));
    let (dy, x, w) = (p.f32(&dy?), p.f32(&x?), p.f32(&w?));
    if x.dims.len() < 2 {
        return refuse(o, "a row alone: aclnnRmsNormGrad takes two dims or more");
    }
    let rstd = rstd?.shaped(&x.dims[..x.dims.len() - 1]);
    let (own, sw) = (p.temp(Dtype::F32, &x.dims), p.temp(Dtype::F32, &dw.dims));
    p.rms_norm_grad(&dy, &x, &rstd, &w, &own, &sw);
    p.put_sum(&dw, &sw, &dw);
    gradient(p, o, &own, 6)
}

/// `softmax_fwd`: `y x`.
pub(crate) fn softmax(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let y = operand(o, 0)?;
    let (x, to) = (p.f32(&operand(o, 1)?), p.wide(&y));
    p.softmax(&x, x.dims.len() as i64 - 1, &to);
    p.store(&to, &y);
    Ok(())
}

/// `softmax_bwd`: `dx dy y`.
pub(crate) fn softmax_backward(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let dx = operand(o, 0)?;
    let (dy, y) = (p.f32(&operand(o, 1)?), p.f32(&operand(o, 2)?));
    let to = p.wide(&dx);
    p.softmax_backward(&dy, &y, y.dims.len() as i64 - 1, &to);
    p.store(&to, &dx);
    Ok(())
}

/// `activation_fwd`: `y x`.
pub(crate) fn activation(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    use op::activation as k;
    let y = operand(o, 0)?;
    let (x, to) = (p.f32(&operand(o, 1)?), p.wide(&y));
    match o.params::<op::KindParams>()?.kind {
        // `approximate` 0; the formula of 1 has `1 + tanh`, which keeps no digits where the op's `sigmoid` keeps all.
        k::GELU_ERF => p.gelu(&x, 0, &to),
        k::SILU => p.silu(&x, &to),
        // NaN stays, which the operator `Relu` does not promise.
        k::RELU => p.clamp(&x, Number::f32(0.0), Number::f32(f64::INFINITY), &to),
        n => return refuse(o, format!("kind {n}: composed of the mandatory ops")),
    }
    p.store(&to, &y);
    Ok(())
}

/// `activation_bwd`: `dx dy x`.
pub(crate) fn activation_backward(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    use op::activation as k;
    let dx = operand(o, 0)?;
    let (dy, x) = (p.f32(&operand(o, 1)?), p.f32(&operand(o, 2)?));
    let to = p.wide(&dx);
    match o.params::<op::KindParams>()?.kind {
        k::GELU_ERF => p.gelu_backward(&dy, &x, c"none", &to),
        k::SILU => p.silu_backward(&dy, &x, &to),
        k::RELU => {
            let zero = p.constant(Dtype::F32, 0).everywhere(&x.dims);
            let off = p.temp(Dtype::BOOL, &x.dims);
            p.le(&x, &zero, &off);
            p.select(&off, &zero, &dy, &to);
        }
        n => return refuse(o, format!("kind {n}: composed of the mandatory ops")),
    }
    p.store(&to, &dx);
    Ok(())
}

/// `swiglu_fwd`: `y gate up`. The operator `SwiGlu` wants both in one dense tensor, so it is `Silu` and a product.
pub(crate) fn swiglu(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let y = operand(o, 0)?;
    let (gate, up) = (p.f32(&operand(o, 1)?), p.f32(&operand(o, 2)?));
    let (s, to) = (p.temp(Dtype::F32, &gate.dims), p.wide(&y));
    p.silu(&gate, &s);
    p.mul(&s, &up, &to);
    p.store(&to, &y);
    Ok(())
}

/// `swiglu_bwd`: `dgate dup dy gate up`.
pub(crate) fn swiglu_backward(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (dgate, dup) = (operand(o, 0)?, operand(o, 1)?);
    let [dy, gate, up] = [2, 3, 4].map(|i| operand(o, i));
    let (dy, gate, up) = (p.f32(&dy?), p.f32(&gate?), p.f32(&up?));
    let [s, g] = [(); 2].map(|()| p.temp(Dtype::F32, &gate.dims));
    let (to_gate, to_up) = (p.wide(&dgate), p.wide(&dup));
    p.silu(&gate, &s);
    p.mul(&dy, &s, &to_up);
    p.mul(&dy, &up, &g);
    p.silu_backward(&g, &gate, &to_gate);
    p.store(&to_up, &dup);
    p.store(&to_gate, &dgate);
    Ok(())
}

/// `rope`: `y x cos sin`. The operator wants an angle for each element, so those of a pair are written twice.
pub(crate) fn rope(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (y, x) = (operand(o, 0)?, operand(o, 1)?);
    let (cos, mut sin) = (operand(o, 2)?, operand(o, 3)?);
    let flags = o.params::<op::RopeParams>()?.flags;
    let (t, pairs) = (cos.dims[0], cos.dims[1]);
    let turned = 2 * pairs;
    if pairs == 0 || turned >= 896 || x.dims[0] * x.dims[2] >= 1000 {
        return refuse(
            o,
            "aclnnRotaryPositionEmbedding turns 2 to 894 elements of fewer than 1,000 heads of all rows",
        );
    }
    if flags & op::FLAG_INVERSE != 0 {
        let back = p.temp(Dtype::F32, &sin.dims);
        p.neg(&sin, &back);
        sin = back;
    }
    let neighbours = flags & op::FLAG_INTERLEAVED != 0;
    let twice = |p: &mut Plan, a: &Tensor| {
        let all = p.temp(Dtype::F32, &[1, t, 1, turned]);
        let (dims, strides) = match neighbours {
            true => ([t, pairs, 2], [a.strides[0], a.strides[1], 0]),
            false => ([t, 2, pairs], [a.strides[0], 0, a.strides[1]]),
        };
        p.copy(&all.shaped(&dims), &a.strided(&dims, &strides));
        all
    };
    let (cos, sin) = (twice(p, &cos), twice(p, &sin));
    let from = p.f32(&x.first(3, turned));
    let to = p.temp(Dtype::F32, &from.dims);
    p.rotary(&from, &cos, &sin, neighbours.into(), &to);
    if turned < x.dims[3] {
        p.copy(&y.bits(), &x.bits());
    }
    p.put(&to, &y.first(3, turned));
    Ok(())
}

/// What both directions of attention have in common.
struct Attention {
    scale: f64,
    heads: i64,
    mask: Option<Tensor>,
    /// `sparseMode`.
    sparse: i64,
}

impl Attention {
    /// No tokens are left out but by the mask.
    const ALL: i64 = i32::MAX as i64;
    /// Rows and columns of the mask that stands for larger ones.
    const MASK: i64 = 2048;
    /// The operators' places for the maximum and the sum of a query: the same number in each.
    const PLACES: i64 = 8;

    fn read(p: &mut Plan, o: &OpRequest<'_>, all: &[&Tensor]) -> Result<Attention> {
        let (q, k) = (all[0], all[1]);
        let a = o.params::<op::AttentionParams>()?;
        let causal = a.flags & op::FLAG_CAUSAL != 0;
        if all.iter().any(|t| t.dtype != q.dtype) {
            return refuse(o, "operands of several types");
        }
        if a.window != 0 {
            return refuse(o, "a window");
        }
        if q.dims[1] == 0 || k.dims[1] == 0 || (causal && q.dims[1] > k.dims[1]) {
            return refuse(o, "queries that see no key, or none at all");
        }
        if q.dims[2] > 256 {
            return refuse(o, "more than 256 heads");
        }
        // The lower triangle from the last query and key on (`rightDownCausal`), by a mask of this size whatever theirs.
        let mask = causal.then(|| {
            let n = Attention::MASK;
            let at = p.temp(Dtype::I32, &[n]);
            if let Some(count) = host::iota(Some(DType::I32), 0.0, 1.0) {
                p.host(&at, count);
            }
            let mask = p.temp(Dtype::BOOL, &[n, n]);
            let (key, query) = (at.strided(&[n, n], &[0, 1]), at.strided(&[n, n], &[1, 0]));
            p.gt(&key, &query, &mask);
            mask
        });
        let scale = match a.scale {
            0.0 => 1.0 / (q.dims[3] as f64).sqrt(),
            s => s,
        };
        Ok(Attention {
            scale,
            heads: q.dims[2],
            sparse: if causal { 3 } else { 0 },
            mask,
        })
    }
}

/// The operators' statistics of queries.
fn statistics(p: &mut Plan, q: &Tensor) -> [Tensor; 2] {
    let dims = [q.dims[0], q.dims[2], q.dims[1], Attention::PLACES];
    [(); 2].map(|()| p.temp(Dtype::F32, &dims))
}

/// `attention_fwd`: `o lse q k v`.
pub(crate) fn attention(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let (out, lse) = (operand(o, 0)?, operand(o, 1)?);
    let (q, k, v) = (operand(o, 2)?, operand(o, 3)?, operand(o, 4)?);
    let a = Attention::read(p, o, &[&q, &k, &v, &out])?;
    let [max, sum] = statistics(p, &q);
    let (all, n) = (Attention::ALL, None);
    p.flash(
        &q,
        &k,
        &v,
        n,
        n,
        n,
        a.mask.as_ref(),
        n,
        a.scale,
        1.0,
        all,
        all,
        a.heads,
        c"BSND",
        0,
        a.sparse,
        &max,
        &sum,
        n,
        &out,
    );
    let (max, sum) = (max.first(3, 1), sum.first(3, 1));
    let log = p.temp(Dtype::F32, &sum.dims);
    p.log(&sum, &log);
    p.add(&max, &log, Number::f32(1.0), &lse.along(&[1]));
    Ok(())
}

/// `attention_bwd`: `dq dk dv do o q k v lse`. A weight is `exp(s - max) / sum`, which with `lse` and 1 is `exp(s - lse)`.
pub(crate) fn attention_backward(p: &mut Plan, o: &OpRequest<'_>) -> Result<()> {
    let [dq, dk, dv, dy, out, q, k, v, lse] = [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|i| operand(o, i));
    let (dq, dk, dv, dy, out) = (dq?, dk?, dv?, dy?, out?);
    let (q, k, v, lse) = (q?, k?, v?, lse?);
    let a = Attention::read(p, o, &[&q, &k, &v, &out, &dy, &dq, &dk, &dv])?;
    let [max, sum] = statistics(p, &q);
    p.copy(&max, &lse.along(&[Attention::PLACES]));
    p.fill(&sum, Number::f32(1.0));
    let (all, n) = (Attention::ALL, None);
    p.flash_grad(
        &q,
        &k,
        &v,
        &dy,
        n,
        n,
        n,
        a.mask.as_ref(),
        Some(&max),
        Some(&sum),
        n,
        Some(&out),
        n,
        a.scale,
        1.0,
        all,
        all,
        a.heads,
        c"BSND",
        0,
        a.sparse,
        &dq,
        &dk,
        &dv,
        n,
    );
    Ok(())
}
