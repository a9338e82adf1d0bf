/* The core of the simulators: memory, streams, events and graphs over the host's memory. Streams are threads; copies, fills and kernels happen on
 * them; events and waits order them.
 *
 * It is stricter than a driver where that finds mistakes: memory of a device lies at addresses that fault when the host touches them, fresh and freed
 * memory reads as NaN, copies must lie inside memory that was allocated or registered, and what is freed twice or never is counted. As drivers do, it
 * frees memory only when all streams of the device stand still (ACL does not: `sim_frees_wait`), and blocks who gives a stream more than it has room
 * for (seen on a device, of page-locked memory: ADR 0102). What vendors' pages say of each function is in `PAGES.md`. `sim_*` functions of one integer are the tests' own. `CW_SIM` in the environment is a list by commas:
 *   late=SEED   a stream pauses before some of its commands, as the seed draws
 *   lazy        a stream runs no further than somebody asks, or 20 ms after it was given work
 *   notes       launches are written down, not computed
 *   memory=MIB  of each device
 *   devices=N   how many there are, up to 8
 *   newer       the run time is of a version whose pages have dropped a restriction (`PAGES.md` says which) */
#include "sim.h"
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SPAN (16ull << 30)

static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
device sim_devices[DEVICES];
int sim_visible = DEVICES, sim_words = 1, sim_newer;
size_t sim_most = 1ull << 30;
int sim_notes;
static uint64_t late;
static int lazy;
static char *arena, *truth;

#define HERE() device *c = sim_here(); if (!c) return NO_CONTEXT; if (c->dead) return c->dead
static void lock(void) { pthread_mutex_lock(&big); }
static void unlock(void) { pthread_mutex_unlock(&big); }

