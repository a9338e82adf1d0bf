/* The operators of CANN that the back end uses, computed on the host: floats in double and rounded once into the output's type. Each has two phases;
 * an executor runs once unless it was made repeatable, wants a workspace of exactly what was said, and writes all over it. What the documents leave
 * open comes out badly here: floats beyond an integer's range, indices that name no row. What they refuse is refused, and what they say is not exact
 * is not: an operator's document is aclnnNAME.md in docs of its folder in github.com/hicann/ops-math or ops-nn (`PAGES.md`). */
#include "aclnn.h"

st acl_status(st r);
int sim_deterministic(int device);

/* ---- descriptors */
static int live;
API int sim_descriptors(void) { return live; }
#define MADE(p) (__atomic_fetch_add(&live, 1, __ATOMIC_SEQ_CST), (p))
#define GONE(p) if (!(p)) return NULLPTR; free((void *)(p)); __atomic_fetch_sub(&live, 1, __ATOMIC_SEQ_CST); return OK
API st aclnnInit(const char *config) { return config ? PARAM : OK; }
API tensor *aclCreateTensor(const int64_t *dims, uint64_t n, int type, const int64_t *strides, int64_t offset, int format, const int64_t *storage, uint64_t ns, void *data) {
  if (!n || n > 8 || format != 2 || offset || ns != 1) { fprintf(stderr, "SIMULATED aclCreateTensor: rank %llu, format %d\n", (unsigned long long)n, format); return NULL; }
  tensor *t = calloc(1, sizeof *t);
  *t = (tensor){.type = type, .n = (int)n, .at = (addr)data};
  int64_t reach = 1;
  for (uint64_t i = 0; i < n; i++) { t->dims[i] = dims[i]; t->strides[i] = strides[i]; if (dims[i] > 0) reach += (dims[i] - 1) * strides[i]; }
  if (reach > storage[0]) { fprintf(stderr, "SIMULATED aclCreateTensor: %lld elements of storage, %lld are reached\n", (long long)storage[0], (long long)reach); free(t); return NULL; }
  return MADE(t);
}
API scalar *aclCreateScalar(const void *v, int type) {
  scalar *s = calloc(1, sizeof *s);
  s->type = type;
  switch (type) {
    case F32: s->f = f32_of(v); s->i = isfinite(s->f) && fabs(s->f) < 9e18 ? (int64_t)s->f : 0; break;
    case U8: case BOOL: s->f = (double)(s->i = *(const uint8_t *)v); break;
    case I16: s->f = (double)(s->i = *(const int16_t *)v); break;
    case INT32: s->f = (double)(s->i = *(const int32_t *)v); break;
    case I64: s->f = (double)(s->i = *(const int64_t *)v); break;
    default: free(s); return NULL;
  }
  return MADE(s);
}
API ints *aclCreateIntArray(const int64_t *v, uint64_t n) { if (n > 8) return NULL; ints *a = calloc(1, sizeof *a); a->n = n; memcpy(a->v, v, 8 * n); return MADE(a); }
API bools *aclCreateBoolArray(const uint8_t *v, uint64_t n) { if (n > 8) return NULL; bools *a = calloc(1, sizeof *a); a->n = n; memcpy(a->v, v, n); return MADE(a); }
API st aclDestroyTensor(T t) { GONE(t); }
API st aclDestroyScalar(S s) { GONE(s); }
API st aclDestroyIntArray(I a) { GONE(a); }
API st aclDestroyBoolArray(B a) { GONE(a); }

/* ---- numbers */
static int64_t geti(int t, const char *p) { return t == I64 ? *(const int64_t *)p : (int64_t)get(t, p); }
static void puti(int t, char *p, int64_t v) {
  switch (width(t)) {
    case 1: *(uint8_t *)p = (uint8_t)v; break;
    case 2: *(int16_t *)p = (int16_t)v; break;
    case 4: *(int32_t *)p = (int32_t)v; break;
    default: *(int64_t *)p = v;
  }
}

