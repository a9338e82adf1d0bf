/* A simulator of the CUDA driver over host memory, for tests of the back end's host side: streams are threads, copies and fills happen, events
 * and waits order them, and kernels are written down, not executed. It is not CUDA, and nothing it shows says anything of a GPU.
 *
 * It is stricter than the driver where that finds mistakes: a call that needs a context fails without one, copies must lie inside
 * memory that was allocated or registered, and what is freed twice or never is counted. `sim_*` are the tests' own functions. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef int st;
typedef uint64_t addr;
enum { DEVICES = 8, OK = 0, INVALID = 1, OOM = 2, NO_CONTEXT = 201, BAD_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600 };
#define API __attribute__((visibility("default")))

static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;

typedef struct ctx { int dev, retained, dead, peers; } ctx;
static ctx contexts[DEVICES];
static int visible = DEVICES, mem_ops = 1;
static __thread ctx *stack[64];
static __thread int depth;

#define HERE() ctx *c = depth ? stack[depth - 1] : NULL; if (!c) return NO_CONTEXT; if (c->dead) return c->dead

/* ---- memory: blocks by kind, 'd' device, 'h' pinned, 'r' registered */
typedef struct block { char *p; size_t n; char kind; int dev; struct block *next; } block;
static block *blocks;
static size_t live[256], used[DEVICES], capacity = 1ull << 30;
static block *find(addr a, size_t n) {
  for (block *b = blocks; b; b = b->next)
    if ((addr)b->p <= a && a + n <= (addr)b->p + b->n) return b;
  return NULL;
}
static void add(char *p, size_t n, char kind, int dev) {
  block *b = malloc(sizeof *b);
  *b = (block){p, n, kind, dev, blocks};
  blocks = b; live[(unsigned char)kind]++;
}
static int take(char *p, char kind) {
  for (block **at = &blocks; *at; at = &(*at)->next)
    if ((*at)->p == p && (*at)->kind == kind) {
      block *b = *at;
      *at = b->next; live[(unsigned char)kind]--;
      if (kind == 'd') used[b->dev] -= b->n;
      free(b); return 1;
    }
  return 0;
}

/* ---- streams */
typedef struct event { uint64_t asked, passed, at; ctx *c; } event;
typedef struct command {
  char kind; addr dst, src; size_t n, dpitch, spitch, rows; uint64_t v; unsigned width;
  event *e; void (*fn)(void *); void *arg; void (*run)(void *); char *line; struct command *next;
} command;
typedef struct graph { command *first, **last; } graph;
typedef struct stream { ctx *c; command *first, **last; int busy, dead, priority, spoilt; graph *capture; pthread_t t, capturer; } stream;
static int streams, events, launches, graphs;
static __thread stream *capturing; /* by this thread, in the thread-local mode: calls that could allocate spoil it */
static char launched[1 << 16];

static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static void nap(void) { struct timespec t = {0, 200000}; nanosleep(&t, NULL); }

static void *serve(void *arg) {
  stream *s = arg;
  pthread_mutex_lock(&big);
  for (;;) {
    while (!s->first && !s->dead) pthread_cond_wait(&moved, &big);
    if (!s->first) break;
    command *q = s->first;
    s->first = q->next; if (!s->first) s->last = &s->first;
    s->busy = 1;
    if (!s->c->dead) switch (q->kind) {
      case 'c': for (size_t i = 0; i < q->rows; i++) memmove((char *)q->dst + i * q->dpitch, (char *)q->src + i * q->spitch, q->n); break;
      case 'f': for (size_t i = 0; i < q->rows; i++) for (size_t k = 0; k < q->n; k++) memcpy((char *)q->dst + i * q->dpitch + k * q->width, &q->v, q->width); break;
      case 'e': if (q->v > q->e->passed) { q->e->passed = q->v; q->e->at = now(); } break;
      case 'w': while (q->e->passed < q->v && !s->c->dead && !q->e->c->dead) pthread_cond_wait(&moved, &big); break;
      /* The driver compares 64-bit words in a circle. */
      case 'g': while ((int64_t)(__atomic_load_n((uint64_t *)q->dst, __ATOMIC_ACQUIRE) - q->v) < 0 && !s->c->dead) { pthread_mutex_unlock(&big); nap(); pthread_mutex_lock(&big); } break;
      case 's': __atomic_store_n((uint64_t *)q->dst, q->v, __ATOMIC_RELEASE); break;
      case 'h': pthread_mutex_unlock(&big); q->fn(q->arg); pthread_mutex_lock(&big); break;
      case 'x': pthread_mutex_unlock(&big); q->run(q->arg); pthread_mutex_lock(&big); break;
      case 'k': if (q->v) s->c->dead = (int)q->v; break;
    }
    free(q);
    s->busy = 0;
    pthread_cond_broadcast(&moved);
  }
  free(s); streams--;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&big);
  return NULL;
}
static st push(stream *s, command x) {
  command *q = malloc(sizeof *q);
  *q = x; q->next = NULL;
  pthread_mutex_lock(&big);
  if (s->capture) {
    *s->capture->last = q; s->capture->last = &q->next;
    pthread_mutex_unlock(&big);
    return OK;
  }
  *s->last = q; s->last = &q->next;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&big);
  return OK;
}

