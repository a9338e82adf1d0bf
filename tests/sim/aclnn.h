/* What the operators of the simulator of CANN share: descriptors, numbers, and both phases. */
#pragma once
#include "sim.h"
#include <math.h>

typedef struct tensor { int type, n; int64_t dims[8], strides[8]; addr at; } tensor;
typedef struct scalar { int type; double f; int64_t i; } scalar;
typedef struct ints { uint64_t n; int64_t v[8]; } ints;
typedef struct bools { uint64_t n; uint8_t v[8]; } bools;
typedef const tensor *T;
typedef const scalar *S;
typedef const ints *I;
typedef const bools *B;
enum { F32 = 0, F16 = 1, I8 = 2, INT32 = 3, U8 = 4, I16 = 6, I64 = 9, BOOL = 12, BF16 = 27 };
enum { NULLPTR = 161001, PARAM = 161002, RUNTIME = 361001, CREATE = 561101 };
enum { READY = 0x5eed, SPENT = 0xdead };
/* Inputs and outputs (`t`), numbers; `kind` says which of a family. */
typedef struct exec exec;
typedef st body(exec *e);
/* `ordered`: the context asks for sums in a fixed order. */
struct exec { int state, repeatable, once, kind, count, ordered; const char *name; body *run; tensor t[12]; double f[2]; int64_t i[2]; int flag; ints dims; uint64_t room; addr workspace; };

static inline int width(int t) { return t == U8 || t == BOOL || t == I8 ? 1 : t == F16 || t == BF16 || t == I16 ? 2 : t == I64 ? 8 : 4; }
static inline int floats(int t) { return t == F32 || t == F16 || t == BF16; }
static inline float f32_of(const void *p) { float f; memcpy(&f, p, 4); return f; }
static inline double get(int t, const char *p) {
  switch (t) {
    case F32: return f32_of(p);
    case F16: return of_f16(*(const uint16_t *)p);
    case BF16: return of_bf16(*(const uint16_t *)p);
    case U8: case BOOL: return *(const uint8_t *)p;
    case I16: return *(const int16_t *)p;
    case INT32: return *(const int32_t *)p;
    default: return (double)*(const int64_t *)p;
  }
}
static inline void put(int t, char *p, double v) {
  float f = (float)v;
  switch (t) {
    case F32: memcpy(p, &f, 4); break;
    case F16: *(uint16_t *)p = to_f16(f); break;
    default: *(uint16_t *)p = to_bf16(f); break;
  }
}
static inline int64_t count(T t) { int64_t c = 1; for (int i = 0; i < t->n; i++) c *= t->dims[i]; return c; }
static inline char *base(T t) { return sim_real(t->at); }
/* Element `i` of all, row-major. */
static inline char *nth(T t, int64_t i) {
  int64_t at = 0;
  for (int k = t->n - 1; k >= 0; k--) { at += i % t->dims[k] * t->strides[k]; i /= t->dims[k]; }
  return base(t) + at * width(t->type);
}
static inline double value(T t, int64_t i) { return get(t->type, nth(t, i)); }
static inline void set(T t, int64_t i, double v) { put(t->type, nth(t, i), v); }
/* Row-major without gaps. */
static inline int dense(T t) {
  int64_t step = 1;
  for (int i = t->n - 1; i >= 0; i--) { if (t->dims[i] != 1 && t->strides[i] != step) return 0; step *= t->dims[i]; }
  return 1;
}
static inline int same(T a, T b) { return a->n == b->n && !memcmp(a->dims, b->dims, sizeof a->dims); }

/* ---- phases */
st aclnn_first(uint64_t *room, exec **out, exec e);
st aclnn_second(void *workspace, uint64_t room, exec *e, stream *s);
#define RUN(N) API st aclnn##N(void *w, uint64_t n, exec *e, stream *s) { return aclnn_second(w, n, e, s); }
#define PLAN(N, ...) return aclnn_first(room, out, (exec){.name = #N, __VA_ARGS__})
#define ROOM uint64_t *room, exec **out
#define HAVE(x) if (!(x)) return NULLPTR
#define WANT(x) if (!(x)) return PARAM