/* ---- walks: `k` tensors over the dims of the last, the others broadcast to it; offsets in bytes */
typedef struct odometer { int n, k; int64_t dims[8], step[4][8], at[8]; char *p[4]; } odometer;
static odometer over(int k, T const *t) {
  T o = t[k - 1];
  odometer w = {.n = o->n, .k = k};
  memcpy(w.dims, o->dims, sizeof w.dims);
  for (int j = 0; j < k; j++) {
    w.p[j] = base(t[j]);
    for (int i = 0; i < o->n; i++) { int d = i - (o->n - t[j]->n); w.step[j][i] = d < 0 || t[j]->dims[d] == 1 ? 0 : t[j]->strides[d] * width(t[j]->type); }
  }
  return w;
}
static inline int next(odometer *w) {
  for (int i = w->n - 1; i >= 0; i--) {
    for (int j = 0; j < w->k; j++) w->p[j] += w->step[j][i];
    if (++w->at[i] < w->dims[i]) return 1;
    for (int j = 0; j < w->k; j++) w->p[j] -= w->step[j][i] * w->dims[i];
    w->at[i] = 0;
  }
  return 0;
}
static int broadcasts(T a, T o) {
  if (a->n > o->n) return 0;
  for (int i = 0; i < a->n; i++) if (a->dims[i] != 1 && a->dims[i] != o->dims[i + o->n - a->n]) return 0;
  return 1;
}

/* ---- phases */
st aclnn_first(uint64_t *room, exec **out, exec e) {
  if (!room || !out) return NULLPTR;
  exec *x = malloc(sizeof *x);
  *x = e;
  x->state = READY;
  /* Odd, never nothing, and not the same for two operators at hand. */
  x->room = 65 + 64 * (uint64_t)((int)strlen(e.name) + e.kind % 7);
  *room = x->room; *out = x;
  __atomic_fetch_add(&live, 1, __ATOMIC_SEQ_CST);
  return OK;
}
/* The last ones stay where they are, so that one that is used again is found out. */
static void spend(exec *e) {
  static exec *spent[64];
  static unsigned at;
  e->state = SPENT;
  exec *old = __atomic_exchange_n(&spent[__atomic_fetch_add(&at, 1, __ATOMIC_SEQ_CST) % 64], e, __ATOMIC_SEQ_CST);
  free(old);
  __atomic_fetch_sub(&live, 1, __ATOMIC_SEQ_CST);
}
API st aclSetAclOpExecutorRepeatable(exec *e) { if (!e || e->state != READY) return NULLPTR; if (e->once) return 561000; e->repeatable = 1; return OK; }
API st aclDestroyAclOpExecutor(exec *e) { if (!e || e->state != READY) { fprintf(stderr, "SIMULATED aclnn: an executor is given back twice\n"); return NULLPTR; } spend(e); return OK; }
static st compute(void *data, device *d) {
  exec *e = data;
  for (int i = 0; i < e->count; i++)
    if (count(&e->t[i]) && !core_alive(base(&e->t[i]))) { fprintf(stderr, "SIMULATED device %d: aclnn%s: memory was freed before its stream came to it\n", d->index, e->name); return 507015; }
  if (!core_alive(sim_real(e->workspace))) { fprintf(stderr, "SIMULATED device %d: aclnn%s: its workspace was freed before its stream came to it\n", d->index, e->name); return 507015; }
  memset(sim_real(e->workspace), 0xA5, e->room);
  st r = e->run(e);
  if (r) fprintf(stderr, "SIMULATED device %d: aclnn%s: an index that names no row\n", d->index, e->name);
  return r;
}
st aclnn_second(void *workspace, uint64_t room, exec *e, stream *s) {
  if (!e || !s) return NULLPTR;
  if (e->state != READY) { fprintf(stderr, "SIMULATED aclnn%s: an executor is used twice\n", e->name); return CREATE; }
  if (!workspace || room != e->room || core_kind((addr)workspace, room) != 'd') { fprintf(stderr, "SIMULATED aclnn%s: %llu bytes of workspace at %p, %llu wanted\n", e->name, (unsigned long long)room, workspace, (unsigned long long)e->room); return PARAM; }
  for (int i = 0; i < e->count; i++) {
    T t = &e->t[i];
    int64_t reach = 1;
    for (int k = 0; k < t->n; k++) reach += (t->dims[k] - 1) * t->strides[k];
    if (count(t) && core_kind(t->at, (size_t)reach * width(t->type)) != 'd') { fprintf(stderr, "SIMULATED aclnn%s: operand %d is not in memory of the device\n", e->name, i); return RUNTIME; }
    if (t->at % width(t->type)) { fprintf(stderr, "SIMULATED aclnn%s: operand %d begins inside an element\n", e->name, i); return RUNTIME; }
  }
  exec *x = malloc(sizeof *x);
  *x = *e;
  x->workspace = (addr)workspace;
  x->ordered = sim_deterministic(core_stream_device(s)->index);
  char line[64];
  snprintf(line, sizeof line, "aclnn%s\n", e->name);
  st r = core_launch(s, compute, x, sizeof *x, line);
  if (r) { free(x); return RUNTIME; }
  if (!e->repeatable) spend(e);
  return OK;
}

