//! Operands as the kit sees them: row-major elements in bits, and where a layout puts them in memory that holds other things too.

use super::num;
use crossweave_abi::{DType, Layout};

/// What gaps and guards hold at an address; no output may change it. Read as any float of 16 bits or more it is not
/// a number, read as an index it is negative: what is read there and multiplied by 0 shows. Other addresses hold
/// other bytes: the gap of one operand that is copied into that of another shows too.
#[inline]
pub fn guard(at: usize) -> u8 {
    GUARDS[at % PERIOD]
}
/// After so many bytes guards repeat.
const PERIOD: usize = 256;
/// Two periods, so that one lies there from any byte on.
const GUARDS: [u8; 2 * PERIOD] = {
    let mut g = [0xFF; 2 * PERIOD];
    let mut at = 0;
    while at < g.len() {
        g[at] = 0x81 | (at as u8).wrapping_mul(29) & 0x7E;
        at += 2;
    }
    g
};

/// What gaps and guards hold from an address on, as pieces of one length.
fn guards(from: usize) -> &'static [u8] {
    &GUARDS[from % PERIOD..][..PERIOD]
}

/// What so many bytes hold from an address on that belong to no element.
pub fn guarded(from: usize, bytes: usize) -> Vec<u8> {
    let mut all = guards(from).repeat(bytes.div_ceil(PERIOD));
    all.truncate(bytes);
    all
}

/// The first byte that does not hold what [`guard`] says of its address.
pub fn unguarded(memory: &[u8], from: usize) -> Option<usize> {
    let want = guards(from);
    let piece = memory.chunks(PERIOD).position(|c| c != &want[..c.len()])? * PERIOD;
    let rest = memory[piece..].iter().zip(want);
    Some(piece + rest.take_while(|(a, b)| a == b).count())
}
/// What an output holds before it is written: NaN in every float dtype.
pub const POISON: u8 = 0xFF;

/// An operand.
#[derive(Clone, Debug)]
pub struct T {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Strides in elements.
    pub stride: Vec<i64>,
    /// Row-major elements.
    pub bits: Vec<u64>,
}

/// Row-major strides.
pub fn dense(shape: &[usize]) -> Vec<i64> {
    let mut s = vec![1i64; shape.len()];
    for i in (1..shape.len()).rev() {
        s[i - 1] = s[i] * shape[i] as i64;
    }
    s
}

/// Elements of a shape.
pub fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// The index of element `i` of a shape, as text.
pub fn index_of(shape: &[usize], mut i: usize) -> String {
    let mut at = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        at[d] = i % shape[d];
        i /= shape[d];
    }
    format!("{at:?}")
}

impl T {
    /// Dense, from numbers, each rounded to the dtype.
    pub fn new(dtype: DType, shape: &[usize], values: &[f64]) -> T {
        let bits = values.iter().map(|v| num::encode(dtype, *v)).collect();
        T::of_bits(dtype, shape, bits)
    }

    /// Dense, from bits.
    pub fn of_bits(dtype: DType, shape: &[usize], bits: Vec<u64>) -> T {
        T {
            dtype,
            shape: shape.to_vec(),
            stride: dense(shape),
            bits,
        }
    }

    /// Dense, from integers.
    pub fn ints(dtype: DType, shape: &[usize], values: &[i64]) -> T {
        let bits = values
            .iter()
            .map(|v| num::int_bits(dtype, *v as i128))
            .collect();
        T::of_bits(dtype, shape, bits)
    }

    /// One element everywhere.
    pub fn full(dtype: DType, shape: &[usize], v: f64) -> T {
        T::of_bits(dtype, shape, vec![num::encode(dtype, v); count(shape)])
    }

    /// An output before it is written.
    pub fn poison(dtype: DType, shape: &[usize]) -> T {
        let bits = u64::MAX >> (64 - 8 * num::size(dtype));
        T::of_bits(dtype, shape, vec![bits; count(shape)])
    }

    /// The same elements in another layout.
    pub fn at(mut self, stride: &[i64]) -> T {
        self.stride = stride.to_vec();
        self
    }

