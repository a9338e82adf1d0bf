/* crossweave_ops.h - ids, constants and parameter structs of crossweave.ops/1. Generated from the op table; do not edit.
 * Operands read name:mode types, mode in, out or inout; `?` may be absent; `*` the group repeats to the end of the list;
 * f = f32, bf16, f16. Outputs are dense row-major unless said otherwise, inputs have any non-negative strides.
 * Arithmetic is in f32 whatever the storage. Structs follow R1 and R2 of crossweave_plugin.h; all zero = default. */
#ifndef CROSSWEAVE_OPS_H
#define CROSSWEAVE_OPS_H
#include "crossweave_plugin.h"

#define CW_FLAG_ACCUM 1u
#define CW_FLAG_HAS_IGNORE 2u
#define CW_FLAG_CAUSAL 4u
#define CW_FLAG_INVERSE 8u
#define CW_FLAG_INTERLEAVED 16u
#define CW_FLAG_DESCENDING 32u
#define CW_FLAG_MASTER 64u
#define CW_CLASS_EXACT 1u
#define CW_CLASS_CAST 2u
#define CW_CLASS_ROUNDED 3u
#define CW_CLASS_TRANSCENDENTAL 4u
#define CW_CLASS_SUM_SEQUENTIAL 5u
#define CW_CLASS_SUM_PAIRWISE 6u
#define CW_CLASS_MATMUL 7u
#define CW_CLASS_FUSED 8u
#define CW_UNARY_NEG 1u
#define CW_UNARY_ABS 2u
#define CW_UNARY_EXP 3u
#define CW_UNARY_LOG 4u
#define CW_UNARY_SQRT 5u
#define CW_UNARY_RSQRT 6u
#define CW_UNARY_TANH 7u
#define CW_UNARY_ERF 8u
#define CW_UNARY_SIGMOID 9u
#define CW_UNARY_SIN 10u
#define CW_UNARY_COS 11u
#define CW_UNARY_FLOOR 12u
#define CW_BINARY_ADD 1u
#define CW_BINARY_SUB 2u
#define CW_BINARY_MUL 3u
#define CW_BINARY_DIV 4u
#define CW_BINARY_MAX 5u
#define CW_BINARY_MIN 6u
#define CW_BINARY_POW 7u
#define CW_COMPARE_EQ 1u
#define CW_COMPARE_NE 2u
#define CW_COMPARE_LT 3u
#define CW_COMPARE_LE 4u
#define CW_COMPARE_GT 5u
#define CW_COMPARE_GE 6u
#define CW_REDUCE_SUM 1u
#define CW_REDUCE_SUMSQ 2u
#define CW_REDUCE_MAX 3u
#define CW_REDUCE_MIN 4u
#define CW_REDUCE_PROD 5u
#define CW_PHILOX_BITS 1u
#define CW_PHILOX_UNIFORM 2u
#define CW_PHILOX_NORMAL 3u
#define CW_ACTIVATION_GELU_TANH 1u
#define CW_ACTIVATION_GELU_ERF 2u
#define CW_ACTIVATION_SILU 3u
#define CW_ACTIVATION_RELU 4u
#define CW_INST_CONST 1u
#define CW_INST_SCALAR 2u
#define CW_INST_MOV 3u
#define CW_INST_ADD 4u
#define CW_INST_SUB 5u
#define CW_INST_MUL 6u
#define CW_INST_DIV 7u
#define CW_INST_MAX 8u
#define CW_INST_MIN 9u
#define CW_INST_FMA 10u
#define CW_INST_NEG 11u
#define CW_INST_ABS 12u
#define CW_INST_SQRT 13u
#define CW_INST_RSQRT 14u
#define CW_INST_EXP 15u
#define CW_INST_LOG 16u
#define CW_INST_TANH 17u
#define CW_INST_ERF 18u
#define CW_INST_SIGMOID 19u
#define CW_INST_FLOOR 20u
#define CW_INST_LT 21u
#define CW_INST_SELECT 22u
#define CW_PROGRAM_MAX_INSTS 64u
#define CW_PROGRAM_MAX_OPERANDS 16u
#define CW_PROGRAM_MAX_REGS 64u

