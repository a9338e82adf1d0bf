//! A graph of ops for the library: tensors, what the launch gives each of them, and ops in the order they compute.

use super::{Cudnn, Desc, id};
use crossweave_plugin::Result;
use std::sync::Arc;

/// Sizes of a tensor: batch, heads, rows, columns.
pub(crate) type Four = [i64; 4];

/// What the launch gives a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The op's operand of this number.
    Operand(usize),
    /// So many bytes into the part of the workspace that is ours.
    Scratch(u64),
    /// 32 bits, read when the launch is made.
    Value(u32),
}

/// A tensor of a graph.
#[derive(Clone, Copy)]
pub(crate) struct Tensor {
    at: usize,
    pub dims: Four,
    pub strides: Four,
}

/// A graph being built.
pub(crate) struct Graph {
    lib: Arc<Cudnn>,
    tensors: Vec<Desc>,
    /// Descriptors that ops refer to.
    details: Vec<Desc>,
    pub(super) ops: Vec<Desc>,
    /// What stands in memory: tensors by their number, which is their unique id.
    pub(super) feeds: Vec<(i64, Source)>,
    /// Bytes of the workspace that are ours.
    pub(super) scratch: u64,
}

/// Row-major.
pub(crate) fn packed(d: Four) -> Four {
    [d[1] * d[2] * d[3], d[2] * d[3], d[3], 1]
}

impl Graph {
    pub(crate) fn new(lib: &Arc<Cudnn>) -> Graph {
        Graph {
            lib: lib.clone(),
            tensors: vec![],
            details: vec![],
            ops: vec![],
            feeds: vec![],
            scratch: 0,
        }
    }

    fn tensor(
        &mut self,
        kind: i32,
        dims: Four,
        strides: Four,
        source: Option<Source>,
    ) -> Result<Tensor> {
        let at = self.tensors.len();
        let mut d = Desc::new(&self.lib, id::TENSOR, "a tensor")?
            .number(id::TENSOR_DATA_TYPE, id::TYPE_DATA_TYPE, kind)?
            .set(id::TENSOR_DIMENSIONS, id::TYPE_INT64, &dims)?
            .set(id::TENSOR_STRIDES, id::TYPE_INT64, &strides)?
            .long(id::TENSOR_UNIQUE_ID, at as i64 + 1)?
            .long(id::TENSOR_BYTE_ALIGNMENT, super::shape::ALIGNED as i64)?;
        match source {
            None => d = d.set(id::TENSOR_IS_VIRTUAL, id::TYPE_BOOLEAN, &[1u8])?,
            Some(s) => {
                if matches!(s, Source::Value(_)) {
                    d = d.set(id::TENSOR_IS_BY_VALUE, id::TYPE_BOOLEAN, &[1u8])?;
                }
                self.feeds.push((at as i64 + 1, s));
            }
        }
        self.tensors.push(d.done()?);
        Ok(Tensor { at, dims, strides })
    }

    /// An operand of the op.
    pub(crate) fn operand(
        &mut self,
        i: usize,
        kind: i32,
        dims: Four,
        strides: Four,
    ) -> Result<Tensor> {
        self.tensor(kind, dims, strides, Some(Source::Operand(i)))
    }

    /// A result that is never in memory.
    pub(crate) fn local(&mut self, kind: i32, dims: Four, strides: Four) -> Result<Tensor> {
        self.tensor(kind, dims, strides, None)
    }

    /// f32 in the workspace.
    pub(crate) fn scratch(&mut self, dims: Four) -> Result<Tensor> {
        let at = self.scratch;
        self.scratch += (dims.iter().product::<i64>() as u64 * 4).next_multiple_of(256);
        self.tensor(id::FLOAT, dims, packed(dims), Some(Source::Scratch(at)))
    }

    pub(crate) fn value(&mut self, v: f32) -> Result<Tensor> {
        self.tensor(id::FLOAT, [1; 4], [1; 4], Some(Source::Value(v.to_bits())))
    }

    pub(crate) fn count(&mut self, v: i32) -> Result<Tensor> {
        self.tensor(id::INT32, [1; 4], [1; 4], Some(Source::Value(v as u32)))
    }

