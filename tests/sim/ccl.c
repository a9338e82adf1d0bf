/* A simulator of NCCL and RCCL, whose functions are the same, for ranks that are threads or processes of one machine: a group is found by its id, the
 * n-th collective of each rank meets the n-th of the others, and data goes through files. Reductions are in rank order. Collectives that do not
 * match are said, and end the group. What is refused is on NCCL's pages (docs.nvidia.com/deeplearning/nccl/user-guide/docs/api: comms, colls, p2p, ops);
 * RCCL forms a group as it does (`PAGES.md`). */
#include "sim.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

int sim_depth(void);
st core_alloc(addr *, size_t);

enum { RANKS = 16, BOXES = 4096 };
typedef struct box { int arrived, left; struct { char kind; int type, op, root; uint64_t n; } what; } box;
/* In a file that all ranks map. */
typedef struct shared { pthread_mutex_t m; pthread_cond_t moved; int n, here, dead; unsigned sent[RANKS][RANKS], got[RANKS][RANKS]; box ops[BOXES]; } shared;
/* `slot`: where the address of the communicator goes, once more when the group has formed or been given up; `child`: of a split under way. */
typedef struct comm { shared *g; stream *last; char file[64], id[128]; int rank, polls, seq, splits, aborted, refs; struct comm **slot, *held, *child, *next; } comm;
static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static comm *comms;
static int nccl_live, nccl_aborts, registered, strays;
static __thread int grouping;
API int sim_nccl_live(void) { return nccl_live; }
API int sim_nccl_aborts(void) { return nccl_aborts; }
API int sim_registered(void) { return registered; }
/* How often a slot held something else than what had been left in it: somebody else's memory by then. */
API int sim_nccl_strays(void) { return strays; }

static void lock(shared *g) { if (pthread_mutex_lock(&g->m) == EOWNERDEAD) pthread_mutex_consistent(&g->m); }
static void unlock(shared *g) { pthread_cond_broadcast(&g->moved); pthread_mutex_unlock(&g->m); }
static void await(shared *g) { if (pthread_cond_wait(&g->moved, &g->m) == EOWNERDEAD) pthread_mutex_consistent(&g->m); }

