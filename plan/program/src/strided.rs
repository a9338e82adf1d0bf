//! Which elements of a piece of memory a tensor shows: first byte, shape, strides and type. No memory of its own.

use crate::Shape;
use crossweave_abi::{DType, Layout};

/// A strided view of memory that is not named here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strided {
    /// First byte.
    pub at: u64,
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

impl Strided {
    /// Dense elements from byte `at` on.
    pub fn dense(at: u64, shape: impl Into<Shape>, dtype: DType) -> Strided {
        let shape = shape.into();
        Strided {
            stride: dense(&shape),
            at,
            shape,
            dtype,
        }
    }
    /// Dims.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
    /// Element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Strides in elements.
    #[inline]
    pub fn strides(&self) -> &[i64] {
        &self.stride[..self.shape.rank()]
    }
    /// Elements.
    pub fn numel(&self) -> u64 {
        self.shape.numel()
    }
    /// Returns true if the elements lie densely in row-major order.
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
    /// Returns true if two views of one memory share an element. Columns of one matrix do not when they are apart; all other views whose
    /// bytes interleave are taken to.
    pub fn shares(&self, other: &Strided) -> bool {
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
        let columns = |at: u64, t: &Strided| {
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
    /// The layout as it crosses the plugin boundary.
    #[inline]
    pub fn layout(&self) -> Layout {
        Layout::strided(self.dtype, self.shape.dims(), self.strides())
    }
    /// Returns true if this is its layout: the same answer as comparing with [`Strided::layout`], without building one.
    #[inline]
    pub fn has_layout(&self, l: &Layout) -> bool {
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
    /// The same elements under another shape; only of dense views of as many elements (else a programming error and
    /// panics).
    pub fn view(&self, shape: impl Into<Shape>) -> Strided {
        let shape = shape.into();
        assert!(
            self.is_dense() && shape.numel() == self.numel(),
            "view {:?} of {:?}",
            shape,
            self.shape
        );
        Strided::dense(self.at, shape, self.dtype)
    }
    /// Any strided view, offsets in elements from the first of this one; bounds are checked where it is used.
    pub fn strided(&self, shape: impl Into<Shape>, stride: &[i64], from: u64) -> Strided {
        let mut s = [0; 6];
        s[..stride.len()].copy_from_slice(stride);
        Strided {
            at: self.at + self.dtype.bytes(from),
            shape: shape.into(),
            stride: s,
            dtype: self.dtype,
        }
    }
    /// `[start, start + len)` of dim `dim`.
    pub fn narrow(&self, dim: usize, start: u64, len: u64) -> Strided {
        let mut d = [0; 6];
        let n = self.shape.rank();
        d[..n].copy_from_slice(self.shape.dims());
        d[dim] = len;
        let from = (start as i64 * self.stride[dim]) as u64;
        self.strided(&d[..n], &self.stride[..n], from)
    }
    /// Rows of a matrix: all dims but the last joined. Strided rows stay strided when every outer dim is dense over the
    /// rows.
    pub fn rows(&self) -> Strided {
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
    /// The last dim seen as heads: `[B, T, H, D]` of a `[B, T, H * D]` view; one that has that shape already stays as
    /// it is.
    pub fn heads(&self, heads: u64) -> Strided {
        let (d, s) = (self.shape.dims(), self.stride);
        if d.len() == 4 {
            return *self;
        }
        let width = d[2] / heads;
        self.strided(
            [d[0], d[1], heads, width],
            &[s[0], s[1], width as i64, 1],
            0,
        )
    }
    /// The rows of `[B, T, W]` (or `[B, T, H, D]`) one after the other, `[1, B T, …]`; `None` where they lie so far
    /// apart that no stride leads through them.
    pub fn one_row(&self) -> Option<Strided> {
        let (d, s) = (self.shape.dims(), self.stride);
        let follows = d.len() >= 3 && (d[0] <= 1 || s[0] == d[1] as i64 * s[1]);
        follows.then(|| {
            let (mut shape, mut stride) = (d.to_vec(), s[..d.len()].to_vec());
            (shape[0], shape[1]) = (1, d[0] * d[1]);
            stride[0] *= d[0] as i64;
            self.strided(&shape[..], &stride, 0)
        })
    }
    /// Transposed matrix.
    pub fn t(&self) -> Strided {
        let d = self.shape.dims();
        self.strided([d[1], d[0]], &[self.stride[1], self.stride[0]], 0)
    }
    /// One value in every place of a shape (strides of 0).
    pub fn everywhere(&self, dims: &[u64]) -> Strided {
        self.strided(dims, &[0; 6][..dims.len()], 0)
    }
}