typedef struct cw_no_params {
  uint32_t size;
  uint32_t flags;
} cw_no_params;
typedef struct cw_fill_params {
  uint32_t size;
  uint32_t flags;
  double value;
} cw_fill_params;
typedef struct cw_iota_params {
  uint32_t size;
  uint32_t flags;
  double start;
  double step;
} cw_iota_params;
typedef struct cw_kind_params {
  uint32_t size;
  uint32_t kind;
} cw_kind_params;
typedef struct cw_axpby_params {
  uint32_t size;
  uint32_t flags;
  double alpha;
  double beta;
} cw_axpby_params;
typedef struct cw_clamp_params {
  uint32_t size;
  uint32_t flags;
  double lo;
  double hi;
} cw_clamp_params;
typedef struct cw_reduce_params {
  uint32_t size;
  uint32_t kind;
  uint32_t axes;
  uint32_t flags;
} cw_reduce_params;
typedef struct cw_dim_params {
  uint32_t size;
  uint32_t kind;
  uint32_t dim;
  uint32_t flags;
} cw_dim_params;
typedef struct cw_matmul_params {
  uint32_t size;
  uint32_t flags;
  uint32_t acc_dtype;
  uint32_t epilogue;
  double alpha;
} cw_matmul_params;
typedef struct cw_index_params {
  uint32_t size;
  uint32_t flags;
  int64_t ignore;
} cw_index_params;
typedef struct cw_philox_params {
  uint32_t size;
  uint32_t kind;
  double lo;
  double hi;
} cw_philox_params;
typedef struct cw_philox_dyn {
  uint32_t size;
  uint32_t flags;
  uint64_t seed;
  uint64_t offset;
  uint64_t stream;
} cw_philox_dyn;
typedef struct cw_norm_params {
  uint32_t size;
  uint32_t flags;
  double eps;
} cw_norm_params;
typedef struct cw_xent_params {
  uint32_t size;
  uint32_t flags;
  int64_t ignore;
} cw_xent_params;
typedef struct cw_attention_params {
  uint32_t size;
  uint32_t flags;
  double scale;
  int64_t window;
} cw_attention_params;
typedef struct cw_attention_ext_params {
  uint32_t size;
  uint32_t flags;
  double scale;
  int64_t window;
  double cap;
  double dropout;
  int64_t heads;
  int64_t queries;
  int64_t keys;
} cw_attention_ext_params;
typedef struct cw_rope_params {
  uint32_t size;
  uint32_t flags;
} cw_rope_params;
typedef struct cw_adamw_params {
  uint32_t size;
  uint32_t flags;
  uint32_t mode;
  uint32_t reserved;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
} cw_adamw_params;
typedef struct cw_adamw_dyn {
  uint32_t size;
  uint32_t flags;
  double lr;
  double grad_scale;
  uint64_t step;
} cw_adamw_dyn;
typedef struct cw_dropout_params {
  uint32_t size;
  uint32_t flags;
  double p;
} cw_dropout_params;
typedef struct cw_scale_dyn {
  uint32_t size;
  uint32_t flags;
  double scale;
} cw_scale_dyn;
typedef struct cw_program_inst {
  uint32_t size;
  uint32_t op;
  uint32_t dst;
  uint32_t a;
  uint32_t b;
  uint32_t c;
  float imm;
} cw_program_inst;
typedef struct cw_program_params {
  uint32_t size;
  uint32_t n_insts;
  uint32_t writes;
  uint32_t flags;
  cw_program_inst insts[64];
} cw_program_params;
typedef struct cw_program_dyn {
  uint32_t size;
  uint32_t flags;
  float scalars[8];
} cw_program_dyn;

/* copy_strided: dst = src; same shape and dtype, both with any strides (permute, slice, broadcast). Operands:
 * dst:out any, src:in any. Params: cw_no_params. Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_COPY_STRIDED 0x0001u
/* cast: dst = src converted, round to nearest even; float to int truncates and saturates, NaN to 0. Operands:
 * dst:out any, src:in any. Params: cw_no_params. Revision 1; primitive, mandatory; error class 2. */
#define CW_OP_CAST 0x0002u
/* fill_strided: dst = value; any strides. Operands: dst:out any. Params: cw_fill_params. Revision 1; primitive,
 * mandatory; error class 1. */
#define CW_OP_FILL_STRIDED 0x0003u
/* iota: dst[i] = start + step * i. Operands: dst:out any. Params: cw_iota_params. Revision 1; primitive, mandatory;
 * error class 1. */
