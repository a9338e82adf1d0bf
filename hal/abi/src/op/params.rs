//! Parameter structs of the ops: fixed at prepare (`*Params`) or given at each launch (`*Dyn`). Size-prefixed, append-only, zero = default.

use crate::read::Sized32;

macro_rules! params {
    ($( $(#[$doc:meta])* $name:ident { $( $(#[$fdoc:meta])* $field:ident : $ty:ty ),* $(,)? } )*) => { $(
        $(#[$doc])*
        #[allow(missing_docs)]
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            /// Bytes the writer knows (R1).
            pub size: u32,
            $( $(#[$fdoc])* pub $field: $ty, )*
        }
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: integers and floats only; all-zero is "default" by R1.
                let mut p: $name = unsafe { core::mem::zeroed() };
                p.size = size_of::<$name>() as u32;
                p
            }
        }
        // SAFETY: repr(C), size-prefixed, integers and floats only.
        unsafe impl Sized32 for $name {}
        impl $name {
            /// The bytes that cross the boundary.
            pub fn as_bytes(&self) -> &[u8] {
                // SAFETY: repr(C) without padding (asserted below), so every byte is initialised.
                unsafe { core::slice::from_raw_parts((self as *const Self).cast(), size_of::<Self>()) }
            }
            /// `(field, type, offset)` in order: read by the header generator and the ABI lock.
            pub const FIELDS: &'static [(&'static str, &'static str, usize)] = &[
                ("size", "u32", 0),
                $( (stringify!($field), stringify!($ty), core::mem::offset_of!($name, $field)), )*
            ];
        }
        const _: () = {
            // No padding: the sum of the fields is the struct.
            assert!(size_of::<$name>() == 4 $( + size_of::<$ty>() )*);
        };
    )* };
}

params! {
    /// Ops without parameters.
    NoParams { flags: u32 }
    /// `fill_strided`: value, rounded to the dtype (integers: must be exact).
    FillParams { flags: u32, value: f64 }
    /// `iota`: `start + step * i` over the row-major element index.
    IotaParams { flags: u32, start: f64, step: f64 }
    /// `unary`, `binary`, `compare`, `activation_*`: which function (`super::unary`, `super::binary`, …).
    KindParams { kind: u32 }
    /// `axpby`: `y = alpha x + beta y`.
    AxpbyParams { flags: u32, alpha: f64, beta: f64 }
    /// `clamp`.
    ClampParams { flags: u32, lo: f64, hi: f64 }
    /// `reduce`: kind (`super::reduce`), bit `i` of `axes` = reduce dim `i`; `FLAG_ACCUM` adds to the output.
    ReduceParams { kind: u32, axes: u32, flags: u32 }
    /// `arg_reduce` (kind 0 max, 1 min; first index wins), `cumsum`, `topk`, `sort_pairs`.
    DimParams { kind: u32, dim: u32, flags: u32 }
    /// `matmul`: flags `FLAG_ACCUM`; `alpha` 0 means 1.
    MatmulParams { flags: u32, acc_dtype: u32, epilogue: u32, alpha: f64 }
    /// `scatter_add_rows`, `gather_rows`, `embedding_*`: index `ignore` is skipped when `FLAG_HAS_IGNORE`.
    IndexParams { flags: u32, ignore: i64 }
    /// `philox`: kind (`super::philox`); uniform in [lo, hi), normal with mean `lo` and deviation `hi`.
    PhiloxParams { kind: u32, lo: f64, hi: f64 }
    /// `philox`, `dropout` and `attention_ext_*` at launch: 64-bit key; element `e` uses counter (offset + e / 4, stream), lane e % 4.
    PhiloxDyn { flags: u32, seed: u64, offset: u64, stream: u64 }
    /// `layer_norm_*`, `rms_norm_*`.
    NormParams { flags: u32, eps: f64 }
    /// `cross_entropy_*`: rows whose target is `ignore` give loss 0 and gradient 0 when `FLAG_HAS_IGNORE`.
    XentParams { flags: u32, ignore: i64 }
    /// `attention_*`: `scale` 0 means 1/sqrt(D); `window` 0 means none, else keys j > i - window.
    AttentionParams { flags: u32, scale: f64, window: i64 }
    /// `attention_ext_*`: `scale`, `window` as in `AttentionParams`; `cap` of the scores, 0 = none; `dropout`, the probability that a weight
    /// becomes 0. Weight (b, h, i, j) has word `j % 4` of the philox block `offset + ((b * heads + h) * queries + i) * ceil(keys / 4) + j / 4`
    /// (i and j in the row, not in the segment); `heads`, `queries`, `keys` are sizes of the whole that the operands are a part of, 0 = theirs.
    AttentionExtParams { flags: u32, scale: f64, window: i64, cap: f64, dropout: f64, heads: i64, queries: i64, keys: i64 }
    /// `rope`: `FLAG_INVERSE` rotates back (the backward); `FLAG_INTERLEAVED` pairs (2i, 2i+1), else (i, i + R/2), R the elements that rotate.
    RopeParams { flags: u32 }
    /// `adamw`: `mode` 0 = torch AdamW, 1 = L2 Adam; fixed numbers of the group.
    AdamwParams { flags: u32, mode: u32, reserved: u32, beta1: f64, beta2: f64, eps: f64, weight_decay: f64 }
    /// `adamw` at launch. `step` counts from 1. Gradients are multiplied by `grad_scale` (and by the device's coef operand).
    AdamwDyn { flags: u32, lr: f64, grad_scale: f64, step: u64 }
    /// `dropout`: probability of zero; survivors are scaled by 1/(1-p).
    DropoutParams { flags: u32, p: f64 }
    /// `multi_scale` at launch: host factor, multiplied by the device's coef operand when given.
    ScaleDyn { flags: u32, scale: f64 }
    /// One instruction of `elementwise_program`: `dst = op(a, b, c)`; registers below `n_operands` are operands, others temporaries.
    ProgramInst { op: u32, dst: u32, a: u32, b: u32, c: u32, imm: f32 }
}

