//! Test bench of the ops: operands with any strides and storage, run over teams of several sizes, compared with a plain f64 reference.

use crate::isa::Isas;
use crate::kernel::Launch;
use crate::team::Team;
use crossweave_abi::Layout;
use crossweave_plugin::{Code, DType, Host, OpRequest};

/// Sizes that hit empty, one element, tails of every loop, and several tasks.
pub const SIZES: [usize; 7] = [0, 1, 7, 33, 1000, 4099, 40_003];
/// The float storages.
pub const STORAGES: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];

/// A repeatable stream of numbers.
pub struct Rng(pub u64);
impl Rng {
    /// The next 32 bits.
    pub fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
    /// Uniform in [-1, 1).
    pub fn unit(&mut self) -> f64 {
        self.bits() as f64 / (1u64 << 30) as f64 - 1.0
    }
    /// So many, scaled.
    pub fn floats(&mut self, n: usize, scale: f64) -> Vec<f64> {
        (0..n).map(|_| self.unit() * scale).collect()
    }
    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n.max(1)
    }
}

/// Unit roundoff of a storage.
pub fn unit_of(t: DType) -> f64 {
    match t {
        DType::Bf16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        _ => 2f64.powi(-24),
    }
}

/// An operand with its memory, gaps included.
#[derive(Clone)]
pub struct Tensor {
    pub layout: Layout,
    pub dtype: DType,
    pub data: Vec<u64>,
}

fn put(t: DType, p: *mut u8, off: usize, v: f64) {
    // SAFETY: tests give offsets inside their own buffer.
    unsafe {
        match t {
            DType::F32 => *p.cast::<f32>().add(off) = v as f32,
            DType::F64 => *p.cast::<f64>().add(off) = v,
            DType::Bf16 => *p.cast::<u16>().add(off) = half::bf16::from_f32(v as f32).to_bits(),
            DType::F16 => *p.cast::<u16>().add(off) = half::f16::from_f32(v as f32).to_bits(),
            DType::I8 => *p.cast::<i8>().add(off) = v as i8,
            DType::U8 => *p.add(off) = v as u8,
            DType::I32 => *p.cast::<i32>().add(off) = v as i32,
            DType::U32 => *p.cast::<u32>().add(off) = v as u32,
            DType::I64 => *p.cast::<i64>().add(off) = v as i64,
            _ => *p.cast::<u64>().add(off) = v as u64,
        }
    }
}

fn take(t: DType, p: *const u8, off: usize) -> f64 {
    // SAFETY: tests give offsets inside their own buffer.
    unsafe {
        match t {
            DType::F32 => *p.cast::<f32>().add(off) as f64,
            DType::F64 => *p.cast::<f64>().add(off),
            DType::Bf16 => half::bf16::from_bits(*p.cast::<u16>().add(off)).to_f64(),
            DType::F16 => half::f16::from_bits(*p.cast::<u16>().add(off)).to_f64(),
            DType::I8 => *p.cast::<i8>().add(off) as f64,
            DType::U8 => *p.add(off) as f64,
            DType::I32 => *p.cast::<i32>().add(off) as f64,
            DType::U32 => *p.cast::<u32>().add(off) as f64,
            DType::I64 => *p.cast::<i64>().add(off) as f64,
            _ => *p.cast::<u64>().add(off) as f64,
        }
    }
}

impl Tensor {
    /// Dense, from row-major values.
    pub fn new(t: DType, shape: &[usize], v: &[f64]) -> Tensor {
        let s: Vec<u64> = shape.iter().map(|d| *d as u64).collect();
        Tensor::on(t, Layout::contiguous(t, &s), v)
    }
    /// Dense, filled with a value a correct op overwrites or ignores.
    pub fn poison(t: DType, shape: &[usize]) -> Tensor {
        let n = shape.iter().product();
        let v = if t.is_float() { f64::NAN } else { 77.0 };
        Tensor::new(t, shape, &vec![v; n])
    }
    /// With strides, from row-major values (of a broadcast dim the last write counts).
    pub fn strided(t: DType, shape: &[usize], stride: &[usize], v: &[f64]) -> Tensor {
        let s: Vec<u64> = shape.iter().map(|d| *d as u64).collect();
        let k: Vec<i64> = stride.iter().map(|d| *d as i64).collect();
        Tensor::on(t, Layout::strided(t, &s, &k), v)
    }
    /// The absent operand.
    pub fn absent() -> Tensor {
        Tensor {
            layout: Layout::ABSENT,
            dtype: DType::F32,
            data: Vec::new(),
        }
    }
    fn on(t: DType, layout: Layout, v: &[f64]) -> Tensor {
        let words = (layout.extent_bytes() as usize).div_ceil(8) + 1;
        let mut x = Tensor {
            layout,
            dtype: t,
            data: vec![0x7e7e_7e7e_7e7e_7e7e; words],
        };
        assert_eq!(v.len() as u64, layout.numel());
        for (i, v) in v.iter().enumerate() {
            let off = x.offset(i);
            put(t, x.data.as_mut_ptr().cast(), off, *v);
        }
        x
    }
    fn offset(&self, mut i: usize) -> usize {
        let mut off = 0;
        for d in (0..self.layout.rank as usize).rev() {
            let n = self.layout.shape[d] as usize;
            off += i % n * self.layout.stride[d] as usize;
            i /= n;
        }
        off
    }
    /// Row-major values.
    pub fn values(&self) -> Vec<f64> {
        (0..self.layout.numel() as usize)
            .map(|i| take(self.dtype, self.data.as_ptr().cast(), self.offset(i)))
            .collect()
    }
    /// A 32-bit operand's bits.
    pub fn words(&self) -> Vec<u32> {
        assert!(self.dtype.bits() == 32);
        (0..self.layout.numel() as usize)
            // SAFETY: inside our own buffer.
            .map(|i| unsafe { *self.data.as_ptr().cast::<u32>().add(self.offset(i)) })
            .collect()
    }
}

