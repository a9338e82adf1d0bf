/* crossweave_ops.h - ids, constants and parameter structs of crossweave.ops/1. Generated from the op table; do not edit.
 * Operands read name:mode types, mode in, out or inout; `?` may be absent (a layout of rank 0 and dtype 0, and a
 *   NULL span); `*` the group repeats to the end of the list; f = f32, bf16, f16. An op with several f or `any`
 *   operands takes them of one type.
 * Layouts: ranks 0 to 8, also 7 and 8; sizes of 0 are legal and then nothing is done, or a sum of nothing. Outputs
 *   are dense row-major, inputs have any non-negative strides, 0 broadcasts. Negative strides, and outputs whose
 *   elements overlap, are INVALID.
 * Alignment: the span of an operand begins at a multiple of its element, no more, for views into larger tensors are
 *   operands. A device that needs more sets CW_CAP_ALIGNED_OPERANDS, and every operand then begins at a multiple of
 *   device_info.align: the host copies what does not. Workspaces always begin so.
 * In place: an output may be an input only where the row says `may alias`, `may be` or the mode is inout; then both
 *   have the same first byte, type, shape and strides. Other operands do not overlap, except inputs with inputs.
 * Arithmetic is in f32 whatever the storage (f64 in f64), and what is stored is rounded once, to nearest even. NaN
 *   comes through: 0 * inf and 0 * NaN are NaN, MAX, MIN and a clamp of NaN are NaN, any payload may become any
 *   other, never an infinity or a number.
 * Integers wrap: sums, differences, products and powers are exact modulo 2^bits; x / 0 is 0, the least number / -1
 *   is itself, division cuts off; a power with a negative exponent is its quotient cut off, and 0 to it is 0.
 * Indices are compared with all their bits: 2^32 is not 0. Structs follow R1 and R2 of crossweave_plugin.h; a
 *   struct of zeros, or none, is the default. Flags that a struct does not name are UNSUPPORTED. */
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
#define CW_FLAG_IN_ROW 128u
/* Error classes, with u = 2^-24: how far from the true result a plan's result may be. A plan states the class of
 * its op's row or a stricter one; of sums either order will do. A device whose arithmetic takes subnormal numbers
 * for 0 says so by the attribute `flush_subnormals`, text 1. EXACT: the bits of the true result; any NaN for a NaN. */
#define CW_CLASS_EXACT 1u
/* The true value in one rounding to nearest even into the output's type: these bits. */
#define CW_CLASS_CAST 2u
/* One operation in f32, correctly rounded, and rounded once more into a 16-bit output: these bits. A plan that
 * states TRANSCENDENTAL is held to that. */
#define CW_CLASS_ROUNDED 3u
/* 4 ulp of f32; in a 16-bit output 1.5 ulp of its own besides. */
#define CW_CLASS_TRANSCENDENTAL 4u
/* A sum of n numbers x within n u sum |x|, added in any order, and half an ulp of the output besides. */
#define CW_CLASS_SUM_SEQUENTIAL 5u
/* The same within 2 ceil(log2 n) u sum |x|: halves, blocks or many accumulators, not one after the other. */
#define CW_CLASS_SUM_PAIRWISE 6u
/* n u (|A| |B|), where n is K and one for each of bias and C that is added, and half an ulp of the output besides. */
#define CW_CLASS_MATMUL 7u
/* Twice the bound of the op's decomposition into steps of f32: each step adds its own rounding (half an ulp; 4 ulp
 * of a function, n u sum |x| of a sum) to what its inputs bring along through its derivative; half an ulp of the
 * output besides. What is below twice the least normal f32 may be 0. */
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

