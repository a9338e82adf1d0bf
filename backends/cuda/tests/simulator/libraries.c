/* Simulators of NVRTC, cuBLASLt and NCCL beside that of the driver, for tests of the host side. "Compiled" code is its own source behind a word;
 * products of f32 are computed as the descriptors say; collectives of f32 and of bytes happen when all ranks have come, on the streams' threads. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
typedef struct stream stream;
void sim_enqueue(stream *s, void (*run)(void *), void *arg);
int sim_depth(void);

/* ---- NVRTC */
static int compiled;
typedef struct program { char *source; } program;
API int nvrtcVersion(int *a, int *b) { *a = 12; *b = 8; return 0; }
API const char *nvrtcGetErrorString(int s) { return s == 6 ? "NVRTC_ERROR_COMPILATION" : "simulated"; }
API int nvrtcGetNumSupportedArchs(int *n) { *n = 3; return 0; }
API int nvrtcGetSupportedArchs(int *a) { a[0] = 80; a[1] = 90; a[2] = 100; return 0; }
API int nvrtcCreateProgram(program **p, const char *src, const char *name, int n, const char *const *h, const char *const *i) { (void)name; (void)h; (void)i; if (n) return 1; *p = malloc(sizeof **p); (*p)->source = strdup(src); return 0; }
API int nvrtcDestroyProgram(program **p) { free((*p)->source); free(*p); *p = NULL; return 0; }
API int nvrtcCompileProgram(program *p, int n, const char *const *o) {
  int arch = 0;
  for (int i = 0; i < n; i++) arch |= !strcmp(o[i], "--gpu-architecture=sm_90a");
  if (!arch) return 5;
  compiled++;
  return strstr(p->source, "#error") ? 6 : 0;
}
API int nvrtcGetCUBINSize(program *p, size_t *n) { *n = strlen(p->source) + 9; return 0; }
API int nvrtcGetCUBIN(program *p, char *out) { memcpy(out, "SIMCUBIN", 8); strcpy(out + 8, p->source); return 0; }
API int nvrtcGetPTXSize(program *p, size_t *n) { return nvrtcGetCUBINSize(p, n); }
API int nvrtcGetPTX(program *p, char *out) { return nvrtcGetCUBIN(p, out); }
API int nvrtcGetProgramLogSize(program *p, size_t *n) { (void)p; *n = 20; return 0; }
API int nvrtcGetProgramLog(program *p, char *out) { (void)p; memset(out, 0, 20); strcpy(out, "line 1: #error"); return 0; }
API int sim_compiled(void) { return compiled; }

/* ---- cuBLASLt */
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
  *j = (job){*d, *la, *lb, *lc, a, b, o, *alpha, *beta};
  if (la->type || lb->type || lc->type) { free(j); return 0; }
  sim_enqueue(s, multiply, j);
  return 0;
}

