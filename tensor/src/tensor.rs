//! A local tensor: a strided view of a shared buffer. No autograd, no mesh, no backend parameter.

use crate::Shape;
use crossweave_hal::abi::Layout;
use crossweave_hal::{Buffer, DType, Region};
use std::sync::Arc;

/// A view: buffer, byte offset, shape, strides in elements, dtype. Clone shares the bytes.
#[derive(Clone)]
pub struct Tensor {
    buffer: Arc<Buffer>,
    at: u64,
    shape: Shape,
    stride: [i64; 6],
    dtype: DType,
}

fn dense(shape: &Shape) -> [i64; 6] {
    let mut stride = [0; 6];
    let mut step = 1;
    for i in (0..shape.rank()).rev() {
        stride[i] = step;
        step *= shape.dims()[i] as i64;
    }
    stride
}

impl Tensor {
    /// A dense tensor at byte `at` of `buffer`.
    pub fn dense(buffer: Arc<Buffer>, at: u64, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        let shape = shape.into();
        Tensor {
            stride: dense(&shape),
            buffer,
            at,
            shape,
            dtype,
        }
    }
    /// Dims.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Elements.
    pub fn numel(&self) -> u64 {
        self.shape.numel()
    }
    /// The memory behind it.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }
    /// First byte in its buffer.
    pub fn offset(&self) -> u64 {
        self.at
    }
    /// Do the elements lie densely in row-major order?
    pub fn is_dense(&self) -> bool {
        let mut step = 1;
        for (d, s) in self.shape.dims().iter().zip(self.strides()).rev() {
            if *d != 1 && *s != step {
                return false;
            }
            step *= *d as i64;
        }
        true
    }
    /// Is this the only view of its buffer, so that overwriting it disturbs nobody?
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
    }
    /// Do the two show a common element? Columns of one matrix do not when they are apart; everything else in one buffer whose bytes
    /// interleave is taken to.
    pub fn shares(&self, other: &Tensor) -> bool {
        if !std::ptr::eq(self.buffer.as_ref(), other.buffer.as_ref()) {
            return false;
        }
        let (a, b) = (self.at, other.at);
        if a + self.extent() <= b || b + other.extent() <= a {
            return false;
        }
        let n = self.shape.rank();
        if n < 2 || n != other.shape.rank() || self.stride[..n] != other.stride[..n] {
            return true;
        }
        // Two slices of the last dim of one matrix: compare columns.
        let row = self.dtype.bytes(self.stride[n - 2] as u64).max(1);
        let columns = |at: u64, t: &Tensor| {
            let from = at % row;
            (from, from + t.dtype.bytes(t.shape.last()))
        };
        let base = a.min(b) % row;
        let (a, b) = (
            columns(a - a.min(b) + base, self),
            columns(b - a.min(b) + base, other),
        );
        a.0 < b.1 && b.0 < a.1 || a.1 > row || b.1 > row
    }
    /// The layout as it crosses the boundary.
    #[inline]
    pub fn layout(&self) -> Layout {
        Layout::strided(
            self.dtype,
            self.shape.dims(),
            &self.stride[..self.shape.rank()],
        )
    }
    /// Is this its layout? The same answer as comparing with [`Tensor::layout`], without building one.
    #[inline]
    pub(crate) fn has_layout(&self, l: &Layout) -> bool {
        let n = self.shape.rank();
        l.dtype == self.dtype.id()
            && l.rank as usize == n
            && (0..n)
                .all(|i| l.shape[i] == self.shape.dims()[i] as i64 && l.stride[i] == self.stride[i])
    }
    /// Bytes from the first to one past the last element.
    #[inline]
    pub fn extent(&self) -> u64 {
        let mut last = 0;
        for (d, s) in self.shape.dims().iter().zip(self.stride) {
            if *d == 0 {
                return 0;
            }
            last += (*d as i64 - 1) * s;
        }
        self.dtype.bytes(last as u64 + 1)
    }
    /// As an operand.
    #[inline]
    pub fn region(&self) -> Region<'_> {
        self.buffer.region(self.at, self.extent())
    }
    /// The same elements under another shape; only dense tensors, same count (else a programming error and panics).
    pub fn view(&self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        assert!(
            self.is_dense() && shape.numel() == self.numel(),
            "view {:?} of {:?}",
            shape,
            self.shape
        );
        Tensor {
            stride: dense(&shape),
            buffer: self.buffer.clone(),
            at: self.at,
            shape,
            dtype: self.dtype,
        }
    }
    /// Any strided view, offsets in elements from this tensor's first; bounds are checked when it is used.
    pub fn strided(&self, shape: impl Into<Shape>, stride: &[i64], from: u64) -> Tensor {
        let mut s = [0; 6];
        s[..stride.len()].copy_from_slice(stride);
        Tensor {
            buffer: self.buffer.clone(),
            at: self.at + self.dtype.bytes(from),
            shape: shape.into(),
            stride: s,
            dtype: self.dtype,
        }
    }
    /// `[start, start + len)` of dim `dim`.
    pub fn narrow(&self, dim: usize, start: u64, len: u64) -> Tensor {
        let mut d = [0; 6];
        let n = self.shape.rank();
        d[..n].copy_from_slice(self.shape.dims());
        d[dim] = len;
        let from = (start as i64 * self.stride[dim]) as u64;
        self.strided(&d[..n], &self.stride[..n], from)
    }
    /// Rows of a matrix: all dims but the last joined. Strided rows stay strided when every outer dim is dense over the rows.
    pub fn rows(&self) -> Tensor {
        let n = self.shape.rank();
        if n == 0 {
            return self.strided([1, 1], &[1, 1], 0);
        }
        let row = if n >= 2 {
            self.stride[n - 2]
        } else {
            self.shape.last() as i64
        };
        self.strided(
            [self.shape.rows(), self.shape.last()],
            &[row, self.stride[n - 1]],
            0,
        )
    }
    /// The last dim seen as heads: `[B, T, H, D]` of a `[B, T, H * D]` tensor.
    pub fn heads(&self, heads: u64) -> Tensor {
        let (d, s) = (self.shape.dims(), self.stride);
        let width = d[2] / heads;
        self.strided(
            [d[0], d[1], heads, width],
            &[s[0], s[1], width as i64, 1],
            0,
        )
    }
    /// The rows of `[B, T, W]` one after the other, `[1, B T, W]`; `None` where they lie so far apart that no stride leads through them.
    pub fn one_row(&self) -> Option<Tensor> {
        let (d, s) = (self.shape.dims(), self.stride);
        let follows = d.len() == 3 && (d[0] <= 1 || s[0] == d[1] as i64 * s[1]);
        follows.then(|| self.strided([1, d[0] * d[1], d[2]], &[s[0] * d[0] as i64, s[1], s[2]], 0))
    }
    /// Transposed matrix.
    pub fn t(&self) -> Tensor {
        let d = self.shape.dims();
        self.strided([d[1], d[0]], &[self.stride[1], self.stride[0]], 0)
    }
    /// One value repeated `n` times (stride 0).
    pub fn broadcast_scalar(&self, n: u64) -> Tensor {
        self.strided([n], &[0], 0)
    }
    /// Strides in elements.
    pub fn strides(&self) -> &[i64] {
        &self.stride[..self.shape.rank()]
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype.name(), self.shape)
    }
}