/* Ops without parameters. */
typedef struct cw_no_params {
  uint32_t size;
  /* 0. */
  uint32_t flags;
} cw_no_params;
/* fill_strided. */
typedef struct cw_fill_params {
  uint32_t size;
  /* 0. */
  uint32_t flags;
  /* Rounded once to a float dtype; of an integer dtype it must be a whole number in its range, else INVALID. */
  double value;
} cw_fill_params;
/* iota. */
typedef struct cw_iota_params {
  uint32_t size;
  /* 0. */
  uint32_t flags;
  /* The value of element 0. */
  double start;
  /* Added per element of the row-major index; start + step * i is computed in f64 and rounded once. */
  double step;
} cw_iota_params;
/* unary, binary, compare, activation_fwd, activation_bwd. */
typedef struct cw_kind_params {
  uint32_t size;
  /* Which function: CW_UNARY_*, CW_BINARY_*, CW_COMPARE_* or CW_ACTIVATION_*. 0 is none: UNSUPPORTED. */
  uint32_t kind;
} cw_kind_params;
/* axpby. */
typedef struct cw_axpby_params {
  uint32_t size;
  /* 0. */
  uint32_t flags;
  /* Factor of x; 0 means 0, and x is read all the same (0 * NaN is NaN). */
  double alpha;
  /* Factor of y; 0: y is not read, only written. */
  double beta;
} cw_axpby_params;
/* clamp. */
typedef struct cw_clamp_params {
  uint32_t size;
  /* 0. */
  uint32_t flags;
  /* The least value; -inf for none. The maximum with it is taken first. */
  double lo;
  /* The largest value; inf for none. The minimum with it is taken last, so that lo > hi gives hi. */
  double hi;
} cw_clamp_params;
/* reduce. */
typedef struct cw_reduce_params {
  uint32_t size;
  /* CW_REDUCE_*. */
  uint32_t kind;
  /* Bit i set: dim i is reduced, and has size 1 in dst. 0 reduces nothing. */
  uint32_t axes;
  /* CW_FLAG_ACCUM (kinds SUM and SUMSQ): dst is added to, and read; else it is only written. */
  uint32_t flags;
} cw_reduce_params;
/* arg_reduce, cumsum, topk, sort_pairs. */
typedef struct cw_dim_params {
  uint32_t size;
  /* arg_reduce: 0 the largest, 1 the smallest. Others: 0. */
  uint32_t kind;
  /* arg_reduce and cumsum: the dim. topk and sort_pairs work along the last one and leave it 0. */
  uint32_t dim;
  /* topk, sort_pairs: CW_FLAG_DESCENDING, the largest first (topk always gives the largest first). Others: 0. */
  uint32_t flags;
} cw_dim_params;
/* matmul. */
typedef struct cw_matmul_params {
  uint32_t size;
  /* CW_FLAG_ACCUM: C is read and added to, before the one rounding; else it is only written. */
  uint32_t flags;
  /* The type sums are kept in: 0 or CW_DT_F32. Others are UNSUPPORTED. */
  uint32_t acc_dtype;
  /* 0; reserved for what may follow the product. */
  uint32_t epilogue;
  /* Factor of A B; 0 means 1. Neither the bias nor C has a factor. */
  double alpha;
} cw_matmul_params;
/* grouped_matmul_dw. */
typedef struct cw_grouped_params {
  uint32_t size;
  /* CW_FLAG_ACCUM: dw is read and added to, before the one rounding; else it is only written. */
  uint32_t flags;
} cw_grouped_params;
/* gather_rows, scatter_add_rows, embedding_fwd, embedding_bwd. */
typedef struct cw_index_params {
  uint32_t size;
  /* CW_FLAG_HAS_IGNORE: `ignore` is meant; else no index is ignored. */
  uint32_t flags;
  /* The index whose row is zeros when gathered, and nothing when added; also where it is a row of the table. */
  int64_t ignore;
} cw_index_params;
/* philox. */
typedef struct cw_philox_params {
  uint32_t size;
  /* CW_PHILOX_*; BITS asks for a u32 dst, the others for a float one. */
  uint32_t kind;
  /* Uniform: the lower bound, which occurs. Normal: the mean. Bits: 0. */
  double lo;
  /* Uniform: the upper bound. Normal: the standard deviation. Bits: 0. Both are rounded to f32 first. */
  double hi;
} cw_philox_params;
/* philox, dropout, attention_ext_fwd, attention_ext_bwd, at launch. */
typedef struct cw_philox_dyn {
  uint32_t size;
  /* 0. */
  uint32_t flags;
  /* The 64-bit key. */
  uint64_t seed;
  /* The low 64 bits of the counter of element 0; element e has block offset + e / 4 (it wraps) and word e % 4. */
  uint64_t offset;
  /* The high 64 bits of the counter. */
  uint64_t stream;
} cw_philox_dyn;
/* layer_norm_*, rms_norm_*. */
typedef struct cw_norm_params {
  uint32_t size;
  /* 0. */
  uint32_t flags;
  /* Added to the variance (rms_norm: to the mean of squares) under the root; 0 means 0. Backward ops have rstd and
   * do not read it. */
  double eps;
} cw_norm_params;
/* cross_entropy_fwd, cross_entropy_bwd. */
typedef struct cw_xent_params {
  uint32_t size;
  /* CW_FLAG_HAS_IGNORE: `ignore` is meant; else no row is ignored. */
  uint32_t flags;
  /* A row with this target has loss 0 and gradient 0; its lse is computed as ever. */
  int64_t ignore;
} cw_xent_params;
/* attention_fwd, attention_bwd, attention_varlen_fwd, attention_varlen_bwd. */
typedef struct cw_attention_params {
  uint32_t size;
  /* CW_FLAG_CAUSAL: query i sees keys j <= i + Tk - Tq, that is, the last query sees the last key. With Tq > Tk the
   * first Tq - Tk queries see nothing. */
  uint32_t flags;
  /* Factor of q.k; 0 means 1/sqrt(D). */
  double scale;
  /* 0: none. Else query i sees only keys j > i + Tk - Tq - window: with CW_FLAG_CAUSAL the last `window` keys,
   * without it all later keys too. Negative: INVALID. A query that sees no key has o = 0, lse = -inf and gradient
   * 0. */
  int64_t window;
} cw_attention_params;
/* attention_ext_fwd, attention_ext_bwd. Weight (b, h, i, j) drops by word j % 4 of the philox block offset + ((b *
 * heads + h) * queries + i) * ceil(keys / 4) + j / 4, where i and j count in the row, not in the segment. */