/* What a capturing stream, or the thread that captures, must not be asked. */
#define FREE(s) if ((s)->capture) { (s)->spoilt = 1; return 900; }
#define UNSAFE() if (capturing) { capturing->spoilt = 1; return 900; }

/* ---- the driver */
API st cuInit(unsigned f) { if (f) return INVALID; for (int i = 0; i < DEVICES; i++) contexts[i].dev = i; return visible ? OK : 100; }
API st cuDriverGetVersion(int *v) { *v = 12080; return OK; }
API st cuGetErrorName(st s, const char **p) { *p = s == OOM ? "CUDA_ERROR_OUT_OF_MEMORY" : s == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : s == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : s == NO_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : s == INVALID ? "CUDA_ERROR_INVALID_VALUE" : NULL; return *p ? OK : INVALID; }
API st cuGetErrorString(st s, const char **p) { *p = s ? "simulated" : "no error"; return OK; }
API st cuDeviceGetCount(int *n) { *n = visible; return OK; }
API st cuDeviceGet(int *d, int i) { if (i < 0 || i >= visible) return 101; *d = i; return OK; }
API st cuDeviceGetName(char *p, int n, int d) { snprintf(p, n, "SIMULATED GPU %d", d); return OK; }
API st cuDeviceGetUuid_v2(unsigned char *p, int d) { memset(p, 0xA0 + d, 16); return OK; }
API st cuDeviceGetPCIBusId(char *p, int n, int d) { snprintf(p, n, "0000:%02x:00.0", d + 1); return OK; }
API st cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = capacity; return OK; }
API st cuDeviceGetAttribute(int *v, unsigned a, int d) {
  (void)d;
  switch (a) {
    case 1: *v = 1024; return OK;
    case 8: *v = 49152; return OK;
    case 10: *v = 32; return OK;
    case 11: *v = 0x7fffffff; return OK;
    case 16: *v = 132; return OK;
    case 75: *v = 9; return OK;
    case 76: *v = 0; return OK;
    case 97: *v = 232448; return OK;
    case 93: case 122: *v = mem_ops; return OK;
    case 102: case 103: *v = 1; return OK;
    default: return INVALID;
  }
}
API st cuDeviceCanAccessPeer(int *v, int a, int b) { *v = a != b; return OK; }
API st cuDevicePrimaryCtxRetain(ctx **p, int d) { pthread_mutex_lock(&big); contexts[d].retained++; pthread_mutex_unlock(&big); *p = &contexts[d]; return OK; }
API st cuDevicePrimaryCtxRelease_v2(int d) { pthread_mutex_lock(&big); int n = contexts[d].retained--; pthread_mutex_unlock(&big); return n > 0 ? OK : NO_CONTEXT; }
API st cuCtxPushCurrent_v2(ctx *p) { if (!p || p->retained <= 0 || depth == 64) return NO_CONTEXT; stack[depth++] = p; return OK; }
API st cuCtxPopCurrent_v2(ctx **p) { if (!depth) return NO_CONTEXT; *p = stack[--depth]; return OK; }
API st cuCtxGetStreamPriorityRange(int *least, int *greatest) { HERE(); *least = 0; *greatest = -5; return OK; }
API st cuCtxEnablePeerAccess(ctx *o, unsigned f) { HERE(); if (f) return INVALID; if (c->peers >> o->dev & 1) return 704; c->peers |= 1 << o->dev; return OK; }
API st cuMemGetInfo_v2(size_t *f, size_t *t) { HERE(); *f = capacity - used[c->dev]; *t = capacity; return OK; }
API st cuMemAlloc_v2(addr *p, size_t n) {
  HERE(); UNSAFE();
  if (!n) return INVALID;
  pthread_mutex_lock(&big);
  st r = OOM;
  if (used[c->dev] + n <= capacity) {
    char *m = aligned_alloc(256, (n + 255) / 256 * 256);
    memset(m, 0xCB, n);
    used[c->dev] += n; add(m, n, 'd', c->dev); *p = (addr)m; r = OK;
  }
  pthread_mutex_unlock(&big);
  return r;
}
static st release(char *p, char kind, int give) {
  pthread_mutex_lock(&big);
  int had = take(p, kind);
  pthread_mutex_unlock(&big);
  if (had && give) free(p);
  return had ? OK : INVALID;
}
API st cuMemFree_v2(addr p) { HERE(); UNSAFE(); return release((char *)p, 'd', 1); }
API st cuMemHostAlloc(void **p, size_t n, unsigned f) {
  HERE(); UNSAFE();
  if (!n || f > 7) return INVALID;
  *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
  pthread_mutex_lock(&big); add(*p, n, 'h', c->dev); pthread_mutex_unlock(&big);
  return OK;
}
API st cuMemFreeHost(void *p) { HERE(); UNSAFE(); return release(p, 'h', 1); }
API st cuMemHostRegister_v2(void *p, size_t n, unsigned f) {
  HERE();
  if (!n || f > 15) return INVALID;
  pthread_mutex_lock(&big);
  st r = find((addr)p, n) ? 712 : OK;
  if (!r) add(p, n, 'r', c->dev);
  pthread_mutex_unlock(&big);
  return r;
}
API st cuMemHostUnregister(void *p) { HERE(); return release(p, 'r', 0); }
API st cuMemHostGetDevicePointer_v2(addr *a, void *p, unsigned f) { HERE(); if (f) return INVALID; pthread_mutex_lock(&big); block *b = find((addr)p, 1); pthread_mutex_unlock(&big); if (!b || b->kind == 'd') return INVALID; *a = (addr)p; return OK; }
static int inside(addr a, size_t n) { pthread_mutex_lock(&big); int y = find(a, n) != NULL; pthread_mutex_unlock(&big); return y; }
API st cuMemcpyAsync(addr d, addr s, size_t n, stream *q) { HERE(); if (!inside(d, n) || !inside(s, n)) return INVALID; return push(q, (command){.kind = 'c', .dst = d, .src = s, .n = n, .rows = 1}); }
API st cuMemcpyPeerAsync(addr d, ctx *dc, addr s, ctx *sc, size_t n, stream *q) { HERE(); FREE(q); if (!dc || !sc || !inside(d, n) || !inside(s, n)) return INVALID; return push(q, (command){.kind = 'c', .dst = d, .src = s, .n = n, .rows = 1}); }
typedef struct copy2d { size_t sx, sy; unsigned st; const void *sh; addr sd; void *sa; size_t sp, dx, dy; unsigned dt; void *dh; addr dd; void *da; size_t dp, w, h; } copy2d;
API st cuMemcpy2DAsync_v2(const copy2d *x, stream *q) {
  HERE();
  if (x->st != 4 || x->dt != 4 || x->sp < x->w || x->dp < x->w) return INVALID;
  if (!inside(x->sd, x->sp * (x->h - 1) + x->w) || !inside(x->dd, x->dp * (x->h - 1) + x->w)) return INVALID;
  return push(q, (command){.kind = 'c', .dst = x->dd, .src = x->sd, .n = x->w, .rows = x->h, .dpitch = x->dp, .spitch = x->sp});
}
static st fill(addr d, size_t pitch, uint64_t v, unsigned w, size_t n, size_t rows, stream *q) {
  if (d % w || !inside(d, (rows - 1) * pitch + n * w)) return INVALID;
  return push(q, (command){.kind = 'f', .dst = d, .dpitch = pitch, .v = v, .width = w, .n = n, .rows = rows});
}
API st cuMemsetD8Async(addr d, uint8_t v, size_t n, stream *q) { HERE(); return fill(d, 0, v, 1, n, 1, q); }
API st cuMemsetD16Async(addr d, uint16_t v, size_t n, stream *q) { HERE(); return fill(d, 0, v, 2, n, 1, q); }
API st cuMemsetD32Async(addr d, uint32_t v, size_t n, stream *q) { HERE(); return fill(d, 0, v, 4, n, 1, q); }
API st cuMemsetD2D8Async(addr d, size_t p, uint8_t v, size_t w, size_t h, stream *q) { HERE(); return fill(d, p, v, 1, w, h, q); }
API st cuMemsetD2D32Async(addr d, size_t p, uint32_t v, size_t w, size_t h, stream *q) { HERE(); return fill(d, p, v, 4, w, h, q); }
API st cuStreamCreateWithPriority(stream **p, unsigned f, int priority) {
  HERE();
  if (f != 1 || priority > 0 || priority < -5) return INVALID;
  stream *s = calloc(1, sizeof *s);
  s->c = c; s->last = &s->first; s->priority = priority;
  pthread_mutex_lock(&big); streams++; pthread_mutex_unlock(&big);
  pthread_create(&s->t, NULL, serve, s);
  pthread_detach(s->t);
  *p = s;
  return OK;
}
API st cuStreamDestroy_v2(stream *s) { ctx *c = depth ? stack[depth - 1] : NULL; if (!c) return NO_CONTEXT; pthread_mutex_lock(&big); s->dead = 1; pthread_cond_broadcast(&moved); pthread_mutex_unlock(&big); return OK; }
API st cuStreamQuery(stream *s) { HERE(); FREE(s); pthread_mutex_lock(&big); int busy = s->busy || s->first; int dead = s->c->dead; pthread_mutex_unlock(&big); return dead ? dead : busy ? NOT_READY : OK; }
API st cuStreamWaitEvent(stream *s, event *e, unsigned f) { HERE(); FREE(s); if (f) return INVALID; pthread_mutex_lock(&big); uint64_t v = e->asked; pthread_mutex_unlock(&big); return push(s, (command){.kind = 'w', .e = e, .v = v}); }
API st cuLaunchHostFunc(stream *s, void (*fn)(void *), void *arg) { HERE(); FREE(s); return push(s, (command){.kind = 'h', .fn = fn, .arg = arg}); }
API st cuStreamWaitValue64_v2(stream *s, addr a, uint64_t v, unsigned f) { HERE(); FREE(s); if (!mem_ops) return 801; if (f || a % 8 || !inside(a, 8)) return INVALID; return push(s, (command){.kind = 'g', .dst = a, .v = v}); }
API st cuStreamWriteValue64_v2(stream *s, addr a, uint64_t v, unsigned f) { HERE(); FREE(s); if (!mem_ops) return 801; if (f || a % 8 || !inside(a, 8)) return INVALID; return push(s, (command){.kind = 's', .dst = a, .v = v}); }
API st cuEventCreate(event **p, unsigned f) { HERE(); if (f > 7) return INVALID; *p = calloc(1, sizeof **p); (*p)->c = c; pthread_mutex_lock(&big); events++; pthread_mutex_unlock(&big); return OK; }
API st cuEventDestroy_v2(event *e) { if (!depth) return NO_CONTEXT; (void)e; pthread_mutex_lock(&big); events--; pthread_mutex_unlock(&big); return OK; /* queued records and waits may still name it: its bytes stay */ }
API st cuEventRecord(event *e, stream *s) { HERE(); FREE(s); if (e->c != s->c) return BAD_HANDLE; pthread_mutex_lock(&big); uint64_t v = ++e->asked; pthread_mutex_unlock(&big); return push(s, (command){.kind = 'e', .e = e, .v = v}); }
API st cuEventQuery(event *e) { HERE(); pthread_mutex_lock(&big); st r = e->c->dead ? e->c->dead : e->passed < e->asked ? NOT_READY : OK; pthread_mutex_unlock(&big); return r; }
API st cuEventElapsedTime(float *ms, event *a, event *b) { HERE(); if (!a->asked || !b->asked) return BAD_HANDLE; if (a->passed < a->asked || b->passed < b->asked) return NOT_READY; *ms = (float)(((double)b->at - (double)a->at) / 1e6); return OK; }