API int ncclGetVersion(int *v) { *v = 22304; return 0; }
API const char *ncclGetErrorString(int s) { return s == 6 ? "remote process exited or there was a network error" : "simulated"; }
API const char *ncclGetLastError(void *c) { (void)c; return ""; }
typedef struct uid { char b[128]; } uid;
API int ncclGetUniqueId(uid *u) {
  static unsigned ids;
  memset(u, 0, sizeof *u);
  uint32_t n[2] = {__atomic_add_fetch(&ids, 1, __ATOMIC_RELAXED), (uint32_t)getpid()};
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  memcpy(u->b, n, 8); memcpy(u->b + 8, &t, sizeof t); u->b[127] = 1;
  return 0;
}
typedef struct config { size_t size; uint32_t magic, version; int blocking; } config;
/* The handle's reference, or that of a call that a stream has passed. */
static void drop(comm *c) { if (!__atomic_sub_fetch(&c->refs, 1, __ATOMIC_SEQ_CST)) { munmap(c->g, sizeof *c->g); free(c); } }
static void formed(comm *c) {
  if (!c->slot) return;
  if (*c->slot != c->held) strays++;
  __atomic_store_n(c->slot, c, __ATOMIC_RELEASE);
  c->slot = NULL;
}
static uint64_t hashed(uint64_t h, const void *of, int n) {
  for (int i = 0; i < n; i++) h = (h ^ ((const unsigned char *)of)[i]) * 1099511628211ull;
  return h;
}
static void name_of(comm *c, const char *id) {
  snprintf(c->file, sizeof c->file, "/tmp/cw-sim-ccl-%016llx", (unsigned long long)hashed(14695981039346656037ull, id, 128));
}
static int join(comm **out, int n, uid id, int rank, comm *parent) {
  comm *c = calloc(1, sizeof *c);
  name_of(c, id.b);
  memcpy(c->id, id.b, 128);
  int fd = open(c->file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || flock(fd, LOCK_EX)) return 2;
  off_t size = lseek(fd, 0, SEEK_END);
  if (!size && ftruncate(fd, sizeof(shared))) return 2;
  shared *g = mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (g == MAP_FAILED) return 2;
  if (!size) {
    pthread_mutexattr_t m; pthread_condattr_t v;
    pthread_mutexattr_init(&m); pthread_mutexattr_setpshared(&m, PTHREAD_PROCESS_SHARED); pthread_mutexattr_setrobust(&m, PTHREAD_MUTEX_ROBUST);
    pthread_condattr_init(&v); pthread_condattr_setpshared(&v, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&g->m, &m); pthread_cond_init(&g->moved, &v);
    g->n = n;
  }
  /* The mapping would keep the lock. */
  flock(fd, LOCK_UN);
  close(fd);
  c->g = g; c->refs = 1; c->rank = rank; c->slot = out; c->held = parent ? NULL : c;
  pthread_mutex_lock(&big);
  nccl_live++;
  c->next = comms; comms = c;
  *out = c->held;
  if (parent) { parent->child = c; parent->polls = 0; }
  pthread_mutex_unlock(&big);
  lock(g);
  /* All have it: its name is free again. */
  if (++g->here == g->n) unlink(c->file);
  unlock(g);
  return 7;
}
#ifdef SIM_HIP
/* RCCL waits for a rank that is missing although it is asked not to (github.com/ROCm/rocm-systems/pull/10796, of August 2026). */
static int formed_now(comm **out, int r) {
  comm *c = *out;
  while (r == 7 && !sim_newer && c->g->here < c->g->n && !c->g->dead) { struct timespec t = {0, 500000}; nanosleep(&t, NULL); }
  return r;
}
#else
#define formed_now(out, r) (r)
#endif
API int ncclCommInitRankConfig(comm **out, int n, uid id, int rank, config *cfg) {
  if (!sim_depth() || cfg->magic != 0xcafebeef || cfg->blocking || cfg->size < 44 || n < 1 || n > RANKS || rank < 0 || rank >= n || !id.b[127]) return 4;
  int r = join(out, n, id, rank, NULL);
  return formed_now(out, r);
}
/* Ranks of a colour by their keys, and those of one key by their ranks: all members say theirs in files. */
API int ncclCommSplit(comm *c, int color, int key, comm **out, config *cfg) {
  /* comms: no colour is -1, and nothing is under way on the parent. */
  if (!sim_depth() || cfg->magic != 0xcafebeef || cfg->blocking || color < -1) return 4;
  *out = NULL;
  char path[128];
  int said[2] = {color, key}, of[RANKS][2], split = c->splits++, n = c->g->n;
  snprintf(path, sizeof path, "%s.s%d.%d.part", c->file, split, c->rank);
  char whole[128];
  snprintf(whole, sizeof whole, "%s.s%d.%d", c->file, split, c->rank);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || write(fd, said, sizeof said) != sizeof said || close(fd) || rename(path, whole)) return 2;
  int members = 0, rank = 0;
  for (int r = 0; r < n; r++) {
    snprintf(path, sizeof path, "%s.s%d.%d", c->file, split, r);
    for (fd = -1; (fd = open(path, O_RDONLY)) < 0;) {
      if (c->aborted || c->g->dead) return 6;
      struct timespec t = {0, 500000};
      nanosleep(&t, NULL);
    }
    int got = (int)read(fd, of[r], sizeof of[r]);
    close(fd);
    if (got != sizeof of[r]) return 3;
  }
  for (int r = 0; r < n; r++) if (of[r][0] == color) { members++; rank += r != c->rank && (of[r][1] < key || (of[r][1] == key && r < c->rank)); }
  /* The last to have read takes the files away. */
  lock(c->g);
  box *b = &c->g->ops[BOXES - 1 - split % 64];
  if (++b->left == n) { b->left = 0; for (int r = 0; r < n; r++) { snprintf(path, sizeof path, "%s.s%d.%d", c->file, split, r); unlink(path); } }
  unlock(c->g);
  if (color < 0) return 0;
  uid id = {0};
  memcpy(id.b, c->id, 96);
  /* Of all splits before it too: two ways of colours are two communicators. */
  int which[2] = {split, color};
  uint64_t h = hashed(hashed(14695981039346656037ull, c->id, 128), which, sizeof which);
  memcpy(id.b + 96, &h, sizeof h);
  id.b[127] = 1;
  return join(out, members, id, rank, c);
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
/* Its calls may still be on a stream, and keep it. */
static void leave(comm *c) {
  pthread_mutex_lock(&big);
  nccl_live--;
  for (comm **at = &comms; *at; at = &(*at)->next) if (*at == c) { *at = c->next; break; }
  for (comm *p = comms; p; p = p->next) if (p->child == c) p->child = NULL;
  pthread_mutex_unlock(&big);
  lock(c->g);
  c->aborted = 1;
  if (c->g->here < c->g->n) unlink(c->file);
  unlock(c->g);
  drop(c);
}
API int ncclCommDestroy(comm *c) { leave(c); return 0; }
API int ncclCommAbort(comm *c) { if (!sim_depth()) return 4; pthread_mutex_lock(&big); nccl_aborts++; formed(c); if (c->child) formed(c->child); pthread_mutex_unlock(&big); leave(c); return 0; }
API void sim_nccl_peer_dies(int64_t id) {
  pthread_mutex_lock(&big);
  for (comm *c = comms; c; c = c->next) if (!memcmp(c->id, &id, 8)) { lock(c->g); c->g->dead = 1; unlock(c->g); }
  pthread_mutex_unlock(&big);
}
struct call;
static __thread struct { stream *s; struct call *k; } receives[1024];
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
API int ncclMemAlloc(void **p, size_t n) { return !sim_depth() ? 4 : core_alloc((addr *)p, n) ? 1 : 0; }
API int ncclMemFree(void *p) { return core_free((addr)p) ? 4 : 0; }
API int ncclCommRegister(comm *c, void *p, size_t n, void **h) { (void)c; (void)n; *h = p; __atomic_fetch_add(&registered, 1, __ATOMIC_SEQ_CST); return 0; }
API int ncclCommDeregister(comm *c, void *h) { (void)c; if (!h) return 4; __atomic_fetch_sub(&registered, 1, __ATOMIC_SEQ_CST); return 0; }

