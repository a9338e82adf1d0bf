//! copy_strided and fill_strided: memory to memory by element size, sequential in the destination, transposes in tiles.

use super::view::*;
use crate::kernel::{Kernel, Launch};
use crate::simd::convert;
use crossweave_abi::op;
use crossweave_plugin::{DType, OpRequest, Plan, Result};

type Prepared = Result<(Box<dyn Kernel>, Plan)>;

/// One loop of a copy: size, destination stride, source stride.
type Loop = (usize, usize, usize);

struct Copy {
    elem: usize,
    total: usize,
    /// Outermost first, by falling destination stride, merged where both sides allow.
    loops: Vec<Loop>,
    /// The loop whose source stride is 1 while the innermost one's is not.
    transposed: Option<usize>,
}

/// `copy_strided`.
pub fn copy_strided(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 2..=2)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (dst, src) = (
        output_strided(o, 0, WHOLE_BYTES)?,
        input(o, 1, WHOLE_BYTES)?,
    );
    shape(o, 1, &src, &dst.shape)?;
    same_dtype(o, 1, &src, &dst)?;
    let mut all: Vec<Loop> = (0..dst.shape.len())
        .map(|i| (dst.shape[i], dst.stride[i], src.stride[i]))
        .filter(|l| l.0 != 1)
        .collect();
    all.sort_by_key(|l| std::cmp::Reverse(l.1));
    let mut loops: Vec<Loop> = Vec::new();
    for l in all {
        match loops.last_mut() {
            Some(p) if p.1 == l.1 * l.0 && p.2 == l.2 * l.0 => *p = (p.0 * l.0, l.1, l.2),
            _ => loops.push(l),
        }
    }
    let transposed = match loops.last() {
        Some(&(n, 1, s)) if s > 1 && n >= 4 => loops.iter().position(|l| l.2 == 1 && l.0 >= 4),
        _ => None,
    };
    let k = Copy {
        elem: dst.elem(),
        total: dst.total,
        loops,
        transposed,
    };
    Ok((Box::new(k), plan(o, 0)))
}

/// Offsets of outer index `i` over loops (all but the skipped ones), outermost first.
fn offsets(loops: &[Loop], skip: [usize; 2], mut i: usize) -> (usize, usize) {
    let (mut d, mut s) = (0, 0);
    for (k, l) in loops.iter().enumerate().rev() {
        if !skip.contains(&k) {
            let at = i % l.0;
            i /= l.0;
            d += at * l.1;
            s += at * l.2;
        }
    }
    (d, s)
}

/// Side of a transpose tile.
const TILE: usize = 64;

impl Copy {
    /// # Safety
    /// As `Kernel::run`, with `T` of the element's size.
    unsafe fn of<T: std::marker::Copy>(&self, l: &Launch<'_>) {
        let (y, x) = (Ptr(l.operands[0]), Ptr(l.operands[1]));
        let Some(&(n, ds, ss)) = self.loops.last() else {
            // SAFETY: one element.
            unsafe { *y.at::<T>(0) = *x.at::<T>(0) };
            return;
        };
        let inner = self.loops.len() - 1;
        if let Some(j) = self.transposed {
            let (nj, dj, _) = self.loops[j];
            let strips = nj.div_ceil(TILE);
            let outer = self.total / n / nj;
            l.team.run(outer * strips, &|t| {
                let (d0, s0) = offsets(&self.loops, [inner, j], t / strips);
                let j0 = t % strips * TILE;
                let wj = TILE.min(nj - j0);
                for i0 in (0..n).step_by(TILE) {
                    let wi = TILE.min(n - i0);
                    // Through a small buffer: source and destination lines are touched once each, however their strides collide in the cache.
                    let mut tile = [[std::mem::MaybeUninit::<T>::uninit(); TILE]; TILE];
                    // SAFETY: indices stay below the loops' sizes; the destination's elements are distinct; the tile is read where written.
                    unsafe {
                        for (ii, row) in tile.iter_mut().enumerate().take(wi) {
                            let s = x.at::<T>(s0 + j0 + (i0 + ii) * ss);
                            std::ptr::copy_nonoverlapping(s, row.as_mut_ptr().cast(), wj);
                        }
                        for jj in 0..wj {
                            let d = y.at::<T>(d0 + (j0 + jj) * dj + i0);
                            for (ii, row) in tile.iter().enumerate().take(wi) {
                                *d.add(ii) = row[jj].assume_init();
                            }
                        }
                    }
                }
            });
            return;
        }
        // Long rows are cut, short rows are grouped, so that a task moves about CHUNK elements.
        let cuts = n.div_ceil(CHUNK);
        let group = (CHUNK / n).max(1);
        let pieces = self.total / n * cuts;
        chunks(l.team, pieces, group, &|start, len| {
            for p in start..start + len {
                let (d0, s0) = offsets(&self.loops, [inner, inner], p / cuts);
                let at = p % cuts * CHUNK;
                let w = CHUNK.min(n - at);
                // SAFETY: as above.
                unsafe {
                    let d = y.at::<T>(d0 + at * ds);
                    let s = x.at::<T>(s0 + at * ss);
                    if ds == 1 && ss == 1 {
                        std::ptr::copy(s, d, w);
                    } else if ds == 1 && ss == 0 {
                        std::slice::from_raw_parts_mut(d, w).fill(*s);
                    } else {
                        for i in 0..w {
                            *d.add(i * ds) = *s.add(i * ss);
                        }
                    }
                }
            }
        });
    }
}