/* ---- NCCL: a group is found by its id; the n-th collective of each rank meets the n-th of the others */
enum { RANKS = 8, BOXES = 4096 };
typedef struct group { char id[128]; int n, here, left, dead; struct group *next; struct { int arrived, left; const void *send[RANKS]; void *recv[RANKS]; char *tmp[RANKS]; } ops[BOXES]; const void *mail[RANKS][RANKS][64]; size_t mail_bytes[RANKS][RANKS][64]; int sent[RANKS][RANKS], got[RANKS][RANKS]; } group;
/* `slot`: where the address of the communicator goes, once more when the group has formed or been given up; `child`: of a split under way. */
typedef struct comm { group *g; int rank, polls, seq, aborted; struct comm **slot, *held, *child; } comm;
static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static group *groups;
static int nccl_live, nccl_aborts, registered, ops_live, strays;
static __thread int grouping;
static uint64_t ids = 1;
API int sim_nccl_live(void) { return nccl_live; }
API int sim_nccl_aborts(void) { return nccl_aborts; }
API int sim_registered(void) { return registered; }
/* How often a slot held something else than what had been left in it: somebody else's memory by then. */
API int sim_nccl_strays(void) { return strays; }
API int ncclGetVersion(int *v) { *v = 22304; return 0; }
API const char *ncclGetErrorString(int s) { return s == 6 ? "remote process exited or there was a network error" : "simulated"; }
API const char *ncclGetLastError(void *c) { (void)c; return ""; }
typedef struct uid { char b[128]; } uid;
API int ncclGetUniqueId(uid *u) { memset(u, 0, sizeof *u); uint64_t n = __atomic_fetch_add(&ids, 1, __ATOMIC_RELAXED); memcpy(u->b, &n, 8); u->b[127] = 1; return 0; }
typedef struct config { size_t size; uint32_t magic, version; int blocking; } config;
static void formed(comm *c) {
  if (!c->slot) return;
  if (*c->slot != c->held) strays++;
  __atomic_store_n(c->slot, c, __ATOMIC_RELEASE);
  c->slot = NULL;
}
static int join(comm **out, int n, uid id, int rank, comm *parent) {
  pthread_mutex_lock(&big);
  group *g = groups;
  while (g && memcmp(g->id, id.b, 128)) g = g->next;
  if (!g) { g = calloc(1, sizeof *g); memcpy(g->id, id.b, 128); g->n = n; g->next = groups; groups = g; }
  g->here++; nccl_live++;
  comm *c = calloc(1, sizeof *c);
  c->g = g; c->rank = rank; c->slot = out; c->held = parent ? NULL : c;
  *out = c->held;
  if (parent) { parent->child = c; parent->polls = 0; }
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&big);
  return 7;
}
API int ncclCommInitRankConfig(comm **out, int n, uid id, int rank, config *cfg) { if (!sim_depth() || cfg->magic != 0xcafebeef || cfg->blocking || cfg->size < 44 || n > RANKS || rank >= n || !id.b[127]) return 4; return join(out, n, id, rank, NULL); }
API int ncclCommSplit(comm *c, int color, int key, comm **out, config *cfg) {
  if (!sim_depth() || cfg->magic != 0xcafebeef || cfg->blocking) return 4;
  *out = NULL;
  if (color < 0) return 0;
  uid id = {0};
  memcpy(id.b, c->g->id, 64); id.b[100] = (char)(color + 1); id.b[127] = 1;
  return join(out, c->g->n, id, key, c);
}
API int ncclCommGetAsyncError(comm *c, int *s) {
  pthread_mutex_lock(&big);
  c->polls++;
  comm *x = c->child ? c->child : c;
  *s = c->g->dead ? 6 : x->g->here < x->g->n || c->polls < 4 ? 7 : 0;
  if (!*s) { formed(x); c->child = NULL; }
  pthread_mutex_unlock(&big);
  return 0;
}
API int ncclCommFinalize(comm *c) { c->polls = 0; return 7; }
static void leave(comm *c) { pthread_mutex_lock(&big); nccl_live--; c->aborted = 1; pthread_cond_broadcast(&moved); pthread_mutex_unlock(&big); }
API int ncclCommDestroy(comm *c) {
  leave(c);
  pthread_mutex_lock(&big);
  /* An aborted communicator's calls may still be on a stream; after an orderly end there are none. */
  group *g = c->g;
  if (++g->left == g->n) { group **at = &groups; while (*at != g) at = &(*at)->next; *at = g->next; free(g); }
  free(c);
  pthread_mutex_unlock(&big);
  return 0;
}
API int ncclCommAbort(comm *c) { if (!sim_depth()) return 4; pthread_mutex_lock(&big); nccl_aborts++; formed(c); if (c->child) formed(c->child); pthread_mutex_unlock(&big); leave(c); return 0; }
API void sim_nccl_peer_dies(int64_t id) { pthread_mutex_lock(&big); for (group *g = groups; g; g = g->next) if (!memcmp(g->id, &id, 8)) g->dead = 1; pthread_cond_broadcast(&moved); pthread_mutex_unlock(&big); }
struct call;
static __thread struct { stream *s; struct call *k; } receives[256];
static __thread int waiting;
static void meet(void *arg);
API int ncclGroupStart(void) { grouping++; return 0; }
/* The members of a group run at the same time; on one stream of this simulator that means receives last. */
API int ncclGroupEnd(void) {
  if (--grouping) return grouping < 0 ? 5 : 7;
  for (int i = 0; i < waiting; i++) sim_enqueue(receives[i].s, meet, receives[i].k);
  waiting = 0;
  return 7;
}
API int ncclMemAlloc(void **p, size_t n) { if (!sim_depth()) return 4; extern int cuMemAlloc_v2(uint64_t *, size_t); return cuMemAlloc_v2((uint64_t *)p, n) ? 1 : 0; }
API int ncclMemFree(void *p) { extern int cuMemFree_v2(uint64_t); return cuMemFree_v2((uint64_t)p) ? 4 : 0; }
API int ncclCommRegister(comm *c, void *p, size_t n, void **h) { (void)c; (void)n; *h = p; __atomic_fetch_add(&registered, 1, __ATOMIC_SEQ_CST); return 0; }
API int ncclCommDeregister(comm *c, void *h) { (void)c; if (!h) return 4; __atomic_fetch_sub(&registered, 1, __ATOMIC_SEQ_CST); return 0; }
static float scales[64];
API int ncclRedOpCreatePreMulSum(uint32_t *op, void *scalar, uint32_t type, uint32_t place, comm *c) { (void)c; if (type != 7 || place > 1) return 4; int i = __atomic_fetch_add(&ops_live, 1, __ATOMIC_SEQ_CST) % 64; memcpy(&scales[i], scalar, 4); *op = 100 + i; return 0; }
API int ncclRedOpDestroy(uint32_t op, comm *c) { (void)c; return op >= 100 ? 0 : 4; }