/* ---- numbers */
enum { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16 };
static size_t width(uint32_t t) { return t <= U8 ? 1 : t <= U32 || t == F32 ? 4 : t == F16 || t == BF16 ? 2 : 8; }
float of_bf16(uint16_t h) { uint32_t u = (uint32_t)h << 16; float f; memcpy(&f, &u, 4); return f; }
uint16_t to_bf16(float f) { uint32_t u; memcpy(&u, &f, 4); return f != f ? (uint16_t)(u >> 16 | 0x40) : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16); }
float of_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff, u;
  float f;
  if (!e) { f = (float)m / 16777216.0f; return sign ? -f : f; }
  u = e == 31 ? sign | 0x7f800000u | m << 13 : sign | (e + 112) << 23 | m << 13;
  memcpy(&f, &u, 4);
  return f;
}
uint16_t to_f16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  uint32_t a = u & 0x7fffffffu;
  uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
  if (a > 0x7f800000u) return sign | 0x7e00;
  if (a >= 0x477ff000u) return sign | 0x7c00;
  if (a < 0x38800000u) { float x; memcpy(&x, &a, 4); return sign | (uint16_t)__builtin_rintf(x * 16777216.0f); }
  return sign | (uint16_t)((a + 0xfff + (a >> 13 & 1) - (112u << 23)) >> 13);
}
/* A premultiplied sum: the scalar of this rank, of the device where `at` is set. */
typedef struct scale { uint32_t type; const void *at; char bytes[8]; } scale;
static scale scales[4096];
API int ncclRedOpCreatePreMulSum(uint32_t *op, void *scalar, uint32_t type, uint32_t place, comm *c) {
  static unsigned made;
  (void)c;
  if (place > 1 || (type != F16 && type != BF16 && type != F32 && type != F64)) return 4;
  unsigned i = __atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST) % 4096;
  scales[i] = (scale){.type = type, .at = place ? NULL : sim_real((addr)scalar)};
  if (place) memcpy(scales[i].bytes, scalar, width(type));
  *op = 100 + i;
  return 0;
}
API int ncclRedOpDestroy(uint32_t op, comm *c) { (void)c; return op >= 100 ? 0 : 4; }

