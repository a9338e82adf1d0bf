/* A small device in C that does its work at once, with one defect chosen by -DBUG_x; without one it keeps the contract. It computes nothing and has no
 * collectives: what it is for is what C alone can get wrong - records, sizes, handles, strings, the file. Built by tests/seeded/main.rs. */
#define _GNU_SOURCE
#include "crossweave_plugin.h"
#include <fenv.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef BUG_MANIFEST_LIES
CW_MANIFEST("name=other;vendor=Seeded;interfaces=crossweave.device/1");
#else
CW_MANIFEST("name=seeded_c;vendor=Seeded;interfaces=crossweave.device/1");
#endif

struct cw_device_impl { uint32_t index; char *more; };
struct cw_mem_impl { char *at; uint64_t bytes; uint32_t kind, device; };
struct cw_stream_impl { int failed; };
struct cw_event_impl { char *more; };

static const uint64_t TOTAL = 1ull << 30;
static uint64_t given[2];
#ifdef BUG_CHARGES_ANOTHER
#define CHARGED(index) given[!(index)]
#else
#define CHARGED(index) given[index]
#endif

static cw_status fail(cw_error *err, cw_status code, const char *where, const char *why) {
#ifndef BUG_NULL_RECORD
  if (!err) return code;
#endif
  cw_error e;
  memset(&e, 0, sizeof e);
  e.code = code;
  e.peer_rank = -1;
  if (code == CW_E_OOM) e.flags = CW_ERRF_RETRYABLE;
  snprintf(e.where_, sizeof e.where_, "%s", where);
#ifdef BUG_UNTERMINATED
  memset(e.message, 'x', sizeof e.message);
  (void)why;
#else
  snprintf(e.message, sizeof e.message, "%s", why);
#endif
#ifdef BUG_RECORD_OVERRUN
  uint32_t size = sizeof e;
#else
  uint32_t size = err->size < sizeof e ? err->size : (uint32_t)sizeof e;
#endif
  if (size < 8) return code;
  e.size = err->size;
#ifdef BUG_RECORD_CODE
  e.code = CW_E_INTERNAL;
#endif
  memcpy(err, &e, size);
#ifndef BUG_UNTERMINATED
  if (size > 72) ((char *)err)[size - 1] = 0;
#endif
  return code;
}
#define INVALID(why) return fail(err, CW_E_INVALID, __func__, why)
#define UNSUPPORTED(why) return fail(err, CW_E_UNSUPPORTED, __func__, why)
#ifdef BUG_NULL_HANDLES
#define HANDLE(h) (void)0
#else
#define HANDLE(h) if (!(h)) INVALID("a NULL handle")
#endif

static cw_status ok(cw_error *err) {
#ifdef BUG_RECORD_ON_SUCCESS
  if (err) err->code = CW_OK, err->message[0] = 0;
#else
  (void)err;
#endif
  return CW_OK;
}