    /// The dims broadcast by stride 0 (their elements repeat those of index 0); the rest dense.
    pub fn broadcast(mut self, dims: &[usize]) -> T {
        let mut kept = self.shape.clone();
        dims.iter().for_each(|d| kept[*d] = kept[*d].min(1));
        let mut stride = dense(&kept);
        dims.iter().for_each(|d| stride[*d] = 0);
        let row = dense(&self.shape);
        for i in 0..self.bits.len() {
            let mut from = i;
            for &d in dims {
                let at = i / row[d] as usize % self.shape[d];
                from -= at * row[d] as usize;
            }
            self.bits[i] = self.bits[from];
        }
        self.stride = stride;
        self
    }

    /// Physically transposed: the last two dims lie the other way round.
    pub fn transposed(self) -> T {
        let r = self.shape.len();
        let mut order: Vec<usize> = (0..r).collect();
        order.swap(r - 2, r - 1);
        self.lying(&order)
    }

    /// Another matrix: rows are columns.
    pub fn transposed_copy(&self) -> T {
        let (m, n) = (self.shape[0], self.shape[1]);
        let bits = (0..m * n).map(|i| self.bits[i % m * n + i / m]).collect();
        T::of_bits(self.dtype, &[n, m], bits)
    }

    /// Memory order of the dims, outermost first.
    pub fn lying(self, order: &[usize]) -> T {
        let sizes: Vec<usize> = order.iter().map(|d| self.shape[*d]).collect();
        let inner = dense(&sizes);
        let mut stride = vec![0; order.len()];
        for (k, d) in order.iter().enumerate() {
            stride[*d] = inner[k];
        }
        self.at(&stride)
    }

    /// Rows further apart than they are long.
    pub fn padded(self, by: usize) -> T {
        let mut wide = self.shape.clone();
        if let Some(l) = wide.last_mut() {
            *l += by;
        }
        let s = dense(&wide);
        self.at(&s)
    }

    /// Every stride multiplied: elements with gaps between them.
    pub fn spread(self, by: i64) -> T {
        let s: Vec<i64> = dense(&self.shape).iter().map(|s| s * by).collect();
        self.at(&s)
    }

    /// The numbers.
    pub fn values(&self) -> Vec<f64> {
        self.bits
            .iter()
            .map(|b| num::decode(self.dtype, *b))
            .collect()
    }

    /// The integers.
    pub fn integers(&self) -> Vec<i128> {
        self.bits
            .iter()
            .map(|b| num::int_of(self.dtype, *b))
            .collect()
    }

    /// Row-major without gaps?
    pub fn is_dense(&self) -> bool {
        let mut step = 1;
        let mut dims = self.shape.iter().zip(&self.stride).rev();
        dims.all(|(n, s)| {
            let fits = *n == 1 || *s == step;
            step *= *n as i64;
            fits
        })
    }

    /// What crosses the boundary.
    pub fn layout(&self) -> Layout {
        let shape: Vec<u64> = self.shape.iter().map(|d| *d as u64).collect();
        Layout::strided(self.dtype, &shape, &self.stride)
    }

    /// Elements from the first to one past the last.
    pub fn reach(&self) -> usize {
        if self.bits.is_empty() {
            return 0;
        }
        let last: i64 = self
            .shape
            .iter()
            .zip(&self.stride)
            .map(|(n, s)| (*n as i64 - 1) * s)
            .sum();
        last as usize + 1
    }

    /// Bytes of its span.
    pub fn bytes(&self) -> usize {
        self.reach() * num::size(self.dtype)
    }

    /// Calls `f(element, offset in elements)` for every element, in row-major order.
    #[inline]
    pub fn walk(&self, mut f: impl FnMut(usize, usize)) {
        self.rows(|i, o, n, step| {
            for k in 0..n {
                f(i + k, (o + step * k as i64) as usize);
            }
        });
    }

    /// Calls `f(first element, its offset, elements, offset from one to the next)` for every row of the last dim.
    fn rows(&self, mut f: impl FnMut(usize, i64, usize, i64)) {
        let Some((&n, outer)) = self.shape.split_last() else {
            return f(0, 0, self.bits.len(), 0);
        };
        let mut at = vec![0usize; outer.len()];
        let mut offset = 0i64;
        let mut i = 0;
        while i < self.bits.len() {
            f(i, offset, n, self.stride[outer.len()]);
            i += n;
            for d in (0..outer.len()).rev() {
                at[d] += 1;
                offset += self.stride[d];
                if at[d] < outer[d] {
                    break;
                }
                offset -= self.stride[d] * outer[d] as i64;
                at[d] = 0;
            }
        }
    }