/* ---- one element of one, two or three */
enum { ADD, SUB, MUL, DIV, MAX, MIN, POW, EQ, NE, LT, LE, GT, GE, AND };
static double binary(int kind, double a, double b, double alpha) {
  switch (kind) {
    case ADD: return a + (alpha == 1 ? b : alpha * b);
    case SUB: return a - (alpha == 1 ? b : alpha * b);
    case MUL: return a * b;
    case DIV: return a / b;
    case MAX: return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
    case MIN: return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
    case POW: return pow(a, b);
    case EQ: return a == b;
    case NE: return a != b;
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    default: return a != 0 && b != 0;
  }
}
static st run_binary(exec *e) {
  T t[] = {&e->t[0], &e->t[1], &e->t[2]};
  if (!count(t[2])) return OK;
  odometer w = over(3, t);
  int in = t[0]->type, to = t[2]->type;
  do {
    if (to == F32 && in == F32) put(F32, w.p[2], binary(e->kind, f32_of(w.p[0]), f32_of(w.p[1]), e->f[0]));
    else if (floats(in)) { double v = binary(e->kind, get(in, w.p[0]), get(in, w.p[1]), e->f[0]); if (to == BOOL) puti(to, w.p[2], (int64_t)v); else put(to, w.p[2], v); }
    else {
      int64_t a = geti(in, w.p[0]), b = geti(in, w.p[1]);
      int64_t v = e->kind == ADD ? (int64_t)((uint64_t)a + (uint64_t)e->i[0] * (uint64_t)b) : e->kind == SUB ? (int64_t)((uint64_t)a - (uint64_t)e->i[0] * (uint64_t)b) : e->kind == MUL ? (int64_t)((uint64_t)a * (uint64_t)b)
                : e->kind == EQ ? a == b : e->kind == NE ? a != b : e->kind == LT ? a < b : e->kind == LE ? a <= b : e->kind == GT ? a > b : e->kind == GE ? a >= b : (a && b);
      puti(to, w.p[2], v);
    }
  } while (next(&w));
  return OK;
}
static st plan_binary(const char *name, int kind, T a, T b, S alpha, T o, ROOM) {
  HAVE(a && b && o);
  int truth = kind >= EQ;
  WANT(a->type == b->type && o->type == (truth ? BOOL : a->type) && (truth || floats(a->type) || kind <= MUL));
  WANT(broadcasts(a, o) && broadcasts(b, o));
  return aclnn_first(room, out, (exec){.name = name, .run = run_binary, .kind = kind, .count = 3, .t = {*a, *b, *o}, .f = {alpha ? alpha->f : 1}, .i = {alpha ? alpha->i : 1}});
}
#define BINARY(N, K) API st aclnn##N##GetWorkspaceSize(T a, T b, T o, ROOM) { return plan_binary(#N, K, a, b, NULL, o, room, out); } RUN(N)
#define SCALED(N, K) API st aclnn##N##GetWorkspaceSize(T a, T b, S alpha, T o, ROOM) { HAVE(alpha); return plan_binary(#N, K, a, b, alpha, o, room, out); } RUN(N)
SCALED(Add, ADD) SCALED(Sub, SUB) BINARY(Mul, MUL) BINARY(Div, DIV) BINARY(Maximum, MAX) BINARY(Minimum, MIN) BINARY(PowTensorTensor, POW)
BINARY(EqTensor, EQ) BINARY(NeTensor, NE) BINARY(LtTensor, LT) BINARY(LeTensor, LE) BINARY(GtTensor, GT) BINARY(GeTensor, GE) BINARY(LogicalAnd, AND)