impl Kernel for Copy {
    unsafe fn run(&self, l: &Launch<'_>) {
        if self.total == 0 {
            return;
        }
        // SAFETY: forwarded; the type only carries the size.
        unsafe {
            match self.elem {
                1 => self.of::<u8>(l),
                2 => self.of::<u16>(l),
                4 => self.of::<u32>(l),
                _ => self.of::<u64>(l),
            }
        }
    }
}

struct Fill {
    dst: View,
    bits: u64,
}

/// The bits of `value` in a dtype; integers must be exact.
fn bits_of(o: &OpRequest<'_>, dtype: DType, value: f64) -> Result<u64> {
    let int = |lo: f64, hi: f64| {
        if value.fract() != 0.0 || !(lo..=hi).contains(&value) {
            return invalid(o, format!("{value} is not a value of {}", dtype.name()));
        }
        Ok(())
    };
    Ok(match dtype {
        DType::F32 => (value as f32).to_bits() as u64,
        DType::F64 => value.to_bits(),
        DType::Bf16 => convert::bf16_of_f32(super::cast::round_to_odd(value)) as u64,
        DType::F16 => convert::f16_of_f32(super::cast::round_to_odd(value)) as u64,
        DType::I8 => {
            int(-128.0, 127.0)?;
            value as i8 as u8 as u64
        }
        DType::U8 => {
            int(0.0, 255.0)?;
            value as u64
        }
        DType::I32 => {
            int(i32::MIN as f64, i32::MAX as f64)?;
            value as i32 as u32 as u64
        }
        DType::U32 => {
            int(0.0, u32::MAX as f64)?;
            value as u64
        }
        DType::I64 => {
            // The largest f64 below 2^63.
            int(-9.223_372_036_854_776e18, 9.223_372_036_854_775e18)?;
            value as i64 as u64
        }
        DType::U64 => {
            int(0.0, 1.844_674_407_370_955e19)?;
            value as u64
        }
        _ => return refuse(o, format!("dtype {} is not supported", dtype.name())),
    })
}

/// `fill_strided`.
pub fn fill_strided(o: &OpRequest<'_>, _: usize) -> Prepared {
    arity(o, 1..=1)?;
    let p = o.params::<op::FillParams>()?;
    flags(o, p.flags, 0)?;
    let dst = output_strided(o, 0, WHOLE_BYTES)?;
    let bits = bits_of(o, dst.dtype, p.value)?;
    Ok((Box::new(Fill { dst, bits }), plan(o, 0)))
}

impl Fill {
    /// # Safety
    /// As `Kernel::run`, with `T` of the element's size.
    unsafe fn of<T: std::marker::Copy + Send + Sync>(&self, l: &Launch<'_>, v: T) {
        let y = Ptr(l.operands[0]);
        chunks(l.team, self.dst.total, CHUNK, &|start, len| {
            self.dst.rows(start, len, |off, stride, n| {
                // SAFETY: the walk stays inside the layout; tasks write disjoint elements.
                unsafe {
                    if stride == 1 {
                        y.slice_mut::<T>(off, n).fill(v);
                    } else {
                        for i in 0..n {
                            *y.at(off + i * stride) = v;
                        }
                    }
                }
            });
        });
    }
}

