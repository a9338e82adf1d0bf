/* ACL, the run time of Ascend, over the simulators' core: a thread has a context or none, copies name their direction and how much room there is,
 * host calls are run by a thread that asks for them, and events are of the flavour that streams wait for and that takes times. It is of CANN 8.3, or
 * with `newer` of 9.0. What is refused is on the function's page; pages are named by their files in docs/zh/api_ref of github.com/hicann/runtime (for
 * CANN 9), and where they were stricter by their address on hiascend.com (`PAGES.md`). */
#include "sim.h"

const unsigned sim_warp = 32;
const int sim_frees_wait = 0;
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

/* 12_execution_control.md, aclrtLaunchCallback: a call takes, gives back, waits for and enqueues nothing. */
static __thread int calling;
static st inside(const char *what) { fprintf(stderr, "SIMULATED %s within a host call\n", what); return acl_status(INVALID); }
#define NOT_CALLED() if (calling) return inside(__func__)

API st aclInit(const char *config) { static int begun; if (config) R(INVALID); return __atomic_exchange_n(&begun, 1, __ATOMIC_SEQ_CST) ? 100002 : OK; }
API const char *aclGetRecentErrMsg(void) { return said[0] ? said : NULL; }
API st aclrtGetVersion(int *a, int *b, int *c) { *a = 1; *b = 17; *c = 0; return OK; }
/* 24_other_APIs.md; not in CANN 8.3. */
API st aclsysGetVersionNum(char *package, int *v) { if (!sim_newer || !package || !v) R(UNSUPPORTED); *v = 90000000; return OK; }
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
/* 05_context_management.md: not one of a device that was reset. */
API st aclrtSetCurrentContext(context *c) { if (!c || c->d->retained <= 0) R(INVALID); current = c; return OK; }
API st aclrtGetCurrentContext(context **c) { if (!current) R(NO_CONTEXT); *c = current; return OK; }
static int deterministic[DEVICES];
API st aclrtCtxSetSysParamOpt(int opt, int64_t v) { if (!current || opt || (v != 0 && v != 1)) R(current ? INVALID : NO_CONTEXT); deterministic[current->d->index] = (int)v; return OK; }
/* IndexAdd adds in order where it is asked to. */
int sim_deterministic(int device) { return deterministic[device]; }
API st aclrtGetMemInfo(int kind, size_t *f, size_t *t) { if (kind != 1) R(INVALID); R(core_room(f, t)); }
/* 11-01_device_memory_malloc_and_free.md: no bytes are refused; freeing waits for no stream, and NULL is refused. */
API st aclrtMalloc(void **p, size_t n, int policy) { NOT_CALLED(); if (policy) R(INVALID); addr a = 0; st r = core_alloc(&a, n); *p = (void *)a; R(r); }
API st aclrtFree(void *p) { NOT_CALLED(); R(core_free((addr)p)); }
/* 11-02_host_memory_management.md: what is registered begins at a page and is not page-locked already; the device's address of it is not the host's. */
API st aclrtMallocHost(void **p, size_t n) { NOT_CALLED(); R(core_host_alloc(p, n)); }
API st aclrtFreeHost(void *p) { NOT_CALLED(); R(core_host_free(p)); }
enum { MAPPED = 2, PINNED = 0x10000000 };
static st enrol(void *p, uint64_t n) { return (addr)p % 4096 ? INVALID : core_host_register(p, n); }
API st aclrtHostRegisterV2(void *p, uint64_t n, unsigned flags) { NOT_CALLED(); if (!sim_newer || flags & ~(unsigned)(MAPPED | PINNED)) R(sim_newer ? INVALID : UNSUPPORTED); R(enrol(p, n)); }
API st aclrtHostUnregister(void *p) { NOT_CALLED(); R(core_host_unregister(p)); }

/* Host to device, device to host, device to device, as it says; within the host there is no asynchronous copy. Of the host, page-locked memory only:
 * aclrtMallocHost's (to CANN 8.3 the page says that other memory goes wrong unpredictably). Between devices what aclrtDeviceEnablePeerAccess has opened. */