enum { NEG, ABS, EXP, LOG, SQRT, RSQRT, TANH, ERF, SIN, COS, FLOOR, SIGMOID, FINITE, CLAMP, COPY, MULS, NES, LTS, GES };
static double unary(const exec *e, double x) {
  switch (e->kind) {
    case NEG: return -x;
    case ABS: return fabs(x);
    case EXP: return exp(x);
    case LOG: return log(x);
    case SQRT: return sqrt(x);
    case RSQRT: return 1 / sqrt(x);
    case TANH: return tanh(x);
    case ERF: return erf(x);
    /* aclnnSin.md, aclnnCos.md: exact to 10^7. */
    case SIN: return fabs(x) <= 1e7 ? sin(x) : NAN;
    case COS: return fabs(x) <= 1e7 ? cos(x) : NAN;
    case FLOOR: return floor(x);
    case SIGMOID: return 1 / (1 + exp(-x));
    case FINITE: return isfinite(x) != 0;
    case CLAMP: x = x < e->f[0] ? e->f[0] : x; return x > e->f[1] ? e->f[1] : x;
    case MULS: return x * e->f[0];
    case NES: return x != e->f[0];
    case LTS: return x < e->f[0];
    case GES: return x >= e->f[0];
    default: return x;
  }
}
static st run_unary(exec *e) {
  T t[] = {&e->t[0], &e->t[1]};
  if (!count(t[1])) return OK;
  odometer w = over(2, t);
  int in = t[0]->type, to = t[1]->type, n = width(in);
  do {
    if (e->kind == COPY && in == to) memcpy(w.p[1], w.p[0], (size_t)n);
    else if (floats(in)) {
      double v = unary(e, get(in, w.p[0]));
      if (floats(to)) put(to, w.p[1], v);
      /* aclnnCast.md: NaN is 0. */
      else puti(to, w.p[1], v != v ? 0 : fabs(v) < (to == I64 ? 9.2e18 : 2147483648.0) ? (int64_t)v : INT32_MIN);
    } else if (e->kind == COPY && floats(to)) {
      int64_t v = geti(in, w.p[0]);
      if (to == F32) { float f = (float)v; memcpy(w.p[1], &f, 4); } else put(to, w.p[1], (double)v);
    } else {
      int64_t v = geti(in, w.p[0]), k = e->i[0];
      puti(to, w.p[1], e->kind == NES ? v != k : e->kind == LTS ? v < k : e->kind == GES ? v >= k : e->kind == FINITE ? 1 : v);
    }
  } while (next(&w));
  return OK;
}
static st plan_unary(const char *name, int kind, T a, double f0, double f1, int64_t i0, int64_t i1, T o, ROOM) {
  HAVE(a && o);
  int truth = kind == FINITE || kind >= NES;
  WANT(kind == COPY || o->type == (truth ? BOOL : a->type));
  WANT(kind == COPY || truth || kind >= MULS || floats(a->type));
  WANT(kind == COPY ? broadcasts(a, o) : same(a, o));
  /* Types that an operator lacks; where gaps are not taken; integers that lose digits (aclnnErf, aclnnFloor, aclnnLog, aclnnMuls). */
  WANT(!(kind == ERF || kind == FLOOR) || a->type != BF16);
  WANT(kind != LOG || dense(o));
  WANT(kind != MULS || floats(a->type));
  return aclnn_first(room, out, (exec){.name = name, .run = run_unary, .kind = kind, .count = 2, .t = {*a, *o}, .f = {f0, f1}, .i = {i0, i1}});
}
#define UNARY(N, K) API st aclnn##N##GetWorkspaceSize(T a, T o, ROOM) { return plan_unary(#N, K, a, 0, 0, 0, 0, o, room, out); } RUN(N)
UNARY(Neg, NEG) UNARY(Abs, ABS) UNARY(Exp, EXP) UNARY(Log, LOG) UNARY(Sqrt, SQRT) UNARY(Rsqrt, RSQRT) UNARY(Tanh, TANH) UNARY(Erf, ERF) UNARY(Sin, SIN) UNARY(Cos, COS)
UNARY(Floor, FLOOR) UNARY(Sigmoid, SIGMOID) UNARY(IsFinite, FINITE)
API st aclnnClampGetWorkspaceSize(T a, S lo, S hi, T o, ROOM) { HAVE(lo && hi); return plan_unary("Clamp", CLAMP, a, lo->f, hi->f, 0, 0, o, room, out); } RUN(Clamp)
#define NUMBER(N, K) API st aclnn##N##GetWorkspaceSize(T a, S b, T o, ROOM) { HAVE(b); return plan_unary(#N, K, a, b->f, 0, b->i, 0, o, room, out); } RUN(N)
NUMBER(Muls, MULS) NUMBER(NeScalar, NES) NUMBER(LtScalar, LTS) NUMBER(GeScalar, GES)
API st aclnnCastGetWorkspaceSize(T a, int type, T o, ROOM) { HAVE(a && o); WANT(o->type == type && same(a, o) && (a->type != BOOL || dense(a))); return plan_unary("Cast", COPY, a, 0, 0, 0, 0, o, room, out); } RUN(Cast)
API st aclnnInplaceCopyGetWorkspaceSize(T o, T a, ROOM) { return plan_unary("InplaceCopy", COPY, a, 0, 0, 0, 0, o, room, out); } RUN(InplaceCopy)

