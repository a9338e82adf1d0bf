//! The op table: one row per op with id, operands, parameters, error class. This is the only place an op is declared.
//!
//! Ids are never reused; a change of meaning is a new revision. What operand strings say, and what holds of all ops, is in [`RULES`].
//! Operand order is the order in `OpDesc::operands` and in the spans of `op_launch`. The C header `crossweave_ops.h` is generated
//! from this table and from the parameter structs, texts included.
// What a row says of an op is a formula, whose brackets are indices and not links.
#![allow(rustdoc::broken_intra_doc_links)]

pub mod params;
mod revision;
pub use params::*;
pub use revision::revision_of;

/// Adds to the output instead of overwriting it.
pub const FLAG_ACCUM: u32 = 1;
/// `IndexParams::ignore` / `XentParams::ignore` is meant.
pub const FLAG_HAS_IGNORE: u32 = 2;
/// Causal mask: query i sees keys j <= i + (Tk - Tq).
pub const FLAG_CAUSAL: u32 = 4;
/// Rope backward.
pub const FLAG_INVERSE: u32 = 8;
/// Rope over neighbouring pairs.
pub const FLAG_INTERLEAVED: u32 = 16;
/// Sort or top-k: largest first.
pub const FLAG_DESCENDING: u32 = 32;
/// AdamW: every tensor group carries a master copy.
pub const FLAG_MASTER: u32 = 64;
/// `attention_ext_*` with cumulative lengths: mask and bias count in the row, not in the segment.
pub const FLAG_IN_ROW: u32 = 128;

/// Error classes (ADR 0029): which bound the conformance kit holds a plan to.
pub mod class {
    #![allow(missing_docs)]
    pub const EXACT: u64 = 1;
    pub const CAST: u64 = 2;
    pub const ROUNDED: u64 = 3;
    pub const TRANSCENDENTAL: u64 = 4;
    pub const SUM_SEQUENTIAL: u64 = 5;
    pub const SUM_PAIRWISE: u64 = 6;
    pub const MATMUL: u64 = 7;
    pub const FUSED: u64 = 8;