#define FOLD(T, X, LOAD, STORE, ORDER) { \
  T *to = out; \
  for (size_t i = 0; i < n; i++) { \
    X s = LOAD(((const T *)in[0])[first + i]); \
    for (int r = 1; r < ranks; r++) { X x = LOAD(((const T *)in[r])[first + i]); s = op == 1 ? s * x : op == 2 ? (ORDER x > ORDER s ? x : s) : op == 3 ? (ORDER x < ORDER s ? x : s) : s + x; } \
    to[i] = STORE(op == 4 ? s / (X)ranks : s); \
  } } break
static void fold(uint32_t type, uint32_t op, void *const *in, int ranks, size_t first, size_t n, void *out) {
  switch (type) {
    case I8: FOLD(int8_t, int8_t, , (int8_t), );
    case U8: FOLD(uint8_t, uint8_t, , (uint8_t), );
    case I32: FOLD(int32_t, uint32_t, , (int32_t), (int32_t));
    case U32: FOLD(uint32_t, uint32_t, , , );
    case I64: FOLD(int64_t, uint64_t, , (int64_t), (int64_t));
    case U64: FOLD(uint64_t, uint64_t, , , );
    case F16: FOLD(uint16_t, float, of_f16, to_f16, );
    case F32: FOLD(float, float, , , );
    case F64: FOLD(double, double, , , );
    case BF16: FOLD(uint16_t, float, of_bf16, to_bf16, );
  }
}
static void scaled(const scale *s, void *data, size_t n) {
  const void *p = s->at ? s->at : s->bytes;
  for (size_t i = 0; i < n; i++) switch (s->type) {
    case F16: ((uint16_t *)data)[i] = to_f16(of_f16(((uint16_t *)data)[i]) * of_f16(*(const uint16_t *)p)); break;
    case BF16: ((uint16_t *)data)[i] = to_bf16(of_bf16(((uint16_t *)data)[i]) * of_bf16(*(const uint16_t *)p)); break;
    case F32: ((float *)data)[i] *= *(const float *)p; break;
    case F64: ((double *)data)[i] *= *(const double *)p; break;
  }
}