static st run_fill(exec *e) {
  T t[] = {&e->t[0]};
  if (!count(t[0])) return OK;
  odometer w = over(1, t);
  do { if (floats(t[0]->type)) put(t[0]->type, w.p[0], e->f[0]); else puti(t[0]->type, w.p[0], e->i[0]); } while (next(&w));
  return OK;
}
API st aclnnInplaceFillScalarGetWorkspaceSize(T o, S v, ROOM) { HAVE(o && v); PLAN(InplaceFillScalar, .run = run_fill, .count = 1, .t = {*o}, .f = {v->f}, .i = {v->i}); } RUN(InplaceFillScalar)
static st run_select(exec *e) {
  T t[] = {&e->t[0], &e->t[1], &e->t[2], &e->t[3]};
  if (!count(t[3])) return OK;
  odometer w = over(4, t);
  size_t n = (size_t)width(t[3]->type);
  do memmove(w.p[3], *(uint8_t *)w.p[0] ? w.p[1] : w.p[2], n); while (next(&w));
  return OK;
}
API st aclnnSWhereGetWorkspaceSize(T c, T a, T b, T o, ROOM) {
  HAVE(c && a && b && o);
  WANT(c->type == BOOL && a->type == o->type && b->type == o->type && broadcasts(c, o) && broadcasts(a, o) && broadcasts(b, o));
  PLAN(SWhere, .run = run_select, .count = 4, .t = {*c, *a, *b, *o});
} RUN(SWhere)

/* ---- along dims */
enum { SUM, AMAX, AMIN, PROD };
static st run_reduce(exec *e) {
  T a = &e->t[0], o = &e->t[1];
  if (!count(o)) return OK;
  /* The output walked, and of each of its elements the dims that go. */
  tensor kept = *a, gone = *a;
  for (int i = 0; i < a->n; i++) { int goes = 0; for (uint64_t k = 0; k < e->dims.n; k++) goes |= e->dims.v[k] == i; if (goes) kept.dims[i] = 1; else gone.dims[i] = 1; }
  T t[] = {&kept, o}, g[] = {&gone};
  odometer w = over(2, t);
  do {
    double s = e->kind == AMAX ? -INFINITY : e->kind == AMIN ? INFINITY : e->kind == PROD;
    int64_t k = 0;
    if (count(&gone)) {
      odometer v = over(1, g);
      v.p[0] = w.p[0];
      do {
        if (!floats(a->type)) { k = (int64_t)((uint64_t)k + (uint64_t)geti(a->type, v.p[0])); continue; }
        double x = get(a->type, v.p[0]);
        s = e->kind == SUM ? s + x : e->kind == PROD ? s * x : isnan(x) || isnan(s) ? NAN : (e->kind == AMAX ? x > s : x < s) ? x : s;
      } while (next(&v));
    }
    if (floats(o->type)) put(o->type, w.p[1], s); else puti(o->type, w.p[1], k);
  } while (next(&w));
  return OK;
}
static st plan_reduce(const char *name, int kind, T a, ints dims, int keep, T o, ROOM) {
  HAVE(a && o);
  WANT(keep && dims.n && a->n == o->n && a->type == o->type && (kind == SUM || floats(a->type)));
  for (uint64_t k = 0; k < dims.n; k++) {
    WANT(dims.v[k] >= 0 && dims.v[k] < a->n && o->dims[dims.v[k]] == 1 && (kind == SUM || kind == PROD || a->dims[dims.v[k]]));
    for (uint64_t j = 0; j < k; j++) WANT(dims.v[j] != dims.v[k]);
  }
  return aclnn_first(room, out, (exec){.name = name, .run = run_reduce, .kind = kind, .count = 2, .t = {*a, *o}, .dims = dims});
}
API st aclnnReduceSumGetWorkspaceSize(T a, I dims, uint8_t keep, int type, T o, ROOM) { HAVE(dims && o); WANT(type == o->type); return plan_reduce("ReduceSum", SUM, a, *dims, keep, o, room, out); } RUN(ReduceSum)
API st aclnnAmaxGetWorkspaceSize(T a, I dims, uint8_t keep, T o, ROOM) { HAVE(dims); return plan_reduce("Amax", AMAX, a, *dims, keep, o, room, out); } RUN(Amax)
API st aclnnAminGetWorkspaceSize(T a, I dims, uint8_t keep, T o, ROOM) { HAVE(dims); return plan_reduce("Amin", AMIN, a, *dims, keep, o, room, out); } RUN(Amin)
API st aclnnProdDimGetWorkspaceSize(T a, int64_t dim, uint8_t keep, int type, T o, ROOM) { HAVE(o); WANT(type == o->type); return plan_reduce("ProdDim", PROD, a, (ints){1, {dim}}, keep, o, room, out); } RUN(ProdDim)