    /// What each of them bounds, from [`EXACT`] on.
    pub const DOCS: [&str; 8] = [
        "Error classes, with u = 2^-24: how far from the true result a plan's result may be. A plan states the class of its op's row \
         or a stricter one; of sums either order will do. A device whose arithmetic takes subnormal numbers for 0 says so by the \
         attribute `flush_subnormals`, text 1. EXACT: the bits of the true result; any NaN for a NaN.",
        "The true value in one rounding to nearest even into the output's type: these bits.",
        "One operation in f32, correctly rounded, and rounded once more into a 16-bit output: these bits. A plan that states \
         TRANSCENDENTAL is held to that.",
        "4 ulp of f32; in a 16-bit output 1.5 ulp of its own besides.",
        "A sum of n numbers x within n u sum |x|, added in any order, and half an ulp of the output besides.",
        "The same within 2 ceil(log2 n) u sum |x|: halves, blocks or many accumulators, not one after the other.",
        "n u (|A| |B|), where n is K and one for each of bias and C that is added, and half an ulp of the output besides.",
        "Twice the bound of the op's decomposition into steps of f32: each step adds its own rounding (half an ulp; 4 ulp of a \
         function, n u sum |x| of a sum) to what its inputs bring along through its derivative; half an ulp of the output besides. What is below twice the least \
         normal f32 may be 0.",
    ];
}
/// Functions of `unary`.
pub mod unary {
    #![allow(missing_docs)]
    pub const NEG: u32 = 1;
    pub const ABS: u32 = 2;
    pub const EXP: u32 = 3;
    pub const LOG: u32 = 4;
    pub const SQRT: u32 = 5;
    pub const RSQRT: u32 = 6;
    pub const TANH: u32 = 7;
    pub const ERF: u32 = 8;
    pub const SIGMOID: u32 = 9;
    pub const SIN: u32 = 10;
    pub const COS: u32 = 11;
    pub const FLOOR: u32 = 12;
}
/// Functions of `binary`.
pub mod binary {
    #![allow(missing_docs)]
    pub const ADD: u32 = 1;
    pub const SUB: u32 = 2;
    pub const MUL: u32 = 3;
    pub const DIV: u32 = 4;
    pub const MAX: u32 = 5;
    pub const MIN: u32 = 6;
    pub const POW: u32 = 7;
}
/// Relations of `compare` (NaN compares false, except `NE`).
pub mod compare {
    #![allow(missing_docs)]
    pub const EQ: u32 = 1;
    pub const NE: u32 = 2;
    pub const LT: u32 = 3;
    pub const LE: u32 = 4;
    pub const GT: u32 = 5;
    pub const GE: u32 = 6;
}
/// Kinds of `reduce`.
pub mod reduce {
    #![allow(missing_docs)]
    pub const SUM: u32 = 1;
    pub const SUMSQ: u32 = 2;
    pub const MAX: u32 = 3;
    pub const MIN: u32 = 4;
    pub const PROD: u32 = 5;
}
/// Kinds of `philox`.
pub mod philox {
    #![allow(missing_docs)]
    /// Raw 32-bit words (output u32).
    pub const BITS: u32 = 1;
    /// `lo + (hi - lo) * (word >> 8) * 2^-24`.
    pub const UNIFORM: u32 = 2;
    /// Box–Muller over word pairs, see the philox op's doc.
    pub const NORMAL: u32 = 3;
}
/// Functions of `activation_*`.
pub mod activation {
    #![allow(missing_docs)]
    /// HF `gelu_new`, `gelu_pytorch_tanh`.
    pub const GELU_TANH: u32 = 1;
    /// HF `gelu` (erf).
    pub const GELU_ERF: u32 = 2;
    pub const SILU: u32 = 3;
    pub const RELU: u32 = 4;
}
/// Instructions of `elementwise_program`.
pub mod inst {
    #![allow(missing_docs)]
    /// `dst = imm`.
    pub const CONST: u32 = 1;
    /// `dst = dyn.scalars[imm]`.
    pub const SCALAR: u32 = 2;
    pub const MOV: u32 = 3;
    pub const ADD: u32 = 4;
    pub const SUB: u32 = 5;
    pub const MUL: u32 = 6;
    pub const DIV: u32 = 7;
    pub const MAX: u32 = 8;
    pub const MIN: u32 = 9;
    /// `a * b + c`, rounded once.
    pub const FMA: u32 = 10;
    pub const NEG: u32 = 11;
    pub const ABS: u32 = 12;
    pub const SQRT: u32 = 13;
    pub const RSQRT: u32 = 14;
    pub const EXP: u32 = 15;
    pub const LOG: u32 = 16;
    pub const TANH: u32 = 17;
    pub const ERF: u32 = 18;
    pub const SIGMOID: u32 = 19;
    pub const FLOOR: u32 = 20;
    /// `a < b ? 1 : 0`.
    pub const LT: u32 = 21;
    /// `a != 0 ? b : c`.
    pub const SELECT: u32 = 22;
}