#define CW_OP_IOTA 0x0004u
/* unary: dst = f(src). Operands: dst:out f, src:in f. Params: cw_kind_params. Revision 1; primitive, mandatory;
 * error class 4. */
#define CW_OP_UNARY 0x0005u
/* binary: dst = a op b; one dtype, broadcasting by stride 0; dst may alias a or b. Operands: dst:out any, a:in any,
 * b:in any. Params: cw_kind_params. Revision 1; primitive, mandatory; error class 3. */
#define CW_OP_BINARY 0x0006u
/* compare: dst = a rel b ? 1 : 0. Operands: dst:out u8, a:in any, b:in any. Params: cw_kind_params. Revision 1;
 * primitive, mandatory; error class 1. */
#define CW_OP_COMPARE 0x0007u
/* select: dst = cond != 0 ? a : b. Operands: dst:out any, cond:in u8, a:in any, b:in any. Params: cw_no_params.
 * Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_SELECT 0x0008u
/* axpby: y = alpha x + beta y; beta 0 does not read y. x may be of another float dtype than y. Operands: y:inout f,
 * x:in f. Params: cw_axpby_params. Revision 1; primitive, mandatory; error class 3. */
#define CW_OP_AXPBY 0x0009u
/* clamp: dst = min(max(src, lo), hi); NaN stays. Operands: dst:out f, src:in f. Params: cw_clamp_params. Revision
 * 1; primitive, mandatory; error class 1. */
#define CW_OP_CLAMP 0x000Au
/* reduce: dst has src's rank with reduced dims of size 1; f32 dst over 16-bit src allowed; FLAG_ACCUM adds.
 * Operands: dst:out f, src:in f. Params: cw_reduce_params. Revision 1; primitive, mandatory; error class 6. */
#define CW_OP_REDUCE 0x000Bu
/* arg_reduce: index of the largest (kind 0) or smallest (1) along dim, which becomes 1 in dst; the first wins; NaN
 * counts as largest. Operands: dst:out i32|i64, src:in f. Params: cw_dim_params. Revision 1; primitive, mandatory;
 * error class 1. */
#define CW_OP_ARG_REDUCE 0x000Cu
/* cumsum: inclusive running sum along dim. Operands: dst:out f|i32|i64, src:in f|i32|i64. Params: cw_dim_params.
 * Revision 1; primitive, mandatory; error class 5. */
#define CW_OP_CUMSUM 0x000Du
/* nonfinite_count: dst[0] += number of NaN and infinite elements over all sources. Operands: dst:inout u32, src:in
 * f*. Params: cw_no_params. Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_NONFINITE_COUNT 0x000Eu
/* matmul: C[..,M,N] = alpha A[..,M,K] B[..,K,N] (+ bias[N]) (+ C with FLAG_ACCUM), f32 accumulation. Rank 2 or 3
 * (batch). A, B: any strides with one of the last two equal to 1 (so a transpose is a stride); C: unit last stride.
 * C f32 with 16-bit A, B allowed. Operands: c:inout f, a:in f, b:in f, bias:in? f. Params: cw_matmul_params.
 * Revision 1; primitive, mandatory; error class 7. */
#define CW_OP_MATMUL 0x000Fu
/* gather_rows: dst[i,:] = table[index[i],:]; an index out of range (or ignored) gives zeros. Operands: dst:out any,
 * table:in any, index:in i32|i64. Params: cw_index_params. Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_GATHER_ROWS 0x0010u
/* scatter_add_rows: table[index[i],:] += src[i,:] in order of i (deterministic); f32 table over 16-bit src allowed.
 * Operands: table:inout f, src:in f, index:in i32|i64. Params: cw_index_params. Revision 1; primitive, mandatory;
 * error class 5. */
#define CW_OP_SCATTER_ADD_ROWS 0x0011u
/* sort_pairs: stable sort along the last dim; NaN last ascending, first descending. Operands: keys_out:out
 * f|i32|i64, values_out:out i32|i64, keys:in f|i32|i64, values:in i32|i64. Params: cw_dim_params. Revision 1;
 * primitive, mandatory; error class 1. */
