//! The two graphs of attention, op by op in the order the library knows its fused kernels by. Scores are B x H x Tq x Tk and never in memory.

use super::graph::{Four, Graph, Tensor, packed};
use super::shape::{BACKWARD, FORWARD, Problem};
use super::{Cudnn, id};
use crossweave_plugin::Result;
use std::sync::Arc;

/// The last two sizes or strides change places.
fn turned([b, h, r, c]: Four) -> Four {
    [b, h, c, r]
}

/// The graph of a problem.
pub(crate) fn graph(lib: &Arc<Cudnn>, p: &Problem) -> Result<Graph> {
    let mut g = Graph::new(lib);
    match p.backward {
        true => backward(&mut g, p)?,
        false => forward(&mut g, p)?,
    }
    Ok(g)
}

impl Problem {
    fn scores_of(&self) -> Four {
        [self.b, self.h, self.tq, self.tk]
    }
    fn rows_of(&self) -> Four {
        [self.b, self.h, self.tq, 1]
    }
}

/// Queries, `rows` of `heads` heads at operand `i`.
fn plain(g: &mut Graph, p: &Problem, i: usize, heads: i64, rows: i64) -> Result<Tensor> {
    let (dims, strides) = p.view(i, heads, rows);
    g.operand(i, p.kind, dims, strides)
}

/// Keys or values with columns for rows.
fn across(g: &mut Graph, p: &Problem, i: usize) -> Result<Tensor> {
    let (dims, strides) = p.view(i, p.hkv, p.tk);
    g.operand(i, p.kind, turned(dims), turned(strides))
}

/// Scores that a query does not see become minus infinity. Query `i` stands at key `i + tk - tq`.
fn masked(g: &mut Graph, p: &Problem, mut s: Tensor) -> Result<Tensor> {
    let shift = p.tk - p.tq;
    let numbers =
        |g: &mut Graph, s: Tensor, axis: i64| g.index(id::GEN_INDEX, id::INT32, Some(axis), &[s]);
    if p.causal {
        let nothing = g.value(f32::NEG_INFINITY)?;
        let (mut row, col) = (numbers(g, s, 2)?, numbers(g, s, 3)?);
        if shift != 0 {
            let (tk, tq) = (g.count(p.tk as i32)?, g.count(p.tq as i32)?);
            row = g.index(id::ADD, id::INT32, Some(3), &[row, tk])?;
            row = g.index(id::SUB, id::INT32, Some(3), &[row, tq])?;
        }
        let seen = g.index(id::CMP_GE, id::BOOLEAN, None, &[row, col])?;
        s = g.each(id::BINARY_SELECT, &[s, nothing, seen])?;
    }
    if p.window > 0 {
        let nothing = g.value(f32::NEG_INFINITY)?;
        let (row, col) = (numbers(g, s, 2)?, numbers(g, s, 3)?);
        // j > i + shift - window.
        let reach = g.value((p.window - shift) as f32)?;
        let ends = g.index(id::ADD, id::FLOAT, Some(3), &[col, reach])?;
        let seen = g.index(id::CMP_GT, id::BOOLEAN, None, &[ends, row])?;
        s = g.each(id::BINARY_SELECT, &[s, nothing, seen])?;
    }
    Ok(s)
}

/// o = softmax(mask(scale q k')) v, and the logarithm of every row's sum.
fn forward(g: &mut Graph, p: &Problem) -> Result<()> {
    let at = FORWARD;
    let (scores, rows) = (p.scores_of(), p.rows_of());
    let q = plain(g, p, at.q, p.h, p.tq)?;
    let k = across(g, p, at.k)?;
    let v = plain(g, p, at.v, p.hkv, p.tk)?;
    let o = plain(g, p, 0, p.h, p.tq)?;
    let lse = g.operand(at.lse, id::FLOAT, rows, packed(rows))?;

    let s = g.local(id::FLOAT, scores, packed(scores))?;
    let s = g.matmul(q, k, s)?;
    let scale = g.value(f32::from_bits(p.scale))?;
    let s = g.each(id::MUL, &[s, scale])?;
    let s = masked(g, p, s)?;
    let top = g.local(id::FLOAT, rows, packed(rows))?;
    let top = g.reduce(id::REDUCE_MAX, s, top)?;
    let s = g.each(id::SUB, &[s, top])?;
    let e = g.each(id::EXP, &[s])?;
    let sum = g.local(id::FLOAT, rows, packed(rows))?;
    let sum = g.reduce(id::REDUCE_ADD, e, sum)?;
    let log = g.each(id::LOG, &[sum])?;
    g.each_into(id::ADD, &[top, log], lse)?;
    // The library wants the probabilities in the type of the operands.
    let w = g.local(p.kind, scores, packed(scores))?;
    g.each_into(id::DIV, &[e, sum], w)?;
    g.matmul(w, v, o)?;
    Ok(())
}