typedef struct cw_attention_ext_params {
  uint32_t size;
  /* As in cw_attention_params. CW_FLAG_IN_ROW: mask and bias count in the row where there are cumulative lengths. */
  uint32_t flags;
  /* As in cw_attention_params. */
  double scale;
  /* As in cw_attention_params. */
  int64_t window;
  /* Soft cap of the scores, cap tanh(s / cap); 0: none. */
  double cap;
  /* Probability that a weight becomes 0, in [0, 1); 0: none, and the launch struct is not read. */
  double dropout;
  /* Heads of the whole that these operands are a part of; 0: their own. They place a weight's random word. */
  int64_t heads;
  /* Queries of the whole; 0: their own. */
  int64_t queries;
  /* Keys of the whole; 0: their own. */
  int64_t keys;
  /* How many keys behind the last key the last query stands, for causal mask and window: query i stands at i + Tk -
   * Tq + shift, of every segment where these count in segments. Queries that begin at a of a row, over keys that
   * begin at c of it: a + Tq - c - Tk. Beyond 2^40 either way: INVALID. The bias does not move: it is that of these
   * queries and keys. */
  int64_t shift;
  /* The number of key 0 in the whole, by which weights drop: j counts from it. INVALID below 0, and where first_key
   * + Tk is beyond the keys of the whole. */
  int64_t first_key;
} cw_attention_ext_params;
/* rope. With angle t of pair p: (a, b) becomes (a cos - b sin, a sin + b cos). Elements beyond R are copied. */
typedef struct cw_rope_params {
  uint32_t size;
  /* CW_FLAG_INTERLEAVED: pair p is elements 2p and 2p + 1; else p and p + R/2, where R/2 is the width of cos.
   * CW_FLAG_INVERSE rotates back, which is the backward. */
  uint32_t flags;
} cw_rope_params;
/* adamw. */
typedef struct cw_adamw_params {
  uint32_t size;
  /* CW_FLAG_MASTER: every group of operands has a master copy, which is updated; p is it, rounded. */
  uint32_t flags;
  /* 0: decoupled decay, torch.optim.AdamW. 1: L2, torch.optim.Adam (g' += weight_decay * p, no other decay). */
  uint32_t mode;
  /* 0. */
  uint32_t reserved;
  /* Decay of the first moment, in [0, 1). */
  double beta1;
  /* Decay of the second moment, in [0, 1). */
  double beta2;
  /* Added to the root of the corrected second moment; 0 means 0. */
  double eps;
  /* 0 means none. */
  double weight_decay;
} cw_adamw_params;
/* adamw, at launch. */
typedef struct cw_adamw_dyn {
  uint32_t size;
  /* 0. */
  uint32_t flags;
  /* Learning rate. */
  double lr;
  /* Factor of every gradient, beside the operand coef; 0 means 0. */
  double grad_scale;
  /* The number of this step, from 1: bias corrections are 1 - beta^step. 0 is INVALID. */
  uint64_t step;
} cw_adamw_dyn;
/* dropout. */
typedef struct cw_dropout_params {
  uint32_t size;
  /* 0. */
  uint32_t flags;
  /* Probability that an element becomes 0, in [0, 1]; what is kept is divided by 1 - p. */
  double p;
} cw_dropout_params;
/* multi_scale, at launch. */
typedef struct cw_scale_dyn {
  uint32_t size;
  /* 0. */
  uint32_t flags;
  /* Factor, beside the operand coef; 0 means 0. */
  double scale;
} cw_scale_dyn;
/* One instruction of elementwise_program: dst = op(a, b, c). Registers below the number of operands are the
 * operands, others temporaries, which hold nothing at first. */
