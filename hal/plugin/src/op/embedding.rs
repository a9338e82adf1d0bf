//! `embedding_*`: rows of a table by index, with learned positions added where they are given.

use crate::operand::*;
use crate::{OpRequest, Result};
use crossweave_abi::op;

/// An index operand, and which of its values means no row.
pub struct Indices {
    /// The indices.
    pub view: View,
    /// The value that means no row.
    pub ignore: Option<i64>,
}

impl Indices {
    /// Reads operand `i` with `IndexParams`.
    ///
    /// # Errors
    /// `Unsupported` for types, flags and strides that the op does not have.
    pub fn read(o: &OpRequest<'_>, i: usize) -> Result<Indices> {
        let p = o.params::<op::IndexParams>()?;
        flags(o, p.flags, op::FLAG_HAS_IGNORE)?;
        Ok(Indices {
            view: input(o, i, INDEX)?,
            ignore: (p.flags & op::FLAG_HAS_IGNORE != 0).then_some(p.ignore),
        })
    }

    /// The shape `indices' shape + row's shape`.
    pub fn rows(&self, row: &[usize]) -> Vec<usize> {
        self.view.shape.iter().chain(row).copied().collect()
    }

    /// The length of a sequence of indices `[.., t]`.
    pub fn sequence(&self) -> usize {
        self.view.shape.last().copied().unwrap_or(1)
    }
}

/// Rows and width of a table that is operand `i`.
fn table(o: &OpRequest<'_>, name: &str, v: &View) -> Result<(usize, usize)> {
    match v.shape[..] {
        [n, d] => Ok((n, d)),
        _ => invalid(
            o,
            format!("{name} has rank {}, [V, d] wanted", v.shape.len()),
        ),
    }
}

fn positions(o: &OpRequest<'_>, pos: &View, t: usize, d: usize) -> Result<()> {
    if pos.shape.len() != 2 || pos.shape[0] < t || pos.shape[1] != d {
        return invalid(
            o,
            format!("pos has shape {:?}, [>= {t}, {d}] wanted", pos.shape),
        );
    }
    Ok(())
}

/// A request of `embedding_fwd` (`y table index pos?`).
pub struct Embedding {
    /// The result, dense.
    pub y: View,
    /// The table, `[V, d]`.
    pub table: View,
    /// Which row each element is.
    pub index: Indices,
    /// Positions, `[>= t, d]`.
    pub pos: Option<View>,
    /// Length of a sequence.
    pub t: usize,
    /// Elements of a row.
    pub d: usize,
}

impl Embedding {
    /// Reads a request.
    ///
    /// # Errors
    /// `Invalid` for shapes that contradict each other, `Unsupported` for types, flags and strides that the op does not have.
    pub fn read(o: &OpRequest<'_>) -> Result<Embedding> {
        arity(o, 3..=4)?;
        let (y, from) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
        let (_, d) = table(o, "table", &from)?;
        let index = Indices::read(o, 2)?;
        shape(o, 0, &y, &index.rows(&[d]))?;
        let t = index.sequence();
        let pos = optional(o, 3, FLOATS)?;
        if let Some(p) = &pos {
            positions(o, p, t, d)?;
        }
        Ok(Embedding {
            y,
            table: from,
            index,
            pos,
            t,
            d,
        })
    }
}

/// A request of `embedding_bwd` (`dtable dpos? dy index`).
pub struct EmbeddingBackward {
    /// The gradient of the table, `[V, d]`, dense, f32, added to.
    pub dtable: View,
    /// The gradient of positions, `[>= t, d]`, dense, f32, added to.
    pub dpos: Option<View>,
    /// The gradient of the result.
    pub dy: View,
    /// Which row each element was.
    pub index: Indices,
    /// Length of a sequence.
    pub t: usize,
    /// Elements of a row.
    pub d: usize,
}

impl EmbeddingBackward {
    /// Reads a request.
    ///
    /// # Errors
    /// As [`Embedding::read`].
    pub fn read(o: &OpRequest<'_>) -> Result<EmbeddingBackward> {
        arity(o, 4..=4)?;
        let dtable = output(o, 0, F32)?;
        let (_, d) = table(o, "dtable", &dtable)?;
        let index = Indices::read(o, 3)?;
        let dy = input(o, 2, FLOATS)?;
        shape(o, 2, &dy, &index.rows(&[d]))?;
        let t = index.sequence();
        let dpos = optional(o, 1, F32)?.map(|p| dense(o, 1, p)).transpose()?;
        if let Some(p) = &dpos {
            positions(o, p, t, d)?;
        }
        Ok(EmbeddingBackward {
            dtable,
            dpos,
            dy,
            index,
            t,
            d,
        })
    }
}