    /// `y = mode(x, b, t)`, computed in `math`; `axis` is that of indices.
    fn pointwise(
        &mut self,
        mode: i32,
        math: i32,
        axis: Option<i64>,
        inputs: &[Tensor],
        y: Tensor,
    ) -> Result<Tensor> {
        let mut d = Desc::new(&self.lib, id::POINTWISE, "a pointwise op")?
            .number(id::POINTWISE_MODE, id::TYPE_POINTWISE_MODE, mode)?
            .number(id::POINTWISE_MATH_PREC, id::TYPE_DATA_TYPE, math)?;
        if let Some(axis) = axis {
            d = d.long(id::POINTWISE_AXIS, axis)?;
        }
        let d = d.done()?;
        let mut o = Desc::new(&self.lib, id::OPERATION_POINTWISE, "a pointwise op")?
            .desc(id::OPERATION_POINTWISE_PW_DESCRIPTOR, &d)?;
        let names = [
            id::OPERATION_POINTWISE_XDESC,
            id::OPERATION_POINTWISE_BDESC,
            id::OPERATION_POINTWISE_TDESC,
        ];
        for (t, name) in inputs.iter().zip(names) {
            o = o.desc(name, &self.tensors[t.at])?;
        }
        let o = o.desc(id::OPERATION_POINTWISE_YDESC, &self.tensors[y.at])?;
        self.details.push(d);
        self.ops.push(o.done()?);
        Ok(y)
    }

    /// In f32, with a result like the first input's that is never in memory.
    pub(crate) fn each(&mut self, mode: i32, inputs: &[Tensor]) -> Result<Tensor> {
        let y = self.local(id::FLOAT, inputs[0].dims, inputs[0].strides)?;
        self.pointwise(mode, id::FLOAT, None, inputs, y)
    }

    /// In f32, into a tensor.
    pub(crate) fn each_into(&mut self, mode: i32, inputs: &[Tensor], y: Tensor) -> Result<()> {
        self.pointwise(mode, id::FLOAT, None, inputs, y)?;
        Ok(())
    }

    /// In another type: numbers of rows and columns, and what they are compared to.
    pub(crate) fn index(
        &mut self,
        mode: i32,
        kind: i32,
        axis: Option<i64>,
        inputs: &[Tensor],
    ) -> Result<Tensor> {
        let y = self.local(kind, inputs[0].dims, inputs[0].strides)?;
        // Indices are made in f32 and stored as what they are, as the library's own graphs have it.
        let math = if mode == id::GEN_INDEX {
            id::FLOAT
        } else {
            kind
        };
        self.pointwise(mode, math, axis, inputs, y)
    }

    pub(crate) fn matmul(&mut self, a: Tensor, b: Tensor, c: Tensor) -> Result<Tensor> {
        let d = Desc::new(&self.lib, id::MATMUL, "a product")?
            .number(id::MATMUL_COMP_TYPE, id::TYPE_DATA_TYPE, id::FLOAT)?
            .done()?;
        let o = Desc::new(&self.lib, id::OPERATION_MATMUL, "a product")?
            .desc(id::OPERATION_MATMUL_ADESC, &self.tensors[a.at])?
            .desc(id::OPERATION_MATMUL_BDESC, &self.tensors[b.at])?
            .desc(id::OPERATION_MATMUL_CDESC, &self.tensors[c.at])?
            .desc(id::OPERATION_MATMUL_DESC, &d)?;
        self.details.push(d);
        self.ops.push(o.done()?);
        Ok(c)
    }

    /// Over the dimensions that are one in `y`.
    pub(crate) fn reduce(&mut self, how: i32, x: Tensor, y: Tensor) -> Result<Tensor> {
        let d = Desc::new(&self.lib, id::REDUCTION, "a reduction")?
            .number(
                id::REDUCTION_OPERATOR,
                id::TYPE_REDUCTION_OPERATOR_TYPE,
                how,
            )?
            .number(id::REDUCTION_COMP_TYPE, id::TYPE_DATA_TYPE, id::FLOAT)?
            .done()?;
        let o = Desc::new(&self.lib, id::OPERATION_REDUCTION, "a reduction")?
            .desc(id::OPERATION_REDUCTION_XDESC, &self.tensors[x.at])?
            .desc(id::OPERATION_REDUCTION_YDESC, &self.tensors[y.at])?
            .desc(id::OPERATION_REDUCTION_DESC, &d)?;
        self.details.push(d);
        self.ops.push(o.done()?);
        Ok(y)
    }

    /// The same elements by other strides.
    pub(crate) fn reshape(&mut self, x: Tensor, y: Tensor) -> Result<Tensor> {
        let o = Desc::new(&self.lib, id::OPERATION_RESHAPE, "a reshape")?
            .desc(id::OPERATION_RESHAPE_XDESC, &self.tensors[x.at])?
            .desc(id::OPERATION_RESHAPE_YDESC, &self.tensors[y.at])?;
        self.ops.push(o.done()?);
        Ok(y)
    }
}