typedef struct cw_program_inst {
  uint32_t size;
  /* CW_INST_*. */
  uint32_t op;
  /* The register written; an operand only where its bit of `writes` is set. */
  uint32_t dst;
  /* Register of the first argument; 0 where there is none. */
  uint32_t a;
  /* Register of the second argument. */
  uint32_t b;
  /* Register of the third argument. */
  uint32_t c;
  /* CW_INST_CONST: the value. CW_INST_SCALAR: the number of the launch's scalar, as a whole number. Others: 0. */
  float imm;
} cw_program_inst;
/* elementwise_program: a straight-line program over operands of one (broadcast) shape. All arithmetic is in f32, in
 * the order written, without contraction (a product and a sum are fused only by CW_INST_FMA). An operand is
 * converted to f32 where it is first read (u32 counts too), and rounded to nearest even into its dtype once, at the
 * end, if its bit of `writes` is set; instructions see the unrounded value. MAX and MIN give NaN when either is
 * NaN; LT is 0 then; SELECT takes b where a is not 0, NaN among it. */
typedef struct cw_program_params {
  uint32_t size;
  /* Instructions used, at most CW_PROGRAM_MAX_INSTS. */
  uint32_t n_insts;
  /* Bit i set: operand i is written. Operands that are not written have any strides, those written are dense. */
  uint32_t writes;
  /* 0. */
  uint32_t flags;
  /* The instructions. */
  cw_program_inst insts[64];
} cw_program_params;
/* elementwise_program, at launch. */
typedef struct cw_program_dyn {
  uint32_t size;
  /* 0. */
  uint32_t flags;
  /* What CW_INST_SCALAR reads. */
  float scalars[8];
} cw_program_dyn;

/* copy_strided: dst = src; same shape and dtype, both with any strides (permute, slice, broadcast). Operands:
 * dst:out any, src:in any. Params: cw_no_params. Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_COPY_STRIDED 0x0001u
/* cast: dst = src converted in one rounding, to nearest even (i64 to bf16 too, not by way of f32); what is too
 * large for a float type becomes infinite, in f8e4m3 and the fnuz types NaN; float to int cuts off and saturates,
 * NaN to 0; int to int keeps the low bits. NaN stays NaN. Operands: dst:out any, src:in any. Params: cw_no_params.
 * Revision 1; primitive, mandatory; error class 2. */
#define CW_OP_CAST 0x0002u
/* fill_strided: dst = value; any strides. Operands: dst:out any. Params: cw_fill_params. Revision 1; primitive,
 * mandatory; error class 1. */
#define CW_OP_FILL_STRIDED 0x0003u
/* iota: dst[i] = start + step * i. Operands: dst:out any. Params: cw_iota_params. Revision 1; primitive, mandatory;
 * error class 1. */
#define CW_OP_IOTA 0x0004u
/* unary: dst = f(src). RSQRT of 0 is inf, LOG and SQRT of negative numbers NaN, SIGMOID and TANH never overflow;
 * SIN and COS are held to their class for |x| <= 100. Operands: dst:out f, src:in f. Params: cw_kind_params.
 * Revision 1; primitive, mandatory; error class 4. */