static st fits(addr d, size_t room, addr s, size_t n, int kind) {
  if (kind == 0) return UNSUPPORTED;
  if (kind < 1 || kind > 3 || n > room) return INVALID;
  int to = core_kind(d, room), from = core_kind(s, n);
  if (!to || !from || (!sim_newer && (to == 'r' || from == 'r'))) return INVALID;
  if ((to == 'd') != (kind & 1) || (from == 'd') != kind >> 1) return INVALID;
  int here = core_device(d), there = core_device(s), own = current ? current->d->index : here;
  int shut = to == 'd' && from == 'd' && here != there && !(sim_devices[own].peers >> (own == here ? there : here) & 1);
  if (shut) fprintf(stderr, "SIMULATED ACL: a copy between devices %d and %d, of which %d was not given access\n", there, here, own);
  return shut ? INVALID : OK;
}
/* 11-03_memory_copy_and_set.md. To CANN 8.3 both addresses are multiples of 64 (…/zh/canncommercial/83RC1/API/appdevgapi/aclcppdevg_03_0106.html). */
API st aclrtMemcpyAsync(void *d, size_t room, const void *s, size_t n, int kind, stream *q) {
  NOT_CALLED();
  int odd = !sim_newer && ((addr)d | (addr)s) % 64;
  if (odd) fprintf(stderr, "SIMULATED aclrtMemcpyAsync: %p and %p are no multiples of 64\n", d, s);
  st r = odd ? INVALID : fits((addr)d, room, (addr)s, n, kind);
  R(r ? r : core_copy((addr)d, (addr)s, n, n, n, 1, q));
}
/* To 5,000,000 bytes a row and 5,242,880 rows. To CANN 8.3 between host and device only (…/aclcppdevg_03_0109.html). */
API st aclrtMemcpy2dAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int kind, stream *q) {
  NOT_CALLED();
  if (!h || !w || dp < w || sp < w || w > 5000000 || h > 5242880 || (kind == 3 && !sim_newer)) R(INVALID);
  st r = fits((addr)d, (h - 1) * dp + w, (addr)s, w, kind);
  /* The source's rows may lie further apart than the room of the destination is long. */
  if (!r && !core_kind((addr)s, (h - 1) * sp + w)) r = INVALID;
  R(r ? r : core_copy((addr)d, (addr)s, w, dp, sp, h, q));
}
API st aclrtMemsetAsync(void *d, size_t room, int v, size_t n, stream *q) {
  NOT_CALLED();
  if (n > room || core_kind((addr)d, room) != 'd') R(INVALID);
  R(core_fill((addr)d, 0, (unsigned char)v, 1, n, 1, q));
}
API st aclrtDeviceGetUuid(int d, char *id) { memset(id, 0xA5 + d, 16); return OK; }
/* 04_device_management.md: two devices; from the current one to the other, not back. */
API st aclrtDeviceCanAccessPeer(int *v, int a, int b) { if (a == b || a < 0 || b < 0 || a >= sim_visible || b >= sim_visible) R(INVALID); *v = 1; return OK; }
API st aclrtDeviceEnablePeerAccess(int other, unsigned f) {
  if (f || !current || other < 0 || other >= sim_visible || other == current->d->index) R(INVALID);
  st r = core_reach(&sim_devices[other]);
  R(r == PEER_ALREADY ? OK : r);
}