/// Per key head, out of its query heads' where there are several.
fn onto_keys(g: &mut Graph, p: &Problem, w: Tensor, by: Tensor, out: usize) -> Result<()> {
    let to = plain(g, p, out, p.hkv, p.tk)?;
    if p.h == p.hkv {
        g.matmul(w, by, to)?;
        return Ok(());
    }
    let all = [p.b, p.h, p.tk, p.d];
    let each = g.local(p.kind, all, packed(all))?;
    let each = g.matmul(w, by, each)?;
    g.reduce(id::REDUCE_ADD, each, to)?;
    Ok(())
}

/// dv = w' do; ds = w (do v' - sum(do o)) scale; dk = ds' q; dq = ds k.
fn backward(g: &mut Graph, p: &Problem) -> Result<()> {
    let at = BACKWARD;
    let (scores, rows) = (p.scores_of(), p.rows_of());
    let across_rows = (turned(scores), turned(packed(scores)));
    let q = plain(g, p, at.q, p.h, p.tq)?;
    let k = across(g, p, at.k)?;
    let v = across(g, p, at.v)?;
    let o = plain(g, p, 4, p.h, p.tq)?;
    let go = plain(g, p, 3, p.h, p.tq)?;
    let lse = g.operand(at.lse, id::FLOAT, rows, packed(rows))?;
    let scale = g.value(f32::from_bits(p.scale))?;

    let wide = [p.b, p.h, p.tq, p.d];
    let x = g.local(id::FLOAT, wide, packed(wide))?;
    g.each_into(id::MUL, &[go, o], x)?;
    let x2 = g.local(id::FLOAT, rows, packed(rows))?;
    let x2 = g.reduce(id::REDUCE_ADD, x, x2)?;
    let one = g.value(1.0)?;
    let delta = g.scratch(rows)?;
    g.each_into(id::MUL, &[x2, one], delta)?;

    let s = g.local(id::FLOAT, scores, packed(scores))?;
    let s = g.matmul(q, k, s)?;
    let s = g.each(id::MUL, &[s, scale])?;
    let s = g.each(id::SUB, &[s, lse])?;
    let s = masked(g, p, s)?;
    let w = g.each(id::EXP, &[s])?;
    let wt = g.local(p.kind, across_rows.0, across_rows.1)?;
    let wt = g.reshape(w, wt)?;
    onto_keys(g, p, wt, go, 2)?;

    let dw = g.local(id::FLOAT, scores, packed(scores))?;
    let dw = g.matmul(go, v, dw)?;
    let ds = g.each(id::SUB, &[dw, delta])?;
    let ds = g.each(id::MUL, &[ds, w])?;
    let ds = g.each(id::MUL, &[ds, scale])?;
    let dst = g.local(p.kind, across_rows.0, across_rows.1)?;
    let dst = g.reshape(ds, dst)?;
    onto_keys(g, p, dst, q, 1)?;

    let kr = g.local(p.kind, turned(k.dims), turned(k.strides))?;
    let kr = g.reshape(k, kr)?;
    let dq = plain(g, p, 0, p.h, p.tq)?;
    if p.deterministic {
        // By way of the scores' gradients kept whole: every sum has one owner.
        g.matmul(ds, kr, dq)?;
        return Ok(());
    }
    let sum = g.scratch(wide)?;
    g.matmul(ds, kr, sum)?;
    g.each_into(id::IDENTITY, &[sum], dq)?;
    Ok(())
}