/* Calls `line` for every line along a dim: addresses of its begin in each tensor. */
static st lines(int k, T const *t, int dim, st (*line)(exec *e, char **p), exec *e) {
  tensor cut[4];
  T c[4];
  for (int j = 0; j < k; j++) { cut[j] = *t[j]; cut[j].dims[dim] = 1; c[j] = &cut[j]; }
  if (!count(c[k - 1]) || !count(t[0])) return OK;
  odometer w = over(k, c);
  do { st r = line(e, w.p); if (r) return r; } while (next(&w));
  return OK;
}
static int64_t step(T t, int dim) { return t->strides[dim] * width(t->type); }
static st line_cumsum(exec *e, char **p) {
  T a = &e->t[0], o = &e->t[1];
  int d = (int)e->i[0];
  double s = 0; int64_t k = 0;
  for (int64_t i = 0; i < a->dims[d]; i++) {
    char *from = p[0] + i * step(a, d), *to = p[1] + i * step(o, d);
    if (floats(a->type)) put(o->type, to, s += get(a->type, from));
    else puti(o->type, to, k = (int64_t)((uint64_t)k + (uint64_t)geti(a->type, from)));
  }
  return OK;
}
static st run_cumsum(exec *e) { T t[] = {&e->t[0], &e->t[1]}; return lines(2, t, (int)e->i[0], line_cumsum, e); }
API st aclnnCumsumGetWorkspaceSize(T a, int64_t dim, int type, T o, ROOM) { HAVE(a && o); WANT(same(a, o) && a->type == o->type && type == o->type && dim >= 0 && dim < a->n); PLAN(Cumsum, .run = run_cumsum, .count = 2, .t = {*a, *o}, .i = {dim}); } RUN(Cumsum)

