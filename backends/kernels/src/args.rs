//! Argument structs: one per kernel template, passed by value. Mirrored from the `.cu` files, whose every compilation asserts that sizes
//! and offsets agree (and CI compares them with what the compiled kernels say of their parameters).

use crate::source::Family;
use std::fmt::Write as _;

/// A plain struct whose bytes go to a kernel.
///
/// # Safety
/// `repr(C)`, integers and floats only, no padding.
pub(crate) unsafe trait Plain: Copy {
    /// Its name in C.
    const C: &'static str;
    /// `(field, offset)`.
    const FIELDS: &'static [(&'static str, usize)];

    /// The bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: no padding by the trait's contract, so every byte is initialised.
        unsafe { std::slice::from_raw_parts((self as *const Self).cast(), size_of::<Self>()) }
    }
}

/// All zero.
pub(crate) fn zero<T: Plain>() -> T {
    // SAFETY: integers and floats only.
    unsafe { std::mem::zeroed() }
}

macro_rules! plain {
    ($( $(#[$doc:meta])* $name:ident $c:literal { $( $field:ident : $ty:ty ),* $(,)? } )*) => { $(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name { $( pub $field: $ty, )* }
        const _: () = assert!(size_of::<$name>() == 0 $( + size_of::<$ty>() )*, "padding");
        // SAFETY: repr(C) of plain numbers, and the assertion above says there is no padding.
        unsafe impl Plain for $name {
            const C: &'static str = $c;
            const FIELDS: &'static [(&'static str, usize)] =
                &[ $( (stringify!($field), std::mem::offset_of!($name, $field)), )* ];
        }
    )* };
}

/// Most dims of an operand besides the innermost.
pub(crate) const OUTER: usize = 7;

plain! {
    /// What a pointwise kernel walks over; `PointOperand`s follow.
    PointHead "PointHead" {
        groups: u64, row_groups: u64, inner: u64, n: [u64; OUTER], par: [f64; 2], bits: u64, dynamic: [u32; 8], rank: u32, reserved: u32,
    }
    /// An operand of a pointwise kernel.
    PointOperand "PointOperand" { p: u64, inner: i64, stride: [i64; OUTER] }
    /// Dims of a strided walk, innermost last.
    Dims "Dims" { n: [u64; 8], stride: [i64; 8], total: u64, rank: u64 }
    /// Transposing copy.
    CopyArgs "CopyArgs" {
        dst: u64, src: u64, ni: u64, nj: u64, dj: i64, si: i64, tiles_i: u64, tiles_j: u64, tiles: u64,
        n: [u64; 6], ds: [i64; 6], ss: [i64; 6], rank: u64,
    }
    /// One tensor of a multi-tensor kernel.
    MultiTensor "MultiTensor" { p: [u64; 5], n: u64, first: u64 }
    /// What a multi-tensor kernel shares between tensors.
    MultiHead "MultiHead" { a: u64, b: u64, par: [f64; 8], dynamic: [u32; 8], chunks: u64, count: u64 }
    /// Finishing a sum of partial sums.
    FinishArgs "FinishArgs" { out: u64, parts: u64, n: u64 }
    /// Reduction over dims.
    ReduceArgs "ReduceArgs" {
        dst: u64, src: u64, parts_at: u64, kept: Dims, gone: Dims, piece: u64, parts: u64, accumulate: u64, shift: u64,
    }
    /// One dim walked in order.
    LineArgs "LineArgs" { dst: u64, src: u64, from: Dims, to: Dims, n: u64, step_in: i64, step_out: i64, kind: u64, shift: u64 }
    /// Counting indices.
    HistogramArgs "HistogramArgs" { dst: u64, index: u64, from: Dims, bins: u64 }
    /// Rows of a table by index.
    GatherArgs "GatherArgs" {
        dst: u64, table: u64, index: u64, pos: u64, from: Dims, row: Dims, row_stride: i64, limit: u64, ignore: i64, has_ignore: u64,
        width: u64, seq: u64, pos_row: i64, pos_inner: i64,
    }
    /// Sort items from an index operand.
    ItemsArgs "ItemsArgs" { out: u64, index: u64, from: Dims, limit: u64, ignore: i64, has_ignore: u64 }
    /// Sums into rows, by sorted items.
    ScatterArgs "ScatterArgs" {
        table: u64, src: u64, items: u64, pos_from: Dims, row: Dims, n: u64, width: u64, seq: u64,
    }
    /// Sorting rows.
    SortArgs "SortArgs" { items: u64, keys: u64, from: Dims, rows: u64, n: u64, descending: u64, shift: u64 }
    /// Merging sorted runs.
    MergeArgs "MergeArgs" { from: u64, to: u64, rows: u64, n: u64, run: u64 }
    /// Writing what sorting found.
    TakeArgs "TakeArgs" {
        keys_out: u64, values_out: u64, items: u64, keys: u64, values: u64, keys_from: Dims, values_from: Dims, rows: u64, n: u64, k: u64,
    }
    /// Norms, both directions.
    NormArgs "NormArgs" {
        y: u64, mean: u64, rstd: u64, x: u64, w: u64, b: u64, dy: u64, dres: u64, parts_at: u64, x_outer: Dims, dy_outer: Dims,
        dres_outer: Dims, x_inner: i64, dy_inner: i64, dres_inner: i64, w_inner: i64, b_inner: i64, n: u64, d: u64, rows: u64, shift: u64, eps: f64,
    }
    /// Partial sums of weight gradients.
    NormSumArgs "NormSumArgs" { dw: u64, db: u64, parts_at: u64, d: u64, parts: u64 }
    /// Softmax and cross-entropy, both directions.
    SoftmaxArgs "SoftmaxArgs" {
        y: u64, lse: u64, x: u64, dy: u64, target: u64, g: u64, x_outer: Dims, dy_outer: Dims, target_from: Dims, lse_from: Dims, g_from: Dims,
        x_inner: i64, dy_inner: i64, n: u64, d: u64, shift: u64, ignore: i64, has_ignore: u64,
    }
    /// Rotary embedding.
    RopeArgs "RopeArgs" {
        y: u64, x: u64, cos: u64, sin: u64, b: u64, t: u64, h: u64, d: u64, half: u64, ys: [i64; 3], xs: [i64; 3], cs: [i64; 2], ss: [i64; 2],
        sign: f64, interleaved: u64,
    }
    /// Matrix product.
    MatmulArgs "MatmulArgs" {
        c: u64, a: u64, b: u64, bias: u64, m: u64, n: u64, k: u64, sa: [i64; 3], sb: [i64; 3], sc: [i64; 2], bias_stride: i64, alpha: f64,
        accumulate: u64, first: u32, pad: u32,
    }
    /// Attention, both directions; strides of batch, position, head.
    AttentionArgs "AttentionArgs" {
        o: u64, lse: u64, q: u64, k: u64, v: u64, go: u64, dq: u64, dk: u64, dv: u64, delta: u64, os: [i64; 3], qs: [i64; 3], ks: [i64; 3],
        vs: [i64; 3], gos: [i64; 3], dqs: [i64; 3], dks: [i64; 3], dvs: [i64; 3], ls: [i64; 3], window: i64, b: u32, tq: u32, tk: u32, h: u32,
        hkv: u32, d: u32, causal: u32, scale: f32,
    }
    /// Attention of packed sequences, both directions: `n` cumulative lengths a row of `t` positions.
    VarlenArgs "VarlenArgs" {
        o: u64, lse: u64, q: u64, k: u64, v: u64, go: u64, dq: u64, dk: u64, dv: u64, delta: u64, cu: u64, os: [i64; 3], qs: [i64; 3],
        ks: [i64; 3], vs: [i64; 3], gos: [i64; 3], dqs: [i64; 3], dks: [i64; 3], dvs: [i64; 3], ls: [i64; 3], cs: [i64; 2], window: i64,
        n: u32, t: u32, h: u32, hkv: u32, d: u32, causal: u32, scale: f32, reserved: u32,
    }
    /// Attention with everything on top, both directions: `n` cumulative lengths a row of queries and of keys, 0 without segments; `blocks` of
    /// Philox a query of the whole; storages of bias and sinks as 0 for f32, 1 for bf16, 2 for f16; `wide` where results are f32.
    ExtArgs "ExtArgs" {
        o: u64, lse: u64, q: u64, k: u64, v: u64, go: u64, dq: u64, dk: u64, dv: u64, delta: u64, cu_q: u64, cu_k: u64, bias: u64, sinks: u64,
        dsinks: u64, os: [i64; 3], qs: [i64; 3], ks: [i64; 3], vs: [i64; 3], gos: [i64; 3], dqs: [i64; 3], dks: [i64; 3], dvs: [i64; 3],
        ls: [i64; 3], cqs: [i64; 2], cks: [i64; 2], bs: i64, ss: i64, dss: i64, window: i64, shift: i64, first_key: i64, heads: u64,
        queries: u64, blocks: u64, dynamic: [u32; 8], n: u32, b: u32, tq: u32, tk: u32, h: u32, hkv: u32, d: u32, causal: u32, in_row: u32,
        threshold: u32, bias_type: u32, sinks_type: u32, scale: f32, cap: f32, kept: f32, wide: u32,
    }
}