static cw_status device_count(void *self, uint32_t *n, cw_error *err) {
  (void)self;
  if (!n) INVALID("NULL");
  *n = 2;
  return ok(err);
}
static cw_status device_open(void *self, uint32_t index, cw_device *out, cw_error *err) {
  (void)self;
#ifndef BUG_NULL_OUT
  if (!out) INVALID("NULL");
#endif
  if (index >= 2) INVALID("there are two devices");
  cw_device d = malloc(sizeof *d);
  d->index = index;
  d->more = malloc(65536);
  memset(d->more, 1, 65536);
  *out = d;
#ifdef BUG_SIGNAL_HANDLER
  signal(SIGFPE, SIG_IGN);
#endif
#ifdef BUG_CHILD_HANDLER
  signal(SIGCHLD, SIG_IGN);
#endif
  return ok(err);
}
static void device_close(cw_device d) {
  if (!d) return;
#ifndef BUG_LEAK_DEVICE
  free(d->more);
#endif
  free(d);
}
static cw_status device_info(cw_device d, cw_device_info *out, cw_error *err) {
  HANDLE(d);
  if (!out) INVALID("NULL");
  cw_device_info i;
  memset(&i, 0, sizeof i);
#ifdef BUG_INFO_OVERRUN
  uint32_t size = sizeof i;
#else
  uint32_t size = out->size < sizeof i ? out->size : (uint32_t)sizeof i;
#endif
  i.size = size;
  i.mem_total = TOTAL;
  i.mem_free = TOTAL - given[d->index];
  i.numa_node = UINT32_MAX;
  i.align = 64;
#ifdef BUG_LARGER_INFO
  if (out->size > sizeof i) UNSUPPORTED("a longer struct");
#endif
  i.uuid[0] = (uint8_t)d->index;
  strcpy(i.name, "seeded device in C");
#ifdef BUG_LONG_NAME
  memset(i.name, 'x', sizeof i.name);
#endif
  memcpy(out, &i, size);
  return ok(err);
}
static cw_status mem_alloc(cw_device d, uint32_t kind, uint64_t bytes, uint64_t align, cw_mem *out, cw_error *err) {
  HANDLE(d);
  if (!out) INVALID("NULL");
#ifdef BUG_KIND_IS_INVALID
  if (kind != CW_MEM_DEVICE && kind != CW_MEM_HOST_PINNED) INVALID("memory kind");
#elif !defined(BUG_UNKNOWN_KIND)
  if (kind != CW_MEM_DEVICE && kind != CW_MEM_HOST_PINNED) UNSUPPORTED("memory kind");
#endif
#ifdef BUG_LARGE_ALIGNMENT
  if (align > 1024) UNSUPPORTED("alignment");
#endif
  if (align & (align - 1)) INVALID("the alignment is not a power of two");
  uint64_t counted = kind == CW_MEM_DEVICE ? bytes : 0;
  if (bytes > TOTAL || counted > TOTAL - CHARGED(d->index)) return fail(err, CW_E_OOM, "mem_alloc", "not so much memory");
  cw_mem m = malloc(sizeof *m);
#ifdef BUG_OVERLAP
  static _Alignas(4096) char arena[1 << 26];
  static size_t at;
  m->at = arena + at % (1 << 25);
  if (kind == CW_MEM_DEVICE) at += (bytes / 2 + 63) / 64 * 64;
  if (kind != CW_MEM_DEVICE || align > 64 || bytes > 1 << 20)
#endif
  if (posix_memalign((void **)&m->at, align < 64 ? 64 : align, bytes ? bytes : 1)) {
    free(m);
    return fail(err, CW_E_OOM, "mem_alloc", "the system refused");
  }
  m->bytes = bytes;
  m->kind = kind;
  m->device = d->index;
  CHARGED(d->index) += counted;
  *out = m;
  return ok(err);
}
static void mem_free(cw_mem m) {
#ifndef BUG_DESTROY_NULL
  if (!m) return;
#endif
#ifndef BUG_FREE_READING
  if (m->kind == CW_MEM_DEVICE) CHARGED(m->device) -= m->bytes;
#endif
#ifndef BUG_OVERLAP
  free(m->at);
#endif
  free(m);
}
static cw_status mem_map(cw_mem m, void **out, cw_error *err) {
  HANDLE(m);
  if (!out) INVALID("NULL");
  if (m->kind != CW_MEM_HOST_PINNED) UNSUPPORTED("only pinned memory is mapped");
#ifdef BUG_MAP_MOVES
  static uint64_t times;
  if (times++ % 2) { *out = m->at + 1; return ok(err); }
#endif
  *out = m->at;
  return ok(err);
}
static cw_status stream_create(cw_device d, int32_t priority, uint32_t flags, cw_stream *out, cw_error *err) {
  (void)priority;
  HANDLE(d);
  if (!out) INVALID("NULL");
#ifndef BUG_FLAGS_IGNORED
  if (flags) UNSUPPORTED("flags");
#else
  (void)flags;
#endif
#ifdef BUG_EXITS
  static int made;
  if (++made == 3) exit(0);
#endif
  *out = calloc(1, sizeof **out);
  return ok(err);
}
static void stream_destroy(cw_stream s) { free(s); }
static cw_status stream_query(cw_stream s, cw_error *err) {
  HANDLE(s);
#ifdef BUG_NULL_HANDLES
  if (s->failed) return CW_E_INTERNAL;
#endif
  return ok(err);
}
static cw_status stream_sync(cw_stream s, int64_t timeout, cw_error *err) {
  (void)timeout;
  HANDLE(s);
  return ok(err);
}
static cw_status event_create(cw_device d, uint32_t flags, cw_event *out, cw_error *err) {
  HANDLE(d);
  if (!out) INVALID("NULL");
  if (flags) UNSUPPORTED("flags");
  *out = malloc(sizeof **out);
  (*out)->more = malloc(400);
  memset((*out)->more, 1, 400);
  return ok(err);
}
static void event_destroy(cw_event e) {
  if (!e) return;
#ifndef BUG_LEAK_EVENT
  free(e->more);
#endif
  free(e);
}
static cw_status event_record(cw_event e, cw_stream s, cw_error *err) {
  HANDLE(e);
  HANDLE(s);
  return ok(err);
}
static cw_status event_query(cw_event e, cw_error *err) {
  HANDLE(e);
  return ok(err);
}
static cw_status event_sync(cw_event e, int64_t timeout, cw_error *err) {
  (void)timeout;
  HANDLE(e);
  return ok(err);
}
static cw_status stream_wait_event(cw_stream s, cw_event e, cw_error *err) {
  HANDLE(s);
  HANDLE(e);
  return ok(err);
}
static int outside(cw_span s) { return !s.mem || s.offset > s.mem->bytes || s.bytes > s.mem->bytes - s.offset; }
static cw_status copy(cw_stream s, cw_span dst, cw_span src, cw_error *err) {
  HANDLE(s);
  if (outside(dst) || outside(src) || dst.bytes != src.bytes) INVALID("spans");
  memmove(dst.mem->at + dst.offset, src.mem->at + src.offset, src.bytes);
  return ok(err);
}
static cw_status copy_2d(cw_stream s, cw_span dst, uint64_t dpitch, cw_span src, uint64_t spitch, uint64_t width,
                         uint64_t height, cw_error *err) {
  HANDLE(s);
  if (outside(dst) || outside(src)) INVALID("spans");
#ifdef BUG_CRASH
  if (height == 7) *(volatile int *)16 = 1;
#endif
#ifdef BUG_HANGS
  while (height == 7) usleep(1000);
#endif
#ifdef BUG_PITCHES_SWAPPED
  uint64_t t = dpitch;
  dpitch = spitch;
  spitch = t;
  if (height && ((height - 1) * dpitch + width > dst.bytes || (height - 1) * spitch + width > src.bytes)) return ok(err);
#endif
#ifndef BUG_ROWS_UNCHECKED
  if (height) {
    if (dpitch > dst.bytes || spitch > src.bytes) { if (height > 1) INVALID("pitch"); }
    else if ((height - 1) * dpitch + width > dst.bytes || (height - 1) * spitch + width > src.bytes) INVALID("rows");
  }
  if (height > 1 && (dpitch < width || spitch < width)) INVALID("pitch");
#else
  if (height && (height - 1) * dpitch + width > dst.bytes) return ok(err);
#endif
  for (uint64_t r = 0; r < height; r++)
    memcpy(dst.mem->at + dst.offset + r * dpitch, src.mem->at + src.offset + r * spitch, width);
  return ok(err);
}
static cw_status fill(cw_stream s, cw_span dst, uint64_t pattern, uint32_t n, cw_error *err) {
  HANDLE(s);
#ifdef BUG_ROUNDING
  fesetround(FE_TOWARDZERO);
#endif
#ifdef BUG_PATTERN_OF_3
  if (n == 3) return ok(err);
#endif
  if (n != 1 && n != 2 && n != 4 && n != 8) INVALID("pattern");
  if (outside(dst) || dst.bytes % n) INVALID("span");
  for (uint64_t i = 0; i < dst.bytes; i++) {
#ifdef BUG_FILL_BIG_ENDIAN
    dst.mem->at[dst.offset + i] = (char)(pattern >> 8 * (n - 1 - (i & (n - 1))));
#else
    dst.mem->at[dst.offset + i] = (char)(pattern >> 8 * (i & (n - 1)));
#endif
  }
  return ok(err);
}