#define CW_OP_UNARY 0x0005u
/* binary: dst = a op b; one dtype, broadcasting by stride 0; dst may alias a or b. POW is that of C: a negative
 * base has powers with whole exponents, x^0 = 1^x = 1; as CW_CLASS_FUSED, POW may be |y ln x| ulp further off than
 * CW_CLASS_TRANSCENDENTAL. MAX of zeros of two signs may give either. Operands: dst:out any, a:in any, b:in any.
 * Params: cw_kind_params. Revision 1; primitive, mandatory; error class 3. */
#define CW_OP_BINARY 0x0006u
/* compare: dst = a rel b ? 1 : 0. -0 equals 0; with NaN only NE holds. Operands: dst:out u8, a:in any, b:in any.
 * Params: cw_kind_params. Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_COMPARE 0x0007u
/* select: dst = cond != 0 ? a : b; every byte but 0 chooses a. Operands: dst:out any, cond:in u8, a:in any, b:in
 * any. Params: cw_no_params. Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_SELECT 0x0008u
/* axpby: y = alpha x + beta y; beta 0 does not read y. x may be of another float dtype than y. Two products and a
 * sum are three steps, bounded as CW_CLASS_FUSED. Operands: y:inout f, x:in f. Params: cw_axpby_params. Revision 1;
 * primitive, mandatory; error class 3. */
#define CW_OP_AXPBY 0x0009u
/* clamp: dst = min(max(src, lo), hi), so that lo > hi gives hi; NaN stays. Operands: dst:out f, src:in f. Params:
 * cw_clamp_params. Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_CLAMP 0x000Au
/* reduce: dst has src's rank with reduced dims of size 1; f32 dst over 16-bit src allowed; CW_FLAG_ACCUM adds
 * before the one rounding. Of nothing: SUM 0, PROD 1, MAX -inf, MIN inf. PROD rounds once for each factor, bounded
 * as CW_CLASS_FUSED. Operands: dst:out f, src:in f. Params: cw_reduce_params. Revision 1; primitive, mandatory;
 * error class 6. */
#define CW_OP_REDUCE 0x000Bu
/* arg_reduce: index of the largest (kind 0) or smallest (1) along dim, which becomes 1 in dst; the first wins; NaN
 * is larger than every number. Operands: dst:out i32|i64, src:in f. Params: cw_dim_params. Revision 1; primitive,
 * mandatory; error class 1. */
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
/* gather_rows: dst[i,:] = table[index[i],:]; an index out of range (negative ones are) or ignored gives zeros.
 * Operands: dst:out any, table:in any, index:in i32|i64. Params: cw_index_params. Revision 1; primitive, mandatory;
 * error class 1. */
#define CW_OP_GATHER_ROWS 0x0010u
/* scatter_add_rows: table[index[i],:] += src[i,:] in order of i (deterministic); f32 table over 16-bit src allowed;
 * an index out of range or ignored adds nothing. Operands: table:inout f, src:in f, index:in i32|i64. Params:
 * cw_index_params. Revision 1; primitive, mandatory; error class 5. */
#define CW_OP_SCATTER_ADD_ROWS 0x0011u
/* sort_pairs: stable sort along the last dim; NaN last ascending, first descending. Operands: keys_out:out
 * f|i32|i64, values_out:out i32|i64, keys:in f|i32|i64, values:in i32|i64. Params: cw_dim_params. Revision 1;
 * primitive, mandatory; error class 1. */
#define CW_OP_SORT_PAIRS 0x0012u
/* topk: k = values' last dim; largest first, NaN before all; ties by lower index. Operands: values:out f, index:out
 * i32|i64, src:in f. Params: cw_dim_params. Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_TOPK 0x0013u
/* histogram: dst[b] = number of indices equal to b, 0 <= b < size of dst; other indices are ignored. Operands:
 * dst:out i32|u32, index:in i32|i64. Params: cw_no_params. Revision 1; primitive, mandatory; error class 1. */
