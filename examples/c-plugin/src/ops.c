/* The mandatory ops, plainly. A row of `table` says what an op takes; `each` computes one element, `run` a whole launch, on the stream's
 * thread. Floats are computed in f32 or wider and rounded once; sums run in one fixed order.
 *
 * Everything fused (attention, norms, AdamW, ...) is left to the core, which makes it of these, but for one op that shows how: fused.c. To be
 * faster, add rows. */
#include "plugin.h"
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define RANK 8
#define LOOP(i, n) for (int64_t i = 0; i < (n); i++)

typedef struct {
  uint32_t dtype, rank, size; /* dtype 0: absent; size: bytes of an element */
  int64_t shape[RANK], stride[RANK], count, bytes;
} view;
struct cw_op_impl {
  atomic_uint refs; /* the host's, and one for each launch under way */
  const struct row *row;
  uint32_t n;
  uint64_t workspace;
  union {
    uint32_t word[4]; /* size, then flags or kind, ... */
    cw_fill_params fill; cw_iota_params iota; cw_axpby_params axpby; cw_clamp_params clamp; cw_reduce_params reduce; cw_dim_params dim;
    cw_matmul_params matmul; cw_index_params index; cw_philox_params philox; cw_program_params program;
  } p;
  view kept, gone; /* the dims of an input that stay, and those that are walked over */
  view v[];
};
struct launch {
  cw_op op;
  union { cw_philox_dyn philox; cw_program_dyn program; } dyn; /* of the ops that have launch-time parameters */
  char *workspace, *at[];
};
struct row {
  uint32_t id;
  const char *name;
  /* A letter of `letters` an operand; a digit: as that operand; F: f32, or as operand 1. `?`: the last may be absent. `*`: it repeats. */
  const char *types;
  uint32_t params, kinds, flags, flags_word; /* bytes; word 1 is a kind of 1..kinds (0: it is not); flags understood, and where they lie */
  uint64_t error_class;
  void (*each)(const struct launch *l, char *const *p); /* one element, at its places in the operands, which are of one shape */
  cw_status (*check)(cw_op op, cw_error *err);
  void (*run)(const struct launch *l);
};

/* ------------------------------------------------------------------ elements */
enum { F = 1, I32 = 2, I64 = 4, U8 = 8, U32 = 16, OTHER = 32 };
static const uint8_t letters[128] = {['f'] = F, ['F'] = F, ['m'] = F | I32 | I64, ['n'] = F | I32 | I64 | U8 | U32, ['i'] = I32 | I64, ['u'] = U8,
                                     ['w'] = U32, ['h'] = I32 | U32, ['p'] = F | U32, ['a'] = F | I32 | I64 | U8 | U32 | OTHER};
static uint32_t class_of(uint32_t d) {
  if (d == CW_DT_F32 || d == CW_DT_BF16 || d == CW_DT_F16) return F;
  if (d == CW_DT_I8 || d == CW_DT_U64 || d == CW_DT_F64) return OTHER; /* moved, not computed with */
  return d == CW_DT_I32 ? I32 : d == CW_DT_I64 ? I64 : d == CW_DT_U8 ? U8 : d == CW_DT_U32 ? U32 : 0;
}
static bool is_float(uint32_t d) { return class_of(d) == F; }