#define CW_OP_SORT_PAIRS 0x0012u
/* topk: k = values' last dim; largest first; ties by lower index. Operands: values:out f, index:out i32|i64, src:in
 * f. Params: cw_dim_params. Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_TOPK 0x0013u
/* histogram: dst[b] = number of indices equal to b; others are ignored. Operands: dst:out i32|u32, index:in
 * i32|i64. Params: cw_no_params. Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_HISTOGRAM 0x0014u
/* philox: Philox4x32-10. Element e (row-major): c = offset + e/4; block(counter = [lo32(c), hi32(c), lo32(stream),
 * hi32(stream)], key = [lo32(seed), hi32(seed)]), word e%4. uniform = lo + (hi-lo) * ((word >> 8) * 2^-24) in f32.
 * normal: words (w0,w1) give lanes 0,1 and (w2,w3) lanes 2,3: u1 = ((w>>8)+1) * 2^-24, u2 = (w'>>8) * 2^-24, r =
 * sqrt(-2 ln u1); lanes r cos(2 pi u2), r sin(2 pi u2), evaluated in f64 and rounded to f32 once; result lo + hi *
 * z. Operands: dst:out u32|f. Params: cw_philox_params; at launch cw_philox_dyn. Revision 1; primitive, mandatory;
 * error class 1. */
#define CW_OP_PHILOX 0x0015u
/* elementwise_program: See `ProgramParams`. Operands: x:inout* f|u32. Params: cw_program_params; at launch
 * cw_program_dyn. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ELEMENTWISE_PROGRAM 0x0100u
/* adamw: For each group of (p, g, m, v[, master]): torch.optim.AdamW on master (or p when f32): g' =
 * g*grad_scale*coef; p -= lr*wd*p; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2; p -= lr/bc1 * m /
 * (sqrt(v)/sqrt(bc2) + eps); bc computed in f64. skip[0] != 0: nothing is written. Operands: coef:in? f32, skip:in?
 * u32, p:inout f, g:in f, m:inout f32, v:inout f32, master:inout f32 (with FLAG_MASTER)*. Params: cw_adamw_params;
 * at launch cw_adamw_dyn. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ADAMW 0x0101u
/* layer_norm_fwd: Over the last dim of x[n,d]. Operands: y:out f, mean:out f32, rstd:out f32, x:in f, w:in f, b:in?
 * f. Params: cw_norm_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_LAYER_NORM_FWD 0x0110u
/* layer_norm_bwd: dx = grad through the norm (+ dres); dw, db accumulate. dx may alias dy or dres. Operands: dx:out
 * f, dw:inout f32, db:inout? f32, dy:in f, x:in f, w:in f, mean:in f32, rstd:in f32, dres:in? f. Params:
 * cw_norm_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_LAYER_NORM_BWD 0x0111u
/* rms_norm_fwd: y = x * rstd * w; rstd = 1/sqrt(mean(x^2) + eps). Operands: y:out f, rstd:out f32, x:in f, w:in f.
 * Params: cw_norm_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_RMS_NORM_FWD 0x0112u
/* rms_norm_bwd: As layer_norm_bwd; dx may alias dy or dres. Operands: dx:out f, dw:inout f32, dy:in f, x:in f, w:in
 * f, rstd:in f32, dres:in? f. Params: cw_norm_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_RMS_NORM_BWD 0x0113u
/* softmax_fwd: Over the last dim. Operands: y:out f, x:in f. Params: cw_no_params. Revision 1; fused, the core can
 * decompose it; error class 8. */
#define CW_OP_SOFTMAX_FWD 0x0120u
/* softmax_bwd: dx = y * (dy - sum(dy*y)). Operands: dx:out f, dy:in f, y:in f. Params: cw_no_params. Revision 1;
 * fused, the core can decompose it; error class 8. */
