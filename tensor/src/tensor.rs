//! A local tensor: a strided view of a shared buffer. No autograd, no mesh, no backend parameter.

use crate::Shape;
use crossweave_hal::abi::Layout;
use crossweave_hal::{Buffer, DType, Region};
use crossweave_program::Strided;
use std::sync::Arc;

/// A view: buffer, byte offset, shape, strides in elements, dtype. Clone shares the bytes.
#[derive(Clone)]
pub struct Tensor {
    buffer: Arc<Buffer>,
    view: Strided,
}

impl Tensor {
    /// A dense tensor at byte `at` of `buffer`.
    pub fn dense(buffer: Arc<Buffer>, at: u64, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        Tensor {
            buffer,
            view: Strided::dense(at, shape, dtype),
        }
    }
    fn with(&self, view: Strided) -> Tensor {
        Tensor {
            buffer: self.buffer.clone(),
            view,
        }
    }
    /// Dims.
    #[inline]
    pub fn shape(&self) -> &Shape {
        self.view.shape()
    }
    /// Element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.view.dtype()
    }
    /// Elements.
    pub fn numel(&self) -> u64 {
        self.view.numel()
    }
    /// The memory behind it.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }
    /// First byte in its buffer.
    pub fn offset(&self) -> u64 {
        self.view.at
    }
    /// Do the elements lie densely in row-major order?
    pub fn is_dense(&self) -> bool {
        self.view.is_dense()
    }
    /// Is this the only view of its buffer, so that overwriting it disturbs no other?
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
    }
    /// Do the two show a common element? See [`Strided::shares`].
    pub fn shares(&self, other: &Tensor) -> bool {
        std::ptr::eq(self.buffer.as_ref(), other.buffer.as_ref()) && self.view.shares(&other.view)
    }
    /// The layout as it crosses the boundary.
    #[inline]
    pub fn layout(&self) -> Layout {
        self.view.layout()
    }
    /// Is this its layout? The same answer as comparing with [`Tensor::layout`], without building one.
    #[inline]
    pub(crate) fn has_layout(&self, l: &Layout) -> bool {
        self.view.has_layout(l)
    }
    /// Bytes from the first to one past the last element.
    #[inline]
    pub fn extent(&self) -> u64 {
        self.view.extent()
    }
    /// As an operand.
    #[inline]
    pub fn region(&self) -> Region<'_> {
        self.buffer.region(self.view.at, self.extent())
    }
    /// The same elements under another shape; only dense tensors, same count (else a programming error and panics).
    pub fn view(&self, shape: impl Into<Shape>) -> Tensor {
        self.with(self.view.view(shape))
    }
    /// Any strided view, offsets in elements from this tensor's first; bounds are checked when it is used.
    pub fn strided(&self, shape: impl Into<Shape>, stride: &[i64], from: u64) -> Tensor {
        self.with(self.view.strided(shape, stride, from))
    }
    /// `[start, start + len)` of dim `dim`.
    pub fn narrow(&self, dim: usize, start: u64, len: u64) -> Tensor {
        self.with(self.view.narrow(dim, start, len))
    }
    /// Rows of a matrix: see [`Strided::rows`].
    pub fn rows(&self) -> Tensor {
        self.with(self.view.rows())
    }
    /// The last dim seen as heads: see [`Strided::heads`].
    pub fn heads(&self, heads: u64) -> Tensor {
        self.with(self.view.heads(heads))
    }
    /// The rows of `[B, T, W]` one after the other: see [`Strided::one_row`].
    pub fn one_row(&self) -> Option<Tensor> {
        Some(self.with(self.view.one_row()?))
    }
    /// Transposed matrix.
    pub fn t(&self) -> Tensor {
        self.with(self.view.t())
    }
    /// One value repeated `n` times (stride 0).
    pub fn broadcast_scalar(&self, n: u64) -> Tensor {
        self.strided([n], &[0], 0)
    }
    /// Strides in elements.
    pub fn strides(&self) -> &[i64] {
        self.view.strides()
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype().name(), self.shape())
    }
}
