//! Layouts as kernels see them, and single elements: what is read is widened, what is written is rounded once.

use crate::memory::Region;
use crossweave_plugin::{Code, DType, OpRequest, Result, abi, fail, unsupported};

pub const FLOATS: &[DType] = &[DType::F32, DType::Bf16, DType::F16];
pub const INDEX: &[DType] = &[DType::I32, DType::I64];
/// What is computed with.
pub const NUMBERS: &[DType] = &[
    DType::F32,
    DType::Bf16,
    DType::F16,
    DType::I32,
    DType::I64,
    DType::U32,
    DType::U8,
];
/// What is moved.
pub const ANY: &[DType] = &[
    DType::F32,
    DType::Bf16,
    DType::F16,
    DType::I32,
    DType::I64,
    DType::U32,
    DType::U8,
    DType::I8,
    DType::U64,
    DType::F64,
];

/// An operand: shape and strides in elements.
#[derive(Clone, Debug)]
pub struct View {
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub stride: Vec<i64>,
    pub count: i64,
    /// Bytes it reaches over.
    pub bytes: u64,
}

impl View {
    /// Reads a layout whose dtype is one of `types`.
    pub fn new(op: &OpRequest<'_>, i: usize, types: &[DType]) -> Result<View> {
        let Some(l) = op.layout(i) else {
            return fail(Code::Invalid, format!("operand {i} is absent"));
        };
        let Some(dtype) = DType::from_id(l.dtype).filter(|d| types.contains(d)) else {
            return unsupported(format!("operand {i}: dtype {:#x}", l.dtype));
        };
        if l.flags & !(abi::LAYOUT_CONTIGUOUS | abi::LAYOUT_MAY_ALIAS) != 0 {
            return unsupported(format!("operand {i}: layout flags {:#x}", l.flags));
        }
        let rank = l.rank as usize;
        let (shape, stride) = (l.shape[..rank].to_vec(), l.stride[..rank].to_vec());
        if stride.iter().any(|s| *s < 0) {
            return unsupported(format!("operand {i}: a negative stride"));
        }
        let count = shape
            .iter()
            .try_fold(1i64, |n, d| if *d < 0 { None } else { n.checked_mul(*d) });
        let reach = shape.iter().zip(&stride).try_fold(0i64, |n, (d, s)| {
            (d - 1).max(0).checked_mul(*s)?.checked_add(n)
        });
        match (count, reach) {
            (Some(count), Some(reach)) if reach < i64::MAX / 16 => {
                let bytes = if count > 0 {
                    (reach as u64 + 1) * size(dtype) as u64
                } else {
                    0
                };
                Ok(View {
                    dtype,
                    shape,
                    stride,
                    count,
                    bytes,
                })
            }
            _ => fail(
                Code::Invalid,
                format!("operand {i}: {shape:?} is negative or reaches beyond any memory"),
            ),
        }
    }
    /// An output: dense, unless `strided`; never two elements in one place.
    pub fn output(op: &OpRequest<'_>, i: usize, types: &[DType], strided: bool) -> Result<View> {
        let v = View::new(op, i, types)?;
        let repeats = v
            .shape
            .iter()
            .zip(&v.stride)
            .any(|(n, s)| *n > 1 && *s == 0);
        if v.count > 0 && (repeats || !(strided || v.is_dense())) {
            return unsupported(format!(
                "operand {i}: an output with strides {:?}",
                v.stride
            ));
        }
        Ok(v)
    }
    fn is_dense(&self) -> bool {
        let mut want = 1;
        let mut dims = self.shape.iter().zip(&self.stride).rev();
        self.count == 0
            || dims.all(|(n, s)| {
                let good = *n == 1 || *s == want;
                want *= n;
                good
            })
    }
    /// Where the i-th element in row-major order lies.
    pub fn at(&self, mut i: i64) -> i64 {
        let mut at = 0;
        for (n, s) in self.shape.iter().zip(&self.stride).skip(1).rev() {
            at += i % n * s;
            i /= n;
        }
        at + self.stride.first().map_or(0, |s| i * s)
    }
    /// The dims that `keep` names.
    pub fn pick(&self, keep: impl Fn(usize) -> bool) -> View {
        let dims = |v: &[i64]| -> Vec<i64> {
            v.iter()
                .enumerate()
                .filter(|d| keep(d.0))
                .map(|d| *d.1)
                .collect()
        };
        let (shape, stride) = (dims(&self.shape), dims(&self.stride));
        let count = shape.iter().product();
        View {
            dtype: self.dtype,
            shape,
            stride,
            count,
            bytes: self.bytes,
        }
    }
    pub fn is_float(&self) -> bool {
        FLOATS.contains(&self.dtype)
    }
    pub fn float(&self, r: &Region, at: i64) -> f32 {
        float(self.dtype, r, at)
    }
    pub fn put_float(&self, r: &Region, at: i64, x: f32) {
        put_float(self.dtype, r, at, x)
    }
}

/// Bytes of an element.
pub fn size(d: DType) -> usize {
    d.bits() as usize / 8
}

