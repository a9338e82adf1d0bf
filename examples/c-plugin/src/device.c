/* A software device: memory of the host behind opaque handles, and a thread for each stream.
 *
 * It has the manners of an accelerator: calls return after enqueue, device memory cannot be mapped, streams run beside each other and meet
 * only at events. One lock serves all queues; the work itself runs outside it. */
#define _POSIX_C_SOURCE 200809L
#include "plugin.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

CW_MANIFEST("name=softdev;vendor=Example;interfaces=crossweave.device/1,crossweave.ops/1,crossweave.collective/1;kinds=other");

#define MAX_DEVICES 1024
#define SECOND UINT64_C(1000000000)
#define LOCKED(...) (pthread_mutex_lock(&lock), __VA_ARGS__, pthread_mutex_unlock(&lock))
typedef unsigned long long ull; /* for %llu */

struct cw_device_impl {
  uint32_t index;
};
struct cw_mem_impl {
  uint32_t kind, device;
  uint64_t bytes;
  char *at;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all that follows, every queue and every mark */
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;  /* some stream has passed some work, or is being closed */
static cw_host host;
static uint32_t devices; /* 0: not started */
static uint64_t mem_total, mem_used[MAX_DEVICES];

/* ------------------------------------------------------------------ errors, structs, host services */
cw_status fail(cw_error *err, cw_status code, const char *where, const char *format, ...) {
  if (!err || code >= 0 || err->size < 8) return code;
  cw_error e = {.size = err->size, .code = code, .peer_rank = -1};
  e.flags = code == CW_E_OOM ? CW_ERRF_RETRYABLE : code == CW_E_DEVICE_LOST ? CW_ERRF_STICKY : 0;
  snprintf(e.where_, sizeof e.where_, "%s", where);
  va_list args;
  va_start(args, format);
  vsnprintf(e.message, sizeof e.message, format, args);
  va_end(args);
  size_t n = err->size < sizeof e ? err->size : sizeof e;
  memcpy(err, &e, n);
  if (n > offsetof(cw_error, message)) ((char *)err)[n - 1] = 0; /* a shorter record cuts the text, which must still end */
  return code;
}
cw_status fault(const char *place, cw_error *err) {
  char name[64];
  int n = snprintf(name, sizeof name, NAME ".%s", place);
  uint32_t code = host.fault_point ? host.fault_point(host.ctx, (cw_str){name, (uint64_t)n}) : 0;
  return code ? fail(err, -(cw_status)code, place, "fault point %s", name) : CW_OK;
}
cw_status read_struct(void *to, size_t known, const void *from, uint64_t room, cw_error *err) {
  uint32_t size = 0;
  if (from && room >= 8) memcpy(&size, from, sizeof size);
  NEED(!room || (size >= 8 && size <= room), CW_E_INVALID, "a descriptor is NULL or states no fitting size (%u)", size);
  for (size_t i = known; i < size; i++) NEED(!((const char *)from)[i], CW_E_UNSUPPORTED, "byte %zu of a descriptor is set, unknown here", i);
  memset(to, 0, known);
  if (size) memcpy(to, from, size < known ? size : known);
  return CW_OK;
}
cw_status write_struct(void *to, const void *from, size_t known, cw_error *err) {
  uint32_t size = 0;
  if (to) memcpy(&size, to, sizeof size);
  NEED(size >= 8, CW_E_INVALID, "the struct to fill is NULL or states no size; set size before the call");
  if (size > known) size = (uint32_t)known;
  memcpy(to, from, size);
  memcpy(to, &size, sizeof size);
  return CW_OK;
}
static cw_status setting(const char *key, uint64_t most, uint64_t *value, cw_error *err) {
  char text[32] = "", *end = text;
  uint64_t len = 0;
  if (!host.config_get || host.config_get(host.ctx, (cw_str){key, strlen(key)}, text, sizeof text - 1, &len) != CW_OK) return CW_OK;
  if (len < sizeof text && text[0] != '-') *value = strtoull(text, &end, 10);
  NEED(end > text && !*end && *value >= 1 && *value <= most, CW_E_INVALID, "%s = \"%s\": give 1 to %llu", key, text, (ull)most);
  return CW_OK;
}
uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* ------------------------------------------------------------------ devices and memory */
static cw_status device_count(void *self, uint32_t *n, cw_error *err) {
  (void)self;
  NEED(n, CW_E_INVALID, "the pointer for the count is NULL");
  *n = devices;
  return CW_OK;
}
static cw_status device_open(void *self, uint32_t index, cw_device *out, cw_error *err) {
  (void)self;
  NEED(out, CW_E_INVALID, "the pointer for the device is NULL");
  NEED(index < devices, CW_E_INVALID, "device %u: there are %u; set " NAME ".devices for more", index, devices);
  TRY(fault(__func__, err));
  NEED(*out = malloc(sizeof **out), CW_E_OOM, "no host memory for a device");
  (*out)->index = index;
  return CW_OK;
}
static void device_close(cw_device d) { free(d); }
static cw_status device_info(cw_device d, cw_device_info *out, cw_error *err) {
  NEED(d, CW_E_INVALID, "the device handle is NULL");
  cw_device_info i = {.mem_total = mem_total, .numa_node = UINT32_MAX, .align = 64, .uuid = NAME, .arch = "c11"};
  i.caps = CW_CAP_HOST_PROGRESS | CW_CAP_DETERMINISTIC;
  i.uuid[15] = (uint8_t)d->index;
  snprintf(i.name, sizeof i.name, NAME " %d (software, on the host)", (int)d->index);
  LOCKED(i.mem_free = mem_total - mem_used[d->index]);
  return write_struct(out, &i, sizeof i, err);
}
static void mem_free(cw_mem m) {
  if (!m) return;
  LOCKED(mem_used[m->device] -= m->kind == CW_MEM_DEVICE ? m->bytes : 0); /* pinned memory is the host's */
  free(m->at), free(m);
}
static cw_status mem_alloc(cw_device d, uint32_t kind, uint64_t bytes, uint64_t align, cw_mem *out, cw_error *err) {
  NEED(d && out, CW_E_INVALID, "the device or the pointer for the memory is NULL");
  NEED(kind == CW_MEM_DEVICE || kind == CW_MEM_HOST_PINNED, CW_E_UNSUPPORTED, "memory kind %u", kind);
  NEED((align & (align - 1)) == 0, CW_E_INVALID, "alignment %llu is not a power of two", (ull)align);
  TRY(fault(__func__, err));
  cw_mem m = calloc(1, sizeof *m);
  NEED(m, CW_E_OOM, "no host memory for a handle");
  m->kind = kind, m->device = d->index;
  pthread_mutex_lock(&lock);
  uint64_t left = kind == CW_MEM_DEVICE ? mem_total - mem_used[d->index] : UINT64_MAX / 2;
  m->bytes = bytes <= left ? bytes : 0;
  mem_used[d->index] += kind == CW_MEM_DEVICE ? m->bytes : 0;
  pthread_mutex_unlock(&lock);
  void *at = NULL;
  if (bytes > left || posix_memalign(&at, align < 64 ? 64 : (size_t)align, bytes ? (size_t)bytes : 1)) {
    mem_free(m);
    return fail(err, CW_E_OOM, __func__, "%llu bytes, %llu left; raise " NAME ".mem_total, or free memory", (ull)bytes, (ull)left);
  }
  m->at = at, *out = m;
  return CW_OK;
}
static cw_status mem_map(cw_mem m, void **out, cw_error *err) {
  NEED(m && out, CW_E_INVALID, "the memory or the pointer for its address is NULL");
  NEED(m->kind == CW_MEM_HOST_PINNED, CW_E_UNSUPPORTED, "memory of the device has no host address; copy it through a stream");
  *out = m->at;
  return CW_OK;
}
char *address(cw_span s) {
  return s.mem && s.offset <= s.mem->bytes && s.bytes <= s.mem->bytes - s.offset ? s.mem->at + s.offset : NULL;
}

/* ------------------------------------------------------------------ streams */
struct cw_stream_impl {
  pthread_t thread;
  pthread_cond_t work; /* the queue is no longer empty, or the stream is being closed */
  struct command *first, **last;
  uint64_t pushed, passed, closed_ns; /* closed_ns 0 = open */
  cw_status status;                   /* the first failure, for ever */
};
static void *serve(void *arg) {
  cw_stream s = arg;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!s->first && !s->closed_ns) pthread_cond_wait(&s->work, &lock);
    struct command *c = s->first;
    if (!c) break;
    s->first = c->next;
    if (!s->first) s->last = &s->first;
    cw_status status = s->status;
    pthread_mutex_unlock(&lock);
    status = c->run(c, status);
    free(c);
    pthread_mutex_lock(&lock);
    if (!s->status) s->status = status;
    s->passed++;
    pthread_cond_broadcast(&moved);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}
