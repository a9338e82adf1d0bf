/* ACL, the run time of Ascend, over the simulators' core: a thread has a context or none, copies name their direction and how much room there is,
 * host calls are run by a thread that asks for them, and events are of the flavour that streams wait for and that takes times. */
#include "sim.h"

const unsigned sim_warp = 32;
typedef struct context { device *d; } context;
static context contexts[DEVICES];
static __thread context *current;
static __thread char said[128];

device *sim_here(void) { return current ? current->d : NULL; }
API int sim_depth(void) { return current != NULL; }
API int sim_current(void) { return current ? current->d->index : -1; }

/* The core's numbers as ACL's. */
st acl_status(st r) {
  st s = r;
  switch (r) {
    case OK: return OK;
    case INVALID: case BAD_HANDLE: case PINNED_ALREADY: s = 107000; break;
    case OOM: s = 207001; break;
    case NO_DEVICE: s = 207004; break;
    case BAD_DEVICE: s = 107001; break;
    case NO_CONTEXT: s = 107002; break;
    case UNSUPPORTED: s = 207000; break;
    case 700: case LAUNCH_FAILED: s = 507015; break;
  }
  snprintf(said, sizeof said, "EZ9999: simulated, %d", s);
  return s;
}
#define R(x) return acl_status(x)

API st aclInit(const char *config) { static int begun; if (config) R(INVALID); return __atomic_exchange_n(&begun, 1, __ATOMIC_SEQ_CST) ? 100002 : OK; }
API const char *aclGetRecentErrMsg(void) { return said[0] ? said : NULL; }
API st aclrtGetVersion(int *a, int *b, int *c) { *a = 1; *b = 17; *c = 0; return OK; }
API const char *aclrtGetSocName(void) { return "SIMULATED Ascend910B1"; }
API st aclrtGetDeviceCount(unsigned *n) { *n = (unsigned)sim_visible; return sim_visible ? OK : 207004; }
API st aclrtSetDevice(int d) {
  if (d < 0 || d >= sim_visible) R(BAD_DEVICE);
  contexts[d].d = &sim_devices[d];
  __atomic_fetch_add(&sim_devices[d].retained, 1, __ATOMIC_SEQ_CST);
  current = &contexts[d];
  return OK;
}
API st aclrtResetDevice(int d) {
  if (d < 0 || d >= sim_visible || sim_devices[d].retained <= 0) R(BAD_DEVICE);
  __atomic_fetch_sub(&sim_devices[d].retained, 1, __ATOMIC_SEQ_CST);
  return OK;
}
API st aclrtSetCurrentContext(context *c) { if (!c) R(INVALID); current = c; return OK; }
API st aclrtGetCurrentContext(context **c) { if (!current) R(NO_CONTEXT); *c = current; return OK; }
API st aclrtCtxSetSysParamOpt(int opt, int64_t v) { return opt == 0 && v == 1 ? OK : 107000; }
API st aclrtGetMemInfo(int kind, size_t *f, size_t *t) { if (kind != 1) R(INVALID); R(core_room(f, t)); }
API st aclrtMalloc(void **p, size_t n, int policy) { if (policy) R(INVALID); addr a = 0; st r = core_alloc(&a, n); *p = (void *)a; R(r); }
API st aclrtFree(void *p) { R(core_free((addr)p)); }
API st aclrtMallocHost(void **p, size_t n) { R(core_host_alloc(p, n)); }
API st aclrtFreeHost(void *p) { R(core_host_free(p)); }
API st aclrtHostRegister(void *p, uint64_t n, int kind, void **seen) { if (kind) R(INVALID); *seen = p; R(core_host_register(p, n)); }
API st aclrtHostUnregister(void *p) { R(core_host_unregister(p)); }

/* Host to device, device to host, device to device, as it says; within the host there is no asynchronous copy. Of the host, page-locked memory only. */
static st fits(addr d, size_t room, addr s, size_t n, int kind) {
  if (kind == 0) return UNSUPPORTED;
  if (kind < 1 || kind > 3 || n > room) return INVALID;
  int to = core_kind(d, room), from = core_kind(s, n);
  if (!to || !from) return INVALID;
  return (to == 'd') == (kind & 1) && (from == 'd') == kind >> 1 ? OK : INVALID;
}
API st aclrtMemcpyAsync(void *d, size_t room, const void *s, size_t n, int kind, stream *q) {
  st r = fits((addr)d, room, (addr)s, n, kind);
  R(r ? r : core_copy((addr)d, (addr)s, n, n, n, 1, q));
}
API st aclrtMemcpy2dAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int kind, stream *q) {
  if (!h || dp < w || sp < w || kind == 3) R(INVALID);
  st r = fits((addr)d, (h - 1) * dp + w, (addr)s, w, kind);
  /* The source's rows may lie further apart than the room of the destination is long. */
  if (!r && !core_kind((addr)s, (h - 1) * sp + w)) r = INVALID;
  R(r ? r : core_copy((addr)d, (addr)s, w, dp, sp, h, q));
}
API st aclrtMemsetAsync(void *d, size_t room, int v, size_t n, stream *q) {
  if (n > room || core_kind((addr)d, room) != 'd') R(INVALID);
  R(core_fill((addr)d, 0, (unsigned char)v, 1, n, 1, q));
}
API st aclrtDeviceGetUuid(int d, char *id) { memset(id, 0xA5 + d, 16); return OK; }
API st aclrtDeviceCanAccessPeer(int *v, int a, int b) { *v = a != b; return OK; }
API st aclrtDeviceEnablePeerAccess(int other, unsigned f) {
  if (f || other < 0 || other >= sim_visible) R(INVALID);
  st r = core_reach(&sim_devices[other]);
  R(r == PEER_ALREADY ? OK : r);
}

