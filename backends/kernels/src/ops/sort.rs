//! sort_pairs and topk, and the sorting that sums into rows stand on.

use super::{Answer, blocks, done, launch, nothing};
use crate::args::{MergeArgs, SortArgs, TakeArgs, zero};
use crate::launch::{Dynamic, Launch, Place};
use crate::source::{Facts, Family, Kernel};
use crate::view::*;
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest};

const KEYS: &[DType] = &[DType::F32, DType::Bf16, DType::F16, DType::I32, DType::I64];
/// Items a block sorts at once; `CW_SORT` in the source.
const RUN: u64 = 1024;

/// Sorts rows of items. `key` is the storage of the keys in C, or `Narrow` when the items lie in the workspace already. Returns the launches,
/// where in the workspace the sorted items are, and the workspace's bytes.
pub(crate) fn sorted(
    f: &Facts,
    rows: u64,
    n: u64,
    key: &str,
    keys: Option<(u32, &View)>,
    descending: bool,
) -> (Vec<Launch>, u64, u64) {
    let (item, bytes) = if key == "i64" {
        ("Wide", 16)
    } else {
        ("Narrow", 8)
    };
    let half = (rows * n * bytes).next_multiple_of(256);
    let mut a: SortArgs = zero();
    (a.rows, a.n, a.descending) = (rows, n, descending as u64);
    let mut slots = vec![("items", Place::Workspace(0))];
    if let Some((i, v)) = keys {
        a.from = v.walk();
        slots.push(("keys", Place::Operand(i)));
    }
    // A run takes several short rows, each in a power of two of places.
    let places = n.next_power_of_two().clamp(2, RUN);
    let short = places < RUN;
    a.shift = places.ilog2() as u64;
    let k = Kernel::new(
        Family::Sort,
        format!("cw_sort_{key}{}", if short { "_short" } else { "" }),
        512,
        "SortArgs",
        &format!("cw_sort<{item}, {key}, {short}>"),
    );
    let runs = rows.div_ceil(RUN / places) * n.div_ceil(RUN);
    let grid = [blocks(runs, 1, f), 1, 1];
    let mut out = vec![launch(k, grid, 512, 0, &a, &slots)];
    let (mut run, mut at) = (RUN, 0);
    while run < n {
        let mut m: MergeArgs = zero();
        (m.rows, m.n, m.run) = (rows, n, run);
        let k = Kernel::new(
            Family::Sort,
            format!("cw_merge_{item}"),
            256,
            "MergeArgs",
            &format!("cw_merge<{item}>"),
        );
        let slots = [
            ("from", Place::Workspace(at)),
            ("to", Place::Workspace(half - at)),
        ];
        let grid = [blocks(rows * n, 256, f), 1, 1];
        out.push(launch(k, grid, 256, 0, &m, &slots));
        at = half - at;
        run *= 2;
    }
    (out, at, if n > RUN { 2 * half } else { half })
}

fn take(f: &Facts, a: &TakeArgs, keys: &View, values: &View, places: &[(&str, Place)]) -> Launch {
    let item = if keys.dtype == DType::I64 {
        "Wide"
    } else {
        "Narrow"
    };
    let (k, v) = (c_bits(keys.dtype), c_type(values.dtype));
    let kernel = Kernel::new(
        Family::Sort,
        format!("cw_take_{item}_{k}_{v}"),
        256,
        "TakeArgs",
        &format!("cw_take<{item}, {k}, {v}>"),
    );
    let grid = [blocks(a.rows * a.k, 256, f), 1, 1];
    launch(kernel, grid, 256, 0, a, places)
}

fn too_long(o: &OpRequest<'_>, n: u64) -> crossweave_plugin::Result<()> {
    if n > u32::MAX as u64 {
        return refuse(o, format!("rows of {n} elements, positions have 32 bits"));
    }
    Ok(())
}

/// `sort_pairs`.
pub(crate) fn sort_pairs(o: &OpRequest<'_>, f: &Facts) -> Answer {
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
    let (rows, n) = rows_of(o, 2, &keys)?;
    too_long(o, n)?;
    if ko.total == 0 {
        return nothing(o);
    }
    let down = p.flags & op::FLAG_DESCENDING != 0;
    let (mut out, at, bytes) = sorted(f, rows, n, c_type(keys.dtype), Some((2, &keys)), down);
    let mut a: TakeArgs = zero();
    (a.rows, a.n, a.k) = (rows, n, n);
    (a.keys_from, a.values_from) = (keys.walk(), values.walk());
    let places = [
        ("keys_out", Place::Operand(0)),
        ("values_out", Place::Operand(1)),
        ("items", Place::Workspace(at)),
        ("keys", Place::Operand(2)),
        ("values", Place::Operand(3)),
    ];
    out.push(take(f, &a, &keys, &values, &places));
    done(o, bytes, out, Dynamic::None)
}

/// `topk`.
pub(crate) fn topk(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    let p = o.params::<op::DimParams>()?;
    // Largest first is the only order there is, said or not.
    flags(o, p.flags, op::FLAG_DESCENDING)?;
    let (values, index) = (output(o, 0, FLOATS)?, output(o, 1, INDEX)?);
    let src = input(o, 2, FLOATS)?;
    shape(o, 1, &index, &values.shape)?;
    same_dtype(o, 2, &src, &values)?;
    let (rows, n) = rows_of(o, 2, &src)?;
    let (_, k) = rows_of(o, 0, &values)?;
    let mut want = src.shape.clone();
    if let Some(last) = want.last_mut() {
        *last = k;
    }
    shape(o, 0, &values, &want)?;
    if k > n {
        return invalid(o, format!("k = {k} of {n} elements"));
    }
    too_long(o, n)?;
    if values.total == 0 {
        return nothing(o);
    }
    let (mut out, at, bytes) = sorted(f, rows, n, c_type(src.dtype), Some((2, &src)), true);
    let mut a: TakeArgs = zero();
    (a.rows, a.n, a.k) = (rows, n, k);
    a.keys_from = src.walk();
    let places = [
        ("keys_out", Place::Operand(0)),
        ("values_out", Place::Operand(1)),
        ("items", Place::Workspace(at)),
        ("keys", Place::Operand(2)),
    ];
    out.push(take(f, &a, &src, &index, &places));
    done(o, bytes, out, Dynamic::None)
}