#define CW_OP_HISTOGRAM 0x0014u
/* philox: Philox4x32-10. Element e (row-major): c = offset + e/4; block(counter = [lo32(c), hi32(c), lo32(stream),
 * hi32(stream)], key = [lo32(seed), hi32(seed)]), word e%4. uniform = lo + (hi-lo) * ((word >> 8) * 2^-24) in f32.
 * normal: words (w0,w1) give lanes 0,1 and (w2,w3) lanes 2,3: u1 = ((w>>8)+1) * 2^-24, u2 = (w'>>8) * 2^-24, r =
 * sqrt(-2 ln u1); lanes r cos(2 pi u2), r sin(2 pi u2), evaluated in f64 and rounded to f32 once; result lo + hi *
 * z. Operands: dst:out u32|f. Params: cw_philox_params; at launch cw_philox_dyn. Revision 1; primitive, mandatory;
 * error class 1. */
#define CW_OP_PHILOX 0x0015u
/* elementwise_program: See cw_program_params. Operands: x:inout* f|u32. Params: cw_program_params; at launch
 * cw_program_dyn. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ELEMENTWISE_PROGRAM 0x0100u
/* adamw: For each group of (p, g, m, v[, master]): torch.optim.AdamW on master (or p when f32): g' =
 * g*grad_scale*coef; p -= lr*wd*p; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2; p -= lr/bc1 * m /
 * (sqrt(v)/sqrt(bc2) + eps); bc computed in f64. skip[0] != 0: nothing is written. Operands: coef:in? f32, skip:in?
 * u32, p:inout f, g:in f, m:inout f32, v:inout f32, master:inout f32 (with FLAG_MASTER)*. Params: cw_adamw_params;
 * at launch cw_adamw_dyn. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ADAMW 0x0101u
/* layer_norm_fwd: Over the last dim of x[n,d]: mean, rstd = 1/sqrt(sum((x - mean)^2)/d + eps), y = (x - mean) *
 * rstd * w (+ b). w, b may be f32 under 16-bit x. Operands: y:out f, mean:out f32, rstd:out f32, x:in f, w:in f,
 * b:in? f. Params: cw_norm_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_LAYER_NORM_FWD 0x0110u
/* layer_norm_bwd: With xh = (x - mean) rstd, gy = dy w: dx = rstd (gy - mean(gy) - xh mean(gy xh)) (+ dres); dw +=
 * sum over rows of dy xh, db += sum of dy. dx may alias dy or dres. Operands: dx:out f, dw:inout f32, db:inout?
 * f32, dy:in f, x:in f, w:in f, mean:in f32, rstd:in f32, dres:in? f. Params: cw_norm_params. Revision 1; fused,
 * the core can decompose it; error class 8. */
#define CW_OP_LAYER_NORM_BWD 0x0111u
/* rms_norm_fwd: y = x * rstd * w; rstd = 1/sqrt(mean(x^2) + eps). Operands: y:out f, rstd:out f32, x:in f, w:in f.
 * Params: cw_norm_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_RMS_NORM_FWD 0x0112u
/* rms_norm_bwd: With xh = x rstd, gy = dy w: dx = rstd (gy - xh mean(gy xh)) (+ dres); dw += sum over rows of dy
 * xh. dx may alias dy or dres. Operands: dx:out f, dw:inout f32, dy:in f, x:in f, w:in f, rstd:in f32, dres:in? f.
 * Params: cw_norm_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_RMS_NORM_BWD 0x0113u
/* softmax_fwd: y = exp(x - max) / sum exp(x - max) over the last dim; -inf gives 0. Operands: y:out f, x:in f.
 * Params: cw_no_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_SOFTMAX_FWD 0x0120u
/* softmax_bwd: dx = y * (dy - sum(dy*y)). Operands: dx:out f, dy:in f, y:in f. Params: cw_no_params. Revision 1;
 * fused, the core can decompose it; error class 8. */
#define CW_OP_SOFTMAX_BWD 0x0121u
/* cross_entropy_fwd: Per row of logits[n,V]: lse = log sum exp (about the maximum), loss = lse - logits[target].
 * Ignored rows have loss 0. A target outside [0,V) that is not ignored gives loss NaN. V may be beyond 65,536.
 * Operands: loss:out f32, lse:out f32, logits:in f, target:in i32|i64. Params: cw_xent_params. Revision 1; fused,
 * the core can decompose it; error class 8. */