/// Walks views of one shape, element by element: `f` gets where each lies.
pub fn walk<const N: usize>(v: [&View; N], mut f: impl FnMut([i64; N])) {
    let len = v[0].shape.last().copied().unwrap_or(1);
    let steps = v.map(|v| v.stride.last().copied().unwrap_or(0));
    let mut e = 0;
    while e < v[0].count {
        let mut at = v.map(|v| v.at(e));
        for _ in 0..len {
            f(at);
            for (a, s) in at.iter_mut().zip(steps) {
                *a += s;
            }
        }
        e += len;
    }
}

/// Shapes that must agree.
pub fn same_shape(views: &[&View]) -> Result<()> {
    match views.iter().position(|v| v.shape != views[0].shape) {
        Some(i) => fail(
            Code::Invalid,
            format!(
                "operand {i} has shape {:?}, operand 0 {:?}",
                views[i].shape, views[0].shape
            ),
        ),
        None => Ok(()),
    }
}

/// Dtypes that must agree.
pub fn same_dtype(a: &View, b: &View) -> Result<()> {
    if a.dtype != b.dtype {
        return unsupported(format!("{} with {}", a.dtype.name(), b.dtype.name()));
    }
    Ok(())
}

fn f32_of_f16(h: u16) -> f32 {
    // The exponent moves by a product, which makes numbers of subnormals.
    let x = f32::from_bits(u32::from(h & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = if h & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(x.to_bits() | special | u32::from(h & 0x8000) << 16)
}

/// To nearest, ties to even.
fn f16_of_f32(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    let u = x.to_bits() & 0x7fff_ffff;
    let h = match u {
        0x7f80_0001.. => 0x7e00,
        0x4780_0000.. => 0x7c00,
        ..0x3880_0000 => (f32::from_bits(u) + 0.5).to_bits() - 0.5f32.to_bits(),
        _ => u.wrapping_add(0xc800_0fff + (u >> 13 & 1)) >> 13,
    };
    h as u16 | sign
}

fn bf16_of_f32(x: f32) -> u16 {
    let u = x.to_bits();
    if x.is_nan() {
        return (u >> 16 | 0x40) as u16;
    }
    ((u + 0x7fff + (u >> 16 & 1)) >> 16) as u16
}

pub fn float(d: DType, r: &Region, at: i64) -> f32 {
    let at = at as usize * size(d);
    match d {
        DType::F32 => f32::from_le_bytes(r.get(at)),
        DType::Bf16 => f32::from_bits(u32::from(u16::from_le_bytes(r.get(at))) << 16),
        _ => f32_of_f16(u16::from_le_bytes(r.get(at))),
    }
}

pub fn put_float(d: DType, r: &Region, at: i64, x: f32) {
    let at = at as usize * size(d);
    match d {
        DType::F32 => r.put(at, x.to_le_bytes()),
        DType::Bf16 => r.put(at, bf16_of_f32(x).to_le_bytes()),
        _ => r.put(at, f16_of_f32(x).to_le_bytes()),
    }
}

pub fn int(d: DType, r: &Region, at: i64) -> i64 {
    let at = at as usize * size(d);
    match d {
        DType::U8 => r.get::<1>(at)[0].into(),
        DType::I32 => i32::from_le_bytes(r.get(at)).into(),
        DType::U32 => u32::from_le_bytes(r.get(at)).into(),
        _ => i64::from_le_bytes(r.get(at)),
    }
}

/// Wraps in the storage's width.
pub fn put_int(d: DType, r: &Region, at: i64, x: i64) {
    let at = at as usize * size(d);
    match d {
        DType::U8 => r.put(at, [x as u8]),
        DType::I32 | DType::U32 => r.put(at, (x as u32).to_le_bytes()),
        _ => r.put(at, x.to_le_bytes()),
    }
}

/// A number into any dtype, rounded once: on the way to 16 bits an inexact f32 gets an odd last bit, which the second rounding then sees.
/// Integers truncate and saturate; NaN gives 0.
pub fn put_number(d: DType, r: &Region, at: i64, x: f64) {
    let odd = || {
        let f = x as f32;
        if f64::from(f) == x || f.is_nan() {
            return f;
        }
        f32::from_bits((f.to_bits() - u32::from(f64::from(f).abs() > x.abs())) | 1)
    };
    match d {
        DType::F32 => put_float(d, r, at, x as f32),
        DType::Bf16 | DType::F16 => put_float(d, r, at, odd()),
        DType::U8 => put_int(d, r, at, (x as u8).into()),
        DType::I32 => put_int(d, r, at, (x as i32).into()),
        DType::U32 => put_int(d, r, at, (x as u32).into()),
        _ => put_int(d, r, at, x as i64),
    }
}

/// The same for an integer: the bits beyond 2^53, which f64 cannot hold, leave an odd one behind.
pub fn put_whole(d: DType, r: &Region, at: i64, x: i64) {
    if !FLOATS.contains(&d) {
        return put_int(d, r, at, x);
    }
    let fits = (-(1 << 53)..=1 << 53).contains(&x);
    put_number(
        d,
        r,
        at,
        if fits {
            x as f64
        } else {
            (x >> 11 | i64::from(x & 2047 != 0)) as f64 * 2048.0
        },
    );
}

/// Moves one element whatever its bits mean.
pub fn copy(bytes: usize, dst: &Region, to: i64, src: &Region, from: i64) {
    dst.copy_from(to as usize * bytes, src, from as usize * bytes, bytes);
}