__attribute__((constructor)) static void begin(void) {
  for (int i = 0; i < DEVICES; i++) sim_devices[i].index = i;
  const char *set = getenv("CW_SIM");
  char *all = strdup(set ? set : ""), *next = all, *word;
  while ((word = strsep(&next, ","))) {
    if (!strncmp(word, "late=", 5)) late = strtoull(word + 5, NULL, 10) * 2 + 1;
    else if (!strcmp(word, "lazy")) lazy = 1;
    else if (!strcmp(word, "notes")) sim_notes = 1;
    else if (!strcmp(word, "newer")) sim_newer = 1;
    else if (!strncmp(word, "memory=", 7)) sim_most = strtoull(word + 7, NULL, 10) << 20;
    else if (!strncmp(word, "devices=", 8)) sim_visible = atoi(word + 8) < DEVICES ? atoi(word + 8) : DEVICES;
    else if (*word) fprintf(stderr, "SIMULATOR: CW_SIM: unknown word %s\n", word);
  }
  free(all);
  size_t n = DEVICES * SPAN;
  int fd = memfd_create("simulated-device", MFD_CLOEXEC);
  if (fd >= 0 && !ftruncate(fd, (off_t)n)) {
    truth = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    arena = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (fd < 0 || truth == MAP_FAILED || arena == MAP_FAILED) { fprintf(stderr, "SIMULATOR: no memory for devices: %s\n", strerror(errno)); abort(); }
  close(fd);
}

/* ---- memory: blocks by kind, 'd' device, 'h' pinned, 'r' registered, 'v' mapped */
typedef struct block { char *p; size_t n; char kind; int dev; struct block *next; } block;
static block *blocks, *of_device[DEVICES]; /* those of a device by address */
static size_t live[256], used[DEVICES];

void *sim_real(addr a) { return (char *)a >= arena && (char *)a < arena + DEVICES * SPAN ? truth + ((char *)a - arena) : (char *)a; }
static block *find(addr a, size_t n) {
  if ((char *)a >= arena && (char *)a < arena + DEVICES * SPAN) {
    for (block *b = of_device[((char *)a - arena) / SPAN]; b && (addr)b->p <= a; b = b->next) if (a + n <= (addr)b->p + b->n) return b;
    return NULL;
  }
  for (block *b = blocks; b; b = b->next) if ((addr)b->p <= a && a + n <= (addr)b->p + b->n) return b;
  return NULL;
}
static void add(block **at, char *p, size_t n, char kind, int dev) {
  block *b = malloc(sizeof *b);
  *b = (block){p, n, kind, dev, *at};
  *at = b; live[(unsigned char)kind]++;
}
static int take(block **at, char *p, char kind) {
  for (; *at; at = &(*at)->next)
    if ((*at)->p == p && (*at)->kind == kind) {
      block *b = *at;
      *at = b->next; live[(unsigned char)kind]--;
      free(b); return 1;
    }
  return 0;
}
int core_alive(const void *real) { lock(); int there = find((addr)(arena + ((const char *)real - truth)), 1) != NULL; unlock(); return there; }
int core_kind(addr a, size_t n) { lock(); block *b = find(a, n); int k = b ? b->kind : 0; unlock(); return k; }
int core_device(addr a) { lock(); block *b = find(a, 1); int d = b ? b->dev : -1; unlock(); return d; }
static int inside(addr a, size_t n) { return core_kind(a, n) != 0; }

/* ---- streams. A command's number is its place in the stream. */
/* `refs`: the handle's, and those of queued commands that name it. */
struct event { uint64_t asked, passed, at, number; stream *s; device *c; int refs, timed; };
typedef struct command {
  char kind; addr dst, src; size_t n, dpitch, spitch, rows; uint64_t v; unsigned width;
  event *e; void (*fn)(void *); st (*run)(void *, device *); void *data; size_t bytes; char *line; struct command *next;
} command;
struct graph { command *first, **last; };
/* `given`, `done`: numbers of the last command it was given and has ended; `asked`: how far somebody waits for it to come. */
/* `thrown`: up to which command it is to be thrown away. */
struct stream { device *c; command *first, **last; uint64_t given, done, asked, drawn, thrown; stream *beside; /* of all streams */ int busy, dead, priority, spoilt, aborted, refs; /* its thread's, and those of events recorded on it */ graph *capture; pthread_t t, capturer; };
#define ROOM 1000 /* commands of a stream that have not ended */
static int streams, events, launches, graphs;
static stream *all;
static __thread stream *capturing; /* by this thread, in the thread-local mode: calls that could allocate spoil it */
static char launched[1 << 16];
static size_t written;

static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static void nap(long us) { struct timespec t = {0, us * 1000}; nanosleep(&t, NULL); }
/* With the lock held. */
static void drop_stream(stream *s) { if (s && !--s->refs) free(s); }
static void drop_event(event *e) { if (e && !--e->refs) { drop_stream(e->s); free(e); } }
static void ask(stream *s, uint64_t number) { if (s && s->asked < number) { s->asked = number; pthread_cond_broadcast(&moved); } }

/* All streams of the device have done what they were given. Others may give them more meanwhile. */
static void still(device *c) {
  for (stream *s = all; s && !c->dead;) {
    if (s->c != c || (!s->busy && !s->first)) { s = s->beside; continue; }
    ask(s, s->given);
    pthread_cond_wait(&moved, &big);
    s = all;
  }
}
/* What a command names has been freed before its stream came to it: the device is lost, as by an access to nobody's memory. */
static int freed(stream *s, addr a, size_t n) {
  if (find(a, n)) return 0;
  fprintf(stderr, "SIMULATED device %d: memory was freed before a stream came to its use\n", s->c->index);
  s->c->dead = 700;
  return 1;
}
static void run(stream *s, command *q) {
  if (s->c->dead) return;
  size_t whole = q->rows ? (q->rows - 1) * q->dpitch + q->n * (q->kind == 'f' ? q->width : 1) : 0;
  if ((q->kind == 'c' || q->kind == 'f') && freed(s, q->dst, whole)) return;
  if (q->kind == 'c' && freed(s, q->src, (q->rows - 1) * q->spitch + q->n)) return;
  switch (q->kind) {
    case 'c': unlock(); for (size_t i = 0; i < q->rows; i++) memmove((char *)sim_real(q->dst) + i * q->dpitch, (char *)sim_real(q->src) + i * q->spitch, q->n); lock(); break;
    case 'f': {
      unlock();
      char *to = sim_real(q->dst);
      for (size_t i = 0; i < q->rows; i++) {
        if (q->width == 1) memset(to + i * q->dpitch, (int)q->v, q->n);
        else for (size_t k = 0; k < q->n; k++) memcpy(to + i * q->dpitch + k * q->width, &q->v, q->width);
      }
      lock();
      break;
    }
    case 'e': if (q->v > q->e->passed) { q->e->passed = q->v; q->e->at = now(); } break;
    case 'w': while (q->e->passed < q->v && s->thrown <= s->done && !s->c->dead && !q->e->c->dead) { ask(q->e->s, q->n); pthread_cond_wait(&moved, &big); } break;
    /* Drivers compare 64-bit words in a circle. */
    case 'g': while ((int64_t)(__atomic_load_n((uint64_t *)sim_real(q->dst), __ATOMIC_ACQUIRE) - q->v) < 0 && !s->c->dead) { unlock(); nap(200); lock(); } break;
    case 's': __atomic_store_n((uint64_t *)sim_real(q->dst), q->v, __ATOMIC_RELEASE); break;
    case 'h': case 'l': unlock(); q->fn(q->data); lock(); break;
    case 'k': {
      unlock();
      st r = q->run ? q->run(q->data, s->c) : OK;
      lock();
      if (r) s->c->dead = r;
      break;
    }
  }
}
/* When a stream that nobody asks goes on by itself, as what somebody waits for may be nothing that the simulator sees. */
static struct timespec soon(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_nsec += 20000000;
  if (t.tv_nsec >= 1000000000) { t.tv_sec++; t.tv_nsec -= 1000000000; }
  return t;
}
/* Another stream has been asked and its thread has not come to it: on a busy machine the ones nobody asked would overtake it. */
static int owed(const stream *s) {
  for (stream *o = all; o; o = o->beside) if (o != s && o->first && !o->busy && !o->c->dead && o->asked > o->done) return 1;
  return 0;
}
static void *serve(void *arg) {
  stream *s = arg;
  lock();
  for (;;) {
    while (!s->first && !s->dead) pthread_cond_wait(&moved, &big);
    if (!s->first) break;
    if (lazy) for (struct timespec t = soon(); s->asked <= s->done && !s->dead;) {
      if (pthread_cond_timedwait(&moved, &big, &t) != ETIMEDOUT) continue;
      if (!owed(s)) break;
      t = soon();
    }
    if (late) {
      s->drawn = s->drawn * 6364136223846793005ull + 1442695040888963407ull;
      if (s->drawn >> 61 == 0) { long us = (long)(s->drawn >> 40 & 0x3ff); unlock(); nap(us); lock(); }
    }
    command *q = s->first;
    s->first = q->next; if (!s->first) s->last = &s->first;
    s->busy = 1;
    int thrown = s->thrown > s->done && q->kind != 'l';
    if (!thrown) run(s, q);
    drop_event(q->e);
    if (q->kind == 'k' || (thrown && q->kind == 'h')) free(q->data);
    free(q->line); free(q);
    s->busy = 0; s->done++;
    pthread_cond_broadcast(&moved);
  }
  streams--;
  for (stream **at = &all; *at; at = &(*at)->beside) if (*at == s) { *at = s->beside; break; }
  drop_stream(s);
  pthread_cond_broadcast(&moved);
  unlock();
  return NULL;
}
static st push(stream *s, command x) {
  command *q = malloc(sizeof *q);
  *q = x; q->next = NULL;
  lock();
  while (!s->capture && s->given - s->done >= ROOM && !s->c->dead) { ask(s, s->given); pthread_cond_wait(&moved, &big); }
  command ***last = s->capture ? &s->capture->last : &s->last;
  **last = q; *last = &q->next;
  if (!s->capture) { s->given++; pthread_cond_broadcast(&moved); }
  unlock();
  return OK;
}
void sim_enqueue(stream *s, void (*fn)(void *), void *arg) { push(s, (command){.kind = 'l', .fn = fn, .data = arg}); }

/* What a capturing stream, or the thread that captures, must not be asked. */
#define FREE(s) if ((s)->capture) { (s)->spoilt = 1; return CAPTURE_UNSUPPORTED; }
#define UNSAFE() if (capturing) { capturing->spoilt = 1; return CAPTURE_UNSUPPORTED; }

st core_room(size_t *f, size_t *t) { HERE(); *f = sim_most - used[c->index]; *t = sim_most; return OK; }
st core_reach(device *o) { HERE(); if (c->peers >> o->index & 1) return PEER_ALREADY; c->peers |= 1 << o->index; return OK; }
st core_alloc(addr *p, size_t n) {
  HERE(); UNSAFE();
  if (!n) return INVALID;
  lock();
  st r = OOM;
  /* The first gap it fits, with room between neighbours. */
  char *at = arena + c->index * SPAN + 4096;
  block **to = &of_device[c->index];
  for (; *to && (size_t)((*to)->p - at) < n + 512; to = &(*to)->next) at = (*to)->p + ((*to)->n + 511) / 256 * 256;
  if (used[c->index] + n <= sim_most && at + n < arena + (c->index + 1) * SPAN) {
    memset(sim_real((addr)at), 0xff, n);
    used[c->index] += n; add(to, at, n, 'd', c->index); *p = (addr)at; r = OK;
  }
  unlock();
  return r;
}
st core_free(addr p) {
  HERE(); UNSAFE();
  lock();
  block *b = find(p, 1);
  size_t n = b && (addr)b->p == p && b->kind == 'd' ? b->n : 0;
  int dev = n ? b->dev : 0;
  int had = n && take(&of_device[dev], (char *)p, 'd');
  /* It is gone at once for who uses it too late, although the caller has to wait. */
  if (had) { used[dev] -= n; memset(sim_real(p), 0xff, n); if (sim_frees_wait) still(c); }
  unlock();
  return had ? OK : INVALID;
}
static st release(char *p, char kind, int give) {
  lock();
  int had = take(&blocks, p, kind);
  unlock();
  if (had && give) free(p);
  return had ? OK : INVALID;
}
st core_host_alloc(void **p, size_t n) {
  HERE(); UNSAFE();
  if (!n) return INVALID;
  *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
  memset(*p, 0xff, n);
  lock(); add(&blocks, *p, n, 'h', c->index); unlock();
  return OK;
}
st core_host_free(void *p) { HERE(); UNSAFE(); lock(); if (sim_frees_wait) still(c); unlock(); return release(p, 'h', 1); }
st core_host_register(void *p, size_t n) {
  HERE();
  if (!n) return INVALID;
  lock();
  st r = find((addr)p, n) ? PINNED_ALREADY : OK;
  if (!r) add(&blocks, p, n, 'r', c->index);
  unlock();
  return r;
}
st core_host_unregister(void *p) { HERE(); return release(p, 'r', 0); }
st core_host_seen(addr *a, void *p) { HERE(); int k = core_kind((addr)p, 1); if (!k || k == 'd') return INVALID; *a = (addr)p; return OK; }
st core_copy(addr d, addr s, size_t n, size_t dpitch, size_t spitch, size_t rows, stream *q) {
  HERE();
  if (rows > 1 && (dpitch < n || spitch < n)) return INVALID;
  if (!rows || !inside(s, spitch * (rows - 1) + n) || !inside(d, dpitch * (rows - 1) + n)) return INVALID;
  return push(q, (command){.kind = 'c', .dst = d, .src = s, .n = n, .rows = rows, .dpitch = dpitch, .spitch = spitch});
}
st core_copy_peer(addr d, addr s, size_t n, stream *q) { HERE(); FREE(q); return core_copy(d, s, n, 0, 0, 1, q); }
st core_fill(addr d, size_t pitch, uint64_t v, unsigned w, size_t n, size_t rows, stream *q) {
  HERE();
  if (d % w || !rows || (rows > 1 && (pitch % w || pitch < n * w)) || !inside(d, (rows - 1) * pitch + n * w)) return INVALID;
  return push(q, (command){.kind = 'f', .dst = d, .dpitch = pitch, .v = v, .width = w, .n = n, .rows = rows});
}
st core_stream(stream **p, int priority) {
  HERE();
  stream *s = calloc(1, sizeof *s);
  s->c = c; s->last = &s->first; s->priority = priority; s->refs = 1;
  lock(); s->drawn = late * 0x9e3779b97f4a7c15ull + (uint64_t)++streams; s->beside = all; all = s; unlock();
  pthread_create(&s->t, NULL, serve, s);
  pthread_detach(s->t);
  *p = s;
  return OK;
}
st core_stream_destroy(stream *s) { if (!sim_here()) return NO_CONTEXT; lock(); s->dead = 1; pthread_cond_broadcast(&moved); unlock(); return OK; }
device *core_stream_device(const stream *s) { return s->c; }
void core_stream_abort(stream *s) { lock(); s->thrown = s->given; s->aborted = 1; ask(s, s->given); pthread_cond_broadcast(&moved); unlock(); }
int core_stream_aborted(stream *s) { lock(); int was = s->aborted; s->aborted = 0; unlock(); return was; }
st core_stream_query(stream *s) { HERE(); FREE(s); lock(); ask(s, s->given); int busy = s->busy || s->first, dead = s->c->dead; unlock(); return dead ? dead : busy ? NOT_READY : OK; }
st core_stream_wait(stream *s, event *e) { HERE(); FREE(s); lock(); uint64_t v = e->asked, n = e->number; e->refs++; unlock(); return push(s, (command){.kind = 'w', .e = e, .v = v, .n = n}); }
st core_host_func(stream *s, void (*fn)(void *), void *arg) { HERE(); FREE(s); return push(s, (command){.kind = 'h', .fn = fn, .data = arg}); }
st core_wait_value(stream *s, addr a, uint64_t v) { HERE(); FREE(s); if (!sim_words) return UNSUPPORTED; if (a % 8 || !inside(a, 8)) return INVALID; return push(s, (command){.kind = 'g', .dst = a, .v = v}); }
st core_write_value(stream *s, addr a, uint64_t v) { HERE(); FREE(s); if (!sim_words) return UNSUPPORTED; if (a % 8 || !inside(a, 8)) return INVALID; return push(s, (command){.kind = 's', .dst = a, .v = v}); }
st core_event(event **p, int timed) { HERE(); *p = calloc(1, sizeof **p); (*p)->c = c; (*p)->refs = 1; (*p)->timed = timed; lock(); events++; unlock(); return OK; }
st core_event_destroy(event *e) { if (!sim_here()) return NO_CONTEXT; lock(); events--; drop_event(e); unlock(); return OK; }
st core_event_record(event *e, stream *s) {
  HERE(); FREE(s);
  if (e->c != s->c) return BAD_HANDLE;
  lock();
  uint64_t v = ++e->asked;
  if (e->s != s) { drop_stream(e->s); e->s = s; s->refs++; }
  e->number = s->given + 1; e->refs++;
  unlock();
  return push(s, (command){.kind = 'e', .e = e, .v = v});
}
st core_event_query(event *e) { HERE(); lock(); ask(e->s, e->number); st r = e->c->dead ? e->c->dead : e->passed < e->asked ? NOT_READY : OK; unlock(); return r; }
const stream *core_event_stream(const event *e) { return e->s; }
int core_event_recorded(event *e) { lock(); int r = e->asked > 0; unlock(); return r; }
st core_event_elapsed(float *ms, event *a, event *b) { HERE(); if (!a->asked || !b->asked || !a->timed || !b->timed || a->c != b->c) return BAD_HANDLE; if (a->passed < a->asked || b->passed < b->asked) return NOT_READY; *ms = (float)(((double)b->at - (double)a->at) / 1e6); return OK; }

/* ---- launches */
static void wrote(const char *line) {
  lock();
  launches++;
  size_t n = strlen(line);
  if (written + n < sizeof launched) { memcpy(launched + written, line, n + 1); written += n; }
  unlock();
}
st core_launch(stream *s, st (*fn)(void *, device *), void *data, size_t n, const char *line) {
  HERE();
  if (!s->capture) wrote(line);
  return push(s, (command){.kind = 'k', .run = fn, .data = data, .bytes = n, .line = s->capture ? strdup(line) : NULL});
}
/* A library's, which no test counts. */
st core_compute(stream *s, st (*fn)(void *, device *), void *data, size_t n) { HERE(); return push(s, (command){.kind = 'k', .run = fn, .data = data, .bytes = n}); }

/* ---- graphs: commands that were kept. A template is made by a capture, what is launched by its instantiation. */
st core_capture_begin(stream *s) {
  HERE();
  if (s->capture || capturing) return INVALID;
  graph *g = calloc(1, sizeof *g);
  g->last = &g->first;
  lock(); s->capture = g; s->spoilt = 0; graphs++; unlock();
  s->capturer = pthread_self(); capturing = s;
  return OK;
}
static command copied(const command *q) {
  command k = *q;
  k.next = NULL;
  if (q->kind == 'k' && q->data) { k.data = malloc(q->bytes); memcpy(k.data, q->data, q->bytes); }
  if (q->line) k.line = strdup(q->line);
  return k;
}
static void drop(graph *g) {
  for (command *q = g->first, *next; q; q = next) { next = q->next; if (q->kind == 'k') free(q->data); free(q->line); free(q); }
  free(g);
  lock(); graphs--; unlock();
}
st core_capture_end(stream *s, graph **out) {
  HERE();
  if (!s->capture) return INVALID;
  if (!pthread_equal(s->capturer, pthread_self())) return CAPTURE_WRONG_THREAD;
  lock(); graph *g = s->capture; s->capture = NULL; unlock();
  capturing = NULL;
  if (s->spoilt) { drop(g); *out = NULL; return CAPTURE_INVALIDATED; }
  *out = g;
  return OK;
}
st core_graph_destroy(graph *g) { if (!sim_here() || !g) return INVALID; drop(g); return OK; }
st core_graph_instantiate(graph **out, graph *g) {
  HERE(); UNSAFE();
  if (!g) return INVALID;
  graph *x = calloc(1, sizeof *x);
  x->last = &x->first;
  for (command *q = g->first; q; q = q->next) {
    command *k = malloc(sizeof *k);
    *k = copied(q);
    *x->last = k; x->last = &k->next;
  }
  lock(); graphs++; unlock();
  *out = x;
  return OK;
}
st core_graph_launch(graph *g, stream *s) {
  HERE(); FREE(s);
  for (command *q = g->first; q; q = q->next) {
    command k = copied(q);
    if (k.line) wrote(k.line);
    push(s, k);
  }
  return OK;
}

/* ---- physical memory apart from addresses: a file of memory, mapped where an address range was reserved. Handles are descriptors + 1. */
enum { GRANULE = 2 << 20 };
typedef struct range { addr a; size_t n; int fd; struct range *next; } range;
/* What is mapped, and what addresses are reserved. */
static range *ranges, *reserved;
static int within(const range *of, addr a, size_t n) { for (; of; of = of->next) if (of->a <= a && a + n <= of->a + of->n) return 1; return 0; }
static int touched(const range *of, addr a, size_t n) { for (; of; of = of->next) if (of->a < a + n && a < of->a + of->n) return 1; return 0; }
static int handles;
st core_granularity(size_t *n) { HERE(); *n = GRANULE; return OK; }
st core_physical(uint64_t *h, size_t n) {
  HERE();
  if (!n || n % GRANULE) return INVALID;
  int fd = memfd_create("simulated", 0);
  if (fd < 0 || ftruncate(fd, (off_t)n)) return OOM;
  __atomic_fetch_add(&handles, 1, __ATOMIC_SEQ_CST);
  *h = fd + 1; return OK;
}
st core_physical_release(uint64_t h) { close((int)h - 1); __atomic_fetch_sub(&handles, 1, __ATOMIC_SEQ_CST); return OK; }
st core_reserve(addr *a, size_t n) {
  HERE();
  if (!n || n % GRANULE) return INVALID;
  void *p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return OOM;
  range *r = malloc(sizeof *r);
  lock(); *r = (range){(addr)p, n, -1, reserved}; reserved = r; unlock();
  *a = (addr)p; return OK;
}
/* As it was reserved, with nothing mapped. */
st core_unreserve(addr a, size_t n) {
  lock();
  range **r = &reserved, *x = NULL;
  while (*r && ((*r)->a != a || (*r)->n != n)) r = &(*r)->next;
  if (*r && !touched(ranges, a, n)) { x = *r; *r = x->next; }
  unlock();
  free(x);
  return x && !munmap((void *)a, n) ? OK : INVALID;
}
st core_map(addr a, size_t n, uint64_t h) {
  HERE();
  struct stat file;
  lock(); int free_range = within(reserved, a, n) && !touched(ranges, a, n); unlock();
  if (!n || n % GRANULE || !free_range || fstat((int)h - 1, &file) || (size_t)file.st_size < n) return INVALID;
  if (mmap((void *)a, n, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)h - 1, 0) == MAP_FAILED) return INVALID;
  range *r = malloc(sizeof *r);
  lock(); *r = (range){a, n, dup((int)h - 1), ranges}; ranges = r; add(&blocks, (char *)a, n, 'v', c->index); unlock();
  return OK;
}
st core_access(addr a, size_t n) { HERE(); lock(); int mapped = within(ranges, a, n); unlock(); return !mapped || mprotect((void *)a, n, PROT_READ | PROT_WRITE) ? INVALID : OK; }
st core_unmap(addr a, size_t n) {
  lock();
  for (range **r = &ranges; *r; r = &(*r)->next) if ((*r)->a == a && (*r)->n == n) { range *x = *r; close(x->fd); *r = x->next; free(x); break; }
  int had = take(&blocks, (char *)a, 'v');
  unlock();
  return had ? OK : INVALID;
}
st core_physical_of(uint64_t *h, void *p) { HERE(); for (range *r = ranges; r; r = r->next) if (r->a == (addr)p) { *h = dup(r->fd) + 1; __atomic_fetch_add(&handles, 1, __ATOMIC_SEQ_CST); return OK; } return INVALID; }
st core_share(int *fd, uint64_t h) { HERE(); *fd = dup((int)h - 1); return OK; }
st core_shared(uint64_t *h, int from) { HERE(); int fd = dup(from); if (fd < 0) return INVALID; __atomic_fetch_add(&handles, 1, __ATOMIC_SEQ_CST); *h = fd + 1; return OK; }

/* ---- for the tests */
extern int sim_modules;
API int sim_retained(int dev) { return sim_devices[dev].retained; }
API void sim_kill(int dev, int status) { lock(); sim_devices[dev].dead = status; pthread_cond_broadcast(&moved); unlock(); }
API void sim_mem_ops(int yes) { sim_words = yes; }
API void sim_only_notes(int yes) { sim_notes = yes; }
API size_t sim_live(int kind) { lock(); size_t n = kind == 's' ? (size_t)streams : kind == 'e' ? (size_t)events : kind == 'm' ? (size_t)sim_modules : kind == 'p' ? (size_t)handles : kind == 'g' ? (size_t)graphs : live[kind]; unlock(); return n; }
API void sim_capacity(size_t n) { sim_most = n; }
API int sim_priority(stream *s) { return s->priority; }
API int sim_launches(char *out, size_t n) { lock(); if (out && n) { snprintf(out, n, "%s", launched); launched[0] = 0; written = 0; } int k = launches; unlock(); return k; }