/* 06_stream_management.md. The priority of training devices is 0, to CANN 9.0 (…/zh/canncommercial/900/API/runtimeapi/aclcppdevg_03_0069.html). */
API st aclrtCreateStreamWithConfig(stream **p, unsigned priority, unsigned flags) { NOT_CALLED(); if (priority || flags & ~3u) R(INVALID); R(core_stream(p, 0)); }
static st ended(stream *s) { return core_stream_query(s); }
/* 0 is complete, 1 is not. */
API st aclrtStreamQuery(stream *s, int *v) { st r = ended(s); *v = r == NOT_READY; R(r == NOT_READY ? OK : r); }
/* That its work was thrown away is said by the wait that meets it. */
API st aclrtSynchronizeStream(stream *s) {
  NOT_CALLED();
  st r;
  while ((r = ended(s)) == NOT_READY) { struct timespec t = {0, 20000}; nanosleep(&t, NULL); }
  if (!r && core_stream_aborted(s)) { snprintf(said, sizeof said, "EZ9999: simulated, 107023"); return 107023; }
  R(r);
}
/* Of the current context, and ended. */
static int elsewhere(stream *s) {
  int other = !current || core_stream_device(s) != current->d;
  if (other) fprintf(stderr, "SIMULATED ACL: a stream is destroyed that is not of the current context\n");
  return other;
}
API st aclrtDestroyStream(stream *s) { NOT_CALLED(); if (elsewhere(s)) R(INVALID); if (ended(s) == NOT_READY) { fprintf(stderr, "SIMULATED: a stream is destroyed that has not ended\n"); R(INVALID); } R(core_stream_destroy(s)); }
API st aclrtDestroyStreamForce(stream *s) { NOT_CALLED(); if (elsewhere(s)) R(INVALID); R(core_stream_destroy(s)); }
void ccl_stream_abort(stream *s);
/* What is queued is thrown away, records of events with it: who waits for one waits on. */
API st aclrtStreamAbort(stream *s) { NOT_CALLED(); core_stream_abort(s); ccl_stream_abort(s); return OK; }
API st aclrtStreamWaitEvent(stream *s, event *e) { NOT_CALLED(); R(core_stream_wait(s, e)); }

/* 07_event_management.md: 65,536 a device. */
size_t sim_live(int kind);
API st aclrtCreateEventExWithFlag(event **p, unsigned f) { NOT_CALLED(); if (f != (1 | 8) || sim_live('e') >= 65536) R(INVALID); R(core_event(p, 1)); }
API st aclrtDestroyEvent(event *e) { NOT_CALLED(); R(core_event_destroy(e)); }
API st aclrtRecordEvent(event *e, stream *s) { NOT_CALLED(); R(core_event_record(e, s)); }
/* 1 is complete, as is what was never recorded; 0 is not. */
API st aclrtQueryEventStatus(event *e, int *v) { st r = core_event_query(e); *v = r == OK; R(r == NOT_READY ? OK : r); }
API st aclrtEventElapsedTime(float *ms, event *a, event *b) { R(core_event_elapsed(ms, a, b)); }

/* ---- host calls: a stream's are run by the thread that is subscribed for it, when that asks */
typedef struct report { void (*fn)(void *); void *arg; stream *s; int done; struct report *next; } report;
/* Of a thread to 1,024, of one device only; of a stream one. */
typedef struct subscription { uint64_t thread; stream *s; struct subscription *next; } subscription;
static pthread_mutex_t reports_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t reported = PTHREAD_COND_INITIALIZER;
static report *reports;
static subscription *subscriptions;

static subscription *of(stream *s) { for (subscription *x = subscriptions; x; x = x->next) if (x->s == s) return x; return NULL; }
API st aclrtSubscribeReport(uint64_t thread, stream *s) {
  pthread_mutex_lock(&reports_lock);
  int refused = of(s) != NULL, threads = 0;
  for (subscription *x = subscriptions; x; x = x->next) { threads += x->thread != thread; refused |= x->thread == thread && core_stream_device(x->s) != core_stream_device(s); }
  if (!refused && threads < 1024) { subscription *x = calloc(1, sizeof *x); *x = (subscription){thread, s, subscriptions}; subscriptions = x; }
  pthread_mutex_unlock(&reports_lock);
  R(refused || threads >= 1024 ? INVALID : OK);
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
  NOT_CALLED();
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
  if (ms < -1 || !ms) R(INVALID);
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
      calling = 1;
      r->fn(r->arg);
      calling = 0;
      pthread_mutex_lock(&reports_lock);
      r->done = 1;
      pthread_cond_broadcast(&reported);
      pthread_mutex_unlock(&reports_lock);
      return OK;
    }
    if (pthread_cond_timedwait(&reported, &reports_lock, &t)) { pthread_mutex_unlock(&reports_lock); return 507012; }
  }
}