#define CW_OP_CROSS_ENTROPY_FWD 0x0122u
/* cross_entropy_bwd: dlogits = (exp(logits - lse) - onehot) * dloss[row] (dloss [n] or broadcast by stride 0), 0 in
 * ignored rows, NaN in those of a target outside [0,V); dlogits may be logits. Operands: dlogits:out f, logits:in
 * f, lse:in f32, target:in i32|i64, dloss:in f32. Params: cw_xent_params. Revision 1; fused, the core can decompose
 * it; error class 8. */
#define CW_OP_CROSS_ENTROPY_BWD 0x0123u
/* attention_fwd: q,o [B,Tq,H,D], k,v [B,Tk,Hkv,D] with any strides but unit in D; head h reads kv head h/(H/Hkv); s
 * = scale q.k, masked as cw_attention_params says; o = softmax(s) v; lse [B,H,Tq] dense, log sum exp s. A query
 * that sees no key has o = 0, lse = -inf. Online softmax, O(T) memory. Operands: o:out f, lse:out f32, q:in f, k:in
 * f, v:in f. Params: cw_attention_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ATTENTION_FWD 0x0130u
/* attention_bwd: Gradients of attention_fwd in the layouts given (strided outputs allowed, so that they may be
 * slices of one fused dqkv); dk, dv are sums over the heads that read them; 0 for queries and keys that see nothing
 * and are not seen. Operands: dq:out f, dk:out f, dv:out f, do:in f, o:in f, q:in f, k:in f, v:in f, lse:in f32.
 * Params: cw_attention_params. Revision 1; fused, the core can decompose it; error class 8. */
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
 * a query of none has o = 0 and lse = -inf. Revision 2: parts of a row, by shift and first_key; with CW_FLAG_IN_ROW
 * mask and bias count in the row as without segments, which say only who sees whom; o may be f32 over 16-bit q, k,
 * v, and by lse such parts add up to the whole. What asks for nothing of it is of revision 1. Operands: o:out f,
 * lse:out f32, q:in f, k:in f, v:in f, bias:in? f, sinks:in? f, cu_q:in? i32, cu_k:in? i32. Params:
 * cw_attention_ext_params; at launch cw_philox_dyn. Revision 2; fused, the core can decompose it; error class 8. */
#define CW_OP_ATTENTION_EXT_FWD 0x0134u
/* attention_ext_bwd: Gradients of attention_ext_fwd, laid out as those of attention_bwd; dbias [H, Tq+Tk-1] and
 * dsinks [H] accumulate over the batch, in a fixed order. Revision 2: with o and lse of the whole row, gradients of
 * a part are what it adds to those of the whole; dq, dk, dv may be f32 over 16-bit q, k, v, and so may do and o,
 * each of them. Operands: dq:out f, dk:out f, dv:out f, dbias:inout? f32, dsinks:inout? f32, do:in f, o:in f, q:in
 * f, k:in f, v:in f, lse:in f32, bias:in? f, sinks:in? f, cu_q:in? i32, cu_k:in? i32. Params:
 * cw_attention_ext_params; at launch cw_philox_dyn. Revision 2; fused, the core can decompose it; error class 8. */
#define CW_OP_ATTENTION_EXT_BWD 0x0135u
/* activation_fwd: y = act(x): GELU_TANH x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is x/2 (1 + tanh(..)) and
 * does not cancel, GELU_ERF x/2 (1 + erf(x/sqrt 2)), SILU x sigmoid(x), RELU max(x, 0). Operands: y:out f, x:in f.
 * Params: cw_kind_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ACTIVATION_FWD 0x0140u
/* activation_bwd: dx = dy * act'(x); dx may alias dy. Operands: dx:out f, dy:in f, x:in f. Params: cw_kind_params.
 * Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ACTIVATION_BWD 0x0141u
/* swiglu_fwd: y = silu(gate) * up; gate and up may be strided halves of one matrix. Operands: y:out f, gate:in f,
 * up:in f. Params: cw_no_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_SWIGLU_FWD 0x0142u
/* swiglu_bwd: dup = dy silu(gate), dgate = dy up silu'(gate). Strided outputs allowed; they do not alias. Operands:
 * dgate:out f, dup:out f, dy:in f, gate:in f, up:in f. Params: cw_no_params. Revision 1; fused, the core can
 * decompose it; error class 8. */