/* With the lock held: until something has moved or the clock shows `until`; false when it does. */
static bool wait_moved(uint64_t until) {
  struct timespec t = {(time_t)(until / SECOND), (long)(until % SECOND)};
  if (until == UINT64_MAX) return pthread_cond_wait(&moved, &lock) == 0;
  return now_ns() < until && (pthread_cond_timedwait(&moved, &lock, &t) == 0 || now_ns() < until);
}
static uint64_t deadline(int64_t timeout_ns) { return timeout_ns < 0 ? UINT64_MAX : now_ns() + (uint64_t)timeout_ns; }
static cw_status stream_create(cw_device d, int32_t priority, uint32_t flags, cw_stream *out, cw_error *err) {
  (void)priority; /* every stream has a thread of its own: none waits for a more urgent one */
  NEED(d && out, CW_E_INVALID, "the device or the pointer for the stream is NULL");
  NEED(!flags, CW_E_UNSUPPORTED, "stream flags %#x", flags);
  TRY(fault(__func__, err));
  cw_stream s = calloc(1, sizeof *s);
  NEED(s, CW_E_OOM, "no host memory for a stream");
  s->last = &s->first;
  pthread_cond_init(&s->work, NULL);
  if (pthread_create(&s->thread, NULL, serve, s)) return free(s), fail(err, CW_E_OOM, __func__, "the system gives no more threads");
  *out = s;
  return CW_OK;
}
/* What is queued runs to its end; only waits for others are cut short (see run_wait). */
static void stream_destroy(cw_stream s) {
  if (!s) return;
  LOCKED(s->closed_ns = now_ns(), pthread_cond_signal(&s->work), pthread_cond_broadcast(&moved));
  pthread_join(s->thread, NULL);
  pthread_cond_destroy(&s->work);
  free(s);
}
bool given_up(cw_stream s) {
  bool closed;
  LOCKED(closed = s->closed_ns && now_ns() > s->closed_ns + SECOND);
  return closed;
}
static cw_status state(cw_status status, const char *where, cw_error *err) {
  return status ? fail(err, status, where, "earlier work of the stream has failed; destroy the stream") : CW_OK;
}
cw_status enqueue(cw_stream s, struct command c, const char *where, cw_error *err) {
  struct command *node = malloc(sizeof *node);
  cw_status status = node ? fault(where, err) : fail(err, CW_E_OOM, where, "no host memory for a command");
  c.stream = s, c.next = NULL;
  pthread_mutex_lock(&lock);
  if (!status && !c.fn) status = state(s->status, where, err); /* host calls run in their turn, also after a failure */
  if (!status) {
    *node = c;
    *s->last = node;
    s->last = &node->next;
    s->pushed++;
    pthread_cond_signal(&s->work);
  }
  pthread_mutex_unlock(&lock);
  if (status) free(node);
  if (status && !c.fn) c.run(&c, status);
  return status;
}
static cw_status stream_query(cw_stream s, cw_error *err) {
  NEED(s, CW_E_INVALID, "the stream handle is NULL");
  cw_status status;
  bool done;
  LOCKED(done = s->passed == s->pushed, status = s->status);
  return status ? state(status, __func__, err) : done ? CW_OK : CW_NOT_READY;
}
static cw_status stream_sync(cw_stream s, int64_t timeout_ns, cw_error *err) {
  NEED(s, CW_E_INVALID, "the stream handle is NULL");
  uint64_t until = deadline(timeout_ns);
  pthread_mutex_lock(&lock);
  uint64_t target = s->pushed;
  while (s->passed < target && wait_moved(until)) {}
  bool done = s->passed >= target;
  cw_status status = s->status;
  pthread_mutex_unlock(&lock);
  NEED(done || status, CW_E_TIMEOUT, "the stream was not done within %lld ns", (long long)timeout_ns);
  return state(status, __func__, err);
}

