//! sort_pairs and topk: stable, ties by position, NaN above every number.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest, Plan, Result};
use std::cmp::Ordering;

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

const KEYS: &[DType] = &[DType::F32, DType::Bf16, DType::F16, DType::I32, DType::I64];

/// Ascending, NaN last; -0 equals 0.
fn ascending(a: f32, b: f32) -> Ordering {
    a.partial_cmp(&b)
        .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The row count and length of `[.., n]`.
fn rows_of(o: &OpRequest<'_>, v: &View) -> Result<(usize, usize)> {
    match v.shape.split_last() {
        Some((&n, outer)) => Ok((outer.iter().product(), n)),
        None => invalid(o, "rank 0, rows wanted"),
    }
}

struct SortPairs {
    keys: View,
    values: View,
    rows: usize,
    n: usize,
    descending: bool,
}

/// `sort_pairs`.
pub fn sort_pairs(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 4..=4)?;
    let p = o.params::<op::DimParams>()?;
    flags(o, p.flags, op::FLAG_DESCENDING)?;
    let (ko, vo) = (output(o, 0, KEYS)?, output(o, 1, INDEX)?);
    let (keys, values) = (input(o, 2, KEYS)?, input(o, 3, INDEX)?);
    for (i, v) in [(1, &vo), (2, &keys), (3, &values)] {
        shape(o, i, v, &ko.shape)?;
    }
    same_dtype(o, 2, &keys, &ko)?;
    same_dtype(o, 3, &values, &vo)?;
    let (rows, n) = rows_of(o, &keys)?;
    let k = SortPairs {
        keys,
        values,
        rows,
        n,
        descending: p.flags & op::FLAG_DESCENDING != 0,
    };
    Ok((Box::new(k), plan(o, 0)))
}

impl SortPairs {
    /// Positions in sorted order.
    fn order<K: Copy>(&self, keys: &[K], cmp: impl Fn(K, K) -> Ordering) -> Vec<usize> {
        let mut ix: Vec<usize> = (0..keys.len()).collect();
        // Reversing the arguments, not the result, keeps equal keys in their order.
        if self.descending {
            ix.sort_by(|a, b| cmp(keys[*b], keys[*a]));
        } else {
            ix.sort_by(|a, b| cmp(keys[*a], keys[*b]));
        }
        ix
    }
}

/// Reads one element's bits.
///
/// # Safety
/// It is live.
unsafe fn bits(p: Ptr, size: usize, off: usize) -> u64 {
    // SAFETY: forwarded.
    unsafe {
        match size {
            2 => *p.at::<u16>(off) as u64,
            4 => *p.at::<u32>(off) as u64,
            _ => *p.at::<u64>(off),
        }
    }
}

/// Writes one element's bits.
///
/// # Safety
/// It is live and ours.
unsafe fn set_bits(p: Ptr, size: usize, off: usize, v: u64) {
    // SAFETY: forwarded.
    unsafe {
        match size {
            2 => *p.at(off) = v as u16,
            4 => *p.at(off) = v as u32,
            _ => *p.at(off) = v,
        }
    }
}

impl Kernel for SortPairs {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [ko, vo, ki, vi] = [0, 1, 2, 3].map(|i| Ptr(l.operands[i]));
        let (n, t) = (self.n, self.keys.dtype);
        l.team.run(self.rows, &|r| {
            let at = |v: &View, i: usize| v.offset(r * n + i);
            // SAFETY: row `r` is inside the layouts and is read whole before its outputs are written, by one task.
            unsafe {
                let ix = if t.is_float() {
                    let mut k = vec![0f32; n];
                    self.keys.load(ki, r * n, &mut k);
                    self.order(&k, ascending)
                } else {
                    let k: Vec<i64> = (0..n).map(|i| index_at(t, ki, at(&self.keys, i))).collect();
                    self.order(&k, |a, b| a.cmp(&b))
                };
                let (ks, vs) = (self.keys.elem(), self.values.elem());
                let moved: Vec<(u64, u64)> = ix
                    .iter()
                    .map(|&i| {
                        (
                            bits(ki, ks, at(&self.keys, i)),
                            bits(vi, vs, at(&self.values, i)),
                        )
                    })
                    .collect();
                for (i, (k, v)) in moved.into_iter().enumerate() {
                    set_bits(ko, ks, r * n + i, k);
                    set_bits(vo, vs, r * n + i, v);
                }
            }
        });
    }
}

struct TopK {
    src: View,
    values: View,
    index: View,
    rows: usize,
    n: usize,
    k: usize,
}

/// `topk`.
pub fn topk(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 3..=3)?;
    let p = o.params::<op::DimParams>()?;
    // Largest first is the only order there is, said or not.
    flags(o, p.flags, op::FLAG_DESCENDING)?;
    let (values, index) = (output(o, 0, FLOATS)?, output(o, 1, INDEX)?);
    let src = input(o, 2, FLOATS)?;
    shape(o, 1, &index, &values.shape)?;
    same_dtype(o, 2, &src, &values)?;
    let (rows, n) = rows_of(o, &src)?;
    let (_, k) = rows_of(o, &values)?;
    let mut want = src.shape.clone();
    if let Some(last) = want.last_mut() {
        *last = k;
    }
    shape(o, 0, &values, &want)?;
    if k > n {
        return invalid(o, format!("k = {k} of {n} elements"));
    }
    let t = TopK {
        src,
        values,
        index,
        rows,
        n,
        k,
    };
    Ok((Box::new(t), plan(o, 0)))
}

