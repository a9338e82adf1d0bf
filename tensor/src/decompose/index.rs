//! Embedding: rows gathered and scattered, positions added once per sequence.

use super::build::{Build, Given};
use crossweave_hal::abi::op::{self, reduce::SUM};
use crossweave_hal::{OpRequest, Recipe};

pub(super) fn embedding_fwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let p: op::IndexParams = g.params()?;
    let (y, table, index, pos) = (g.view(0)?, g.view(1)?, g.view(2)?, g.view(3));
    let mut b = Build::default();
    let rows = if y.dtype == table.dtype {
        y.clone()
    } else {
        b.temp(table.dtype, &y.shape)
    };
    b.op(
        op::GATHER_ROWS,
        p.as_bytes(),
        &[Some(&rows), Some(&table), Some(&index)],
        None,
    );
    match &pos {
        Some(pos) => {
            let pos = pos.first(*index.shape.last()?);
            b.map(&[&y], &[&rows, &pos], |v| vec![v[0] + v[1]]);
        }
        None if rows != y => b.copy(&y, &rows),
        None => {}
    }
    Some(b.finish())
}

pub(super) fn embedding_bwd(o: &OpRequest) -> Option<Recipe> {
    let g = Given(o);
    let p: op::IndexParams = g.params()?;
    let (dtable, dpos, dy, index) = (g.view(0)?, g.view(1), g.view(2)?, g.view(3)?);
    let mut b = Build::default();
    b.op(
        op::SCATTER_ADD_ROWS,
        p.as_bytes(),
        &[Some(&dtable), Some(&dy), Some(&index)],
        None,
    );
    if let Some(dpos) = &dpos {
        // The position table may be longer than the sequences.
        let t = *index.shape.last()?;
        let [_, d] = dpos.dims()?;
        let sequences = index.shape.iter().rev().skip(1).product();
        let dy = b.packed(&dy).reshape(&[sequences, t, d]);
        b.reduce(SUM, 1, &dpos.first(t).reshape(&[1, t, d]), &dy, true);
    }
    Some(b.finish())
}