/* ---- physical memory apart from addresses: a file of memory, mapped where an address range was reserved. Handles are descriptors + 1. */
enum { GRANULE = 2 << 20 };
typedef struct prop { unsigned kind, types; struct { unsigned kind; int id; } at; void *win; unsigned char flags[8]; } prop;
typedef struct range { addr a; size_t n; int fd; struct range *next; } range;
static range *ranges;
static int handles;
API st cuMemGetAllocationGranularity(size_t *n, const prop *p, unsigned o) { HERE(); if (p->kind != 1 || p->at.kind != 1 || o) return INVALID; *n = GRANULE; return OK; }
API st cuMemCreate(uint64_t *h, size_t n, const prop *p, uint64_t f) {
  HERE();
  if (!n || n % GRANULE || f || p->types != 1) return INVALID;
  int fd = memfd_create("simulated", 0);
  if (fd < 0 || ftruncate(fd, n)) return OOM;
  __atomic_fetch_add(&handles, 1, __ATOMIC_SEQ_CST);
  *h = fd + 1; return OK;
}
API st cuMemRelease(uint64_t h) { close((int)h - 1); __atomic_fetch_sub(&handles, 1, __ATOMIC_SEQ_CST); return OK; }
API st cuMemAddressReserve(addr *a, size_t n, size_t align, addr hint, uint64_t f) { HERE(); if (!n || n % GRANULE || align || hint || f) return INVALID; void *p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); if (p == MAP_FAILED) return OOM; *a = (addr)p; return OK; }
API st cuMemAddressFree(addr a, size_t n) { return munmap((void *)a, n) ? INVALID : OK; }
API st cuMemMap(addr a, size_t n, size_t o, uint64_t h, uint64_t f) {
  HERE();
  if (o || f || mmap((void *)a, n, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)h - 1, 0) == MAP_FAILED) return INVALID;
  range *r = malloc(sizeof *r);
  pthread_mutex_lock(&big); *r = (range){a, n, dup((int)h - 1), ranges}; ranges = r; add((char *)a, n, 'v', c->dev); pthread_mutex_unlock(&big);
  return OK;
}
API st cuMemSetAccess(addr a, size_t n, const void *d, size_t count) { HERE(); const unsigned *w = d; if (count != 1 || w[0] != 1 || w[2] != 3) return INVALID; return mprotect((void *)a, n, PROT_READ | PROT_WRITE) ? INVALID : OK; }
API st cuMemUnmap(addr a, size_t n) {
  pthread_mutex_lock(&big);
  for (range **r = &ranges; *r; r = &(*r)->next) if ((*r)->a == a && (*r)->n == n) { range *x = *r; close(x->fd); *r = x->next; free(x); break; }
  int had = take((char *)a, 'v');
  pthread_mutex_unlock(&big);
  return had ? OK : INVALID;
}
API st cuMemRetainAllocationHandle(uint64_t *h, void *p) { HERE(); for (range *r = ranges; r; r = r->next) if (r->a == (addr)p) { *h = dup(r->fd) + 1; __atomic_fetch_add(&handles, 1, __ATOMIC_SEQ_CST); return OK; } return INVALID; }
API st cuMemExportToShareableHandle(void *out, uint64_t h, unsigned type, uint64_t f) { HERE(); if (type != 1 || f) return INVALID; *(int *)out = dup((int)h - 1); return OK; }
API st cuMemImportFromShareableHandle(uint64_t *h, void *os, unsigned type) { HERE(); if (type != 1) return INVALID; int fd = dup((int)(intptr_t)os); if (fd < 0) return INVALID; __atomic_fetch_add(&handles, 1, __ATOMIC_SEQ_CST); *h = fd + 1; return OK; }

