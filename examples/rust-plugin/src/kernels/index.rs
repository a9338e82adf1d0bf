//! gather_rows, scatter_add_rows, histogram: rows by index.

use super::{arity, flags};
use crate::memory::Region;
use crate::ops::Kernel;
use crate::view::*;
use crossweave_plugin::{Code, DType, OpRequest, Result, abi::op, fail};

/// Which row each index means.
struct Rows {
    index: View,
    ignore: Option<i64>,
    limit: i64,
    width: i64,
}

impl Rows {
    /// `rows` has the index's shape and then that of a row of `table`.
    fn new(o: &OpRequest<'_>, rows: &View, table: &View) -> Result<Rows> {
        let p = o.params::<op::IndexParams>()?;
        flags(p.flags, op::FLAG_HAS_IGNORE)?;
        let index = View::new(o, 2, INDEX)?;
        let Some((limit, row)) = table.shape.split_first() else {
            return fail(Code::Invalid, "the table has rank 0");
        };
        if rows.shape != [&index.shape, row].concat() {
            return fail(
                Code::Invalid,
                format!(
                    "rows {:?}, index {:?}, table {:?}",
                    rows.shape, index.shape, table.shape
                ),
            );
        }
        let ignore = (p.flags & op::FLAG_HAS_IGNORE != 0).then_some(p.ignore);
        Ok(Rows {
            index,
            ignore,
            limit: *limit,
            width: row.iter().product(),
        })
    }
    fn row(&self, r: &Region, i: i64) -> Option<i64> {
        let v = int(self.index.dtype, r, self.index.at(i));
        (Some(v) != self.ignore && (0..self.limit).contains(&v)).then_some(v)
    }
}

pub fn gather_rows(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 3)?;
    let (y, table) = (View::output(o, 0, ANY, false)?, View::new(o, 1, ANY)?);
    same_dtype(&table, &y)?;
    let rows = Rows::new(o, &y, &table)?;
    let bytes = size(y.dtype);
    Ok(Box::new(move |l| {
        if y.count == 0 {
            return;
        }
        let (ry, index) = (l.region(0), l.region(2));
        for i in 0..rows.index.count {
            let row = rows.row(&index, i);
            for j in 0..rows.width {
                let to = i * rows.width + j;
                match row {
                    Some(r) => copy(bytes, &ry, to, &l.region(1), table.at(r * rows.width + j)),
                    None => (0..bytes).for_each(|b| ry.put(to as usize * bytes + b, [0])),
                }
            }
        }
    }))
}

/// In order of the indices, in f32; each element of the table is rounded once.
pub fn scatter_add_rows(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 3)?;
    let (table, x) = (View::output(o, 0, FLOATS, false)?, View::new(o, 1, FLOATS)?);
    if table.dtype != DType::F32 {
        same_dtype(&x, &table)?;
    }
    let rows = Rows::new(o, &x, &table)?;
    Ok(Box::new(move |l| {
        if table.count == 0 || x.count == 0 {
            return;
        }
        let [rt, rx, index] = l.regions();
        let mut sums: Vec<f32> = (0..table.count).map(|i| table.float(&rt, i)).collect();
        for i in 0..rows.index.count {
            let Some(r) = rows.row(&index, i) else {
                continue;
            };
            for j in 0..rows.width {
                sums[(r * rows.width + j) as usize] += x.float(&rx, x.at(i * rows.width + j));
            }
        }
        for (i, s) in (0..).zip(sums) {
            table.put_float(&rt, i, s);
        }
    }))
}

pub fn histogram(o: &OpRequest<'_>) -> Result<Kernel> {
    arity(o, 2)?;
    flags(o.params::<op::NoParams>()?.flags, 0)?;
    let (y, x) = (
        View::output(o, 0, &[DType::I32, DType::U32], false)?,
        View::new(o, 1, INDEX)?,
    );
    Ok(Box::new(move |l| {
        if y.count == 0 {
            return;
        }
        let ry = l.region(0);
        (0..y.count).for_each(|b| put_int(y.dtype, &ry, b, 0));
        for i in 0..x.count {
            let b = int(x.dtype, &l.region(1), x.at(i));
            if (0..y.count).contains(&b) {
                put_int(y.dtype, &ry, b, int(y.dtype, &ry, b) + 1);
            }
        }
    }))
}
