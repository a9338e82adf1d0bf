//! sort_pairs and topk: stable, NaN above every number, -0 beside 0.

use super::{arity, flags};
use crate::memory::Region;
use crate::ops::Kernel;
use crate::view::*;
use crossweave_plugin::{Code, OpRequest, Result, abi::op, fail};

/// An integer that orders as the element does; the complement turns the order around and leaves ties in theirs.
fn key(v: &View, r: &Region, at: i64, down: bool) -> i64 {
    let k = if v.is_float() {
        match v.float(r, at) {
            f if f.is_nan() => i64::MAX,
            f if f < 0.0 => -i64::from((-f).to_bits()),
            f if f > 0.0 => f.to_bits().into(),
            _ => 0,
        }
    } else {
        int(v.dtype, r, at)
    };
    if down { !k } else { k }
}

/// Positions of row `row` of `v` in order.
fn sorted(v: &View, r: &Region, row: i64, n: i64, down: bool) -> Vec<i64> {
    let mut at: Vec<i64> = (row * n..(row + 1) * n).collect();
    at.sort_by_cached_key(|i| key(v, r, v.at(*i), down));
    at
}

/// Length of a row, and how many there are.
fn rows(v: &View) -> Result<(i64, i64)> {
    match v.shape.split_last() {
        Some((n, outer)) => Ok((*n, outer.iter().product())),
        None => fail(Code::Invalid, "rank 0, rows wanted"),
    }
}

pub fn sort_pairs(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 4)?;
    let p = o.params::<op::DimParams>()?;
    flags(p.flags, op::FLAG_DESCENDING)?;
    let types = [FLOATS, INDEX].concat();
    let (ko, vo) = (
        View::output(o, 0, &types, false)?,
        View::output(o, 1, INDEX, false)?,
    );
    let (ki, vi) = (View::new(o, 2, &types)?, View::new(o, 3, INDEX)?);
    same_shape(&[&ko, &vo, &ki, &vi])?;
    same_dtype(&ki, &ko)?;
    same_dtype(&vi, &vo)?;
    let (n, count) = rows(&ki)?;
    Ok(Box::new(move |l| {
        if ki.count == 0 {
            return;
        }
        let [rko, rvo, rki, rvi] = l.regions();
        for row in 0..count {
            let order = sorted(&ki, &rki, row, n, p.flags & op::FLAG_DESCENDING != 0);
            for (i, from) in (row * n..).zip(order) {
                copy(size(ki.dtype), &rko, i, &rki, ki.at(from));
                copy(size(vi.dtype), &rvo, i, &rvi, vi.at(from));
            }
        }
    }))
}

pub fn topk(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 3)?;
    let p = o.params::<op::DimParams>()?;
    // Largest first is the only order there is, said or not.
    flags(p.flags, op::FLAG_DESCENDING)?;
    let (values, index) = (
        View::output(o, 0, FLOATS, false)?,
        View::output(o, 1, INDEX, false)?,
    );
    let x = View::new(o, 2, FLOATS)?;
    same_shape(&[&values, &index])?;
    same_dtype(&x, &values)?;
    let ((n, count), (k, _)) = (rows(&x)?, rows(&values)?);
    let outer = |v: &View| v.shape[..v.shape.len() - 1].to_vec();
    if k > n || outer(&x) != outer(&values) {
        return fail(
            Code::Invalid,
            format!("{:?} of {:?}", values.shape, x.shape),
        );
    }
    Ok(Box::new(move |l| {
        if values.count == 0 {
            return;
        }
        let [rv, ri, rx] = l.regions();
        for row in 0..count {
            let order = sorted(&x, &rx, row, n, true);
            for (i, from) in (row * k..(row + 1) * k).zip(order) {
                copy(size(x.dtype), &rv, i, &rx, x.at(from));
                put_int(index.dtype, &ri, i, from - row * n);
            }
        }
    }))
}