/* ---- kernels: a module is any image that starts with SIMCUBIN; a function is its name */
static int modules;
API st cuModuleLoadData(void **m, const void *image) { HERE(); UNSAFE(); if (memcmp(image, "SIMCUBIN", 8)) return 200; *m = strdup(image); pthread_mutex_lock(&big); modules++; pthread_mutex_unlock(&big); return OK; }
API st cuModuleUnload(void *m) { if (!depth) return NO_CONTEXT; free(m); pthread_mutex_lock(&big); modules--; pthread_mutex_unlock(&big); return OK; }
API st cuModuleGetFunction(void **f, void *m, const char *name) { HERE(); if (!strstr(m, name)) return NOT_FOUND; *f = strdup(name); return OK; }
API st cuFuncSetAttribute(void *f, unsigned a, int v) { HERE(); (void)f; return a == 8 && v <= 232448 ? OK : INVALID; }
static void wrote(const char *line) {
  pthread_mutex_lock(&big);
  launches++;
  size_t at = strlen(launched);
  snprintf(launched + at, sizeof launched - at, "%s", line);
  pthread_mutex_unlock(&big);
}
API st cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, stream *s, void **params, void **extra) {
  HERE();
  if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024 || gy > 65535 || gz > 65535 || shared > 232448 || (params && extra)) return INVALID;
  char line[512];
  snprintf(line, sizeof line, "%s %u,%u,%u %u,%u,%u %u\n", (char *)f, gx, gy, gz, bx, by, bz, shared);
  if (!s->capture) wrote(line);
  return push(s, (command){.kind = 'k', .v = strcmp(f, "sim_goes_astray") ? 0 : 700, .line = s->capture ? strdup(line) : NULL});
}