typedef struct key { double f; int64_t i, at; } key;
static int descending(const void *x, const void *y) {
  const key *a = x, *b = y;
  int na = isnan(a->f), nb = isnan(b->f);
  if (na != nb) return na ? -1 : 1;
  if (!na && a->f != b->f) return a->f > b->f ? -1 : 1;
  if (!na && a->i != b->i) return a->i > b->i ? -1 : 1;
  return a->at < b->at ? -1 : 1;
}
static int ascending(const void *x, const void *y) {
  const key *a = x, *b = y;
  int na = isnan(a->f), nb = isnan(b->f);
  if (na != nb) return na ? 1 : -1;
  if (!na && a->f != b->f) return a->f < b->f ? -1 : 1;
  if (!na && a->i != b->i) return a->i < b->i ? -1 : 1;
  return a->at < b->at ? -1 : 1;
}
static st line_sort(exec *e, char **p) {
  T a = &e->t[0], v = &e->t[1], x = &e->t[2];
  int d = (int)e->i[0];
  int64_t n = a->dims[d], w = width(a->type);
  key *k = malloc(sizeof *k * (size_t)n);
  char *was = malloc((size_t)(n * w));
  for (int64_t i = 0; i < n; i++) {
    char *at = p[0] + i * step(a, d);
    memcpy(was + i * w, at, (size_t)w);
    k[i] = (key){get(a->type, at), floats(a->type) ? 0 : geti(a->type, at), i};
  }
  qsort(k, (size_t)n, sizeof *k, e->kind ? descending : ascending);
  /* Without `stable` equals come the other way round. */
  if (!e->flag) for (int64_t i = 0; i + 1 < n; i++) if (k[i].f == k[i + 1].f && k[i].i == k[i + 1].i) { key t = k[i]; k[i] = k[i + 1]; k[++i] = t; }
  for (int64_t i = 0; i < n; i++) { memcpy(p[1] + i * step(v, d), was + k[i].at * w, (size_t)w); puti(I64, p[2] + i * step(x, d), k[i].at); }
  free(k); free(was);
  return OK;
}
static st run_sort(exec *e) { T t[] = {&e->t[0], &e->t[1], &e->t[2]}; return lines(3, t, (int)e->i[0], line_sort, e); }
API st aclnnSortGetWorkspaceSize(T a, uint8_t stable, int64_t dim, uint8_t down, T v, T x, ROOM) {
  HAVE(a && v && x);
  WANT(same(a, v) && same(a, x) && v->type == a->type && x->type == I64 && dim >= 0 && dim < a->n);
  WANT(floats(a->type) || count(a) <= (a->type == I64 ? 150000000 : 725000000));
  PLAN(Sort, .run = run_sort, .once = 1, .kind = down != 0, .flag = stable, .count = 3, .t = {*a, *v, *x}, .i = {dim});
} RUN(Sort)

/* ---- rows by index */
static int64_t index_at(T x, int64_t i) { return geti(x->type, base(x) + i * x->strides[0] * width(x->type)); }
/* Row `i` along the first dim. */
static tensor row(T t, int64_t i) { tensor r = *t; r.dims[0] = 1; r.at += (addr)(i * t->strides[0] * width(t->type)); return r; }
static st run_index_select(exec *e) {
  T a = &e->t[0], x = &e->t[1], o = &e->t[2];
  for (int64_t i = 0; i < x->dims[0]; i++) {
    int64_t k = index_at(x, i);
    if (k < 0 || k >= a->dims[0]) return 507015;
    tensor from = row(a, k), to = row(o, i);
    T t[] = {&from, &to};
    if (!count(&to)) continue;
    odometer w = over(2, t);
    do memcpy(w.p[1], w.p[0], (size_t)width(a->type)); while (next(&w));
  }
  return OK;
}
API st aclnnIndexSelectGetWorkspaceSize(T a, int64_t dim, T x, T o, ROOM) {
  HAVE(a && x && o);
  WANT(dim == 0 && x->n == 1 && (x->type == I64 || x->type == INT32) && a->n == o->n && a->type == o->type && o->dims[0] == x->dims[0] && dense(o));
  for (int i = 1; i < a->n; i++) WANT(a->dims[i] == o->dims[i]);
  PLAN(IndexSelect, .run = run_index_select, .count = 3, .t = {*a, *x, *o});
} RUN(IndexSelect)
static st run_index_add(exec *e) {
  T a = &e->t[0], x = &e->t[1], s = &e->t[2], o = &e->t[3];
  if (a->at != o->at) { exec c = {.kind = COPY, .t = {*a, *o}}; run_unary(&c); }
  for (int64_t n = 0; n < x->dims[0]; n++) {
    /* aclnnIndexAdd.md: in no order unless the context asks for one. */
    int64_t i = e->ordered ? n : x->dims[0] - 1 - n, k = index_at(x, i);
    if (k < 0 || k >= o->dims[0]) return 507015;
    tensor from = row(s, i), to = row(o, k);
    T t[] = {&from, &to};
    if (!count(&to)) continue;
    odometer w = over(2, t);
    do { if (floats(o->type)) put(o->type, w.p[1], get(o->type, w.p[1]) + e->f[0] * get(s->type, w.p[0])); else puti(o->type, w.p[1], geti(o->type, w.p[1]) + e->i[0] * geti(s->type, w.p[0])); } while (next(&w));
  }
  return OK;
}
API st aclnnIndexAddGetWorkspaceSize(T a, int64_t dim, T x, T s, S alpha, T o, ROOM) {
  HAVE(a && x && s && alpha && o);
  WANT(dim == 0 && x->n == 1 && (x->type == I64 || x->type == INT32) && same(a, o) && a->type == o->type && s->type == a->type && s->n == a->n && s->dims[0] == x->dims[0] && dense(s));
  for (int i = 1; i < a->n; i++) WANT(a->dims[i] == s->dims[i]);
  PLAN(IndexAdd, .run = run_index_add, .count = 4, .t = {*a, *x, *s, *o}, .f = {alpha->f}, .i = {alpha->i});
} RUN(IndexAdd)
static st line_gather(exec *e, char **p) {
  T a = &e->t[0], x = &e->t[1], o = &e->t[2];
  int d = (int)e->i[0];
  for (int64_t i = 0; i < x->dims[d]; i++) {
    int64_t k = geti(x->type, p[1] + i * step(x, d));
    if (k < 0 || k >= a->dims[d]) return 507015;
    memcpy(p[2] + i * step(o, d), p[0] + k * step(a, d), (size_t)width(a->type));
  }
  return OK;
}
static st run_gather(exec *e) { T t[] = {&e->t[0], &e->t[1], &e->t[2]}; return lines(3, t, (int)e->i[0], line_gather, e); }
API st aclnnGatherGetWorkspaceSize(T a, int64_t dim, T x, T o, ROOM) { HAVE(a && x && o); WANT(same(x, o) && a->n == o->n && a->type == o->type && x->type == I64 && dim >= 0 && dim < a->n && (!count(x) || a->dims[dim])); for (int i = 0; i < a->n; i++) WANT(i == dim || x->dims[i] <= a->dims[i]); PLAN(Gather, .run = run_gather, .count = 3, .t = {*a, *x, *o}, .i = {dim}); } RUN(Gather)