impl Kernel for TopK {
    unsafe fn run(&self, l: &Launch<'_>) {
        let [vo, io, x] = [0, 1, 2].map(|i| Ptr(l.operands[i]));
        let (n, k) = (self.n, self.k);
        if k == 0 {
            return;
        }
        l.team.run(self.rows, &|r| {
            let mut keys = vec![0f32; n];
            // SAFETY: row `r` is inside the layout.
            unsafe { self.src.load(x, r * n, &mut keys) };
            // A total order: larger first, then lower index; so any selection gives the one answer.
            let order = |a: &usize, b: &usize| ascending(keys[*b], keys[*a]).then(a.cmp(b));
            let mut ix: Vec<usize> = (0..n).collect();
            if k < n {
                ix.select_nth_unstable_by(k - 1, order);
                ix.truncate(k);
            }
            ix.sort_unstable_by(order);
            for (j, &i) in ix.iter().enumerate() {
                // SAFETY: row `r` of the outputs belongs to this task.
                unsafe {
                    self.values.store(vo, r * k + j, &[keys[i]]);
                    match self.index.dtype {
                        DType::I64 => *io.at(r * k + j) = i as i64,
                        _ => *io.at(r * k + j) = i as i32,
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crossweave_plugin::Code;

    fn flags_of(flags: u32) -> op::DimParams {
        op::DimParams {
            dim: 1,
            flags,
            ..Default::default()
        }
    }

    #[test]
    fn stable_with_nan_at_the_upper_end() {
        let mut rng = Rng(16);
        for t in KEYS {
            for (n, d) in [(0, 3), (1, 1), (3, 7), (5, 33), (2, 1000), (3, 4099)] {
                let mut v: Vec<f64> = (0..n * d).map(|_| rng.below(9) as f64 - 4.0).collect();
                if t.is_float() && d > 10 {
                    v[4] = f64::NAN;
                    v[9] = f64::NAN;
                    v[6] = f64::INFINITY;
                    v[2] = -f64::INFINITY;
                }
                for down in [false, true] {
                    let keys = Tensor::strided(*t, &[n, d], &[1, n.max(1)], &v);
                    let tag: Vec<f64> = (0..n * d).map(|i| (i % d.max(1)) as f64).collect();
                    let mut ops = [
                        Tensor::poison(*t, &[n, d]),
                        Tensor::poison(DType::I64, &[n, d]),
                        keys,
                        Tensor::new(DType::I64, &[n, d], &tag),
                    ];
                    let f = if down { op::FLAG_DESCENDING } else { 0 };
                    run(op::SORT_PAIRS, flags_of(f).as_bytes(), &[], &mut ops);
                    // Insertion order decides ties in both directions.
                    let rank = |x: f64| {
                        if x.is_nan() {
                            f64::MAX
                        } else {
                            x.clamp(-1e30, 1e30)
                        }
                    };
                    let (mut wk, mut wv) = (Vec::new(), Vec::new());
                    for r in 0..n {
                        let mut ix: Vec<usize> = (0..d).collect();
                        let key = |i: usize| rank(v[r * d + i]) * if down { -1.0 } else { 1.0 };
                        ix.sort_by(|a, b| key(*a).total_cmp(&key(*b)).then(a.cmp(b)));
                        wk.extend(ix.iter().map(|i| v[r * d + i]));
                        wv.extend(ix.iter().map(|i| *i as f64));
                    }
                    close("keys", &ops[0].values(), &wk, |_| 0.0);
                    close("values", &ops[1].values(), &wv, |_| 0.0);
                }
            }
        }
    }

    #[test]
    fn topk_ties_by_lower_index() {
        let mut rng = Rng(17);
        for t in STORAGES {
            for (n, d, k) in [(1, 1, 1), (3, 7, 0), (3, 7, 7), (5, 33, 4), (2, 4099, 40)] {
                let mut v: Vec<f64> = (0..n * d).map(|_| rng.below(20) as f64).collect();
                if d > 10 {
                    v[8] = f64::NAN;
                    v[3] = f64::INFINITY;
                }
                let mut ops = [
                    Tensor::poison(t, &[n, k]),
                    Tensor::poison(DType::I32, &[n, k]),
                    Tensor::strided(t, &[n, d], &[d + 5, 1], &v),
                ];
                run(op::TOPK, flags_of(0).as_bytes(), &[], &mut ops);
                let (mut wv, mut wi) = (Vec::new(), Vec::new());
                for r in 0..n {
                    let key = |i: usize| {
                        let x = v[r * d + i];
                        if x.is_nan() {
                            f64::NEG_INFINITY
                        } else {
                            -x.min(1e30)
                        }
                    };
                    let mut ix: Vec<usize> = (0..d).collect();
                    ix.sort_by(|a, b| key(*a).total_cmp(&key(*b)).then(a.cmp(b)));
                    wv.extend(ix[..k].iter().map(|i| v[r * d + i]));
                    wi.extend(ix[..k].iter().map(|i| *i as f64));
                }
                close("top values", &ops[0].values(), &wv, |_| 0.0);
                close("top index", &ops[1].values(), &wi, |_| 0.0);
            }
        }
        let ops = [
            Tensor::poison(DType::F32, &[2, 4]),
            Tensor::poison(DType::I32, &[2, 4]),
            Tensor::poison(DType::F32, &[2, 3]),
        ];
        assert_eq!(
            refusal(op::TOPK, flags_of(0).as_bytes(), &ops),
            Some(Code::Invalid)
        );
    }
}
