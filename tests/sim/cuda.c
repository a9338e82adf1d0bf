/* The CUDA driver and NVRTC over the simulators' core. Stricter than the driver where that finds mistakes: a call that needs a context fails without
 * one. Devices say sm_90. What is refused is on the function's page (docs.nvidia.com/cuda/cuda-driver-api: group__CUDA__MEM, __VA, __STREAM, __EVENT,
 * __EXEC, __GRAPH; `PAGES.md`). */
#include "sim.h"

const unsigned sim_warp = 32;
const int sim_frees_wait = 1;
static __thread device *stack[64];
static __thread int depth;
device *sim_here(void) { return depth ? stack[depth - 1] : NULL; }
API int sim_depth(void) { return depth; }
#define HERE() if (!sim_here()) return NO_CONTEXT; if (sim_here()->dead) return sim_here()->dead

API st cuInit(unsigned f) { return f ? INVALID : sim_visible ? OK : NO_DEVICE; }
API st cuDriverGetVersion(int *v) { *v = 12080; return OK; }
API st cuGetErrorName(st s, const char **p) { *p = s == OOM ? "CUDA_ERROR_OUT_OF_MEMORY" : s == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : s == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : s == NO_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : s == INVALID ? "CUDA_ERROR_INVALID_VALUE" : NULL; return *p ? OK : INVALID; }
API st cuGetErrorString(st s, const char **p) { *p = s ? "simulated" : "no error"; return OK; }
API st cuDeviceGetCount(int *n) { *n = sim_visible; return OK; }
API st cuDeviceGet(int *d, int i) { if (i < 0 || i >= sim_visible) return BAD_DEVICE; *d = i; return OK; }
API st cuDeviceGetName(char *p, int n, int d) { snprintf(p, n, "SIMULATED GPU %d", d); return OK; }
API st cuDeviceGetUuid_v2(unsigned char *p, int d) { memset(p, 0xA0 + d, 16); return OK; }
API st cuDeviceGetPCIBusId(char *p, int n, int d) { snprintf(p, n, "0000:%02x:00.0", d + 1); return OK; }
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
    case 93: case 122: *v = sim_words; return OK;
    case 102: case 103: *v = 1; return OK;
    default: return INVALID;
  }
}
API st cuDeviceCanAccessPeer(int *v, int a, int b) { *v = a != b; return OK; }
API st cuDevicePrimaryCtxRetain(device **p, int d) { __atomic_fetch_add(&sim_devices[d].retained, 1, __ATOMIC_SEQ_CST); *p = &sim_devices[d]; return OK; }
API st cuDevicePrimaryCtxRelease_v2(int d) { return __atomic_fetch_sub(&sim_devices[d].retained, 1, __ATOMIC_SEQ_CST) > 0 ? OK : NO_CONTEXT; }
API st cuCtxPushCurrent_v2(device *p) { if (!p || p->retained <= 0 || depth == 64) return NO_CONTEXT; stack[depth++] = p; return OK; }
API st cuCtxPopCurrent_v2(device **p) { if (!depth) return NO_CONTEXT; *p = stack[--depth]; return OK; }
API st cuCtxGetStreamPriorityRange(int *least, int *greatest) { HERE(); *least = 0; *greatest = -5; return OK; }
API st cuCtxEnablePeerAccess(device *o, unsigned f) { HERE(); return f ? INVALID : !o || o == sim_here() ? BAD_DEVICE : core_reach(o); }
API st cuMemGetInfo_v2(size_t *f, size_t *t) { return core_room(f, t); }
API st cuMemAlloc_v2(addr *p, size_t n) { return core_alloc(p, n); }
API st cuMemFree_v2(addr p) { return core_free(p); }
API st cuMemHostAlloc(void **p, size_t n, unsigned f) { HERE(); return f > 7 ? INVALID : core_host_alloc(p, n); }
API st cuMemFreeHost(void *p) { return core_host_free(p); }
API st cuMemHostRegister_v2(void *p, size_t n, unsigned f) { HERE(); return f > 15 ? INVALID : core_host_register(p, n); }
API st cuMemHostUnregister(void *p) { return core_host_unregister(p); }
API st cuMemHostGetDevicePointer_v2(addr *a, void *p, unsigned f) { HERE(); return f ? INVALID : core_host_seen(a, p); }
API st cuMemcpyAsync(addr d, addr s, size_t n, stream *q) { return core_copy(d, s, n, n, n, 1, q); }
API st cuMemcpyPeerAsync(addr d, device *dc, addr s, device *sc, size_t n, stream *q) { HERE(); return !dc || !sc ? INVALID : core_copy_peer(d, s, n, q); }
typedef struct copy2d { size_t sx, sy; unsigned st; const void *sh; addr sd; void *sa; size_t sp, dx, dy; unsigned dt; void *dh; addr dd; void *da; size_t dp, w, h; } copy2d;
API st cuMemcpy2DAsync_v2(const copy2d *x, stream *q) { HERE(); return x->st != 4 || x->dt != 4 || x->sp < x->w || x->dp < x->w || x->sp > 0x7fffffff || x->dp > 0x7fffffff ? INVALID : core_copy(x->dd, x->sd, x->w, x->dp, x->sp, x->h, q); }
API st cuMemsetD8Async(addr d, uint8_t v, size_t n, stream *q) { return core_fill(d, 0, v, 1, n, 1, q); }
API st cuMemsetD16Async(addr d, uint16_t v, size_t n, stream *q) { return core_fill(d, 0, v, 2, n, 1, q); }
API st cuMemsetD32Async(addr d, uint32_t v, size_t n, stream *q) { return core_fill(d, 0, v, 4, n, 1, q); }
API st cuMemsetD2D8Async(addr d, size_t p, uint8_t v, size_t w, size_t h, stream *q) { return core_fill(d, p, v, 1, w, h, q); }
API st cuMemsetD2D32Async(addr d, size_t p, uint32_t v, size_t w, size_t h, stream *q) { return core_fill(d, p, v, 4, w, h, q); }
API st cuStreamCreateWithPriority(stream **p, unsigned f, int priority) { HERE(); return f != 1 || priority > 0 || priority < -5 ? INVALID : core_stream(p, priority); }
API st cuStreamDestroy_v2(stream *s) { return core_stream_destroy(s); }
API st cuStreamQuery(stream *s) { return core_stream_query(s); }
API st cuStreamWaitEvent(stream *s, event *e, unsigned f) { HERE(); return f ? INVALID : core_stream_wait(s, e); }
API st cuStreamWaitValue64_v2(stream *s, addr a, uint64_t v, unsigned f) { HERE(); return f ? INVALID : core_wait_value(s, a, v); }
API st cuStreamWriteValue64_v2(stream *s, addr a, uint64_t v, unsigned f) { HERE(); return f ? INVALID : core_write_value(s, a, v); }
API st cuEventCreate(event **p, unsigned f) { HERE(); return f > 7 || (f & 4 && !(f & 2)) ? INVALID : core_event(p, !(f & 2)); }
API st cuEventDestroy_v2(event *e) { return core_event_destroy(e); }
API st cuEventRecord(event *e, stream *s) { return core_event_record(e, s); }
API st cuEventQuery(event *e) { return core_event_query(e); }
API st cuEventElapsedTime(float *ms, event *a, event *b) { return core_event_elapsed(ms, a, b); }
API st cuModuleLoadData(module **m, const void *image) { return core_module(m, image); }
API st cuModuleUnload(module *m) { return core_module_unload(m); }
API st cuModuleGetFunction(function **f, module *m, const char *name) { return core_function(f, m, name); }
/* Beyond 48 KiB a function's blocks have what was asked for by its attribute. */
API st cuFuncSetAttribute(function *f, unsigned a, int v) { HERE(); if (a != 8 || v < 0 || v > 232448) return INVALID; core_function_room(f, (unsigned)v); return OK; }
API st cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, stream *s, void **params, void **extra) {
  HERE();
  return extra ? INVALID : core_launch_kernel(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, s, params);
}
API st cuStreamBeginCapture_v2(stream *s, unsigned mode) { HERE(); return mode != 1 ? INVALID : core_capture_begin(s); }
API st cuStreamEndCapture(stream *s, graph **out) { return core_capture_end(s, out); }
API st cuGraphDestroy(graph *g) { return core_graph_destroy(g); }
API st cuGraphExecDestroy(graph *g) { return core_graph_destroy(g); }
API st cuGraphInstantiateWithFlags(graph **out, graph *g, unsigned long long f) { HERE(); return f ? INVALID : core_graph_instantiate(out, g); }
API st cuGraphLaunch(graph *g, stream *s) { return core_graph_launch(g, s); }
typedef struct prop { unsigned kind, types; struct { unsigned kind; int id; } at; void *win; unsigned char flags[8]; } prop;
API st cuMemGetAllocationGranularity(size_t *n, const prop *p, unsigned o) { HERE(); return p->kind != 1 || p->at.kind != 1 || o ? INVALID : core_granularity(n); }
API st cuMemCreate(uint64_t *h, size_t n, const prop *p, uint64_t f) { HERE(); return f || p->types != 1 ? INVALID : core_physical(h, n); }
API st cuMemRelease(uint64_t h) { return core_physical_release(h); }
API st cuMemAddressReserve(addr *a, size_t n, size_t align, addr hint, uint64_t f) { HERE(); return align || hint || f ? INVALID : core_reserve(a, n); }
API st cuMemAddressFree(addr a, size_t n) { return core_unreserve(a, n); }
API st cuMemMap(addr a, size_t n, size_t o, uint64_t h, uint64_t f) { HERE(); return o || f ? INVALID : core_map(a, n, h); }
API st cuMemSetAccess(addr a, size_t n, const void *d, size_t count) { HERE(); const unsigned *w = d; return count != 1 || w[0] != 1 || w[2] != 3 ? INVALID : core_access(a, n); }
API st cuMemUnmap(addr a, size_t n) { return core_unmap(a, n); }
API st cuMemRetainAllocationHandle(uint64_t *h, void *p) { return core_physical_of(h, p); }
API st cuMemExportToShareableHandle(void *out, uint64_t h, unsigned type, uint64_t f) { HERE(); return type != 1 || f ? INVALID : core_share(out, h); }
API st cuMemImportFromShareableHandle(uint64_t *h, void *os, unsigned type) { HERE(); return type != 1 ? INVALID : core_shared(h, (int)(intptr_t)os); }