fn check<T: Plain>(out: &mut String) {
    let c = T::C;
    let _ = writeln!(
        out,
        "static_assert(sizeof({c}) == {}, \"{c}: size\");",
        size_of::<T>()
    );
    for (f, at) in T::FIELDS {
        let _ = writeln!(
            out,
            "static_assert(CW_OFFSET({c}, {f}) == {at}, \"{c}.{f}\");"
        );
    }
}

/// Assertions that the family's structs lie in C as they lie here.
pub(crate) fn checks(family: Family) -> String {
    let mut s = String::new();
    let o = &mut s;
    check::<Dims>(o);
    match family {
        Family::Point => {
            check::<PointHead>(o);
            check::<PointOperand>(o);
        }
        Family::Copy => check::<CopyArgs>(o),
        Family::Multi => {
            check::<MultiHead>(o);
            check::<MultiTensor>(o);
            check::<FinishArgs>(o);
        }
        Family::Reduce => {
            check::<ReduceArgs>(o);
            check::<LineArgs>(o);
            check::<HistogramArgs>(o);
        }
        Family::Index => {
            check::<GatherArgs>(o);
            check::<ItemsArgs>(o);
            check::<ScatterArgs>(o);
        }
        Family::Sort => {
            check::<SortArgs>(o);
            check::<MergeArgs>(o);
            check::<TakeArgs>(o);
        }
        Family::Norm => {
            check::<NormArgs>(o);
            check::<NormSumArgs>(o);
        }
        Family::Softmax => check::<SoftmaxArgs>(o),
        Family::Rope => check::<RopeArgs>(o),
        Family::Matmul => check::<MatmulArgs>(o),
        Family::Attention | Family::AttentionWgmma => check::<AttentionArgs>(o),
        Family::AttentionMma => {
            check::<AttentionArgs>(o);
            check::<VarlenArgs>(o);
            check::<ExtArgs>(o);
        }
        Family::AttentionVarlen => check::<VarlenArgs>(o),
        Family::AttentionExt => check::<ExtArgs>(o),
    }
    s
}
