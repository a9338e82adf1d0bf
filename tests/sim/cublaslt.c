/* A simulator of cuBLASLt: products of f32 are computed as the descriptors say; of other types nothing is. */
#include "sim.h"

int sim_depth(void);

typedef struct desc { uint32_t compute; int ta, tb; uint32_t epilogue; uint64_t bias; } desc;
typedef struct layout { uint32_t type; uint64_t rows, cols; int64_t ld; int32_t batch; int64_t step; } layout;
typedef struct pref { uint32_t align[4]; uint64_t workspace; uint32_t reductions; } pref;
typedef struct found { uint64_t algo[8]; size_t workspace; int state; float waves; int reserved[4]; } found;
static int lt_live, lt_asked, lt_unaligned = 1;
API int sim_lt_live(void) { return lt_live; }
API int sim_lt_asked(void) { return lt_asked; }
API void sim_lt_unaligned(int64_t yes) { lt_unaligned = (int)yes; }
API int cublasLtCreate(void **h) { if (!sim_depth()) return 1; *h = malloc(1); lt_live++; return 0; }
API int cublasLtDestroy(void *h) { free(h); lt_live--; return 0; }
API size_t cublasLtGetVersion(void) { return 120804; }
API const char *cublasLtGetStatusName(int s) { return s == 7 ? "CUBLAS_STATUS_INVALID_VALUE" : "CUBLAS_STATUS"; }
API int cublasLtMatmulDescCreate(desc **d, uint32_t compute, uint32_t scale) { if (scale) return 7; *d = calloc(1, sizeof **d); (*d)->compute = compute; (*d)->epilogue = 1; lt_live++; return 0; }
API int cublasLtMatmulDescDestroy(desc *d) { free(d); lt_live--; return 0; }
API int cublasLtMatmulDescSetAttribute(desc *d, uint32_t a, const void *v, size_t n) {
  if (a == 8 ? n != 8 : n != 4) return 7;
  if (a == 3) d->ta = *(const int *)v; else if (a == 4) d->tb = *(const int *)v; else if (a == 7) d->epilogue = *(const uint32_t *)v;
  else if (a == 8) d->bias = *(const uint64_t *)v; else if (a != 26) return 7;
  return 0;
}
API int cublasLtMatrixLayoutCreate(layout **l, uint32_t type, uint64_t rows, uint64_t cols, int64_t ld) { if (!rows || !cols || ld < (int64_t)rows) return 7; *l = calloc(1, sizeof **l); **l = (layout){type, rows, cols, ld, 1, 0}; lt_live++; return 0; }
API int cublasLtMatrixLayoutDestroy(layout *l) { free(l); lt_live--; return 0; }
API int cublasLtMatrixLayoutSetAttribute(layout *l, uint32_t a, const void *v, size_t n) { if (a == 5 && n == 4) l->batch = *(const int32_t *)v; else if (a == 6 && n == 8) l->step = *(const int64_t *)v; else return 7; return 0; }
API int cublasLtMatmulPreferenceCreate(pref **p) { *p = calloc(1, sizeof **p); lt_live++; return 0; }
API int cublasLtMatmulPreferenceDestroy(pref *p) { free(p); lt_live--; return 0; }
API int cublasLtMatmulPreferenceSetAttribute(pref *p, uint32_t a, const void *v, size_t n) {
  if (a == 1 && n == 8) p->workspace = *(const uint64_t *)v; else if (a == 3 && n == 4) p->reductions = *(const uint32_t *)v;
  else if (a >= 5 && a <= 8 && n == 4) p->align[a - 5] = *(const uint32_t *)v; else return 7;
  return 0;
}
API int cublasLtMatmulAlgoGetHeuristic(void *h, desc *d, layout *a, layout *b, layout *c, layout *o, pref *p, int most, found *f, int *n) {
  (void)h; (void)o; lt_asked++;
  if (most != 1 || !sim_depth()) return 7;
  uint64_t m = d->ta ? a->cols : a->rows, k = d->ta ? a->rows : a->cols, k2 = d->tb ? b->cols : b->rows, w = d->tb ? b->rows : b->cols;
  if (m != c->rows || w != c->cols || k != k2 || a->batch != c->batch || b->batch != c->batch) return 7;
  if (d->epilogue == 4 && (!d->bias || d->bias % p->align[3])) return 15;
  if (p->align[0] < 16 && !lt_unaligned) return 15;
  memset(f, 0, sizeof *f);
  f->algo[0] = p->align[0]; f->workspace = p->align[0] >= 16 ? 4096 : 512;
  *n = 1;
  return 0;
}
typedef struct job { desc d; layout a, b, c; const float *pa, *pb; float *pc; float alpha, beta; } job;
static void multiply(void *arg) {
  job *j = arg;
  uint64_t m = j->c.rows, n = j->c.cols, k = j->d.ta ? j->a.rows : j->a.cols;
  for (int x = 0; x < j->c.batch; x++)
    for (uint64_t i = 0; i < m; i++)
      for (uint64_t l = 0; l < n; l++) {
        float s = 0;
        for (uint64_t y = 0; y < k; y++) s += j->pa[x * j->a.step + (j->d.ta ? y + i * j->a.ld : i + y * j->a.ld)] * j->pb[x * j->b.step + (j->d.tb ? l + y * j->b.ld : y + l * j->b.ld)];
        float *o = &j->pc[x * j->c.step + i + l * j->c.ld];
        *o = j->alpha * s + (j->beta ? j->beta * *o : 0) + (j->d.epilogue == 4 ? ((const float *)j->d.bias)[i] : 0);
      }
  free(j);
}
API int cublasLtMatmul(void *h, desc *d, const float *alpha, const void *a, layout *la, const void *b, layout *lb, const float *beta, const void *c, layout *lc, void *o, layout *lo, const uint64_t *algo, void *ws, size_t n, stream *s) {
  (void)h;
  if (!sim_depth() || c != o || lc != lo || (n && (!ws || (uintptr_t)ws % 256))) return 7;
  if (algo[0] >= 16 && ((uintptr_t)a % 16 || (uintptr_t)b % 16 || (uintptr_t)c % 16)) return 13;
  job *j = malloc(sizeof *j);
  *j = (job){*d, *la, *lb, *lc, sim_real((addr)a), sim_real((addr)b), sim_real((addr)o), *alpha, *beta};
  if (d->bias) j->d.bias = (uint64_t)sim_real(d->bias);
  if (la->type || lb->type || lc->type) { free(j); return 0; }
  sim_enqueue(s, multiply, j);
  return 0;
}