/* ---- calls */
typedef struct call { comm *c; char kind; const void *send; void *recv; size_t n; uint32_t type, op; int root, seq; scale scale; } call;
static void *piece(const char *path, size_t n, int make) {
  int fd = open(path, make ? O_RDWR | O_CREAT | O_TRUNC : O_RDWR, 0600);
  if (fd < 0 || (make && ftruncate(fd, (off_t)n + 1))) { fprintf(stderr, "SIMULATOR: %s: %s\n", path, strerror(errno)); abort(); }
  /* p2p: what is received has the count and type of what is sent. */
  if (!make && lseek(fd, 0, SEEK_END) != (off_t)n + 1) { fprintf(stderr, "SIMULATED collectives: %zu bytes are wanted of %s, others came\n", n, path); close(fd); return NULL; }
  void *p = mmap(NULL, n + 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p == MAP_FAILED) { fprintf(stderr, "SIMULATOR: %s: %s\n", path, strerror(errno)); abort(); }
  return p;
}
static void meet(void *arg) {
  call *k = arg;
  comm *c = k->c; shared *g = c->g;
  size_t bytes = k->n * width(k->type);
  char path[128];
  if (k->kind == 's') {
    lock(g); unsigned i = g->sent[c->rank][k->root]; unlock(g);
    snprintf(path, sizeof path, "%s.m%d.%d.%u", c->file, c->rank, k->root, i);
    void *p = piece(path, bytes, 1);
    memcpy(p, k->send, bytes);
    munmap(p, bytes + 1);
    lock(g); g->sent[c->rank][k->root]++; unlock(g);
  } else if (k->kind == 'r') {
    lock(g);
    while (g->got[k->root][c->rank] == g->sent[k->root][c->rank] && !c->aborted && !g->dead) await(g);
    int there = g->got[k->root][c->rank] != g->sent[k->root][c->rank];
    unsigned i = there ? g->got[k->root][c->rank]++ : 0;
    unlock(g);
    if (there) {
      snprintf(path, sizeof path, "%s.m%d.%d.%u", c->file, k->root, c->rank, i);
      void *p = piece(path, bytes, 0);
      if (p) { memcpy(k->recv, p, bytes); munmap(p, bytes + 1); }
      else { lock(g); g->dead = 1; unlock(g); }
      unlink(path);
    }
  } else {
    box *o = &g->ops[k->seq % (BOXES - 64)];
    size_t in = k->kind == 'S' ? bytes * g->n : bytes;
    snprintf(path, sizeof path, "%s.%d.%d", c->file, k->seq, c->rank);
    void *mine = piece(path, in, 1);
    if (k->send) { memcpy(mine, k->send, in); if (k->op >= 100) scaled(&k->scale, mine, in / width(k->type)); }
    munmap(mine, in + 1);
    lock(g);
    uint32_t op = k->op >= 100 ? 0 : k->op;
    if (!o->arrived) { o->what.kind = k->kind; o->what.type = (int)k->type; o->what.op = (int)op; o->what.root = k->root; o->what.n = k->n; }
    else if (o->what.kind != k->kind || o->what.type != (int)k->type || o->what.op != (int)op || o->what.root != k->root || o->what.n != k->n) {
      fprintf(stderr, "SIMULATED collective %d: rank %d gives %c of %zu (type %u, op %u, root %d), others %c of %llu (type %d, op %d, root %d)\n", k->seq, c->rank, k->kind, k->n, k->type, op, k->root,
              o->what.kind, (unsigned long long)o->what.n, o->what.type, o->what.op, o->what.root);
      g->dead = 1;
    }
    o->arrived++;
    pthread_cond_broadcast(&g->moved);
    while (o->arrived < g->n && !c->aborted && !g->dead) await(g);
    int all = o->arrived >= g->n && !g->dead;
    unlock(g);
    if (all) {
      void *of[RANKS];
      for (int r = 0; r < g->n; r++) { snprintf(path, sizeof path, "%s.%d.%d", c->file, k->seq, r); of[r] = piece(path, in, 0); }
      size_t first = k->kind == 'S' ? k->n * c->rank : 0;
      if (k->kind == 'G') for (int r = 0; r < g->n; r++) memcpy((char *)k->recv + r * bytes, of[r], bytes);
      else if (k->kind == 'B') memcpy(k->recv, of[k->root], bytes);
      else if (k->kind != 'R' || k->root == c->rank) fold(k->type, op, of, g->n, first, k->n, k->recv);
      for (int r = 0; r < g->n; r++) munmap(of[r], in + 1);
      lock(g);
      if (++o->left == g->n) {
        o->arrived = o->left = 0;
        for (int r = 0; r < g->n; r++) { snprintf(path, sizeof path, "%s.%d.%d", c->file, k->seq, r); unlink(path); }
      }
      unlock(g);
    } else unlink(path);
  }
  drop(c);
  free(k);
}
/* colls, in-place operations: where both operands are one, or a rank's piece lies where it belongs; else they lie apart. */
static int overlaps(const call *x, const comm *c) {
  uint64_t one = x->n * width(x->type), all = one * (uint64_t)c->g->n;
  addr a = (addr)x->send, b = (addr)x->recv;
  uint64_t in = x->kind == 'S' ? all : one, out = x->kind == 'G' ? all : one;
  if (!a || !b || a + in <= b || b + out <= a) return 0;
  return x->kind == 'S' ? b != a + one * (uint64_t)c->rank : x->kind == 'G' ? a != b + one * (uint64_t)c->rank : a != b;
}
static int go(comm *c, stream *s, call x) {
  if (!sim_depth() || !grouping || c->aborted) return 5;
  if (x.n && !core_kind((addr)(x.send ? x.send : x.recv), 1)) return 4;
  /* colls, p2p: a rank of the group; a type and a reduction of the library's. */
  if (x.root < 0 || x.root >= c->g->n || x.type > BF16 || (x.op > 4 && x.op < 100)) return 4;
  if (strchr("ASGB", x.kind) && overlaps(&x, c)) { fprintf(stderr, "SIMULATED collectives: operands overlap, and are not in place\n"); return 4; }
  call *k = malloc(sizeof *k);
  *k = x; k->c = c; c->last = s;
  __atomic_add_fetch(&c->refs, 1, __ATOMIC_SEQ_CST);
  k->send = x.send ? sim_real((addr)x.send) : NULL; k->recv = x.recv ? sim_real((addr)x.recv) : NULL;
  if (x.op >= 100) k->scale = scales[x.op - 100];
  if (x.kind != 's' && x.kind != 'r') k->seq = c->seq++;
  if (x.kind == 'r' && waiting < 1024) { receives[waiting].s = s; receives[waiting++].k = k; } else sim_enqueue(s, meet, k);
  return 7;
}
API int ncclAllReduce(const void *a, void *b, size_t n, uint32_t t, uint32_t op, comm *c, stream *s) { return go(c, s, (call){.kind = 'A', .send = a, .recv = b, .n = n, .type = t, .op = op}); }
API int ncclReduceScatter(const void *a, void *b, size_t n, uint32_t t, uint32_t op, comm *c, stream *s) { return go(c, s, (call){.kind = 'S', .send = a, .recv = b, .n = n, .type = t, .op = op}); }
API int ncclAllGather(const void *a, void *b, size_t n, uint32_t t, comm *c, stream *s) { return go(c, s, (call){.kind = 'G', .send = a, .recv = b, .n = n, .type = t}); }
API int ncclBroadcast(const void *a, void *b, size_t n, uint32_t t, int root, comm *c, stream *s) { return go(c, s, (call){.kind = 'B', .send = a, .recv = b, .n = n, .type = t, .root = root}); }
API int ncclReduce(const void *a, void *b, size_t n, uint32_t t, uint32_t op, int root, comm *c, stream *s) { return go(c, s, (call){.kind = 'R', .send = a, .recv = b, .n = n, .type = t, .op = op, .root = root}); }
API int ncclSend(const void *a, size_t n, uint32_t t, int peer, comm *c, stream *s) { return go(c, s, (call){.kind = 's', .send = a, .n = n, .type = t, .root = peer}); }
API int ncclRecv(void *b, size_t n, uint32_t t, int peer, comm *c, stream *s) { return go(c, s, (call){.kind = 'r', .recv = b, .n = n, .type = t, .root = peer}); }
int ccl_ranks(comm *c) { return c->g->n; }
/* Calls of it are under way on streams, and it was not given up. */
int ccl_busy(comm *c) { return __atomic_load_n(&c->refs, __ATOMIC_SEQ_CST) > 1 && !c->aborted && !c->g->dead; }
/* HCCL has ranks formed when its call returns: 0, 7 while one is missing. */
int ccl_formed(comm *c) { return c->g->dead ? 6 : c->g->here < c->g->n ? 7 : 0; }
int ccl_rank(comm *c) { return c->rank; }
/* What the stream's groups wait for does not come any more. */
void ccl_stream_abort(stream *s) {
  pthread_mutex_lock(&big);
  for (comm *c = comms; c; c = c->next) if (c->last == s) { lock(c->g); c->aborted = 1; unlock(c->g); }
  pthread_mutex_unlock(&big);
}