impl Kernel for Fill {
    unsafe fn run(&self, l: &Launch<'_>) {
        // SAFETY: forwarded; the type only carries the size.
        unsafe {
            match self.dst.elem() {
                1 => self.of(l, self.bits as u8),
                2 => self.of(l, self.bits as u16),
                4 => self.of(l, self.bits as u32),
                _ => self.of(l, self.bits),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crossweave_plugin::Code;

    /// Copies between every pair of layouts of one shape; what lies in the gaps of the destination must not change.
    #[test]
    fn every_permutation_slice_and_broadcast() {
        let none = op::NoParams::default();
        let mut rng = Rng(4);
        for t in [DType::U8, DType::Bf16, DType::F32, DType::I64] {
            for shape in [
                [0, 3, 4],
                [1, 1, 1],
                [2, 3, 4],
                [5, 33, 40],
                [3, 129, 65],
                [40, 3, 170],
            ] {
                let n: usize = shape.iter().product();
                let v: Vec<f64> = (0..n).map(|_| rng.below(200) as f64).collect();
                let [a, b, c] = shape;
                let layouts = [
                    [b * c, c, 1],
                    [b * c, 1, b],
                    [1, a * c, a],
                    [c, a * c, 1],
                    [1, a, a * b],
                    [4 * b * c + 7, 2 * c + 1, 2],
                ];
                for from in layouts {
                    for to in layouts {
                        let src = Tensor::strided(t, &shape, &from, &v);
                        let mut ops = [Tensor::strided(t, &shape, &to, &vec![1.0; n]), src];
                        let want = Tensor::strided(t, &shape, &to, &v);
                        run(op::COPY_STRIDED, none.as_bytes(), &[], &mut ops);
                        assert!(
                            ops[0].data == want.data,
                            "{t:?} {shape:?} {from:?} to {to:?}"
                        );
                    }
                }
                let row: Vec<f64> = (0..n).map(|i| (i % c.max(1)) as f64).collect();
                for (stride, v) in [([0, 0, 1], row), ([0, 0, 0], vec![9.0; n])] {
                    let mut ops = [
                        Tensor::poison(t, &shape),
                        Tensor::strided(t, &shape, &stride, &v),
                    ];
                    run(op::COPY_STRIDED, none.as_bytes(), &[], &mut ops);
                    close("broadcast", &ops[0].values(), &v, |_| 0.0);
                }
            }
        }
    }

    #[test]
    fn fill_reaches_every_element_and_no_gap() {
        for (t, value) in [
            (DType::F32, 0.1),
            (DType::Bf16, -2.5),
            (DType::F16, f64::INFINITY),
            (DType::I32, -7.0),
            (DType::U8, 255.0),
            (DType::I64, -1e15),
            (DType::U64, 3.0),
        ] {
            for shape in [[0, 2], [1, 1], [33, 7], [130, 300]] {
                for stride in strides(shape[0], shape[1]) {
                    let n = shape[0] * shape[1];
                    let p = op::FillParams {
                        value,
                        ..Default::default()
                    };
                    let mut ops = [Tensor::strided(t, &shape, &stride, &vec![1.0; n])];
                    run(op::FILL_STRIDED, p.as_bytes(), &[], &mut ops);
                    assert!(
                        ops[0].data == Tensor::strided(t, &shape, &stride, &vec![value; n]).data
                    );
                }
            }
        }
    }

    #[test]
    fn refusals() {
        let fill = |t: DType, value: f64| {
            let p = op::FillParams {
                value,
                ..Default::default()
            };
            refusal(op::FILL_STRIDED, p.as_bytes(), &[Tensor::poison(t, &[2])])
        };
        assert_eq!(fill(DType::I32, 0.5), Some(Code::Invalid));
        assert_eq!(fill(DType::U8, 256.0), Some(Code::Invalid));
        assert_eq!(fill(DType::F8E4M3, 1.0), Some(Code::Unsupported));
        let none = op::NoParams::default();
        let overlap = Tensor::strided(DType::F32, &[4, 4], &[2, 1], &[0.0; 16]);
        let src = Tensor::poison(DType::F32, &[4, 4]);
        assert_eq!(
            refusal(op::COPY_STRIDED, none.as_bytes(), &[overlap, src]),
            Some(Code::Invalid)
        );
    }
}