/* ------------------------------------------------------------------ events: each record makes a mark, so that a later record moves no wait */
struct cw_event_impl {
  struct mark {
    uint32_t refs;
    bool passed;
    cw_status status;
  } *mark; /* the latest record; NULL = never recorded */
};
static void drop_mark(struct mark *m) { /* with the lock held */
  if (m && --m->refs == 0) free(m);
}
static cw_status run_record(struct command *c, cw_status status) {
  struct mark *m = c->arg;
  LOCKED(m->passed = true, m->status = status, drop_mark(m));
  return status;
}
static cw_status run_wait(struct command *c, cw_status status) {
  struct mark *m = c->arg;
  pthread_mutex_lock(&lock);
  /* A stream that is being destroyed gives the other one a second; then its own remaining work is given up. */
  while (!status && !m->passed && wait_moved(c->stream->closed_ns ? c->stream->closed_ns + SECOND : UINT64_MAX)) {}
  if (!status) status = m->passed ? m->status : CW_E_ABORTED;
  drop_mark(m);
  pthread_mutex_unlock(&lock);
  return status;
}
static cw_status event_create(cw_device d, uint32_t flags, cw_event *out, cw_error *err) {
  NEED(d && out, CW_E_INVALID, "the device or the pointer for the event is NULL");
  NEED(!flags, CW_E_UNSUPPORTED, "event flags %#x", flags);
  TRY(fault(__func__, err));
  NEED(*out = calloc(1, sizeof **out), CW_E_OOM, "no host memory for an event");
  return CW_OK;
}
static void event_destroy(cw_event e) {
  if (!e) return;
  LOCKED(drop_mark(e->mark));
  free(e);
}
static cw_status event_record(cw_event e, cw_stream s, cw_error *err) {
  NEED(e && s, CW_E_INVALID, "the event or the stream handle is NULL");
  struct mark *m = calloc(1, sizeof *m);
  NEED(m, CW_E_OOM, "no host memory for a record");
  m->refs = 2; /* the event's and the queue's */
  LOCKED(drop_mark(e->mark), e->mark = m);
  return enqueue(s, (struct command){.run = run_record, .arg = m}, __func__, err);
}
static cw_status event_sync(cw_event e, int64_t timeout_ns, cw_error *err) {
  NEED(e, CW_E_INVALID, "the event handle is NULL");
  uint64_t until = deadline(timeout_ns);
  pthread_mutex_lock(&lock);
  struct mark *m = e->mark;
  if (m) m->refs++;
  while (m && !m->passed && wait_moved(until)) {}
  bool passed = !m || m->passed;
  cw_status status = m && passed ? m->status : CW_OK;
  drop_mark(m);
  pthread_mutex_unlock(&lock);
  NEED(passed, CW_E_TIMEOUT, "the record was not passed within %lld ns", (long long)timeout_ns);
  return state(status, __func__, err);
}
static cw_status event_query(cw_event e, cw_error *err) {
  cw_status s = event_sync(e, 0, NULL);
  NEED(e, CW_E_INVALID, "the event handle is NULL");
  return s == CW_E_TIMEOUT ? CW_NOT_READY : state(s, __func__, err);
}
static cw_status stream_wait_event(cw_stream s, cw_event e, cw_error *err) {
  NEED(e && s, CW_E_INVALID, "the event or the stream handle is NULL");
  struct mark *m;
  LOCKED(m = e->mark, m ? m->refs++ : 0);
  return m ? enqueue(s, (struct command){.run = run_wait, .arg = m}, __func__, err) : CW_OK;
}