/* ---- graphs: commands that were kept. A template is made by a capture, what is launched by its instantiation. */
API st cuStreamBeginCapture_v2(stream *s, unsigned mode) {
  HERE();
  if (mode != 1 || s->capture || capturing) return INVALID;
  graph *g = calloc(1, sizeof *g);
  g->last = &g->first;
  pthread_mutex_lock(&big); s->capture = g; s->spoilt = 0; graphs++; pthread_mutex_unlock(&big);
  s->capturer = pthread_self(); capturing = s;
  return OK;
}
static void drop(graph *g) {
  for (command *q = g->first, *next; q; q = next) { next = q->next; free(q->line); free(q); }
  free(g);
  pthread_mutex_lock(&big); graphs--; pthread_mutex_unlock(&big);
}
API st cuStreamEndCapture(stream *s, graph **out) {
  HERE();
  if (!s->capture) return INVALID;
  if (!pthread_equal(s->capturer, pthread_self())) return 908;
  pthread_mutex_lock(&big); graph *g = s->capture; s->capture = NULL; pthread_mutex_unlock(&big);
  capturing = NULL;
  if (s->spoilt) { drop(g); *out = NULL; return 901; }
  *out = g;
  return OK;
}
API st cuGraphDestroy(graph *g) { if (!depth || !g) return INVALID; drop(g); return OK; }
API st cuGraphExecDestroy(graph *g) { return cuGraphDestroy(g); }
API st cuGraphInstantiateWithFlags(graph **out, graph *g, unsigned long long f) {
  HERE(); UNSAFE();
  if (f || !g) return INVALID;
  graph *x = calloc(1, sizeof *x);
  x->last = &x->first;
  for (command *q = g->first; q; q = q->next) {
    command *k = malloc(sizeof *k);
    *k = *q; k->next = NULL; k->line = q->line ? strdup(q->line) : NULL;
    *x->last = k; x->last = &k->next;
  }
  pthread_mutex_lock(&big); graphs++; pthread_mutex_unlock(&big);
  *out = x;
  return OK;
}
API st cuGraphLaunch(graph *g, stream *s) {
  HERE(); FREE(s);
  for (command *q = g->first; q; q = q->next) {
    command k = *q;
    if (k.line) wrote(k.line);
    k.line = NULL;
    push(s, k);
  }
  return OK;
}