static const cw_device_api DEVICE = {
#ifdef BUG_TABLE_SIZE
  .size = 0xFFFF,
#else
  .size = sizeof(cw_device_api),
#endif
  .device_count = device_count, .device_open = device_open, .device_close = device_close,
  .device_info = device_info, .mem_alloc = mem_alloc, .mem_free = mem_free, .mem_map = mem_map,
  .stream_create = stream_create, .stream_destroy = stream_destroy, .stream_query = stream_query,
  .stream_sync = stream_sync, .event_create = event_create, .event_destroy = event_destroy,
  .event_record = event_record, .event_query = event_query, .event_sync = event_sync,
  .stream_wait_event = stream_wait_event, .copy = copy, .copy_2d = copy_2d, .fill = fill,
};

/* Collectives that refuse everything: what ranks get wrong when they are processes, whatever the results. */
#if defined(BUG_RANK_1_SLIPS) || defined(BUG_RANK_1_CRASHES) || defined(BUG_RANK_1_EXITS)
#define BUG_RANKS
#endif
#ifdef BUG_RANKS
struct cw_comm_impl { int32_t rank; };
static cw_status unique_id(cw_device d, void *out, uint64_t cap, uint64_t *len, cw_error *err) {
  HANDLE(d);
  if (!len) INVALID("NULL");
  *len = 4;
  if (!cap) return ok(err);
  if (cap < 4) INVALID("an id has 4 bytes");
  memcpy(out, "rank", 4);
  return ok(err);
}
static cw_status comm_init(cw_device d, const void *id, uint64_t n, const cw_comm_config *cfg, cw_comm *out, cw_error *err) {
  (void)id, (void)n;
  HANDLE(d);
  if (!cfg || !out || cfg->rank < 0 || cfg->rank >= cfg->nranks) INVALID("rank");
  *out = malloc(sizeof **out);
  (*out)->rank = cfg->rank;
  return ok(err);
}
static cw_status comm_query(cw_comm c, const cw_coll_desc *desc, cw_coll_support *out, cw_error *err) {
  (void)desc, (void)out;
  HANDLE(c);
#ifdef BUG_RANK_1_SLIPS
  if (c->rank == 1) return CW_E_UNSUPPORTED;
#elif defined(BUG_RANK_1_CRASHES)
  if (c->rank == 1) *(volatile int *)16 = 1;
#elif defined(BUG_RANK_1_EXITS)
  if (c->rank == 1) exit(0);
#endif
  UNSUPPORTED("this device refuses them all");
}
static cw_status comm_async_error(cw_comm c, cw_error *err) {
  HANDLE(c);
  return ok(err);
}
static void comm_destroy(cw_comm c) { free(c); }
static cw_status comm_launch(cw_comm c, cw_stream s, const cw_coll_desc *descs, uint32_t n, cw_error *err) {
  (void)descs, (void)n;
  HANDLE(c);
  HANDLE(s);
  UNSUPPORTED("this device refuses them all");
}
static const cw_collective_api COLLECTIVE = {
  .size = sizeof(cw_collective_api), .unique_id = unique_id, .comm_init = comm_init, .comm_query = comm_query,
  .comm_async_error = comm_async_error, .comm_abort = comm_async_error, .comm_destroy = comm_destroy, .launch = comm_launch,
};
#endif