/* ---- NVRTC */
typedef struct program { char *source; image image; } program;
API int nvrtcVersion(int *a, int *b) { *a = 12; *b = 8; return 0; }
API const char *nvrtcGetErrorString(int s) { return s == 6 ? "NVRTC_ERROR_COMPILATION" : "simulated"; }
API int nvrtcGetNumSupportedArchs(int *n) { *n = 3; return 0; }
API int nvrtcGetSupportedArchs(int *a) { a[0] = 80; a[1] = 90; a[2] = 100; return 0; }
API int nvrtcCreateProgram(program **p, const char *src, const char *name, int n, const char *const *h, const char *const *i) { (void)name; (void)h; (void)i; if (n) return 1; *p = calloc(1, sizeof **p); (*p)->source = strdup(src); return 0; }
API int nvrtcDestroyProgram(program **p) { free((*p)->source); free((*p)->image.bytes); free((*p)->image.log); free(*p); *p = NULL; return 0; }
API int nvrtcCompileProgram(program *p, int n, const char *const *o) {
  int arch = 0;
  for (int i = 0; i < n; i++) arch |= !strcmp(o[i], "--gpu-architecture=sm_90a");
  return arch ? sim_compile(p->source, &p->image) : 5;
}
API int nvrtcGetCUBINSize(program *p, size_t *n) { *n = p->image.n; return 0; }
API int nvrtcGetCUBIN(program *p, char *out) { memcpy(out, p->image.bytes, p->image.n); return 0; }
API int nvrtcGetPTXSize(program *p, size_t *n) { return nvrtcGetCUBINSize(p, n); }
API int nvrtcGetPTX(program *p, char *out) { return nvrtcGetCUBIN(p, out); }
API int nvrtcGetProgramLogSize(program *p, size_t *n) { *n = p->image.log ? strlen(p->image.log) + 1 : 1; return 0; }
API int nvrtcGetProgramLog(program *p, char *out) { strcpy(out, p->image.log ? p->image.log : ""); return 0; }