/* ------------------------------------------------------------------ host calls, copies, fills */
static cw_status run_call(struct command *c, cw_status status) {
  c->fn(c->arg, status);
  return status;
}
static cw_status stream_host_call(cw_stream s, void (*fn)(void *arg, cw_status status), void *arg, cw_error *err) {
  NEED(s && fn, CW_E_INVALID, "the stream handle or the function is NULL");
  return enqueue(s, (struct command){.run = run_call, .fn = fn, .arg = arg}, __func__, err);
}
static cw_status run_transfer(struct command *c, cw_status status) {
  if (status) return status;
  for (uint64_t r = 0; c->src && r < c->height; r++) memmove(c->dst + r * c->dpitch, c->src + r * c->spitch, c->width);
  for (uint64_t i = 0; !c->src && i < c->width; i += c->spitch) memcpy(c->dst + i, &c->pattern, c->spitch);
  return CW_OK;
}
static cw_status copy_2d(cw_stream s, cw_span dst, uint64_t dpitch, cw_span src, uint64_t spitch, uint64_t width, uint64_t height,
                         cw_error *err) {
  NEED(s && address(dst) && address(src), CW_E_INVALID, "the stream is NULL, or a span is absent or leaves its memory");
  const uint64_t pitch[2] = {dpitch, spitch}, bytes[2] = {dst.bytes, src.bytes};
  for (int i = 0; height && i < 2; i++) {
    bool fits = width <= bytes[i] && (height == 1 || (pitch[i] >= width && (!pitch[i] || height - 1 <= (bytes[i] - width) / pitch[i])));
    NEED(fits, CW_E_INVALID, "%llu rows of %llu bytes, %llu apart, in %llu bytes", (ull)height, (ull)width, (ull)pitch[i], (ull)bytes[i]);
  }
  struct command c = {run_transfer, NULL, NULL, address(dst), address(src), dpitch, spitch, width, height, 0, NULL, NULL};
  return enqueue(s, c, "copy", err);
}
static cw_status copy(cw_stream s, cw_span dst, cw_span src, cw_error *err) {
  NEED(dst.bytes == src.bytes, CW_E_INVALID, "%llu bytes into %llu", (ull)src.bytes, (ull)dst.bytes);
  return copy_2d(s, dst, 0, src, 0, dst.bytes, 1, err);
}
static cw_status fill(cw_stream s, cw_span dst, uint64_t pattern, uint32_t n, cw_error *err) {
  NEED(s && address(dst), CW_E_INVALID, "the stream is NULL, or the span is absent or leaves its memory");
  bool fits = (n == 1 || n == 2 || n == 4 || n == 8) && dst.bytes % n == 0;
  NEED(fits, CW_E_INVALID, "a pattern of %u bytes over %llu bytes", n, (ull)dst.bytes);
  struct command c = {.run = run_transfer, .dst = address(dst), .spitch = n, .width = dst.bytes, .pattern = pattern};
  return enqueue(s, c, __func__, err);
}