    /// Writes the elements into the memory of its span.
    pub fn put(&self, memory: &mut [u8]) {
        match num::size(self.dtype) {
            1 => self.put_of::<1>(memory),
            2 => self.put_of::<2>(memory),
            4 => self.put_of::<4>(memory),
            _ => self.put_of::<8>(memory),
        }
    }

    fn put_of<const N: usize>(&self, memory: &mut [u8]) {
        let (to, _) = memory.as_chunks_mut::<N>();
        self.walk(|i, o| to[o].copy_from_slice(&self.bits[i].to_le_bytes()[..N]));
    }

    /// Do they lie in the memory of its span?
    pub fn lies_in(&self, memory: &[u8]) -> bool {
        fn of<const N: usize>(t: &T, memory: &[u8]) -> bool {
            let (there, _) = memory.as_chunks::<N>();
            let mut same = true;
            t.walk(|i, at| same &= there[at] == t.bits[i].to_le_bytes()[..N]);
            same
        }
        match num::size(self.dtype) {
            1 => of::<1>(self, memory),
            2 => of::<2>(self, memory),
            4 => of::<4>(self, memory),
            _ => of::<8>(self, memory),
        }
    }

    /// Reads the elements back from the memory of its span.
    pub fn take(&self, memory: &[u8]) -> Vec<u64> {
        match num::size(self.dtype) {
            1 => self.take_of::<1>(memory),
            2 => self.take_of::<2>(memory),
            4 => self.take_of::<4>(memory),
            _ => self.take_of::<8>(memory),
        }
    }

    fn take_of<const N: usize>(&self, memory: &[u8]) -> Vec<u64> {
        let (from, _) = memory.as_chunks::<N>();
        let mut bits = vec![0; self.bits.len()];
        self.walk(|i, o| {
            let mut b = [0; 8];
            b[..N].copy_from_slice(&from[o]);
            bits[i] = u64::from_le_bytes(b);
        });
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_taken_whatever_the_layout() {
        let t = || {
            T::new(
                DType::Bf16,
                &[2, 3, 4],
                &(0..24).map(f64::from).collect::<Vec<_>>(),
            )
        };
        for t in [
            t(),
            t().transposed(),
            t().lying(&[2, 0, 1]),
            t().padded(3),
            t().spread(2),
            t().broadcast(&[0]),
            t().broadcast(&[1, 2]),
        ] {
            let mut memory: Vec<u8> = (0..t.bytes()).map(guard).collect();
            t.put(&mut memory);
            assert_eq!(t.take(&memory), t.bits, "{:?}", t.stride);
            assert!(t.lies_in(&memory), "{:?}", t.stride);
            let last = t.bytes() - 1;
            memory[last] ^= 1;
            assert!(!t.lies_in(&memory), "{:?}", t.stride);
        }
        assert!(t().is_dense() && !t().transposed().is_dense() && !t().padded(3).is_dense());
        assert!(!t().broadcast(&[0]).is_dense());
        let b = t().broadcast(&[0, 2]);
        assert_eq!(b.stride, [0, 1, 0]);
        assert_eq!(b.values()[..8], [0.0, 0.0, 0.0, 0.0, 4.0, 4.0, 4.0, 4.0]);
        assert_eq!(b.bytes(), 6);
        assert_eq!(T::new(DType::F32, &[0, 3], &[]).padded(1).bytes(), 0);
        assert_eq!(index_of(&[2, 3, 4], 23), "[1, 2, 3]");
    }

    #[test]
    fn what_is_no_elements_is_known_by_its_address() {
        for from in [0, 1, 255, 256, 1000] {
            for bytes in [0, 1, 255, 256, 257, 700] {
                let memory = guarded(from, bytes);
                let each: Vec<u8> = (from..from + bytes).map(guard).collect();
                assert_eq!(memory, each);
                assert_eq!(unguarded(&memory, from), None);
                for at in [0, 1, 255, 256, 699] {
                    let mut other = memory.clone();
                    let Some(b) = other.get_mut(at) else { continue };
                    *b ^= 2;
                    assert_eq!(unguarded(&other, from), Some(at));
                }
            }
        }
    }
}
