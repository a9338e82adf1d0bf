//! gather_rows, scatter_add_rows, embedding_*: sums into rows in order of position, by sorting positions by row.

use super::point::GROUP;
use super::sort::sorted;
use super::{Answer, blocks, done, launch, nothing, threads_for};
use crate::args::{GatherArgs, ItemsArgs, ScatterArgs, zero};
use crate::launch::{Dynamic, Launch, Place};
use crate::source::{Facts, Family, Kernel};
use crate::view::*;
use crossweave_plugin::op::{self, Indices};
use crossweave_plugin::{OpRequest, Result};

/// The index operand and what it may say.
struct Rows {
    view: View,
    ignore: Option<i64>,
    limit: u64,
}

impl Rows {
    fn new(o: &OpRequest<'_>, i: usize, limit: u64) -> Result<Rows> {
        Rows::of(o, Indices::read(o, i)?, limit)
    }

    fn of(o: &OpRequest<'_>, index: Indices, limit: u64) -> Result<Rows> {
        if limit >= u32::MAX as u64 || index.view.total as u64 > u32::MAX as u64 {
            return refuse(o, "more than 2^32 rows or positions");
        }
        Ok(Rows {
            view: index.view.into(),
            ignore: index.ignore,
            limit,
        })
    }
}

/// `[rows, ..]` split into the row count and a row.
fn table_of(o: &OpRequest<'_>, i: usize, v: &View) -> Result<(u64, View)> {
    if v.shape.is_empty() {
        return invalid(o, format!("operand {i}: rank 0, rows wanted"));
    }
    let rest: Vec<usize> = (1..v.shape.len()).collect();
    Ok((v.shape[0], v.pick(&rest)))
}

/// The shape `index's shape + row's shape`.
fn joined(index: &View, row: &[u64]) -> Vec<u64> {
    index.shape.iter().chain(row).copied().collect()
}

fn gather(
    f: &Facts,
    [value, td, tt, tp]: [&str; 4],
    rows: &Rows,
    row: &View,
    row_stride: i64,
    pos: Option<(&View, u64)>,
    places: &[(&str, Place)],
) -> Launch {
    let mut a: GatherArgs = zero();
    (a.from, a.row) = (rows.view.walk(), row.walk());
    (a.row_stride, a.limit, a.width) = (row_stride, rows.limit, row.total);
    (a.ignore, a.has_ignore) = (rows.ignore.unwrap_or(0), rows.ignore.is_some() as u64);
    a.seq = 1;
    if let Some((p, seq)) = pos {
        (a.seq, a.pos_row, a.pos_inner) = (seq, p.stride[0], p.stride[1]);
    }
    let ti = c_type(rows.view.dtype);
    let k = Kernel::new(
        Family::Index,
        format!("cw_gather_{value}_{td}_{tt}_{tp}_{ti}"),
        256,
        "GatherArgs",
        &format!("cw_gather<{value}, {td}, {tt}, {tp}, {ti}>"),
    );
    let groups = rows.view.total * row.total.div_ceil(GROUP);
    launch(k, [blocks(groups, 256, f), 1, 1], 256, 0, &a, places)
}

/// `gather_rows`.
pub(crate) fn gather_rows(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    let (dst, table) = (output(o, 0, WHOLE_BYTES)?, input(o, 1, WHOLE_BYTES)?);
    same_dtype(o, 1, &table, &dst)?;
    let (n, row) = table_of(o, 1, &table)?;
    let rows = Rows::new(o, 2, n)?;
    shape(o, 0, &dst, &joined(&rows.view, &row.shape))?;
    if dst.total == 0 {
        return nothing(o);
    }
    let c = c_bits(dst.dtype);
    let places = [
        ("dst", Place::Operand(0)),
        ("table", Place::Operand(1)),
        ("index", Place::Operand(2)),
    ];
    let l = gather(
        f,
        ["raw", c, c, "float"],
        &rows,
        &row,
        table.stride[0],
        None,
        &places,
    );
    done(o, 0, vec![l], Dynamic::None)
}

/// `embedding_fwd`.
pub(crate) fn embedding(o: &OpRequest<'_>, f: &Facts) -> Answer {
    let r = op::Embedding::read(o)?;
    let (y, table, t): (View, View, _) = (r.y.into(), r.table.into(), r.t as u64);
    let pos = r.pos.map(View::from);
    let rows = Rows::of(o, r.index, table.shape[0])?;
    if y.total == 0 {
        return nothing(o);
    }
    let types = [
        "float",
        c_type(y.dtype),
        c_type(table.dtype),
        pos.as_ref().map_or("float", |p| c_type(p.dtype)),
    ];
    let places = [
        ("dst", Place::Operand(0)),
        ("table", Place::Operand(1)),
        ("index", Place::Operand(2)),
        ("pos", Place::Operand(3)),
    ];
    let places = if pos.is_some() {
        &places[..]
    } else {
        &places[..3]
    };
    let l = gather(
        f,
        types,
        &rows,
        &table.pick(&[1]),
        table.stride[0],
        pos.as_ref().map(|p| (p, t)),
        places,
    );
    done(o, 0, vec![l], Dynamic::None)
}