/* ------------------------------------------------------------------ tables and the entry */
static const cw_device_api device_table = {
    .size = sizeof(cw_device_api), .device_count = device_count, .device_open = device_open, .device_close = device_close,
    .device_info = device_info, .mem_alloc = mem_alloc, .mem_free = mem_free, .mem_map = mem_map, .stream_create = stream_create,
    .stream_destroy = stream_destroy, .stream_query = stream_query, .stream_sync = stream_sync, .event_create = event_create,
    .event_destroy = event_destroy, .event_record = event_record, .event_query = event_query, .event_sync = event_sync,
    .stream_wait_event = stream_wait_event, .stream_host_call = stream_host_call, .copy = copy,
    .copy_2d = copy_2d, .fill = fill,
};
static bool is(cw_str a, const char *b) { return a.ptr && a.len == strlen(b) && memcmp(a.ptr, b, a.len) == 0; }
static const void *get_interface(void *self, cw_str id) {
  (void)self;
  if (is(id, "crossweave.device/1")) return &device_table;
  if (is(id, "crossweave.ops/1")) return &ops_table;
  return is(id, "crossweave.collective/1") ? &collective_table : NULL;
}
static cw_status shutdown_plugin(void *self, cw_error *err) {
  (void)self, (void)err; /* every thread has ended with its stream */
  return CW_OK;
}
/* Reads the configuration; a failed attempt leaves nothing behind. */
static cw_status start(const cw_host *given, cw_error *err) {
  uint64_t n = 1, total = UINT64_C(16) << 30;
  host = *given;
  TRY(setting(NAME ".devices", MAX_DEVICES, &n, err));
  TRY(setting(NAME ".mem_total", UINT64_MAX / 2, &total, err));
  TRY(fault("init", err));
  devices = (uint32_t)n, mem_total = total;
  return CW_OK;
}
CW_EXPORT cw_status crossweave_plugin_v1(const cw_host *given, cw_plugin *out, cw_error *err);
cw_status crossweave_plugin_v1(const cw_host *given, cw_plugin *out, cw_error *err) {
  cw_host h = {0};
  NEED(given && given->size >= 16 && out && out->size >= 8, CW_E_INVALID, "the host's table or the plugin's is NULL or states no size");
  memcpy(&h, given, given->size < sizeof h ? given->size : sizeof h); /* of a table, an unknown tail may be ignored */
  NEED(h.min_plugin_minor <= CW_ABI_MINOR, CW_E_VERSION, "host 1.%u needs plugin >= 1.%u, this is 1.%u; build it with newer headers",
       h.abi_minor, h.min_plugin_minor, CW_ABI_MINOR);
  cw_status s;
  LOCKED(s = devices ? CW_OK : start(&h, err)); /* a second host of the process gets the same instance */
  TRY(s);
  cw_plugin p = {.abi_minor = CW_ABI_MINOR, .name = {NAME, sizeof NAME - 1}, .version = {"0.1.0", 5}, .vendor = {"Example", 7}};
  p.get_interface = get_interface, p.shutdown = shutdown_plugin;
  return write_struct(out, &p, sizeof p, err);
}