/* ---- for the tests */
API int sim_depth(void) { return depth; }
API ctx *sim_context(int dev) { return &contexts[dev]; }
API int sim_retained(int dev) { return contexts[dev].retained; }
API void sim_kill(int dev, int status) { pthread_mutex_lock(&big); contexts[dev].dead = status; pthread_cond_broadcast(&moved); pthread_mutex_unlock(&big); }
API void sim_mem_ops(int yes) { mem_ops = yes; }
API size_t sim_live(int kind) { pthread_mutex_lock(&big); size_t n = kind == 's' ? (size_t)streams : kind == 'e' ? (size_t)events : kind == 'm' ? (size_t)modules : kind == 'p' ? (size_t)handles : kind == 'g' ? (size_t)graphs : live[kind]; pthread_mutex_unlock(&big); return n; }
API void sim_capacity(size_t n) { capacity = n; }
API int sim_priority(stream *s) { return s->priority; }
API int sim_launches(char *out, size_t n) { pthread_mutex_lock(&big); if (out && n) { snprintf(out, n, "%s", launched); launched[0] = 0; } int k = launches; pthread_mutex_unlock(&big); return k; }
API void sim_enqueue(stream *s, void (*run)(void *), void *arg) { push(s, (command){.kind = 'x', .run = run, .arg = arg}); }