#define CW_OP_SWIGLU_BWD 0x0143u
/* rope: x,y [B,T,H,D] strided, unit in D; cos,sin [T, R/2] rotate the first R <= D elements of a head as
 * cw_rope_params says, the others are copied; y may be x. Operands: y:out f, x:in f, cos:in f32, sin:in f32.
 * Params: cw_rope_params. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_ROPE 0x0150u
/* embedding_fwd: y[b,t,:] = table[index[b,t],:] (+ pos[t,:]); an index out of range or ignored gives zeros (+ pos).
 * With pos it is one sum in f32, as CW_CLASS_ROUNDED. Operands: y:out f, table:in f, index:in i32|i64, pos:in? f.
 * Params: cw_index_params. Revision 1; fused, the core can decompose it; error class 1. */
#define CW_OP_EMBEDDING_FWD 0x0160u
/* embedding_bwd: dtable[index[b,t],:] += dy[b,t,:] and dpos[t,:] += sum over b of dy[b,t,:], in order of position
 * (deterministic); an index out of range or ignored adds nothing to dtable. Operands: dtable:inout f32, dpos:inout?
 * f32, dy:in f, index:in i32|i64. Params: cw_index_params. Revision 1; fused, the core can decompose it; error
 * class 5. */
#define CW_OP_EMBEDDING_BWD 0x0161u
/* multi_sumsq: out[0] += sum over all tensors of x^2, in a fixed order that does not depend on the thread count.
 * Operands: out:inout f32, x:in* f. Params: cw_no_params. Revision 1; fused, the core can decompose it; error class
 * 6. */
#define CW_OP_MULTI_SUMSQ 0x0170u
/* multi_scale: x *= scale * coef[0]; that factor is one number, rounded to f32. Operands: coef:in? f32, x:inout* f.
 * Params: cw_no_params; at launch cw_scale_dyn. Revision 1; fused, the core can decompose it; error class 3. */
#define CW_OP_MULTI_SCALE 0x0171u
/* dropout: y = keep(e) ? x/(1-p) : 0 (+ residual); keep(e) = uniform[0,1) of philox element e >= p; y may alias x.
 * Its backward is itself on dy. Operands: y:out f, x:in f, residual:in? f. Params: cw_dropout_params; at launch
 * cw_philox_dyn. Revision 1; fused, the core can decompose it; error class 8. */
#define CW_OP_DROPOUT 0x0180u
/* add: y = a + b, dense; y may alias a or b (residual adds, gradient sums). Operands: y:out f, a:in f, b:in f.
 * Params: cw_no_params. Revision 1; fused, the core can decompose it; error class 3. */
#define CW_OP_ADD 0x0181u
/* grouped_matmul: x [n,K], w [E,N,K], y [n,N]: y[i,:] = x[i,:] w[e]^T for the rows ends[e-1] <= i < ends[e] of
 * group e, ends[-1] = 0, of ends [E], 0 <= ends[0] <= .. <= ends[E-1] <= n; groups may be empty. Rows from
 * ends[E-1] on are not read and are 0 in y. x and each w[e] have one of their two strides equal to 1, so that a
 * transpose is a stride. The bits of a row do not depend on other rows. Other values of ends give wrong numbers,
 * but no access outside the operands. Operands: y:out f, x:in f, w:in f, ends:in i32. Params: cw_no_params.
 * Revision 1; fused, the core can decompose it; error class 7. */
#define CW_OP_GROUPED_MATMUL 0x0190u
/* grouped_matmul_dw: dw[e] = dy^T x (+ dw[e] with FLAG_ACCUM) over the rows of group e of dy [n,N] and x [n,K],
 * laid out and grouped as in grouped_matmul; dw [E,N,K] may be f32 over 16-bit dy and x. That of an empty group is
 * 0, or stays with FLAG_ACCUM; rows from ends[E-1] on are not read. Operands: dw:inout f, dy:in f, x:in f, ends:in
 * i32. Params: cw_grouped_params. Revision 1; fused, the core can decompose it; error class 7. */
#define CW_OP_GROUPED_MATMUL_DW 0x0192u

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