static uint32_t bits(float x) { return (union { float f; uint32_t u; }){.f = x}.u; }
static float from_bits(uint32_t u) { return (union { uint32_t u; float f; }){.u = u}.f; }
static float f32_of_f16(uint16_t h) {
  uint32_t u = bits(from_bits((uint32_t)(h & 0x7fff) << 13) * 0x1p112f); /* the exponent moves, subnormals become numbers */
  return from_bits(u | ((h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u) | (uint32_t)(h & 0x8000) << 16);
}
static uint16_t f16_of_f32(float x) { /* to nearest, ties to even */
  uint32_t u = bits(x) & 0x7fffffffu, sign = bits(x) >> 16 & 0x8000, h = (u + 0xc8000fffu + (u >> 13 & 1)) >> 13;
  if (u < 0x38800000u) h = bits(from_bits(u) + 0.5f) - bits(0.5f);
  if (u >= 0x47800000u) h = u > 0x7f800000u ? 0x7e00 : 0x7c00;
  return (uint16_t)(h | sign);
}
static uint16_t bf16_of_f32(float x) {
  uint32_t u = bits(x);
  return (uint16_t)(x != x ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static float get_float(uint32_t dtype, const char *p) {
  uint16_t h;
  float x;
  if (dtype == CW_DT_F32) return memcpy(&x, p, 4), x;
  memcpy(&h, p, 2);
  return dtype == CW_DT_BF16 ? from_bits((uint32_t)h << 16) : f32_of_f16(h);
}
static void put_float(uint32_t dtype, char *p, float x) {
  uint16_t h = dtype == CW_DT_BF16 ? bf16_of_f32(x) : dtype == CW_DT_F16 ? f16_of_f32(x) : 0;
  dtype == CW_DT_F32 ? memcpy(p, &x, 4) : memcpy(p, &h, 2);
}
static int64_t get_int(uint32_t dtype, const char *p) {
  int64_t x = 0;
  memcpy(&x, p, (dtype & 0xff) / 8);
  return dtype == CW_DT_I32 ? (int32_t)x : x;
}
static void put_int(uint32_t dtype, char *p, int64_t x) { memcpy(p, &x, (dtype & 0xff) / 8); } /* wraps */
static double least(uint32_t d) { return class_of(d) & (I32 | I64) ? -ldexp(1, (int)(d & 0xff) - 1) : 0; }
static double beyond(uint32_t d) { return ldexp(1, (int)(d & 0xff)) + least(d); }
/* A number into any dtype, rounded once: on the way to 16 bits an inexact f32 gets an odd last bit, which the second rounding then sees.
 * Integers truncate and saturate; NaN gives 0. */
static void put(uint32_t dtype, char *p, double x) {
  float f = (float)x;
  if (dtype != CW_DT_F32 && f == f && (double)f != x) f = from_bits((bits(f) - (fabs((double)f) > fabs(x))) | 1);
  if (is_float(dtype)) put_float(dtype, p, f);
  else if (x >= beyond(dtype)) put_int(dtype, p, dtype == CW_DT_I64 ? INT64_MAX : (int64_t)beyond(dtype) - 1);
  else put_int(dtype, p, x != x ? 0 : (int64_t)fmax(x, least(dtype)));
}

/* ------------------------------------------------------------------ views */
static bool same_shape(const view *a, const view *b) { return a->rank == b->rank && !memcmp(a->shape, b->shape, sizeof a->shape); }
static bool dense(const view *v) {
  int64_t want = 1;
  for (int d = (int)v->rank - 1; d >= 0 && v->count; want *= v->shape[d--])
    if (v->shape[d] != 1 && v->stride[d] != want) return false;
  return true;
}
/* Bytes to the i-th element in row-major order. */
static int64_t to(const view *v, int64_t i) {
  int64_t at = 0;
  for (int d = (int)v->rank - 1; d > 0; i /= v->shape[d--]) at += i % v->shape[d] * v->stride[d];
  return (at + (v->rank ? i * v->stride[0] : 0)) * v->size;
}
/* The dims whose bit is set. */
static view pick(const view *v, uint32_t dims) {
  view out = {.dtype = v->dtype, .size = v->size, .count = 1};
  for (uint32_t d = 0; d < v->rank; d++)
    if (dims >> d & 1) out.shape[out.rank] = v->shape[d], out.stride[out.rank++] = v->stride[d], out.count *= v->shape[d];
  return out;
}

/* ------------------------------------------------------------------ one element at a time */
static void run_each(const struct launch *l) {
  const view *v = l->op->v;
  uint32_t last = v->rank ? v->rank - 1 : 0;
  int64_t len = v->rank ? v->shape[last] : 1;
  for (int64_t e = 0; e < v->count; e += len) {
    char *p[4];
    LOOP(k, l->op->n) p[k] = l->at[k] + to(v + k, e);
    LOOP(i, len) {
      l->op->row->each(l, p);
      LOOP(k, l->op->n) p[k] += v[k].stride[last] * v[k].size;
    }
  }
}
static cw_status check_each(cw_op op, cw_error *err) {
  for (uint32_t i = 1; i < op->n; i++) NEED(same_shape(op->v, op->v + i), CW_E_INVALID, "%s: operand %u has another shape", op->row->name, i);
  double x = op->p.fill.value, lo = least(op->v->dtype), hi = beyond(op->v->dtype);
  bool exact = op->row->id != CW_OP_FILL_STRIDED || is_float(op->v->dtype) || (x == floor(x) && x >= lo && x < hi);
  NEED(exact, CW_E_INVALID, "fill_strided: %g is not a value of dtype %#x", x, op->v->dtype);
  return CW_OK;
}
static void copy(const struct launch *l, char *const *p) { memcpy(p[0], p[1], l->op->v->size); }
static void fill(const struct launch *l, char *const *p) { put(l->op->v->dtype, p[0], l->op->p.fill.value); }
static void choose(const struct launch *l, char *const *p) { memmove(p[0], *p[1] ? p[2] : p[3], l->op->v->size); }
static void cast(const struct launch *l, char *const *p) {
  uint32_t into = l->op->v[0].dtype, from = l->op->v[1].dtype;
  if (is_float(from)) put(into, p[0], get_float(from, p[1]));
  else if (!is_float(into)) put_int(into, p[0], get_int(from, p[1]));
  else { /* beyond 2^53 the bits that a double cannot hold leave an odd one behind */
    int64_t i = get_int(from, p[1]), high = i >> 53;
    put(into, p[0], high == 0 || high == -1 ? (double)i : (double)(i >> 11 | ((i & 2047) != 0)) * 2048);
  }
}
static double neg(double x) { return -x; }
static double rsqrt(double x) { return 1 / sqrt(x); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static void unary(const struct launch *l, char *const *p) { /* in the order of CW_UNARY_* */
  static double (*const f[])(double) = {neg, fabs, exp, log, sqrt, rsqrt, tanh, erf, sigmoid, sin, cos, floor};
  put_float(l->op->v->dtype, p[0], (float)f[l->op->p.word[1] - 1](get_float(l->op->v[1].dtype, p[1])));
}
#define BOTH(a, b) \
  switch (kind) { \
    case CW_BINARY_ADD: return a + b; \
    case CW_BINARY_SUB: return a - b; \
    case CW_BINARY_MUL: return a * b; \
    case CW_BINARY_MAX: return a > b || a != a ? a : b; /* NaN of either side comes through */ \
    case CW_BINARY_MIN: return a < b || a != a ? a : b; \
  }
static float two(uint32_t kind, float a, float b) {
  BOTH(a, b)
  return kind == CW_BINARY_DIV ? a / b : (float)pow(a, b);
}
static int64_t two_ints(uint32_t kind, int64_t a, int64_t b) { /* wraps (-fwrapv) in the storage's width; x / 0 = 0 */
  BOTH(a, b)
  if (kind == CW_BINARY_DIV) return b == 0 ? 0 : b == -1 ? -a : a / b;
  int64_t r = b >= 0 || a == 1 || a == -1; /* a power; of a negative exponent the fraction is cut off */
  for (uint64_t e = b < 0 ? (uint64_t)b & 1 : (uint64_t)b; e; e >>= 1, a *= a) r *= e & 1 ? a : 1;
  return r;
}
static void binary(const struct launch *l, char *const *p) {
  uint32_t d = l->op->v->dtype, k = l->op->p.word[1];
  if (is_float(d)) put_float(d, p[0], two(k, get_float(d, p[1]), get_float(d, p[2])));
  else put_int(d, p[0], two_ints(k, get_int(d, p[1]), get_int(d, p[2])));
}
static void compare(const struct launch *l, char *const *p) { /* less, equal, greater, none of them: bit k = relation k holds */
  enum { EQ = 1 << CW_COMPARE_EQ, NE = 1 << CW_COMPARE_NE, LE = 1 << CW_COMPARE_LE, GE = 1 << CW_COMPARE_GE };
  static const uint8_t holds[] = {NE | 1 << CW_COMPARE_LT | LE, EQ | LE | GE, NE | 1 << CW_COMPARE_GT | GE, NE};
  uint32_t d = l->op->v[1].dtype;
  bool f = is_float(d);
  float a = f ? get_float(d, p[1]) : 0, b = f ? get_float(d, p[2]) : 0;
  int64_t i = f ? 0 : get_int(d, p[1]), j = f ? 0 : get_int(d, p[2]);
  *p[0] = holds[a != a || b != b ? 3 : 1 + (a > b || i > j) - (a < b || i < j)] >> l->op->p.word[1] & 1;
}
static void axpby(const struct launch *l, char *const *p) {
  float y = (float)l->op->p.axpby.alpha * get_float(l->op->v[1].dtype, p[1]), beta = (float)l->op->p.axpby.beta;
  put_float(l->op->v->dtype, p[0], beta == 0 ? y : y + beta * get_float(l->op->v->dtype, p[0]));
}
static void clamp(const struct launch *l, char *const *p) {
  float x = get_float(l->op->v[1].dtype, p[1]), lo = (float)l->op->p.clamp.lo, hi = (float)l->op->p.clamp.hi;
  x = x < lo ? lo : x;
  put_float(l->op->v->dtype, p[0], x > hi ? hi : x);
}
static void run_iota(const struct launch *l) {
  const view *y = l->op->v;
  LOOP(i, y->count) put(y->dtype, l->at[0] + i * y->size, l->op->p.iota.start + l->op->p.iota.step * (double)i);
}

/* ------------------------------------------------------------------ reductions: reduce, arg_reduce, cumsum, nonfinite_count */
static cw_status check_reduce(cw_op op, cw_error *err) {
  const view *y = op->v, *x = y + 1;
  bool reduce = op->row->id == CW_OP_REDUCE, cumsum = op->row->id == CW_OP_CUMSUM;
  uint32_t axes = reduce ? op->p.reduce.axes : op->p.dim.dim < RANK ? 1u << op->p.dim.dim : 0;
  NEED(reduce || op->p.dim.kind <= !cumsum, CW_E_UNSUPPORTED, "%s: kind %u", op->row->name, op->p.dim.kind);
  NEED(axes >> x->rank == 0 && (reduce || axes) && y->rank == x->rank, CW_E_INVALID, "%s: dims %#x of rank %u", op->row->name, axes, x->rank);
  for (uint32_t d = 0; d < x->rank; d++)
    NEED(y->shape[d] == (axes >> d & 1 && !cumsum ? 1 : x->shape[d]), CW_E_INVALID, "%s: the shapes do not fit", op->row->name);
  op->kept = pick(x, ~axes);
  op->gone = pick(x, axes);
  NEED(reduce || op->gone.count || !y->count, CW_E_INVALID, "%s: the dim is empty", op->row->name);
  return CW_OK;
}
static void run_reduce(const struct launch *l) {
  const view *y = l->op->v, *gone = &l->op->gone;
  uint32_t kind = l->op->p.reduce.kind;
  LOOP(k, y->count) {
    double sum = kind == CW_REDUCE_MAX ? -INFINITY : kind == CW_REDUCE_MIN ? INFINITY : kind == CW_REDUCE_PROD;
    const char *x = l->at[1] + to(&l->op->kept, k);
    LOOP(i, gone->count) {
      double v = get_float(gone->dtype, x + to(gone, i));
      if (kind == CW_REDUCE_SUM) sum += v;
      else if (kind == CW_REDUCE_SUMSQ) sum += v * v;
      else if (kind == CW_REDUCE_PROD) sum *= v;
      else if (sum == sum && !(kind == CW_REDUCE_MAX ? sum > v : sum < v)) sum = v;
    }
    if (l->op->p.reduce.flags & CW_FLAG_ACCUM) sum += get_float(y->dtype, l->at[0] + k * y->size);
    put_float(y->dtype, l->at[0] + k * y->size, (float)sum);
  }
}
static void run_scan(const struct launch *l) { /* arg_reduce: the first wins, NaN is the largest; cumsum */
  const view *y = l->op->v, *x = &l->op->gone, lines = pick(y, ~(1u << l->op->p.dim.dim)), line = pick(y, 1u << l->op->p.dim.dim);
  bool arg = l->op->row->id == CW_OP_ARG_REDUCE, smallest = l->op->p.dim.kind == 1;
  LOOP(k, lines.count) {
    int64_t best = -1, sum = 0;
    double f = 0, at_best = 0;
    LOOP(i, x->count) {
      const char *from = l->at[1] + to(&l->op->kept, k) + to(x, i);
      char *into = l->at[0] + to(&lines, k) + to(&line, arg ? 0 : i);
      float v = is_float(x->dtype) ? get_float(x->dtype, from) : 0;
      bool wins = smallest ? v < at_best || (at_best != at_best && v == v) : v > at_best || (v != v && at_best == at_best);
      if (best < 0 || wins) best = i, at_best = v;
      if (arg) put_int(y->dtype, into, best);
      else if (is_float(y->dtype)) put_float(y->dtype, into, (float)(f += v));
      else put_int(y->dtype, into, sum += get_int(y->dtype, from));
    }
  }
}
static void run_nonfinite(const struct launch *l) {
  uint32_t *n = (uint32_t *)(void *)l->at[0];
  for (uint32_t k = 1; n && k < l->op->n; k++)
    LOOP(i, l->op->v[k].count) *n += !isfinite(get_float(l->op->v[k].dtype, l->at[k] + to(l->op->v + k, i)));
}

/* ------------------------------------------------------------------ matmul: B as dense f32 in the workspace, then row by row */
static cw_status check_matmul(cw_op op, cw_error *err) {
  const cw_matmul_params *p = &op->p.matmul;
  NEED(!p->epilogue && (!p->acc_dtype || p->acc_dtype == CW_DT_F32), CW_E_UNSUPPORTED, "an epilogue, or accumulation not in f32");
  for (int i = 0; i < 3; i++) { /* [M, N] becomes [1, M, N] */
    view *v = op->v + i;
    NEED(v->rank == 3 || v->rank == 2, CW_E_UNSUPPORTED, "operand %d has rank %u", i, v->rank);
    if (v->rank == 3) continue;
    for (int d = 2; d > 0; d--) v->shape[d] = v->shape[d - 1], v->stride[d] = v->stride[d - 1];
    v->shape[0] = i ? op->v->shape[0] : 1, v->stride[0] = 0, v->rank = 3;
  }
  const view *c = op->v, *a = c + 1, *b = c + 2, *bias = op->n == 4 && c[3].dtype ? c + 3 : NULL;
  int64_t m = c->shape[1], n = c->shape[2], k = a->shape[2];
  NEED((n == 1 || c->stride[2] == 1) && (m == 1 || c->stride[1] >= n), CW_E_UNSUPPORTED, "rows of C are strided or overlap");
  bool fits = a->shape[0] == c->shape[0] && b->shape[0] == c->shape[0] && a->shape[1] == m && b->shape[1] == k && b->shape[2] == n;
  NEED(fits && (!bias || (bias->rank == 1 && bias->shape[0] == n)), CW_E_INVALID, "the shapes do not fit");
  op->workspace = (uint64_t)(k + 1) * (uint64_t)n * sizeof(float);
  return CW_OK;
}
static void run_matmul(const struct launch *l) {
  const cw_matmul_params *p = &l->op->p.matmul;
  const view *c = l->op->v, *a = c + 1, *b = c + 2, *bias = l->op->n == 4 && c[3].dtype ? c + 3 : NULL;
  int64_t m = c->shape[1], n = c->shape[2], k = a->shape[2];
  float alpha = p->alpha == 0 ? 1 : (float)p->alpha, *packed = (float *)(void *)l->workspace, *sum = packed + k * n;
  LOOP(batch, c->shape[0]) {
    LOOP(t, k * n) packed[t] = get_float(b->dtype, l->at[2] + to(b, batch * k * n + t));
    LOOP(i, m) {
      LOOP(j, n) sum[j] = 0;
      LOOP(t, k) {
        float x = get_float(a->dtype, l->at[1] + to(a, (batch * m + i) * k + t));
        LOOP(j, n) sum[j] += x * packed[t * n + j];
      }
      LOOP(j, n) {
        char *y = l->at[0] + to(c, (batch * m + i) * n + j);
        float x = sum[j] * alpha + (bias ? get_float(bias->dtype, l->at[3] + to(bias, j)) : 0);
        put_float(c->dtype, y, p->flags & CW_FLAG_ACCUM ? x + get_float(c->dtype, y) : x);
      }
    }
  }
}

/* ------------------------------------------------------------------ rows by index: gather_rows, scatter_add_rows, histogram */
static cw_status check_rows(cw_op op, cw_error *err) {
  bool scatter = op->row->id == CW_OP_SCATTER_ADD_ROWS;
  const view *rows = op->v + scatter, *table = op->v + !scatter, *index = op->v + 2; /* `rows` has one for each index */
  bool fits = table->rank > 0 && rows->rank == index->rank + table->rank - 1 && !memcmp(rows->shape, index->shape, index->rank * 8);
  NEED(fits && !memcmp(rows->shape + index->rank, table->shape + 1, (table->rank - 1) * 8), CW_E_INVALID, "%s: shapes", op->row->name);
  op->gone = pick(table, ~1u); /* one row */
  op->workspace = scatter && table->size == 2 ? (uint64_t)table->count * sizeof(float) : 0;
  return CW_OK;
}
/* The row that index i means, or -1. */
static int64_t row_of(const struct launch *l, int64_t i, int64_t limit) {
  uint32_t last = l->op->n - 1;
  int64_t r = get_int(l->op->v[last].dtype, l->at[last] + to(l->op->v + last, i));
  bool ignored = l->op->p.word[1] & CW_FLAG_HAS_IGNORE && r == l->op->p.index.ignore;
  return ignored || r < 0 || r >= limit ? -1 : r;
}
static void run_gather(const struct launch *l) {
  const view *y = l->op->v, *table = y + 1;
  int64_t width = l->op->gone.count;
  LOOP(i, l->op->v[2].count) {
    int64_t r = row_of(l, i, table->shape[0]);
    char *row = l->at[0] + i * width * y->size;
    if (r < 0) memset(row, 0, (size_t)width * y->size);
    else LOOP(j, width) memcpy(row + j * y->size, l->at[1] + to(table, r * width + j), y->size);
  }
}
static void run_scatter_add(const struct launch *l) { /* tables of 16 bits are summed in f32 and rounded once */
  const view *table = l->op->v, *rows = table + 1;
  float *sums = (float *)(void *)(l->op->workspace ? l->workspace : l->at[0]);
  int64_t width = l->op->gone.count, n = l->op->workspace ? table->count : 0;
  LOOP(j, n) sums[j] = get_float(table->dtype, l->at[0] + j * 2);
  LOOP(i, l->op->v[2].count) {
    int64_t r = row_of(l, i, table->shape[0]);
    LOOP(j, r < 0 ? 0 : width) sums[r * width + j] += get_float(rows->dtype, l->at[1] + to(rows, i * width + j));
  }
  LOOP(j, n) put_float(table->dtype, l->at[0] + j * 2, sums[j]);
}
static void run_histogram(const struct launch *l) {
  uint32_t *y = (uint32_t *)(void *)l->at[0];
  LOOP(b, l->op->v->count) y[b] = 0;
  LOOP(i, l->op->v[1].count) {
    int64_t r = row_of(l, i, l->op->v->count);
    if (r >= 0) y[r]++;
  }
}

/* ------------------------------------------------------------------ order: sort_pairs, topk */
struct key {
  int64_t key, at;
};
static int by_key(const void *a, const void *b) {
  const struct key *x = a, *y = b;
  return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : (x->at > y->at) - (x->at < y->at);
}
static cw_status check_order(cw_op op, cw_error *err) {
  const view *out = op->v, *in = op->v + 2;
  int last = (int)in->rank - 1;
  bool fits = last >= 0 && same_shape(out, out + 1) && out->rank == in->rank && !memcmp(out->shape, in->shape, (size_t)last * 8);
  fits = fits && (op->n == 3 ? out->shape[last] <= in->shape[last] : same_shape(out, in) && same_shape(in, in + 1));
  NEED(fits, CW_E_INVALID, "%s: the shapes do not fit", op->row->name);
  op->workspace = (uint64_t)in->shape[last] * sizeof(struct key);
  return CW_OK;
}
static void run_order(const struct launch *l) {
  const view *out = l->op->v, *in = out + 2;
  bool topk = l->op->n == 3, down = topk || l->op->p.dim.flags & CW_FLAG_DESCENDING;
  int64_t n = in->shape[in->rank - 1], k = out->shape[in->rank - 1];
  struct key *keys = (struct key *)(void *)l->workspace;
  LOOP(r, n ? in->count / n : 0) {
    LOOP(i, n) { /* NaN above every number, -0 beside 0; the complement turns an order around and leaves ties in their order */
      const char *p = l->at[2] + to(in, r * n + i);
      float f = is_float(in->dtype) ? get_float(in->dtype, p) : 0;
      int64_t key = !is_float(in->dtype) ? get_int(in->dtype, p) : f != f ? INT64_MAX : f < 0 ? -(int64_t)bits(-f) : f > 0 ? bits(f) : 0;
      keys[i] = (struct key){down ? ~key : key, i};
    }
    qsort(keys, (size_t)n, sizeof *keys, by_key);
    LOOP(i, k) {
      int64_t from = r * n + keys[i].at, at = r * k + i;
      memcpy(l->at[0] + at * in->size, l->at[2] + to(in, from), in->size);
      if (topk) put_int(out[1].dtype, l->at[1] + at * out[1].size, keys[i].at);
      else memcpy(l->at[1] + at * out[1].size, l->at[3] + to(in + 1, from), out[1].size);
    }
  }
}

/* ------------------------------------------------------------------ philox, word for word as crossweave_ops.h has it */
static cw_status check_philox(cw_op op, cw_error *err) {
  NEED((op->p.philox.kind == CW_PHILOX_BITS) == (op->v->dtype == CW_DT_U32), CW_E_UNSUPPORTED, "words are u32, numbers are floats");
  return CW_OK;
}
static void run_philox(const struct launch *l) {
  const cw_philox_params *p = &l->op->p.philox;
  const view *y = l->op->v;
  float lo = (float)p->lo, hi = (float)p->hi;
  for (int64_t e = 0; e < y->count; e += 4) {
    uint64_t c = l->dyn.philox.offset + (uint64_t)e / 4, k0 = l->dyn.philox.seed, k1 = l->dyn.philox.seed >> 32;
    uint32_t x[4] = {(uint32_t)c, (uint32_t)(c >> 32), (uint32_t)l->dyn.philox.stream, (uint32_t)(l->dyn.philox.stream >> 32)};
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      uint64_t a = (uint64_t)x[0] * 0xD2511F53u, b = (uint64_t)x[2] * 0xCD9E8D57u;
      const uint32_t next[] = {(uint32_t)(b >> 32 ^ x[1] ^ k0), (uint32_t)b, (uint32_t)(a >> 32 ^ x[3] ^ k1), (uint32_t)a};
      memcpy(x, next, sizeof x);
    }
    for (int w = 0; w < 4 && e + w < y->count; w++) {
      char *at = l->at[0] + (e + w) * y->size;
      double r = sqrt(-2 * log(((x[w & ~1] >> 8) + 1.0) * 0x1p-24)), turn = 2 * acos(-1) * ((x[w | 1] >> 8) * 0x1p-24);
      if (p->kind == CW_PHILOX_BITS) memcpy(at, &x[w], 4);
      else if (p->kind == CW_PHILOX_UNIFORM) put_float(y->dtype, at, lo + (hi - lo) * ((float)(x[w] >> 8) * 0x1p-24f));
      else put_float(y->dtype, at, lo + hi * (float)(r * (w & 1 ? sin(turn) : cos(turn))));
    }
  }
}

#include "fused.c"
/* ------------------------------------------------------------------ the table */
#define OP(id, name, types, params, kinds, flags, word, class, ...) \
  {CW_OP_##id, name, types, sizeof(cw_##params##_params), kinds, flags, word, CW_CLASS_##class, __VA_ARGS__}
static const struct row table[] = {
    OP(COPY_STRIDED, "copy_strided", "a0", kind, 0, 0, 1, EXACT, copy, check_each, run_each),
    OP(CAST, "cast", "nn", kind, 0, 0, 1, CAST, cast, check_each, run_each),
    OP(FILL_STRIDED, "fill_strided", "n", fill, 0, 0, 1, EXACT, fill, check_each, run_each),
    OP(IOTA, "iota", "n", iota, 0, 0, 1, EXACT, NULL, NULL, run_iota),
    OP(UNARY, "unary", "ff", kind, CW_UNARY_FLOOR, 0, 0, TRANSCENDENTAL, unary, check_each, run_each),
    OP(BINARY, "binary", "n00", kind, CW_BINARY_POW, 0, 0, ROUNDED, binary, check_each, run_each),
    OP(COMPARE, "compare", "un1", kind, CW_COMPARE_GE, 0, 0, EXACT, compare, check_each, run_each),
    OP(SELECT, "select", "au00", kind, 0, 0, 1, EXACT, choose, check_each, run_each),
    OP(AXPBY, "axpby", "ff", axpby, 0, 0, 1, ROUNDED, axpby, check_each, run_each),
    OP(CLAMP, "clamp", "ff", clamp, 0, 0, 1, EXACT, clamp, check_each, run_each),
    OP(REDUCE, "reduce", "Ff", reduce, CW_REDUCE_PROD, CW_FLAG_ACCUM, 3, SUM_PAIRWISE, NULL, check_reduce, run_reduce),
    OP(ARG_REDUCE, "arg_reduce", "if", dim, 0, 0, 3, EXACT, NULL, check_reduce, run_scan),
    OP(CUMSUM, "cumsum", "m0", dim, 0, 0, 3, SUM_SEQUENTIAL, NULL, check_reduce, run_scan),
    OP(NONFINITE_COUNT, "nonfinite_count", "wf*", kind, 0, 0, 1, EXACT, NULL, NULL, run_nonfinite),
    OP(MATMUL, "matmul", "Ff1f?", matmul, 0, CW_FLAG_ACCUM, 1, MATMUL, NULL, check_matmul, run_matmul),
    OP(GATHER_ROWS, "gather_rows", "a0i", index, 0, CW_FLAG_HAS_IGNORE, 1, EXACT, NULL, check_rows, run_gather),
    OP(SCATTER_ADD_ROWS, "scatter_add_rows", "Ffi", index, 0, CW_FLAG_HAS_IGNORE, 1, SUM_SEQUENTIAL, NULL, check_rows, run_scatter_add),
    OP(SORT_PAIRS, "sort_pairs", "mi01", dim, 0, CW_FLAG_DESCENDING, 3, EXACT, NULL, check_order, run_order),
    OP(TOPK, "topk", "fi0", dim, 0, CW_FLAG_DESCENDING, 3, EXACT, NULL, check_order, run_order),
    OP(HISTOGRAM, "histogram", "hi", kind, 0, 0, 1, EXACT, NULL, NULL, run_histogram),
    OP(PHILOX, "philox", "p", philox, CW_PHILOX_NORMAL, 0, 0, EXACT, NULL, check_philox, run_philox),
    OP(SOFTMAX_FWD, "softmax_fwd", "f0", kind, 0, 0, 1, FUSED, NULL, check_softmax, run_softmax),
};

/* ------------------------------------------------------------------ prepare, launch, release */
static cw_status read_view(view *v, const void *from, cw_error *err) {
  cw_layout l;
  TRY(read_struct(&l, sizeof l, from, UINT64_MAX, err));
  *v = (view){.dtype = l.dtype, .rank = l.rank, .size = (l.dtype & 0xff) / 8, .count = 1};
  NEED(l.rank <= RANK, CW_E_INVALID, "rank %u, at most %d fit", l.rank, RANK);
  NEED(!(l.flags & ~(CW_LAYOUT_CONTIGUOUS | CW_LAYOUT_MAY_ALIAS)), CW_E_UNSUPPORTED, "layout flags %#x", l.flags);
  int64_t last = 0, far;
  for (uint32_t d = 0; d < l.rank; d++) {
    v->shape[d] = l.shape[d], v->stride[d] = l.stride[d];
    NEED(l.stride[d] >= 0, CW_E_UNSUPPORTED, "a negative stride");
    bool wild = l.shape[d] < 0 || __builtin_mul_overflow(v->count, l.shape[d], &v->count);
    wild = wild || __builtin_mul_overflow(l.shape[d], l.stride[d], &far) || __builtin_add_overflow(last, far, &last) || last > INT64_MAX / 16;
    NEED(!wild, CW_E_INVALID, "a size is negative, or the layout reaches beyond any memory");
    last -= l.stride[d];
  }
  v->bytes = v->count && l.dtype ? (last + 1) * v->size : 0;
  return CW_OK;
}
static cw_status prepare(cw_op op, const cw_op_desc *x, cw_error *err) {
  const struct row *row = op->row;
  uint32_t stride = 0, n = (uint32_t)strcspn(row->types, "?*"), *word = op->p.word;
  char more = row->types[n];
  bool strided = row->id == CW_OP_COPY_STRIDED || row->id == CW_OP_FILL_STRIDED || row->id == CW_OP_MATMUL;
  NEED(x->operands && (op->n == n || (more && op->n + 1 == n) || (more == '*' && op->n > n)), CW_E_INVALID, "%u operands", op->n);
  memcpy(&stride, x->operands, sizeof stride);
  TRY(read_struct(&op->p, row->params, x->params, x->params_bytes, err));
  for (uint32_t i = 0; i < op->n; i++) TRY(read_view(op->v + i, (const char *)x->operands + (size_t)i * stride, err));
  for (uint32_t i = 0; i < op->n; i++) {
    const view *v = op->v + i;
    char letter = row->types[i < n ? i : n - 1];
    bool good = letter <= '9' ? v->dtype == op->v[letter - '0'].dtype : class_of(v->dtype) & letters[(int)letter];
    good = good && (letter != 'F' || v->dtype == CW_DT_F32 || v->dtype == op->v[1].dtype);
    NEED(good || (more == '?' && i == n - 1 && !v->dtype), CW_E_UNSUPPORTED, "%s: operand %u of dtype %#x", row->name, i, v->dtype);
    if (i > (row->check == check_order)) continue; /* an output: the first operand, of ordering ops the second too */
    NEED(strided || dense(v), CW_E_UNSUPPORTED, "%s: operand %u is an output with strides", row->name, i);
    for (uint32_t d = 0; d < v->rank && v->count; d++) NEED(v->shape[d] < 2 || v->stride[d], CW_E_UNSUPPORTED, "%s: an output with stride 0", row->name);
  }
  NEED(!row->kinds || word[1] - 1 < row->kinds, CW_E_UNSUPPORTED, "%s: kind %u", row->name, word[1]);
  NEED(!row->flags_word || !(word[row->flags_word] & ~row->flags), CW_E_UNSUPPORTED, "%s: flags %#x", row->name, word[row->flags_word]);
  return row->check ? row->check(op, err) : CW_OK;
}
static void op_release(cw_op op) {
  if (op && atomic_fetch_sub(&op->refs, 1) == 1) free(op);
}
static cw_status op_prepare(cw_device dev, const cw_op_desc *desc, cw_op *out, cw_op_plan *plan, cw_error *err) {
  cw_op_desc x;
  NEED(dev && out && plan, CW_E_INVALID, "the device or a pointer to fill is NULL");
  TRY(read_struct(&x, sizeof x, desc, UINT64_MAX, err));
  TRY(fault(__func__, err));
  const struct row *row = table, *end = table + sizeof table / sizeof *table;
  while (row < end && row->id != x.op) row++;
  NEED(row < end && x.op_revision == 1, CW_E_UNSUPPORTED, "op %#x, revision %u", x.op, x.op_revision);
  NEED(!(x.math_flags & ~(CW_MATH_DETERMINISTIC | CW_MATH_TF32)) && !x.reserved, CW_E_UNSUPPORTED, "math flags %#x", x.math_flags);
  cw_op op = calloc(1, sizeof *op + x.n_operands * sizeof *op->v);
  NEED(op, CW_E_OOM, "no host memory for an op");
  op->row = row, op->n = x.n_operands;
  atomic_init(&op->refs, 1);
  cw_status s = prepare(op, &x, err);
  cw_op_plan answer = {.workspace_bytes = op->workspace, .error_class = row->error_class};
  if (!s) s = write_struct(plan, &answer, sizeof answer, err);
  return s ? op_release(op), s : (*out = op, CW_OK);
}
static cw_status run_launch(struct command *c, cw_status status) {
  struct launch *l = c->arg;
  if (!status) l->op->row->run(l);
  op_release(l->op);
  free(l);
  return status;
}
static cw_status bind(struct launch *l, const cw_span *operands, cw_span workspace, const void *dyn, uint64_t dyn_bytes, cw_error *err) {
  cw_op op = l->op;
  for (uint32_t i = 0; i < op->n; i++) {
    const view *v = op->v + i;
    l->at[i] = address(operands[i]);
    bool there = l->at[i] && operands[i].bytes >= (uint64_t)v->bytes && (!v->size || (uintptr_t)l->at[i] % v->size == 0);
    NEED(v->bytes ? there : v->dtype || !operands[i].mem, CW_E_INVALID, "%s: operand %u: too few bytes, or not aligned", op->row->name, i);
  }
  l->workspace = address(workspace);
  NEED(!op->workspace || (l->workspace && workspace.bytes >= op->workspace), CW_E_INVALID, "%s: too small a workspace", op->row->name);
  size_t known = op->row->id == CW_OP_PHILOX ? sizeof l->dyn.philox : op->row->id == CW_OP_ELEMENTWISE_PROGRAM ? sizeof l->dyn.program : 0;
  if (known) TRY(read_struct(&l->dyn, known, dyn, dyn_bytes, err));
  NEED(!l->dyn.philox.flags, CW_E_UNSUPPORTED, "%s: flags %#x", op->row->name, l->dyn.philox.flags);
  return CW_OK;
}
static cw_status op_launch(cw_op op, cw_stream s, const cw_span *spans, uint32_t n, cw_span workspace, const void *dyn, uint64_t bytes, cw_error *err) {
  NEED(op && s && spans && n == op->n, CW_E_INVALID, "the op or the stream is NULL, or the %u operands are not those prepared", n);
  struct launch *l = calloc(1, sizeof *l + n * sizeof *l->at);
  NEED(l, CW_E_OOM, "no host memory for a launch");
  l->op = op;
  for (cw_status bad = bind(l, spans, workspace, dyn, bytes, err); bad;) return free(l), bad;
  atomic_fetch_add(&op->refs, 1);
  return enqueue(s, (struct command){.run = run_launch, .arg = l}, __func__, err);
}
const cw_ops_api ops_table = {.size = sizeof(cw_ops_api), .op_prepare = op_prepare, .op_launch = op_launch, .op_release = op_release};