/// Runs an op in place over the operands, `alias[i] = j` makes operand i the memory of operand j; panics when it is refused.
pub fn run_aliased(
    id: u32,
    params: &[u8],
    dynamic: &[u8],
    operands: &mut [Tensor],
    alias: &[(usize, usize)],
) {
    let layouts: Vec<Layout> = operands.iter().map(|t| t.layout).collect();
    let o = OpRequest::new(id, &layouts, params, 0);
    let before = operands.to_vec();
    let mut first: Option<Vec<Tensor>> = None;
    for threads in [1, 2, 3, 5] {
        let team = Team::new(threads, &Host::none());
        let (k, plan) = crate::ops::prepare(&o, threads, Isas::detect()).expect("prepare");
        k.check(dynamic).expect("check");
        operands.clone_from_slice(&before);
        let mut ptrs: Vec<*mut u8> = operands
            .iter_mut()
            .map(|t| {
                if t.layout.present() {
                    t.data.as_mut_ptr().cast()
                } else {
                    std::ptr::null_mut()
                }
            })
            .collect();
        for (i, j) in alias {
            ptrs[*i] = ptrs[*j];
        }
        // Scratch arrives full of rubbish and must not be overrun.
        let words = (plan.workspace_bytes as usize).div_ceil(8);
        let mut scratch = vec![u64::MAX; words + 8];
        let l = Launch {
            operands: &ptrs,
            workspace: scratch.as_mut_ptr().cast(),
            dynamic,
            team: &team,
        };
        // SAFETY: every address is a live buffer of its layout.
        unsafe { k.run(&l) };
        assert!(
            scratch[words..].iter().all(|w| *w == u64::MAX),
            "workspace overrun"
        );
        match &first {
            None => first = Some(operands.to_vec()),
            Some(f) => {
                for (i, (a, b)) in f.iter().zip(operands.iter()).enumerate() {
                    assert!(
                        a.data == b.data,
                        "op {id:#x}: operand {i} depends on the team"
                    );
                }
            }
        }
    }
}

/// Runs an op in place over the operands.
pub fn run(id: u32, params: &[u8], dynamic: &[u8], operands: &mut [Tensor]) {
    run_aliased(id, params, dynamic, operands, &[]);
}

/// The code `prepare` refuses with.
pub fn refusal(id: u32, params: &[u8], operands: &[Tensor]) -> Option<Code> {
    let layouts: Vec<Layout> = operands.iter().map(|t| t.layout).collect();
    crate::ops::prepare(&OpRequest::new(id, &layouts, params, 0), 1, Isas::detect())
        .err()
        .map(|e| e.code)
}

/// Compares values: NaN with NaN, infinities exactly, the rest within `bound(i)`.
pub fn close(what: &str, got: &[f64], want: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let ok = if w.is_nan() {
            g.is_nan()
        } else if w.is_infinite() || g.is_infinite() {
            g == w
        } else {
            (g - w).abs() <= bound(i)
        };
        assert!(ok, "{what}[{i}]: {g} instead of {w} (bound {:e})", bound(i));
    }
}

/// Rounding of a result stored as `t`, plus `ulps` units of f32 in the computation.
pub fn rounding(t: DType, want: f64, ulps: f64) -> f64 {
    let tiny = match t {
        DType::F16 => 2f64.powi(-24),
        _ => 2f64.powi(-133),
    };
    let store = if t == DType::F32 { 0.0 } else { unit_of(t) };
    want.abs() * (store * 1.01 + (ulps + 1.0) * 2f64.powi(-24)) + tiny
}

/// Three ways to lay out `[a, b]`: dense, transposed, sliced with gaps.
pub fn strides(a: usize, b: usize) -> [[usize; 2]; 3] {
    [[b.max(1), 1], [1, a.max(1)], [2 * b + 3, 2]]
}
