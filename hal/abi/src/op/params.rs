//! Parameter structs of the ops: fixed at prepare (`*Params`) or given at each launch (`*Dyn`). Size-prefixed, append-only, zero = default.

use crate::read::Sized32;

macro_rules! params {
    ($( $(#[doc = $doc:literal])* $name:ident { $( $(#[doc = $fdoc:literal])* $field:ident : $ty:ty ),* $(,)? } )*) => { $(
        $(#[doc = $doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            /// Bytes the writer knows (R1).
            pub size: u32,
            $( $(#[doc = $fdoc])* pub $field: $ty, )*
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
            /// What it is of.
            pub const DOC: &'static str = concat!($($doc),*);
            /// What its fields mean, in order.
            pub const DOCS: &'static [&'static str] = &[
                "Bytes the writer knows (R1).",
                $( concat!($($fdoc),*), )*
            ];
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
    )*
        /// `(field, type, offset)` of a struct of the op table by its name, in order, and what each field means; none of a program.
        pub fn fields_of(name: &str) -> (&'static [(&'static str, &'static str, usize)], &'static [&'static str]) {
            match name {
                $( stringify!($name) => ($name::FIELDS, $name::DOCS), )*
                _ => (&[], &[]),
            }
        }
    };
}

params! {
    /// Ops without parameters.
    NoParams {
        /// 0.
        flags: u32,
    }
    /// fill_strided.
    FillParams {
        /// 0.
        flags: u32,
        /// Rounded once to a float dtype; of an integer dtype it must be a whole number in its range, else INVALID.
        value: f64,
    }
    /// iota.
    IotaParams {
        /// 0.
        flags: u32,
        /// The value of element 0.
        start: f64,
        /// Added per element of the row-major index; start + step * i is computed in f64 and rounded once.
        step: f64,
    }
    /// unary, binary, compare, activation_fwd, activation_bwd.
    KindParams {
        /// Which function: CW_UNARY_*, CW_BINARY_*, CW_COMPARE_* or CW_ACTIVATION_*. 0 is none: UNSUPPORTED.
        kind: u32,
    }
    /// axpby.
    AxpbyParams {
        /// 0.
        flags: u32,
        /// Factor of x; 0 means 0, and x is read all the same (0 * NaN is NaN).
        alpha: f64,
        /// Factor of y; 0: y is not read, only written.
        beta: f64,
    }
    /// clamp.
    ClampParams {
        /// 0.
        flags: u32,
        /// The least value; -inf for none. The maximum with it is taken first.
        lo: f64,
        /// The largest value; inf for none. The minimum with it is taken last, so that lo > hi gives hi.
        hi: f64,
    }
    /// reduce.
    ReduceParams {
        /// CW_REDUCE_*.
        kind: u32,
        /// Bit i set: dim i is reduced, and has size 1 in dst. 0 reduces nothing.
        axes: u32,
        /// CW_FLAG_ACCUM (kinds SUM and SUMSQ): dst is added to, and read; else it is only written.
        flags: u32,
    }
    /// arg_reduce, cumsum, topk, sort_pairs.
    DimParams {
        /// arg_reduce: 0 the largest, 1 the smallest. Others: 0.
        kind: u32,
        /// arg_reduce and cumsum: the dim. topk and sort_pairs work along the last one and leave it 0.
        dim: u32,
        /// topk, sort_pairs: CW_FLAG_DESCENDING, the largest first (topk always gives the largest first). Others: 0.
        flags: u32,
    }
    /// matmul.
    MatmulParams {
        /// CW_FLAG_ACCUM: C is read and added to, before the one rounding; else it is only written.
        flags: u32,
        /// The type sums are kept in: 0 or CW_DT_F32. Others are UNSUPPORTED.
        acc_dtype: u32,
        /// 0; reserved for what may follow the product.
        epilogue: u32,
        /// Factor of A B; 0 means 1. Neither the bias nor C has a factor.
        alpha: f64,
    }
    /// grouped_matmul_dw.
    GroupedParams {
        /// CW_FLAG_ACCUM: dw is read and added to, before the one rounding; else it is only written.
        flags: u32,
    }
    /// gather_rows, scatter_add_rows, embedding_fwd, embedding_bwd.
    IndexParams {
        /// CW_FLAG_HAS_IGNORE: `ignore` is meant; else no index is ignored.
        flags: u32,
        /// The index whose row is zeros when gathered, and nothing when added; also where it is a row of the table.
        ignore: i64,
    }
    /// philox.
    PhiloxParams {
        /// CW_PHILOX_*; BITS asks for a u32 dst, the others for a float one.
        kind: u32,
        /// Uniform: the lower bound, which occurs. Normal: the mean. Bits: 0.
        lo: f64,
        /// Uniform: the upper bound. Normal: the standard deviation. Bits: 0. Both are rounded to f32 first.
        hi: f64,
    }
    /// philox, dropout, attention_ext_fwd, attention_ext_bwd, at launch.
    PhiloxDyn {
        /// 0.
        flags: u32,
        /// The 64-bit key.
        seed: u64,
        /// The low 64 bits of the counter of element 0; element e has block offset + e / 4 (it wraps) and word e % 4.
        offset: u64,
        /// The high 64 bits of the counter.
        stream: u64,
    }
    /// layer_norm_*, rms_norm_*.
    NormParams {
        /// 0.
        flags: u32,
        /// Added to the variance (rms_norm: to the mean of squares) under the root; 0 means 0. Backward ops have rstd
        /// and do not read it.
        eps: f64,
    }
    /// cross_entropy_fwd, cross_entropy_bwd.
    XentParams {
        /// CW_FLAG_HAS_IGNORE: `ignore` is meant; else no row is ignored.
        flags: u32,
        /// A row with this target has loss 0 and gradient 0; its lse is computed as ever.
        ignore: i64,
    }
    /// attention_fwd, attention_bwd, attention_varlen_fwd, attention_varlen_bwd.
    AttentionParams {
        /// CW_FLAG_CAUSAL: query i sees keys j <= i + Tk - Tq, that is, the last query sees the last key. With Tq > Tk
        /// the first Tq - Tk queries see nothing.
        flags: u32,
        /// Factor of q.k; 0 means 1/sqrt(D).
        scale: f64,
        /// 0: none. Else query i sees only keys j > i + Tk - Tq - window: with CW_FLAG_CAUSAL the last `window` keys,
        /// without it all later keys too. Negative: INVALID. A query that sees no key has o = 0, lse = -inf and
        /// gradient 0.
        window: i64,
    }
    /// attention_ext_fwd, attention_ext_bwd. Weight (b, h, i, j) drops by word j % 4 of the philox block offset +
    /// ((b * heads + h) * queries + i) * ceil(keys / 4) + j / 4, where i and j count in the row, not in the segment.
    AttentionExtParams {
        /// As in cw_attention_params. CW_FLAG_IN_ROW: mask and bias count in the row where there are cumulative lengths.
        flags: u32,
        /// As in cw_attention_params.
        scale: f64,
        /// As in cw_attention_params.
        window: i64,
        /// Soft cap of the scores, cap tanh(s / cap); 0: none.
        cap: f64,
        /// Probability that a weight becomes 0, in [0, 1); 0: none, and the launch struct is not read.
        dropout: f64,
        /// Heads of the whole that these operands are a part of; 0: their own. They place a weight's random word.
        heads: i64,
        /// Queries of the whole; 0: their own.
        queries: i64,
        /// Keys of the whole; 0: their own.
        keys: i64,
        /// How many keys behind the last key the last query stands, for causal mask and window: query i stands at
        /// i + Tk - Tq + shift, of every segment where these count in segments. Queries that begin at a of a row, over keys
        /// that begin at c of it: a + Tq - c - Tk. Beyond 2^40 either way: INVALID. The bias does not move: it is that of
        /// these queries and keys.
        shift: i64,
        /// The number of key 0 in the whole, by which weights drop: j counts from it. INVALID below 0, and where
        /// first_key + Tk is beyond the keys of the whole.
        first_key: i64,
    }
    /// rope. With angle t of pair p: (a, b) becomes (a cos - b sin, a sin + b cos). Elements beyond R are copied.
    RopeParams {
        /// CW_FLAG_INTERLEAVED: pair p is elements 2p and 2p + 1; else p and p + R/2, where R/2 is the width of cos.
        /// CW_FLAG_INVERSE rotates back, which is the backward.
        flags: u32,
    }
    /// adamw.
    AdamwParams {
        /// CW_FLAG_MASTER: every group of operands has a master copy, which is updated; p is it, rounded.
        flags: u32,
        /// 0: decoupled decay, torch.optim.AdamW. 1: L2, torch.optim.Adam (g' += weight_decay * p, no other decay).
        mode: u32,
        /// 0.
        reserved: u32,
        /// Decay of the first moment, in [0, 1).
        beta1: f64,
        /// Decay of the second moment, in [0, 1).
        beta2: f64,
        /// Added to the root of the corrected second moment; 0 means 0.
        eps: f64,
        /// 0 means none.
        weight_decay: f64,
    }
    /// adamw, at launch.
    AdamwDyn {
        /// 0.
        flags: u32,
        /// Learning rate.
        lr: f64,
        /// Factor of every gradient, beside the operand coef; 0 means 0.
        grad_scale: f64,
        /// The number of this step, from 1: bias corrections are 1 - beta^step. 0 is INVALID.
        step: u64,
    }
    /// dropout.
    DropoutParams {
        /// 0.
        flags: u32,
        /// Probability that an element becomes 0, in [0, 1]; what is kept is divided by 1 - p.
        p: f64,
    }
    /// multi_scale, at launch.
    ScaleDyn {
        /// 0.
        flags: u32,
        /// Factor, beside the operand coef; 0 means 0.
        scale: f64,
    }
    /// One instruction of elementwise_program: dst = op(a, b, c). Registers below the number of operands are the
    /// operands, others temporaries, which hold nothing at first.
    ProgramInst {
        /// CW_INST_*.
        op: u32,
        /// The register written; an operand only where its bit of `writes` is set.
        dst: u32,
        /// Register of the first argument; 0 where there is none.
        a: u32,
        /// Register of the second argument.
        b: u32,
        /// Register of the third argument.
        c: u32,
        /// CW_INST_CONST: the value. CW_INST_SCALAR: the number of the launch's scalar, as a whole number. Others: 0.
        imm: f32,
    }
}

/// Most instructions of an `elementwise_program`.
pub const PROGRAM_MAX_INSTS: usize = 64;
/// Most operands of an `elementwise_program`.
pub const PROGRAM_MAX_OPERANDS: usize = 16;
/// Registers: operands first, then temporaries.
pub const PROGRAM_MAX_REGS: usize = 64;

/// `elementwise_program`: a straight-line pointwise program ([`ProgramParams::DOC`]).
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
    /// What it is of.
    pub const DOC: &'static str = "elementwise_program: a straight-line program over operands of one (broadcast) shape. All \
        arithmetic is in f32, in the order written, without contraction (a product and a sum are fused only by CW_INST_FMA). \
        An operand is converted to f32 where it is first read (u32 counts too), and rounded to nearest even into its dtype \
        once, at the end, if its bit of `writes` is set; instructions see the unrounded value. MAX and MIN give NaN when \
        either is NaN; LT is 0 then; SELECT takes b where a is not 0, NaN among it.";
    /// What its fields mean, in order.
    pub const DOCS: &'static [&'static str] = &[
        "Bytes the writer knows (R1).",
        "Instructions used, at most CW_PROGRAM_MAX_INSTS.",
        "Bit i set: operand i is written. Operands that are not written have any strides, those written are dense.",
        "0.",
        "The instructions.",
    ];
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
    /// What it is of.
    pub const DOC: &'static str = "elementwise_program, at launch.";
    /// What its fields mean, in order.
    pub const DOCS: &'static [&'static str] = &[
        "Bytes the writer knows (R1).",
        "0.",
        "What CW_INST_SCALAR reads.",
    ];
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
