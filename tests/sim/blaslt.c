/* A simulator of cuBLASLt, and where `SIM_HIP` is defined of hipBLASLt: the same calls with other numbers. Products of f32, f16 and bf16 are summed in
 * f32 as the descriptors say. */
#include "sim.h"

int sim_depth(void);

#ifdef SIM_HIP
#define LT(name) hipblasLt##name
enum { PLAIN = 111, TRANSPOSED = 112, TRANS_A = 0, TRANS_B = 1, EPILOGUE = 2, BIAS = 3, BIAS_TYPE = 4, BATCH = 0, STEP = 1, REDUCTIONS = -1, ALIGN = -1, LT_INVALID = 3, LT_NOTHING = 7, LT_FAILED = 5, WORDS = 3, SUM = 2 };
#else
#define LT(name) cublasLt##name
enum { PLAIN = 0, TRANSPOSED = 1, TRANS_A = 3, TRANS_B = 4, EPILOGUE = 7, BIAS = 8, BIAS_TYPE = 26, BATCH = 5, STEP = 6, REDUCTIONS = 3, ALIGN = 5, LT_INVALID = 7, LT_NOTHING = 15, LT_FAILED = 13, WORDS = 8, SUM = 68 };
#endif
enum { F32 = 0, F16 = 2, BF16 = 14, SCRATCH = 1, WITH_BIAS = 4 };
typedef struct desc { int ta, tb, bias_type; uint32_t epilogue; uint64_t bias; } desc;
typedef struct layout { uint32_t type; uint64_t rows, cols; int64_t ld; int32_t batch; int64_t step; } layout;
typedef struct pref { uint32_t align[4]; uint64_t workspace; uint32_t reductions; } pref;
typedef struct found { uint64_t algo[WORDS]; size_t workspace; int state; float waves; int reserved[4]; } found;
static int lt_live, lt_asked, lt_unaligned = 1;
API int sim_lt_live(void) { return lt_live; }
API int sim_lt_asked(void) { return lt_asked; }
API void sim_lt_unaligned(int64_t yes) { lt_unaligned = (int)yes; }
API int LT(Destroy)(void *h) { free(h); lt_live--; return 0; }
#ifdef SIM_HIP
/* As the library does where there is no device. */
API int LT(Create)(void **h) { if (!sim_depth()) { fprintf(stderr, "SIMULATED hipBLASLt: no device\n"); exit(1); } *h = malloc(1); lt_live++; return 0; }
static int lt_version = 100100;
API void sim_lt_version(int64_t v) { lt_version = (int)v; }
API int LT(GetVersion)(void *h, int *v) { *v = lt_version; return h ? 0 : 1; }
#else
API int LT(Create)(void **h) { if (!sim_depth()) return 1; *h = malloc(1); lt_live++; return 0; }
API size_t LT(GetVersion)(void) { return 120804; }
API const char *LT(GetStatusName)(int s) { return s == LT_INVALID ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS"; }
#endif
API int LT(MatmulDescCreate)(desc **d, uint32_t compute, uint32_t scale) {
  if (scale || (compute != SUM && compute != 77)) return LT_INVALID;
  *d = calloc(1, sizeof **d);
  **d = (desc){PLAIN, PLAIN, -1, 1, 0}; lt_live++;
  return 0;
}
API int LT(MatmulDescDestroy)(desc *d) { free(d); lt_live--; return 0; }
API int LT(MatmulDescSetAttribute)(desc *d, int a, const void *v, size_t n) {
  if (a == BIAS ? n != 8 : n != 4) return LT_INVALID;
  if (a == TRANS_A || a == TRANS_B) {
    int op = *(const int *)v;
    if (op != PLAIN && op != TRANSPOSED) return LT_INVALID;
    if (a == TRANS_A) d->ta = op; else d->tb = op;
  } else if (a == EPILOGUE) d->epilogue = *(const uint32_t *)v;
  else if (a == BIAS) d->bias = *(const uint64_t *)v;
  else if (a == BIAS_TYPE) d->bias_type = *(const int *)v;
  else return LT_INVALID;
  return 0;
}
API int LT(MatrixLayoutCreate)(layout **l, uint32_t type, uint64_t rows, uint64_t cols, int64_t ld) {
  if (!rows || !cols || ld < (int64_t)rows || (type != F32 && type != F16 && type != BF16)) return LT_INVALID;
  *l = calloc(1, sizeof **l);
  **l = (layout){type, rows, cols, ld, 1, 0}; lt_live++;
  return 0;
}
API int LT(MatrixLayoutDestroy)(layout *l) { free(l); lt_live--; return 0; }
API int LT(MatrixLayoutSetAttribute)(layout *l, int a, const void *v, size_t n) { if (a == BATCH && n == 4) l->batch = *(const int32_t *)v; else if (a == STEP && n == 8) l->step = *(const int64_t *)v; else return LT_INVALID; return 0; }
API int LT(MatmulPreferenceCreate)(pref **p) { *p = calloc(1, sizeof **p); lt_live++; return 0; }
API int LT(MatmulPreferenceDestroy)(pref *p) { free(p); lt_live--; return 0; }
API int LT(MatmulPreferenceSetAttribute)(pref *p, int a, const void *v, size_t n) {
  if (a == SCRATCH && n == 8) p->workspace = *(const uint64_t *)v; else if (a == REDUCTIONS && n == 4) p->reductions = *(const uint32_t *)v;
  else if (ALIGN > 0 && a >= ALIGN && a < ALIGN + 4 && n == 4) p->align[a - ALIGN] = *(const uint32_t *)v; else return LT_INVALID;
  return 0;
}
API int LT(MatmulAlgoGetHeuristic)(void *h, desc *d, layout *a, layout *b, layout *c, layout *o, pref *p, int most, found *f, int *n) {
  (void)o; lt_asked++;
  if (most != 1 || !h || !sim_depth()) return LT_INVALID;
  int ta = d->ta == TRANSPOSED, tb = d->tb == TRANSPOSED;
  uint64_t m = ta ? a->cols : a->rows, k = ta ? a->rows : a->cols, k2 = tb ? b->cols : b->rows, w = tb ? b->rows : b->cols;
  if (m != c->rows || w != c->cols || k != k2 || a->batch != c->batch || b->batch != c->batch) return LT_INVALID;
  /* Without that preference algorithms count on aligned operands. */
  uint32_t align = ALIGN > 0 ? p->align[0] : 16, of_out = ALIGN > 0 ? p->align[3] : 16;
  if (d->epilogue == WITH_BIAS && (!d->bias || d->bias % of_out)) return LT_NOTHING;
  if (align < 16 && !lt_unaligned) return LT_NOTHING;
  /* Within what the preference allows; a product is then given as much. */
  size_t room = align >= 16 ? 4096 : 512;
  if (p->workspace < room) return LT_NOTHING;
  memset(f, 0, sizeof *f);
  f->algo[0] = align; f->algo[1] = room; f->workspace = room;
  *n = 1;
  return 0;
}
typedef struct job { desc d; layout a, b, c; const char *pa, *pb; char *pc; float alpha, beta; } job;
/* Devices say gfx90a, whose matrix instructions take subnormal f16 and bf16 for 0, and give none
 * (rocm.docs.amd.com/projects/MIOpen/en/latest/conceptual/MI200-alt-implementation.html). */
#ifdef SIM_HIP
static uint16_t flushed(uint16_t h, uint16_t exponent) { return h & exponent ? h : h & 0x8000; }
#else
static uint16_t flushed(uint16_t h, uint16_t exponent) { (void)exponent; return h; }
#endif
static float get(const char *p, uint32_t type, int64_t i) {
  uint16_t h;
  float f;
  if (type == F32) { memcpy(&f, p + 4 * i, 4); return f; }
  memcpy(&h, p + 2 * i, 2);
  return type == F16 ? of_f16(flushed(h, 0x7c00)) : of_bf16(flushed(h, 0x7f80));
}
static st multiply(void *data, device *on) {
  (void)on;
  job *j = data;
  int ta = j->d.ta == TRANSPOSED, tb = j->d.tb == TRANSPOSED;
  int64_t m = (int64_t)j->c.rows, n = (int64_t)j->c.cols, k = (int64_t)(ta ? j->a.rows : j->a.cols);
  uint32_t bias = j->d.bias_type < 0 ? j->c.type : (uint32_t)j->d.bias_type;
  for (int64_t x = 0; x < j->c.batch; x++)
    for (int64_t i = 0; i < m; i++)
      for (int64_t l = 0; l < n; l++) {
        float s = 0;
        for (int64_t y = 0; y < k; y++)
          s += get(j->pa, j->a.type, x * j->a.step + (ta ? y + i * j->a.ld : i + y * j->a.ld)) * get(j->pb, j->b.type, x * j->b.step + (tb ? l + y * j->b.ld : y + l * j->b.ld));
        int64_t at = x * j->c.step + i + l * j->c.ld;
        float r = j->alpha * s + (j->beta ? j->beta * get(j->pc, j->c.type, at) : 0) + (j->d.epilogue == WITH_BIAS ? get((const char *)j->d.bias, bias, i) : 0);
        uint16_t h = j->c.type == F16 ? flushed(to_f16(r), 0x7c00) : flushed(to_bf16(r), 0x7f80);
        if (j->c.type == F32) memcpy(j->pc + 4 * at, &r, 4); else memcpy(j->pc + 2 * at, &h, 2);
      }
  return OK;
}
API int LT(Matmul)(void *h, desc *d, const float *alpha, const void *a, layout *la, const void *b, layout *lb, const float *beta, const void *c, layout *lc, void *o, layout *lo, const uint64_t *algo, void *ws, size_t n, stream *s) {
  if (!h || !sim_depth() || c != o || lc != lo || n < algo[1] || !ws || (uintptr_t)ws % 256 || core_kind((addr)ws, n) != 'd') return LT_INVALID;
  if (algo[0] >= 16 && ((uintptr_t)a % 16 || (uintptr_t)b % 16 || (uintptr_t)c % 16)) return LT_FAILED;
  job *j = malloc(sizeof *j);
  *j = (job){*d, *la, *lb, *lc, sim_real((addr)a), sim_real((addr)b), sim_real((addr)o), *alpha, *beta};
  if (d->bias) j->d.bias = (uint64_t)sim_real(d->bias);
  if (!core_compute(s, multiply, j, sizeof *j)) return 0;
  free(j);
  return LT_FAILED;
}