/// What holds of every op, where its row does not say otherwise; the head of the C header.
pub const RULES: &[&str] = &[
    "Operands read name:mode types, mode in, out or inout; `?` may be absent (a layout of rank 0 and dtype 0, and a NULL span); \
     `*` the group repeats to the end of the list; f = f32, bf16, f16. An op with several f or `any` operands takes them of one type.",
    "Layouts: ranks 0 to 8, also 7 and 8; sizes of 0 are legal and then nothing is done, or a sum of nothing. Outputs are dense \
     row-major, inputs have any non-negative strides, 0 broadcasts. Negative strides, and outputs whose elements overlap, are INVALID.",
    "Alignment: the span of an operand begins at a multiple of its element, no more, for views into larger tensors are \
     operands. A device that needs more sets CW_CAP_ALIGNED_OPERANDS, and every operand then begins at a multiple of \
     device_info.align: the host copies what does not. Workspaces always begin so.",
    "In place: an output may be an input only where the row says `may alias`, `may be` or the mode is inout; then both have the \
     same first byte, type, shape and strides. Other operands do not overlap, except inputs with inputs.",
    "Arithmetic is in f32 whatever the storage (f64 in f64), and what is stored is rounded once, to nearest even. NaN comes through: \
     0 * inf and 0 * NaN are NaN, MAX, MIN and a clamp of NaN are NaN, any payload may become any other, never an infinity or a number.",
    "Integers wrap: sums, differences, products and powers are exact modulo 2^bits; x / 0 is 0, the least number / -1 is itself, \
     division cuts off; a power with a negative exponent is its quotient cut off, and 0 to it is 0.",
    "Indices are compared with all their bits: 2^32 is not 0. Structs follow R1 and R2 of crossweave_plugin.h; a struct of zeros, \
     or none, is the default. Flags that a struct does not name are UNSUPPORTED.",
];

/// Is the op one every device must have?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Mandatory.
    Primitive,
    /// Optional; the core has exactly one decomposition.
    Fused,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct OpSpec {
    /// Id on the wire.
    pub id: u32,
    /// Name in messages, the header and `explain`.
    pub name: &'static str,
    /// The newest revision of its meaning; those before it are parts of it ([`revision_of`]).
    pub revision: u32,
    /// Mandatory or fused.
    pub class: Class,
    /// Operands, in order.
    pub operands: &'static [&'static str],
    /// Name of the params struct.
    pub params: &'static str,
    /// Name of the dyn struct, or "".
    pub dynamic: &'static str,
    /// Error class of a correct implementation.
    pub error: u64,
    /// What it computes.
    pub doc: &'static str,
}

/// One operand, as its row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Its name.
    pub name: &'static str,
    /// Its mode: `in`, `out` or `inout`.
    pub mode: &'static str,
}

impl Operand {
    /// Whether the op looks at what is in it.
    pub fn is_read(self) -> bool {
        self.mode != "out"
    }
    /// Whether the op changes it.
    pub fn is_written(self) -> bool {
        self.mode != "in"
    }
}

impl OpSpec {
    /// Whether this table has the revision.
    pub fn has_revision(&self, revision: u32) -> bool {
        (1..=self.revision).contains(&revision)
    }

    /// Operand `i`. A last row that is marked `*` repeats; of a group of rows that repeats together (AdamW's) the parameters say how many it
    /// has, and there is none behind its first.
    pub fn operand(&self, i: usize) -> Option<Operand> {
        let repeats = |row: &&&str| row.contains('*') && !row.contains('(');
        let last = || self.operands.last().filter(repeats);
        let row = *self.operands.get(i).or_else(last)?;
        let (name, rest) = row.split_once(':')?;
        let mode = rest.split([' ', '?', '*']).next()?;
        Some(Operand { name, mode })
    }
}

