//! Sizes of a tensor: at most six dims, 64-bit everywhere.

/// Dims of a tensor, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shape {
    dims: [u64; 6],
    rank: u8,
}

impl Shape {
    /// A shape of at most six dims (more is a programming error and panics).
    pub fn new(dims: &[u64]) -> Shape {
        assert!(dims.len() <= 6, "a tensor has at most 6 dims, got {dims:?}");
        let mut s = Shape {
            dims: [0; 6],
            rank: dims.len() as u8,
        };
        s.dims[..dims.len()].copy_from_slice(dims);
        s
    }
    /// The dims.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..self.rank as usize]
    }
    /// Number of dims.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }
    /// Elements.
    pub fn numel(&self) -> u64 {
        self.dims().iter().product()
    }
    /// Size of the last dim (1 for a scalar).
    pub fn last(&self) -> u64 {
        self.dims().last().copied().unwrap_or(1)
    }
    /// Product of all dims but the last.
    pub fn rows(&self) -> u64 {
        self.dims()[..self.rank().saturating_sub(1)]
            .iter()
            .product()
    }
    /// The same with the last dim replaced.
    pub fn with_last(&self, n: u64) -> Shape {
        let mut s = *self;
        if s.rank > 0 {
            s.dims[s.rank as usize - 1] = n;
        }
        s
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}
impl From<&[u64]> for Shape {
    fn from(d: &[u64]) -> Shape {
        Shape::new(d)
    }
}
impl<const N: usize> From<[u64; N]> for Shape {
    fn from(d: [u64; N]) -> Shape {
        Shape::new(&d)
    }
}