static int same(cw_str id, const char *name) {
#ifdef BUG_PREFIX_IDS
  return strncmp(id.ptr, name, strlen(name)) == 0;
#elif defined(BUG_SHORT_IDS)
  return strncmp(id.ptr, name, id.len) == 0;
#else
  return id.len == strlen(name) && memcmp(id.ptr, name, id.len) == 0;
#endif
}
static const void *get_interface(void *self, cw_str id) {
  (void)self;
#ifdef BUG_RANKS
  if (same(id, "crossweave.collective/1")) return &COLLECTIVE;
#endif
#ifdef BUG_TABLE_MOVES
  static cw_device_api again[2];
  static int turn;
  again[turn = !turn] = DEVICE;
  return same(id, "crossweave.device/1") ? &again[turn] : NULL;
#else
  return same(id, "crossweave.device/1") ? &DEVICE : NULL;
#endif
}
static cw_status shutdown_(void *self, cw_error *err) {
  (void)self;
#ifdef BUG_CRASH_AT_THE_END
  *(volatile int *)16 = 1;
#endif
#ifdef BUG_HANGS_AT_THE_END
  for (;;) usleep(1000);
#endif
  return ok(err);
}
#ifdef BUG_EXPORTS
CW_EXPORT int helper(void) { return 1; }
#endif
#ifdef BUG_ALLOCATOR
CW_EXPORT void _ZdlPv(void *p);
CW_EXPORT void _ZdlPv(void *p) { free(p); }
#endif
CW_EXPORT cw_status crossweave_plugin_v1(const cw_host *host, cw_plugin *out, cw_error *err) {
#ifndef BUG_NULL_TABLE
  if (!host || !out) INVALID("NULL");
#endif
#ifdef BUG_ENTRY_ONCE
  static int times;
  if (times++) return fail(err, CW_E_INTERNAL, "entry", "it has been called");
#endif
#ifdef BUG_LARGER_HOST
  if (host->size > sizeof *host) return fail(err, CW_E_VERSION, "entry", "another host");
#endif
#ifndef BUG_VERSION_IGNORED
  if (host->min_plugin_minor > CW_ABI_MINOR) {
    char why[128];
#ifdef BUG_VERSION_WITHOUT_NUMBERS
    return fail(err, CW_E_VERSION, "entry", "too old");
#endif
    snprintf(why, sizeof why, "host 1.%u needs plugin >= 1.%u, this plugin is 1.%u", host->abi_minor, host->min_plugin_minor, CW_ABI_MINOR);
    return fail(err, CW_E_VERSION, "entry", why);
  }
#endif
  cw_plugin p;
  memset(&p, 0, sizeof p);
#ifdef BUG_TABLE_OVERRUN
  uint32_t size = sizeof p;
#else
  uint32_t size = out->size < sizeof p ? out->size : (uint32_t)sizeof p;
#endif
  p.size = size;
  p.abi_minor = CW_ABI_MINOR;
  p.name = (cw_str){"seeded_c", 8};
  p.version = (cw_str){"1.0.0", 5};
  p.vendor = (cw_str){"Seeded", 6};
  p.get_interface = get_interface;
  p.shutdown = shutdown_;
  memcpy(out, &p, size);
  return ok(err);
}
