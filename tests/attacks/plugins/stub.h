/* A plugin of stubs: every mandatory slot of the device is there and answers CW_E_UNSUPPORTED. Each attack changes one thing. */
#ifndef STUB_H
#define STUB_H
#include "crossweave_plugin.h"
#include <string.h>

#define STR(s) {s, sizeof(s) - 1}
#define NO return CW_E_UNSUPPORTED

static cw_status device_count(void *self, uint32_t *n, cw_error *e) { (void)self; (void)e; *n = 2; return CW_OK; }
static cw_status device_open(void *s, uint32_t i, cw_device *o, cw_error *e) { (void)s; (void)i; (void)o; (void)e; NO; }
static void device_close(cw_device d) { (void)d; }
static cw_status device_info(cw_device d, cw_device_info *o, cw_error *e) { (void)d; (void)o; (void)e; NO; }
static cw_status mem_alloc(cw_device d, uint32_t k, uint64_t b, uint64_t a, cw_mem *o, cw_error *e) { (void)d; (void)k; (void)b; (void)a; (void)o; (void)e; NO; }
static void mem_free(cw_mem m) { (void)m; }
static cw_status mem_map(cw_mem m, void **p, cw_error *e) { (void)m; (void)p; (void)e; NO; }
static cw_status stream_create(cw_device d, int32_t p, uint32_t f, cw_stream *o, cw_error *e) { (void)d; (void)p; (void)f; (void)o; (void)e; NO; }
static void stream_destroy(cw_stream s) { (void)s; }
static cw_status stream_query(cw_stream s, cw_error *e) { (void)s; (void)e; NO; }
static cw_status stream_sync(cw_stream s, int64_t t, cw_error *e) { (void)s; (void)t; (void)e; NO; }
static cw_status event_create(cw_device d, uint32_t f, cw_event *o, cw_error *e) { (void)d; (void)f; (void)o; (void)e; NO; }
static void event_destroy(cw_event v) { (void)v; }
static cw_status event_record(cw_event v, cw_stream s, cw_error *e) { (void)v; (void)s; (void)e; NO; }
static cw_status event_query(cw_event v, cw_error *e) { (void)v; (void)e; NO; }
static cw_status event_sync(cw_event v, int64_t t, cw_error *e) { (void)v; (void)t; (void)e; NO; }
static cw_status stream_wait_event(cw_stream s, cw_event v, cw_error *e) { (void)s; (void)v; (void)e; NO; }
static cw_status copy(cw_stream s, cw_span d, cw_span x, cw_error *e) { (void)s; (void)d; (void)x; (void)e; NO; }
static cw_status copy_2d(cw_stream s, cw_span d, uint64_t dp, cw_span x, uint64_t sp, uint64_t w, uint64_t h, cw_error *e) { (void)s; (void)d; (void)dp; (void)x; (void)sp; (void)w; (void)h; (void)e; NO; }
static cw_status fill(cw_stream s, cw_span d, uint64_t p, uint32_t n, cw_error *e) { (void)s; (void)d; (void)p; (void)n; (void)e; NO; }

static cw_device_api device = {
    .size = sizeof(cw_device_api), .device_count = device_count, .device_open = device_open, .device_close = device_close,
    .device_info = device_info, .mem_alloc = mem_alloc, .mem_free = mem_free, .mem_map = mem_map,
    .stream_create = stream_create, .stream_destroy = stream_destroy, .stream_query = stream_query,
    .stream_sync = stream_sync, .event_create = event_create, .event_destroy = event_destroy,
    .event_record = event_record, .event_query = event_query, .event_sync = event_sync,
    .stream_wait_event = stream_wait_event, .copy = copy, .copy_2d = copy_2d, .fill = fill,
};

/* Answers with the table, the names and the get_interface given. */
static inline cw_status answer(cw_plugin *out, const void *(*get)(void *, cw_str)) {
  static const cw_str name = STR("stub"), version = STR("0.0.1"), vendor = STR("Attack");
  out->abi_minor = 0;
  out->name = name;
  out->version = version;
  out->vendor = vendor;
  out->get_interface = get;
  return CW_OK;
}

static inline int is(cw_str id, const char *text) { return id.len == strlen(text) && !memcmp(id.ptr, text, id.len); }

static inline const void *device_only(void *self, cw_str id) {
  (void)self;
  return is(id, "crossweave.device/1") ? &device : NULL;
}

/* The table is built at load; an attack may need none of the above. */
static inline void unused(void) { (void)device; (void)device_only; }

#define ENTRY CW_EXPORT cw_status crossweave_plugin_v1(const cw_host *host, cw_plugin *out, cw_error *err); \
  cw_status crossweave_plugin_v1(const cw_host *host, cw_plugin *out, cw_error *err)
#endif