typedef struct call { comm *c; char kind; const void *send; void *recv; size_t n; uint32_t type, op; int root, seq; } call;
static size_t width(uint32_t t) { return t <= 1 ? 1 : t <= 3 || t == 7 ? 4 : t == 6 || t == 9 ? 2 : 8; }
static float add(uint32_t op, float a, float b) { return op == 1 ? a * b : a + b; }
static void meet(void *arg) {
  call *k = arg;
  comm *c = k->c; group *g = c->g;
  size_t w = width(k->type), bytes = k->n * w;
  pthread_mutex_lock(&big);
  if (k->kind == 's') {
    int i = g->sent[c->rank][k->root]++ % 64;
    char *m = malloc(bytes + 1); memcpy(m, k->send, bytes);
    g->mail[c->rank][k->root][i] = m; g->mail_bytes[c->rank][k->root][i] = bytes;
  } else if (k->kind == 'r') {
    while (g->got[k->root][c->rank] >= g->sent[k->root][c->rank] && !c->aborted && !g->dead) pthread_cond_wait(&moved, &big);
    if (!c->aborted && !g->dead) {
      int i = g->got[k->root][c->rank]++ % 64;
      memcpy(k->recv, g->mail[k->root][c->rank][i], bytes);
      free((void *)g->mail[k->root][c->rank][i]);
    }
  } else {
    typeof(g->ops[0]) *o = &g->ops[k->seq % BOXES];
    size_t in = k->kind == 'S' ? bytes * g->n : bytes;
    o->tmp[c->rank] = malloc(in + 1);
    if (k->send) memcpy(o->tmp[c->rank], k->send, in);
    o->arrived++;
    pthread_cond_broadcast(&moved);
    while (o->arrived < g->n && !c->aborted && !g->dead) pthread_cond_wait(&moved, &big);
    if (o->arrived >= g->n) {
      size_t first = k->kind == 'S' ? k->n * c->rank : 0;
      if (k->kind == 'G') for (int r = 0; r < g->n; r++) memcpy((char *)k->recv + r * bytes, o->tmp[r], bytes);
      else if (k->kind == 'B') memcpy(k->recv, o->tmp[k->root], bytes);
      else if ((k->kind != 'R' || k->root == c->rank) && k->type == 7)
        for (size_t i = 0; i < k->n; i++) {
          float s = 0;
          for (int r = 0; r < g->n; r++) { float x = ((float *)o->tmp[r])[first + i] * (k->op >= 100 ? scales[k->op - 100] : 1); s = r ? add(k->op, s, x) : x; }
          ((float *)k->recv)[i] = k->op == 4 ? s / g->n : s;
        }
    }
    if (o->arrived >= g->n && ++o->left == g->n) { for (int r = 0; r < g->n; r++) free(o->tmp[r]); o->arrived = o->left = 0; }
  }
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&big);
  free(k);
}
static int go(comm *c, stream *s, call x) { if (!sim_depth() || !grouping || c->aborted) return 5; call *k = malloc(sizeof *k); *k = x; k->c = c; if (x.kind != 's' && x.kind != 'r') k->seq = c->seq++; if (x.kind == 'r' && waiting < 256) { receives[waiting].s = s; receives[waiting++].k = k; } else sim_enqueue(s, meet, k); return 7; }
API int ncclAllReduce(const void *a, void *b, size_t n, uint32_t t, uint32_t op, comm *c, stream *s) { return go(c, s, (call){.kind = 'A', .send = a, .recv = b, .n = n, .type = t, .op = op}); }
API int ncclReduceScatter(const void *a, void *b, size_t n, uint32_t t, uint32_t op, comm *c, stream *s) { return go(c, s, (call){.kind = 'S', .send = a, .recv = b, .n = n, .type = t, .op = op}); }
API int ncclAllGather(const void *a, void *b, size_t n, uint32_t t, comm *c, stream *s) { return go(c, s, (call){.kind = 'G', .send = a, .recv = b, .n = n, .type = t}); }
API int ncclBroadcast(const void *a, void *b, size_t n, uint32_t t, int root, comm *c, stream *s) { return go(c, s, (call){.kind = 'B', .send = a, .recv = b, .n = n, .type = t, .root = root}); }
API int ncclReduce(const void *a, void *b, size_t n, uint32_t t, uint32_t op, int root, comm *c, stream *s) { return go(c, s, (call){.kind = 'R', .send = a, .recv = b, .n = n, .type = t, .op = op, .root = root}); }
API int ncclSend(const void *a, size_t n, uint32_t t, int peer, comm *c, stream *s) { return go(c, s, (call){.kind = 's', .send = a, .n = n, .type = t, .root = peer}); }
API int ncclRecv(void *b, size_t n, uint32_t t, int peer, comm *c, stream *s) { return go(c, s, (call){.kind = 'r', .recv = b, .n = n, .type = t, .root = peer}); }