#define CW_OP_SOFTMAX_BWD 0x0121u
/* cross_entropy_fwd: Per row of logits[n,V]: lse = log sum exp, loss = lse - logits[target]. A target outside [0,V)
 * that is not ignored gives NaN. Operands: loss:out f32, lse:out f32, logits:in f, target:in i32|i64. Params:
 * cw_xent_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_CROSS_ENTROPY_FWD 0x0122u
/* cross_entropy_bwd: dlogits = (exp(logits - lse) - onehot) * dloss[row] (dloss [n] or broadcast by stride 0);
 * dlogits may be logits. Operands: dlogits:out f, logits:in f, lse:in f32, target:in i32|i64, dloss:in f32. Params:
 * cw_xent_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_CROSS_ENTROPY_BWD 0x0123u
/* attention_fwd: q,o [B,Tq,H,D], k,v [B,Tk,Hkv,D] with any strides but unit in D; head h reads kv head h/(H/Hkv);
 * lse [B,H,Tq] dense. Online softmax, O(T) memory. Operands: o:out f, lse:out f32, q:in f, k:in f, v:in f. Params:
 * cw_attention_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ATTENTION_FWD 0x0130u
/* attention_bwd: Gradients in the layouts given (strided outputs allowed, so that they may be slices of one fused
 * dqkv). Operands: dq:out f, dk:out f, dv:out f, do:in f, o:in f, q:in f, k:in f, v:in f, lse:in f32. Params:
 * cw_attention_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ATTENTION_BWD 0x0131u
/* attention_varlen_fwd: Packed sequences: as attention_fwd with Tq = Tk = T, within segments. Segment s of row b is
 * the positions cu[b,s] <= t < cu[b,s+1] of cu [B,n+1], 0 <= cu[b,0] <= .. <= cu[b,n] <= T; no query sees a key of
 * another. Segments may be empty; a position of no segment sees nothing and is not seen. Other values of cu give
 * wrong numbers, but no access outside the operands. Operands: o:out f, lse:out f32, q:in f, k:in f, v:in f, cu:in
 * i32. Params: cw_attention_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ATTENTION_VARLEN_FWD 0x0132u
/* attention_varlen_bwd: Gradients of attention_varlen_fwd, laid out as those of attention_bwd; 0 at positions of no
 * segment. Operands: dq:out f, dk:out f, dv:out f, do:in f, o:in f, q:in f, k:in f, v:in f, lse:in f32, cu:in i32.
 * Params: cw_attention_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ATTENTION_VARLEN_BWD 0x0133u
/* attention_ext_fwd: As attention_fwd, where the score of query i and key j of head h is s = scale q.k; with cap >
 * 0: s = cap tanh(s / cap); with bias [H, Tq+Tk-1]: s += bias[h, j - i + Tq - 1] (ALiBi, T5); the mask after it.
 * With sinks [H] the sum of exponentials, and so lse, has one more term exp(sinks[h]), which has no value. With
 * dropout > 0 a weight is kept when the word of its place is (as in `dropout`) and divided by 1 - dropout, else 0;
 * lse is of the weights before. cu_q [B,n+1], cu_k [B,n+1] (absent: cu_q, and Tq = Tk) are segments as in
 * attention_varlen_fwd: queries of segment s see keys of segment s, both counted from its begin for mask and bias;
 * a query of none has o = 0 and lse = -inf. Operands: o:out f, lse:out f32, q:in f, k:in f, v:in f, bias:in? f,
 * sinks:in? f, cu_q:in? i32, cu_k:in? i32. Params: cw_attention_ext_params; at launch cw_philox_dyn. Revision 1;
 * fused, the core can decompose it; error class 8. */
#define CW_OP_ATTENTION_EXT_FWD 0x0134u
/* attention_ext_bwd: Gradients of attention_ext_fwd, laid out as those of attention_bwd; dbias [H, Tq+Tk-1] and
 * dsinks [H] accumulate over the batch, in a fixed order. Operands: dq:out f, dk:out f, dv:out f, dbias:inout? f32,
 * dsinks:inout? f32, do:in f, o:in f, q:in f, k:in f, v:in f, lse:in f32, bias:in? f, sinks:in? f, cu_q:in? i32,
 * cu_k:in? i32. Params: cw_attention_ext_params; at launch cw_philox_dyn. Revision 1; fused, the core can decompose
 * it; error class 8. */
#define CW_OP_ATTENTION_EXT_BWD 0x0135u
/* activation_fwd: y = act(x). Operands: y:out f, x:in f. Params: cw_kind_params. Revision 1; fused, the core can
 * decompose it; error class 8. */