/// Most instructions of an `elementwise_program`.
pub const PROGRAM_MAX_INSTS: usize = 64;
/// Most operands of an `elementwise_program`.
pub const PROGRAM_MAX_OPERANDS: usize = 16;
/// Registers: operands first, then temporaries.
pub const PROGRAM_MAX_REGS: usize = 64;

/// `elementwise_program`: a straight-line pointwise program over operands of one (broadcast) shape.
///
/// All arithmetic is f32 in the order written, no contraction (no fused multiply-add unless the instruction is FMA); loads convert from and
/// stores round to nearest even into the operand's dtype. An operand is read where first used and written back once at the end if any instruction wrote it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgramParams {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// Instructions used.
    pub n_insts: u32,
    /// Bit `i` set: operand `i` is written.
    pub writes: u32,
    /// 0.
    pub flags: u32,
    /// The instructions.
    pub insts: [ProgramInst; PROGRAM_MAX_INSTS],
}
// SAFETY: repr(C), size-prefixed, integers and floats only.
unsafe impl Sized32 for ProgramParams {}
impl Default for ProgramParams {
    fn default() -> Self {
        // SAFETY: integers and floats only.
        let mut p: ProgramParams = unsafe { core::mem::zeroed() };
        p.size = size_of::<ProgramParams>() as u32;
        p
    }
}
impl ProgramParams {
    /// The bytes that cross the boundary.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: repr(C), no padding: 16 + 64 * 28 bytes.
        unsafe { core::slice::from_raw_parts((self as *const Self).cast(), size_of::<Self>()) }
    }
}
const _: () = assert!(
    size_of::<ProgramInst>() == 28 && size_of::<ProgramParams>() == 16 + 28 * PROGRAM_MAX_INSTS
);

/// `elementwise_program` at launch: scalars read by the `SCALAR` instruction (`imm` holds the index).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgramDyn {
    /// Bytes the writer knows (R1).
    pub size: u32,
    /// 0.
    pub flags: u32,
    /// Scalars.
    pub scalars: [f32; 8],
}
// SAFETY: repr(C), size-prefixed, integers and floats only.
unsafe impl Sized32 for ProgramDyn {}
impl ProgramDyn {
    /// Scalars, the rest zero.
    pub fn new(values: &[f32]) -> Self {
        let mut scalars = [0.0; 8];
        scalars[..values.len()].copy_from_slice(values);
        ProgramDyn {
            size: size_of::<ProgramDyn>() as u32,
            flags: 0,
            scalars,
        }
    }
    /// The bytes that cross the boundary.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: repr(C), no padding: 8 + 32 bytes.
        unsafe { core::slice::from_raw_parts((self as *const Self).cast(), size_of::<Self>()) }
    }
}