API st aclrtCreateStreamWithConfig(stream **p, unsigned priority, unsigned flags) { if (priority > 7 || flags & ~3u) R(INVALID); R(core_stream(p, (int)priority)); }
static st ended(stream *s) { return core_stream_query(s); }
/* 0 is complete, 1 is not. */
API st aclrtStreamQuery(stream *s, int *v) { st r = ended(s); *v = r == NOT_READY; R(r == NOT_READY ? OK : r); }
API st aclrtSynchronizeStream(stream *s) {
  st r;
  while ((r = ended(s)) == NOT_READY) { struct timespec t = {0, 20000}; nanosleep(&t, NULL); }
  R(r);
}
API st aclrtDestroyStream(stream *s) { if (ended(s) == NOT_READY) { fprintf(stderr, "SIMULATED: a stream is destroyed that has not ended\n"); R(INVALID); } R(core_stream_destroy(s)); }
API st aclrtDestroyStreamForce(stream *s) { R(core_stream_destroy(s)); }
void ccl_stream_abort(stream *s);
/* Its collectives are let go; what else is queued runs, where ACL throws it away. */
API st aclrtStreamAbort(stream *s) { ccl_stream_abort(s); return OK; }
API st aclrtStreamWaitEvent(stream *s, event *e) { R(core_stream_wait(s, e)); }

API st aclrtCreateEventExWithFlag(event **p, unsigned f) { if (f != (1 | 8)) R(INVALID); R(core_event(p)); }
API st aclrtDestroyEvent(event *e) { R(core_event_destroy(e)); }
API st aclrtRecordEvent(event *e, stream *s) { R(core_event_record(e, s)); }
/* 1 is complete, 0 is not, nor is what was never recorded. */
API st aclrtQueryEventStatus(event *e, int *v) { st r = core_event_query(e); *v = r == OK && core_event_recorded(e); R(r == NOT_READY ? OK : r); }
API st aclrtEventElapsedTime(float *ms, event *a, event *b) { R(core_event_elapsed(ms, a, b)); }

/* ---- host calls: a stream's are run by the thread that is subscribed for it, when that asks */
typedef struct report { void (*fn)(void *); void *arg; stream *s; int done; struct report *next; } report;
typedef struct subscription { uint64_t thread; stream *s; struct subscription *next; } subscription;
static pthread_mutex_t reports_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t reported = PTHREAD_COND_INITIALIZER;
static report *reports;
static subscription *subscriptions;

static subscription *of(stream *s) { for (subscription *x = subscriptions; x; x = x->next) if (x->s == s) return x; return NULL; }
API st aclrtSubscribeReport(uint64_t thread, stream *s) {
  pthread_mutex_lock(&reports_lock);
  subscription *had = of(s), *x = had ? had : calloc(1, sizeof *x);
  if (!had) { *x = (subscription){thread, s, subscriptions}; subscriptions = x; }
  pthread_mutex_unlock(&reports_lock);
  R(had ? INVALID : OK);
}
API st aclrtUnSubscribeReport(uint64_t thread, stream *s) {
  pthread_mutex_lock(&reports_lock);
  subscription **at = &subscriptions;
  while (*at && ((*at)->s != s || (*at)->thread != thread)) at = &(*at)->next;
  subscription *x = *at;
  if (x) { *at = x->next; free(x); }
  pthread_cond_broadcast(&reported);
  pthread_mutex_unlock(&reports_lock);
  R(x ? OK : INVALID);
}
/* On the stream's thread. */
static void call(void *arg) {
  report *r = arg;
  pthread_mutex_lock(&reports_lock);
  report **end = &reports;
  while (*end) end = &(*end)->next;
  *end = r;
  pthread_cond_broadcast(&reported);
  while (!r->done && of(r->s)) pthread_cond_wait(&reported, &reports_lock);
  if (!r->done) for (report **at = &reports; *at; at = &(*at)->next) if (*at == r) { *at = r->next; break; }
  pthread_mutex_unlock(&reports_lock);
  free(r);
}
API st aclrtLaunchCallback(void (*fn)(void *), void *arg, int block, stream *s) {
  pthread_mutex_lock(&reports_lock);
  int known = of(s) != NULL;
  pthread_mutex_unlock(&reports_lock);
  if (block != 1 || !known) R(INVALID);
  report *r = calloc(1, sizeof *r);
  *r = (report){fn, arg, s, 0, NULL};
  st e = core_host_func(s, call, r);
  if (e) free(r);
  R(e);
}
API st aclrtProcessReport(int ms) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += ms / 1000; t.tv_nsec += ms % 1000 * 1000000L;
  if (t.tv_nsec >= 1000000000) { t.tv_sec++; t.tv_nsec -= 1000000000; }
  pthread_mutex_lock(&reports_lock);
  for (;;) {
    for (report **at = &reports; *at; at = &(*at)->next) {
      subscription *x = of((*at)->s);
      if (!x || x->thread != (uint64_t)pthread_self()) continue;
      report *r = *at;
      *at = r->next;
      pthread_mutex_unlock(&reports_lock);
      r->fn(r->arg);
      pthread_mutex_lock(&reports_lock);
      r->done = 1;
      pthread_cond_broadcast(&reported);
      pthread_mutex_unlock(&reports_lock);
      return OK;
    }
    if (pthread_cond_timedwait(&reported, &reports_lock, &t)) { pthread_mutex_unlock(&reports_lock); return 507012; }
  }
}