macro_rules! ops {
    ($( $id:literal $NAME:ident $name:literal $class:ident [$($opd:literal),*] $params:literal $dyn:literal $err:ident $doc:literal; )*) => {
        $( #[doc = $doc] pub const $NAME: u32 = $id; )*
        /// Every op, by id.
        pub const OPS: &[OpSpec] = &[ $( OpSpec { id: $id, name: $name, revision: revision::newest($id), class: Class::$class, operands: &[$($opd),*],
            params: $params, dynamic: $dyn, error: class::$err, doc: $doc } ),* ];
    };
}

ops! {
    // ---- move
    0x0001 COPY_STRIDED "copy_strided" Primitive ["dst:out any", "src:in any"] "NoParams" "" EXACT "dst = src; same shape and dtype, both with any strides (permute, slice, broadcast).";
    0x0002 CAST "cast" Primitive ["dst:out any", "src:in any"] "NoParams" "" CAST "dst = src converted in one rounding, to nearest even (i64 to bf16 too, not by way of f32); what is too large for a float type becomes infinite, in f8e4m3 and the fnuz types NaN; float to int cuts off and saturates, NaN to 0; int to int keeps the low bits. NaN stays NaN.";
    0x0003 FILL_STRIDED "fill_strided" Primitive ["dst:out any"] "FillParams" "" EXACT "dst = value; any strides.";
    0x0004 IOTA "iota" Primitive ["dst:out any"] "IotaParams" "" EXACT "dst[i] = start + step * i.";
    // ---- pointwise
    0x0005 UNARY "unary" Primitive ["dst:out f", "src:in f"] "KindParams" "" TRANSCENDENTAL "dst = f(src). RSQRT of 0 is inf, LOG and SQRT of negative numbers NaN, SIGMOID and TANH never overflow; SIN and COS are held to their class for |x| <= 100.";
    0x0006 BINARY "binary" Primitive ["dst:out any", "a:in any", "b:in any"] "KindParams" "" ROUNDED "dst = a op b; one dtype, broadcasting by stride 0; dst may alias a or b. POW is that of C: a negative base has powers with whole exponents, x^0 = 1^x = 1; as CW_CLASS_FUSED, POW may be |y ln x| ulp further off than CW_CLASS_TRANSCENDENTAL. MAX of zeros of two signs may give either.";
    0x0007 COMPARE "compare" Primitive ["dst:out u8", "a:in any", "b:in any"] "KindParams" "" EXACT "dst = a rel b ? 1 : 0. -0 equals 0; with NaN only NE holds.";
    0x0008 SELECT "select" Primitive ["dst:out any", "cond:in u8", "a:in any", "b:in any"] "NoParams" "" EXACT "dst = cond != 0 ? a : b; every byte but 0 chooses a.";
    0x0009 AXPBY "axpby" Primitive ["y:inout f", "x:in f"] "AxpbyParams" "" ROUNDED "y = alpha x + beta y; beta 0 does not read y. x may be of another float dtype than y. Two products and a sum are three steps, bounded as CW_CLASS_FUSED.";
    0x000A CLAMP "clamp" Primitive ["dst:out f", "src:in f"] "ClampParams" "" EXACT "dst = min(max(src, lo), hi), so that lo > hi gives hi; NaN stays.";
    // ---- reduce
    0x000B REDUCE "reduce" Primitive ["dst:out f", "src:in f"] "ReduceParams" "" SUM_PAIRWISE "dst has src's rank with reduced dims of size 1; f32 dst over 16-bit src allowed; CW_FLAG_ACCUM adds before the one rounding. Of nothing: SUM 0, PROD 1, MAX -inf, MIN inf. PROD rounds once for each factor, bounded as CW_CLASS_FUSED.";
    0x000C ARG_REDUCE "arg_reduce" Primitive ["dst:out i32|i64", "src:in f"] "DimParams" "" EXACT "index of the largest (kind 0) or smallest (1) along dim, which becomes 1 in dst; the first wins; NaN is larger than every number.";
    0x000D CUMSUM "cumsum" Primitive ["dst:out f|i32|i64", "src:in f|i32|i64"] "DimParams" "" SUM_SEQUENTIAL "inclusive running sum along dim.";
    0x000E NONFINITE_COUNT "nonfinite_count" Primitive ["dst:inout u32", "src:in f*"] "NoParams" "" EXACT "dst[0] += number of NaN and infinite elements over all sources.";
    // ---- linear
    0x000F MATMUL "matmul" Primitive ["c:inout f", "a:in f", "b:in f", "bias:in? f"] "MatmulParams" "" MATMUL "C[..,M,N] = alpha A[..,M,K] B[..,K,N] (+ bias[N]) (+ C with FLAG_ACCUM), f32 accumulation. Rank 2 or 3 (batch). A, B: any strides with one of the last two equal to 1 (so a transpose is a stride); C: unit last stride. C f32 with 16-bit A, B allowed.";
    // ---- index
    0x0010 GATHER_ROWS "gather_rows" Primitive ["dst:out any", "table:in any", "index:in i32|i64"] "IndexParams" "" EXACT "dst[i,:] = table[index[i],:]; an index out of range (negative ones are) or ignored gives zeros.";
    0x0011 SCATTER_ADD_ROWS "scatter_add_rows" Primitive ["table:inout f", "src:in f", "index:in i32|i64"] "IndexParams" "" SUM_SEQUENTIAL "table[index[i],:] += src[i,:] in order of i (deterministic); f32 table over 16-bit src allowed; an index out of range or ignored adds nothing.";
    0x0012 SORT_PAIRS "sort_pairs" Primitive ["keys_out:out f|i32|i64", "values_out:out i32|i64", "keys:in f|i32|i64", "values:in i32|i64"] "DimParams" "" EXACT "stable sort along the last dim; NaN last ascending, first descending.";
    0x0013 TOPK "topk" Primitive ["values:out f", "index:out i32|i64", "src:in f"] "DimParams" "" EXACT "k = values' last dim; largest first, NaN before all; ties by lower index.";
    0x0014 HISTOGRAM "histogram" Primitive ["dst:out i32|u32", "index:in i32|i64"] "NoParams" "" EXACT "dst[b] = number of indices equal to b, 0 <= b < size of dst; other indices are ignored.";
    // ---- random
    0x0015 PHILOX "philox" Primitive ["dst:out u32|f"] "PhiloxParams" "PhiloxDyn" EXACT "Philox4x32-10. Element e (row-major): c = offset + e/4; block(counter = [lo32(c), hi32(c), lo32(stream), hi32(stream)], key = [lo32(seed), hi32(seed)]), word e%4. uniform = lo + (hi-lo) * ((word >> 8) * 2^-24) in f32. normal: words (w0,w1) give lanes 0,1 and (w2,w3) lanes 2,3: u1 = ((w>>8)+1) * 2^-24, u2 = (w'>>8) * 2^-24, r = sqrt(-2 ln u1); lanes r cos(2 pi u2), r sin(2 pi u2), evaluated in f64 and rounded to f32 once; result lo + hi * z.";

    // ---- fused
    0x0100 ELEMENTWISE_PROGRAM "elementwise_program" Fused ["x:inout* f|u32"] "ProgramParams" "ProgramDyn" FUSED "See cw_program_params.";
    0x0101 ADAMW "adamw" Fused ["coef:in? f32", "skip:in? u32", "p:inout f", "g:in f", "m:inout f32", "v:inout f32", "master:inout f32 (with FLAG_MASTER)*"] "AdamwParams" "AdamwDyn" FUSED "For each group of (p, g, m, v[, master]): torch.optim.AdamW on master (or p when f32): g' = g*grad_scale*coef; p -= lr*wd*p; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2; p -= lr/bc1 * m / (sqrt(v)/sqrt(bc2) + eps); bc computed in f64. skip[0] != 0: nothing is written.";
    0x0110 LAYER_NORM_FWD "layer_norm_fwd" Fused ["y:out f", "mean:out f32", "rstd:out f32", "x:in f", "w:in f", "b:in? f"] "NormParams" "" FUSED "Over the last dim of x[n,d]: mean, rstd = 1/sqrt(sum((x - mean)^2)/d + eps), y = (x - mean) * rstd * w (+ b). w, b may be f32 under 16-bit x.";
    0x0111 LAYER_NORM_BWD "layer_norm_bwd" Fused ["dx:out f", "dw:inout f32", "db:inout? f32", "dy:in f", "x:in f", "w:in f", "mean:in f32", "rstd:in f32", "dres:in? f"] "NormParams" "" FUSED "With xh = (x - mean) rstd, gy = dy w: dx = rstd (gy - mean(gy) - xh mean(gy xh)) (+ dres); dw += sum over rows of dy xh, db += sum of dy. dx may alias dy or dres.";
    0x0112 RMS_NORM_FWD "rms_norm_fwd" Fused ["y:out f", "rstd:out f32", "x:in f", "w:in f"] "NormParams" "" FUSED "y = x * rstd * w; rstd = 1/sqrt(mean(x^2) + eps).";
    0x0113 RMS_NORM_BWD "rms_norm_bwd" Fused ["dx:out f", "dw:inout f32", "dy:in f", "x:in f", "w:in f", "rstd:in f32", "dres:in? f"] "NormParams" "" FUSED "With xh = x rstd, gy = dy w: dx = rstd (gy - xh mean(gy xh)) (+ dres); dw += sum over rows of dy xh. dx may alias dy or dres.";
    0x0120 SOFTMAX_FWD "softmax_fwd" Fused ["y:out f", "x:in f"] "NoParams" "" FUSED "y = exp(x - max) / sum exp(x - max) over the last dim; -inf gives 0.";
    0x0121 SOFTMAX_BWD "softmax_bwd" Fused ["dx:out f", "dy:in f", "y:in f"] "NoParams" "" FUSED "dx = y * (dy - sum(dy*y)).";
    0x0122 CROSS_ENTROPY_FWD "cross_entropy_fwd" Fused ["loss:out f32", "lse:out f32", "logits:in f", "target:in i32|i64"] "XentParams" "" FUSED "Per row of logits[n,V]: lse = log sum exp (about the maximum), loss = lse - logits[target]. Ignored rows have loss 0. A target outside [0,V) that is not ignored gives loss NaN. V may be beyond 65,536.";
    0x0123 CROSS_ENTROPY_BWD "cross_entropy_bwd" Fused ["dlogits:out f", "logits:in f", "lse:in f32", "target:in i32|i64", "dloss:in f32"] "XentParams" "" FUSED "dlogits = (exp(logits - lse) - onehot) * dloss[row] (dloss [n] or broadcast by stride 0), 0 in ignored rows, NaN in those of a target outside [0,V); dlogits may be logits.";
    0x0130 ATTENTION_FWD "attention_fwd" Fused ["o:out f", "lse:out f32", "q:in f", "k:in f", "v:in f"] "AttentionParams" "" FUSED "q,o [B,Tq,H,D], k,v [B,Tk,Hkv,D] with any strides but unit in D; head h reads kv head h/(H/Hkv); s = scale q.k, masked as cw_attention_params says; o = softmax(s) v; lse [B,H,Tq] dense, log sum exp s. A query that sees no key has o = 0, lse = -inf. Online softmax, O(T) memory.";
    0x0131 ATTENTION_BWD "attention_bwd" Fused ["dq:out f", "dk:out f", "dv:out f", "do:in f", "o:in f", "q:in f", "k:in f", "v:in f", "lse:in f32"] "AttentionParams" "" FUSED "Gradients of attention_fwd in the layouts given (strided outputs allowed, so that they may be slices of one fused dqkv); dk, dv are sums over the heads that read them; 0 for queries and keys that see nothing and are not seen.";
    0x0132 ATTENTION_VARLEN_FWD "attention_varlen_fwd" Fused ["o:out f", "lse:out f32", "q:in f", "k:in f", "v:in f", "cu:in i32"] "AttentionParams" "" FUSED "Packed sequences: as attention_fwd with Tq = Tk = T, within segments. Segment s of row b is the positions cu[b,s] <= t < cu[b,s+1] of cu [B,n+1], 0 <= cu[b,0] <= .. <= cu[b,n] <= T; no query sees a key of another. Segments may be empty; a position of no segment sees nothing and is not seen. Other values of cu give wrong numbers, but no access outside the operands.";
    0x0133 ATTENTION_VARLEN_BWD "attention_varlen_bwd" Fused ["dq:out f", "dk:out f", "dv:out f", "do:in f", "o:in f", "q:in f", "k:in f", "v:in f", "lse:in f32", "cu:in i32"] "AttentionParams" "" FUSED "Gradients of attention_varlen_fwd, laid out as those of attention_bwd; 0 at positions of no segment.";
    0x0134 ATTENTION_EXT_FWD "attention_ext_fwd" Fused ["o:out f", "lse:out f32", "q:in f", "k:in f", "v:in f", "bias:in? f", "sinks:in? f", "cu_q:in? i32", "cu_k:in? i32"] "AttentionExtParams" "PhiloxDyn" FUSED "As attention_fwd, where the score of query i and key j of head h is s = scale q.k; with cap > 0: s = cap tanh(s / cap); with bias [H, Tq+Tk-1]: s += bias[h, j - i + Tq - 1] (ALiBi, T5); the mask after it. With sinks [H] the sum of exponentials, and so lse, has one more term exp(sinks[h]), which has no value. With dropout > 0 a weight is kept when the word of its place is (as in `dropout`) and divided by 1 - dropout, else 0; lse is of the weights before. cu_q [B,n+1], cu_k [B,n+1] (absent: cu_q, and Tq = Tk) are segments as in attention_varlen_fwd: queries of segment s see keys of segment s, both counted from its begin for mask and bias; a query of none has o = 0 and lse = -inf. Revision 2: parts of a row, by shift and first_key; with CW_FLAG_IN_ROW mask and bias count in the row as without segments, which say only who sees whom; o may be f32 over 16-bit q, k, v, and by lse such parts add up to the whole. What asks for nothing of it is of revision 1.";
    0x0135 ATTENTION_EXT_BWD "attention_ext_bwd" Fused ["dq:out f", "dk:out f", "dv:out f", "dbias:inout? f32", "dsinks:inout? f32", "do:in f", "o:in f", "q:in f", "k:in f", "v:in f", "lse:in f32", "bias:in? f", "sinks:in? f", "cu_q:in? i32", "cu_k:in? i32"] "AttentionExtParams" "PhiloxDyn" FUSED "Gradients of attention_ext_fwd, laid out as those of attention_bwd; dbias [H, Tq+Tk-1] and dsinks [H] accumulate over the batch, in a fixed order. Revision 2: with o and lse of the whole row, gradients of a part are what it adds to those of the whole; dq, dk, dv may be f32 over 16-bit q, k, v, and so may do and o, each of them.";
    0x0140 ACTIVATION_FWD "activation_fwd" Fused ["y:out f", "x:in f"] "KindParams" "" FUSED "y = act(x): GELU_TANH x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is x/2 (1 + tanh(..)) and does not cancel, GELU_ERF x/2 (1 + erf(x/sqrt 2)), SILU x sigmoid(x), RELU max(x, 0).";
    0x0141 ACTIVATION_BWD "activation_bwd" Fused ["dx:out f", "dy:in f", "x:in f"] "KindParams" "" FUSED "dx = dy * act'(x); dx may alias dy.";
    0x0142 SWIGLU_FWD "swiglu_fwd" Fused ["y:out f", "gate:in f", "up:in f"] "NoParams" "" FUSED "y = silu(gate) * up; gate and up may be strided halves of one matrix.";
    0x0143 SWIGLU_BWD "swiglu_bwd" Fused ["dgate:out f", "dup:out f", "dy:in f", "gate:in f", "up:in f"] "NoParams" "" FUSED "dup = dy silu(gate), dgate = dy up silu'(gate). Strided outputs allowed; they do not alias.";
    0x0150 ROPE "rope" Fused ["y:out f", "x:in f", "cos:in f32", "sin:in f32"] "RopeParams" "" FUSED "x,y [B,T,H,D] strided, unit in D; cos,sin [T, R/2] rotate the first R <= D elements of a head as cw_rope_params says, the others are copied; y may be x.";
    0x0160 EMBEDDING_FWD "embedding_fwd" Fused ["y:out f", "table:in f", "index:in i32|i64", "pos:in? f"] "IndexParams" "" EXACT "y[b,t,:] = table[index[b,t],:] (+ pos[t,:]); an index out of range or ignored gives zeros (+ pos). With pos it is one sum in f32, as CW_CLASS_ROUNDED.";
    0x0161 EMBEDDING_BWD "embedding_bwd" Fused ["dtable:inout f32", "dpos:inout? f32", "dy:in f", "index:in i32|i64"] "IndexParams" "" SUM_SEQUENTIAL "dtable[index[b,t],:] += dy[b,t,:] and dpos[t,:] += sum over b of dy[b,t,:], in order of position (deterministic); an index out of range or ignored adds nothing to dtable.";
    0x0170 MULTI_SUMSQ "multi_sumsq" Fused ["out:inout f32", "x:in* f"] "NoParams" "" SUM_PAIRWISE "out[0] += sum over all tensors of x^2, in a fixed order that does not depend on the thread count.";
    0x0171 MULTI_SCALE "multi_scale" Fused ["coef:in? f32", "x:inout* f"] "NoParams" "ScaleDyn" ROUNDED "x *= scale * coef[0]; that factor is one number, rounded to f32.";
    0x0180 DROPOUT "dropout" Fused ["y:out f", "x:in f", "residual:in? f"] "DropoutParams" "PhiloxDyn" FUSED "y = keep(e) ? x/(1-p) : 0 (+ residual); keep(e) = uniform[0,1) of philox element e >= p; y may alias x. Its backward is itself on dy.";
    0x0181 ADD "add" Fused ["y:out f", "a:in f", "b:in f"] "NoParams" "" ROUNDED "y = a + b, dense; y may alias a or b (residual adds, gradient sums).";
    0x0190 GROUPED_MATMUL "grouped_matmul" Fused ["y:out f", "x:in f", "w:in f", "ends:in i32"] "NoParams" "" MATMUL "x [n,K], w [E,N,K], y [n,N]: y[i,:] = x[i,:] w[e]^T for the rows ends[e-1] <= i < ends[e] of group e, ends[-1] = 0, of ends [E], 0 <= ends[0] <= .. <= ends[E-1] <= n; groups may be empty. Rows from ends[E-1] on are not read and are 0 in y. x and each w[e] have one of their two strides equal to 1, so that a transpose is a stride. The bits of a row do not depend on other rows. Other values of ends give wrong numbers, but no access outside the operands.";
    0x0192 GROUPED_MATMUL_DW "grouped_matmul_dw" Fused ["dw:inout f", "dy:in f", "x:in f", "ends:in i32"] "GroupedParams" "" MATMUL "dw[e] = dy^T x (+ dw[e] with FLAG_ACCUM) over the rows of group e of dy [n,N] and x [n,K], laid out and grouped as in grouped_matmul; dw [E,N,K] may be f32 over 16-bit dy and x. That of an empty group is 0, or stays with FLAG_ACCUM; rows from ends[E-1] on are not read.";
}

/// The row of an id.
pub fn spec(id: u32) -> Option<&'static OpSpec> {
    OPS.iter().find(|o| o.id == id)
}

/// The row of a name.
pub fn by_name(name: &str) -> Option<&'static OpSpec> {
    OPS.iter().find(|o| o.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_those_of_the_rows_and_repeat_where_a_list_does() {
        for spec in OPS {
            for (i, text) in spec.operands.iter().enumerate() {
                let Some(o) = spec.operand(i) else {
                    panic!("{}: {text}", spec.name);
                };
                assert!(!o.name.is_empty() && !o.name.contains([':', ' ']));
                assert!(["in", "out", "inout"].contains(&o.mode), "{text}");
                let reads = text.contains(":in ") || text.contains(":in?") || text.contains(":in*");
                assert_eq!(o.is_written(), !reads, "{}: {text}", spec.name);
                assert_eq!(o.is_read(), !text.contains(":out"), "{}: {text}", spec.name);
            }
            let list = [MULTI_SUMSQ, MULTI_SCALE].contains(&spec.id);
            let beyond = spec.operand(spec.operands.len() + 5);
            assert!(!list || beyond.is_some(), "{}", spec.name);
            assert!(spec.id != ADAMW || beyond.is_none());
        }
    }
}