/* ---- products */
static st run_matmul(exec *e) {
  T a = &e->t[0], b = &e->t[1], o = &e->t[2];
  int r = o->n - 2;
  int64_t m = o->dims[r], n = o->dims[r + 1], k = a->dims[r + 1], batch = r ? o->dims[0] : 1;
  double *row = malloc(sizeof *row * (size_t)(n ? n : 1));
  float *rows = malloc(sizeof *rows * (size_t)(k * n + 1));
  for (int64_t z = 0; z < batch; z++) {
    char *pa = base(a) + (r ? z * step(a, 0) : 0), *pb = base(b) + (r ? z * step(b, 0) : 0), *po = base(o) + (r ? z * step(o, 0) : 0);
    for (int64_t x = 0; x < k; x++) for (int64_t j = 0; j < n; j++) rows[x * n + j] = (float)get(b->type, pb + x * step(b, r) + j * step(b, r + 1));
    for (int64_t i = 0; i < m; i++) {
      for (int64_t j = 0; j < n; j++) row[j] = 0;
      for (int64_t x = 0; x < k; x++) {
        double v = get(a->type, pa + i * step(a, r) + x * step(a, r + 1));
        for (int64_t j = 0; j < n; j++) row[j] += v * rows[x * n + j];
      }
      for (int64_t j = 0; j < n; j++) put(o->type, po + i * step(o, r) + j * step(o, r + 1), row[j]);
    }
  }
  free(row); free(rows);
  return OK;
}
static st plan_matmul(const char *name, int rank, T a, T b, T o, int8_t cube, ROOM) {
  HAVE(a && b && o);
  WANT(!cube && a->n == rank && b->n == rank && o->n == rank && floats(a->type) && a->type == b->type && a->type == o->type);
  int r = rank - 2;
  WANT(a->dims[r] == o->dims[r] && b->dims[r + 1] == o->dims[r + 1] && a->dims[r + 1] == b->dims[r] && (!r || (a->dims[0] == o->dims[0] && b->dims[0] == o->dims[0])));
  WANT(o->strides[r + 1] == 1 || o->dims[r + 1] == 1);
  return aclnn_first(room, out, (exec){.name = name, .run = run_matmul, .kind = rank, .count = 3, .t = {*a, *b, *o}});
}
API st aclnnMatmulGetWorkspaceSize(T a, T b, T o, int8_t cube, ROOM) { return plan_matmul("Matmul", 2, a, b, o, cube, room, out); } RUN(Matmul)
API st aclnnBatchMatMulGetWorkspaceSize(T a, T b, T o, int8_t cube, ROOM) { return plan_matmul("BatchMatMul", 3, a, b, o, cube, room, out); } RUN(BatchMatMul)