/// Launches that add rows of `src` (operand `at`) into a dense table (operand 0), and their workspace.
fn scatter(
    f: &Facts,
    rows: &Rows,
    index: u32,
    table: &View,
    src: &View,
    at: u32,
    row: &View,
) -> (Vec<Launch>, u64) {
    let n = rows.view.total;
    let mut a: ItemsArgs = zero();
    (a.from, a.limit) = (rows.view.walk(), rows.limit);
    (a.ignore, a.has_ignore) = (rows.ignore.unwrap_or(0), rows.ignore.is_some() as u64);
    let ti = c_type(rows.view.dtype);
    let k = Kernel::new(
        Family::Index,
        format!("cw_items_{ti}"),
        256,
        "ItemsArgs",
        &format!("cw_items<{ti}>"),
    );
    let places = [
        ("out", Place::Workspace(0)),
        ("index", Place::Operand(index)),
    ];
    let mut out = vec![launch(k, [blocks(n, 256, f), 1, 1], 256, 0, &a, &places)];
    let (sort, items, bytes) = sorted(f, 1, n, "Narrow", None, false);
    out.extend(sort);
    let mut a = walk_of(src, rows, row);
    a.n = n;
    let (tt, ts) = (c_type(table.dtype), c_type(src.dtype));
    let k = Kernel::new(
        Family::Index,
        format!("cw_scatter_{tt}_{ts}"),
        128,
        "ScatterArgs",
        &format!("cw_scatter<{tt}, {ts}>"),
    );
    let threads = threads_for(row.total.div_ceil(GROUP), 32, 128);
    let tiles = row.total.div_ceil(threads as u64 * GROUP);
    let places = [
        ("table", Place::Operand(0)),
        ("src", Place::Operand(at)),
        ("items", Place::Workspace(items)),
    ];
    // One block an item: most have a run of their own.
    let grid = [(n * tiles).min(1 << 30), 1, 1];
    out.push(launch(k, grid, threads, 0, &a, &places));
    (out, bytes)
}

/// The walks of `src`: over positions (the index's dims), and along a row.
fn walk_of(src: &View, rows: &Rows, row: &View) -> ScatterArgs {
    let mut a: ScatterArgs = zero();
    let (r, all) = (rows.view.shape.len(), src.shape.len());
    let (outer, inner): (Vec<usize>, Vec<usize>) = ((0..r).collect(), (r..all).collect());
    a.pos_from = src.pick(&outer).walk();
    a.row = src.pick(&inner).walk();
    a.width = row.total;
    a
}

/// `scatter_add_rows`.
pub(crate) fn scatter_add_rows(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    let (table, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    if table.dtype != crossweave_plugin::DType::F32 {
        same_dtype(o, 1, &src, &table)?;
    }
    let (n, row) = table_of(o, 0, &table)?;
    let rows = Rows::new(o, 2, n)?;
    shape(o, 1, &src, &joined(&rows.view, &row.shape))?;
    if src.total == 0 {
        return nothing(o);
    }
    let (out, bytes) = scatter(f, &rows, 2, &table, &src, 1, &row);
    done(o, bytes, out, Dynamic::None)
}

/// `embedding_bwd`.
pub(crate) fn embedding_backward(o: &OpRequest<'_>, f: &Facts) -> Answer {
    let r = op::EmbeddingBackward::read(o)?;
    let (dtable, dy): (View, View) = (r.dtable.into(), r.dy.into());
    let (t, d) = (r.t as u64, r.d as u64);
    let dpos = r.dpos.map(View::from);
    let rows = Rows::of(o, r.index, dtable.shape[0])?;
    if dy.total == 0 {
        return nothing(o);
    }
    let row = dtable.pick(&[1]);
    let (mut out, bytes) = scatter(f, &rows, 3, &dtable, &dy, 2, &row);
    if dpos.is_some() {
        let mut a = walk_of(&dy, &rows, &row);
        (a.n, a.seq) = (rows.view.total, t);
        let ts = c_type(dy.dtype);
        let k = Kernel::new(
            Family::Index,
            format!("cw_positions_{ts}"),
            256,
            "ScatterArgs",
            &format!("cw_positions<{ts}>"),
        );
        let places = [("table", Place::Operand(1)), ("src", Place::Operand(2))];
        let grid = [blocks(t * d.div_ceil(GROUP), 64, f), 1, 1];
        out.push(launch(k, grid, 64, 0, &a, &places));
    }
    done(o, bytes, out, Dynamic::None)
}