#define CW_OP_ACTIVATION_FWD 0x0140u
/* activation_bwd: dx = dy * act'(x); dx may alias dy. Operands: dx:out f, dy:in f, x:in f. Params: cw_kind_params.
 * Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ACTIVATION_BWD 0x0141u
/* swiglu_fwd: y = silu(gate) * up; gate and up may be strided halves of one matrix. Operands: y:out f, gate:in f,
 * up:in f. Params: cw_no_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_SWIGLU_FWD 0x0142u
/* swiglu_bwd: Strided outputs allowed. Operands: dgate:out f, dup:out f, dy:in f, gate:in f, up:in f. Params:
 * cw_no_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_SWIGLU_BWD 0x0143u
/* rope: x,y [B,T,H,D] strided, unit in D; cos,sin [T, R/2] rotate the first R <= D elements of a head; y may be x.
 * Operands: y:out f, x:in f, cos:in f32, sin:in f32. Params: cw_rope_params. Revision 1; fused, the core can
 * decompose it; error class 8. */
#define CW_OP_ROPE 0x0150u
/* embedding_fwd: y[b,t,:] = table[index[b,t],:] (+ pos[t,:]). Operands: y:out f, table:in f, index:in i32|i64,
 * pos:in? f. Params: cw_index_params. Revision 1; fused, the core can decompose it; error class 1. */
#define CW_OP_EMBEDDING_FWD 0x0160u
/* embedding_bwd: Accumulates in order of position (deterministic). Operands: dtable:inout f32, dpos:inout? f32,
 * dy:in f, index:in i32|i64. Params: cw_index_params. Revision 1; fused, the core can decompose it; error class 5. */
#define CW_OP_EMBEDDING_BWD 0x0161u
/* multi_sumsq: out[0] += sum over all tensors of x^2, in a fixed order that does not depend on the thread count.
 * Operands: out:inout f32, x:in* f. Params: cw_no_params. Revision 1; fused, the core can decompose it; error class
 * 6. */
#define CW_OP_MULTI_SUMSQ 0x0170u
/* multi_scale: x *= scale * coef[0]. Operands: coef:in? f32, x:inout* f. Params: cw_no_params; at launch
 * cw_scale_dyn. Revision 1; fused, the core can decompose it; error class 3. */
#define CW_OP_MULTI_SCALE 0x0171u
/* dropout: y = keep(e) ? x/(1-p) : 0 (+ residual); keep(e) = uniform[0,1) of philox element e >= p; y may alias x.
 * Its backward is itself on dy. Operands: y:out f, x:in f, residual:in? f. Params: cw_dropout_params; at launch
 * cw_philox_dyn. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_DROPOUT 0x0180u
/* add: y = a + b, dense; y may alias a or b (residual adds, gradient sums). Operands: y:out f, a:in f, b:in f.
 * Params: cw_no_params. Revision 1; fused, the core can decompose it; error class 3. */
#define CW_OP_ADD 0x0181u

/* Profiles: what `crossweave conform --profile NAME` demands, and all that the core needs to train. A row names an
 * op and the types of its operands, absent ones left out: `?` may be absent, `*` repeats, h is one 16-bit float,
 * bf16 or f16, the same in all rows. Of a row every shape, layout, kind and parameter of the op table is meant.
 * Beside them a profile demands every slot of crossweave.device/1 that is not marked (opt). */
/* profile minimal: copy_strided f32 f32 | i32 i32; cast f32 u8 | f32 u32 | f32 i32 | i32 f32; fill_strided f32 |
 * i32; iota f32 | i32; unary f32 f32; binary f32 f32 f32; compare u8 f32 f32 | u8 i32 i32; select f32 u8 f32 f32;
 * axpby f32 f32; clamp f32 f32; reduce f32 f32; arg_reduce i32 f32; cumsum f32 f32 | i32 i32; nonfinite_count u32
 * f32*; matmul f32 f32 f32 f32?; gather_rows f32 f32 i32 | i32 i32 i32; scatter_add_rows f32 f32 i32; sort_pairs
 * f32 i32 f32 i32 | i32 i32 i32 i32; topk f32 i32 f32; histogram i32 i32; philox u32 | f32. */
/* profile train: copy_strided h h; cast f32 h | h f32; fill_strided h; unary h h; binary h h h; select h u8 h h;
 * axpby h h; clamp h h; reduce h h; nonfinite_count u32 h*; matmul h h h h?; gather_rows h h i32. */
/* train also, of a plugin that has crossweave.collective/1 at all, and collective-only of every one: all_reduce f32
 * sum; all_gather u8; broadcast u8; send u8; recv u8; sends and receives in groups. Everything else is composed of
 * these. */
#endif
