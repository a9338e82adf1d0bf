/* The HIP run time and HIPRTC over the simulators' core: each thread has a current device, as HIP's have, and waves have 64 threads. Devices say gfx90a.
 * What is refused is in the function's text of hip_runtime_api.h (github.com/ROCm/hip; rocm.docs.amd.com/projects/HIP, HIP runtime API; `PAGES.md`). */
#include "sim.h"

const unsigned sim_warp = 64;
const int sim_frees_wait = 1;
static __thread int current;

device *sim_here(void) { return current < sim_visible ? &sim_devices[current] : NULL; }
/* Whether the thread's device is another than it was at first: what a back end leaves behind. */
API int sim_depth(void) { return sim_visible > 0; }
API int sim_current(void) { return current; }

API st hipInit(unsigned f) { return f ? INVALID : sim_visible ? OK : NO_DEVICE; }
API st hipRuntimeGetVersion(int *v) { *v = 50221153; return OK; }
API const char *hipGetErrorName(st s) { return s == OOM ? "hipErrorOutOfMemory" : s == 700 ? "hipErrorIllegalAddress" : s == LAUNCH_FAILED ? "hipErrorLaunchFailure" : s == INVALID ? "hipErrorInvalidValue" : s == NO_DEVICE ? "hipErrorNoDevice" : "hipErrorUnknown"; }
API const char *hipGetErrorString(st s) { return s ? "simulated" : "no error"; }
API st hipGetDeviceCount(int *n) { *n = sim_visible; return sim_visible ? OK : NO_DEVICE; }
API st hipSetDevice(int d) { if (d < 0 || d >= sim_visible) return BAD_DEVICE; current = d; return OK; }
API st hipGetDevice(int *d) { *d = current; return sim_visible ? OK : NO_DEVICE; }
API st hipDeviceGet(int *d, int i) { if (i < 0 || i >= sim_visible) return BAD_DEVICE; *d = i; return OK; }
API st hipDeviceGetName(char *p, int n, int d) { snprintf(p, n, "SIMULATED AMD GPU %d", d); return OK; }
API st hipDeviceGetPCIBusId(char *p, int n, int d) { snprintf(p, n, "0000:%02x:00.0", d + 1); return OK; }
API st hipDeviceGetUuid(char *p, int d) { memset(p, 0xB0 + d, 16); return OK; }
enum { MAX_PITCH = 0x7fffffff };
API st hipDeviceGetAttribute(int *v, int a, int d) {
  (void)d;
  switch (a) {
    case 23: *v = 9; return OK;      /* hipDeviceAttributeComputeCapabilityMajor */
    case 56: *v = 1024; return OK;   /* MaxThreadsPerBlock */
    case 58: *v = MAX_PITCH; return OK;
    case 61: *v = 0; return OK;      /* ComputeCapabilityMinor */
    case 63: *v = 104; return OK;    /* MultiprocessorCount */
    case 74: *v = 65536; return OK;  /* MaxSharedMemoryPerBlock */
    case 87: *v = 64; return OK;     /* WarpSize */
    default: return INVALID;
  }
}
/* hipDeviceProp_t of HIP 5: 792 bytes, of which the name of the architecture is asked for. */
API st hipGetDeviceProperties(char *p, int d) { (void)d; memset(p, 0, 792); strcpy(p + 396, "gfx90a:sramecc+:xnack-"); return OK; }
API st hipDeviceCanAccessPeer(int *v, int a, int b) { *v = a != b; return OK; }
API st hipDeviceEnablePeerAccess(int other, unsigned f) { return f ? INVALID : other < 0 || other >= sim_visible || other == current ? BAD_DEVICE : core_reach(&sim_devices[other]); }
API st hipDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -2; return OK; }
API st hipMemGetInfo(size_t *f, size_t *t) { return core_room(f, t); }
API st hipMalloc(void **p, size_t n) { addr a = 0; st r = core_alloc(&a, n); *p = (void *)a; return r; }
API st hipFree(void *p) { return core_free((addr)p); }
API st hipHostMalloc(void **p, size_t n, unsigned f) { return f & ~0xe0000007u ? INVALID : core_host_alloc(p, n); }
API st hipHostFree(void *p) { return core_host_free(p); }
API st hipHostRegister(void *p, size_t n, unsigned f) { return f > 15 ? INVALID : core_host_register(p, n); }
API st hipHostUnregister(void *p) { return core_host_unregister(p); }
API st hipHostGetDevicePointer(void **a, void *p, unsigned f) { return f ? INVALID : core_host_seen((addr *)a, p); }
/* Host to host, host to device, device to host, device to device, whatever the addresses say. */
static int fits(addr d, addr s, int kind) {
  int to = core_kind(d, 1) == 'd', from = core_kind(s, 1) == 'd';
  return kind == 4 || (kind >= 0 && kind < 4 && to == (kind & 1) && from == kind >> 1);
}
API st hipMemcpyAsync(void *d, const void *s, size_t n, int kind, stream *q) { return fits((addr)d, (addr)s, kind) ? core_copy((addr)d, (addr)s, n, n, n, 1, q) : 21; }
API st hipMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int kind, stream *q) { return fits((addr)d, (addr)s, kind) && dp >= w && sp >= w && dp <= MAX_PITCH && sp <= MAX_PITCH ? core_copy((addr)d, (addr)s, w, dp, sp, h, q) : INVALID; }
API st hipMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, stream *q) { return dd < 0 || sd < 0 || dd >= sim_visible || sd >= sim_visible ? BAD_DEVICE : core_copy_peer((addr)d, (addr)s, n, q); }
API st hipMemsetD8Async(void *d, unsigned char v, size_t n, stream *q) { return core_fill((addr)d, 0, v, 1, n, 1, q); }
API st hipMemsetD16Async(void *d, unsigned short v, size_t n, stream *q) { return core_fill((addr)d, 0, v, 2, n, 1, q); }
API st hipMemsetD32Async(void *d, int v, size_t n, stream *q) { return core_fill((addr)d, 0, (uint32_t)v, 4, n, 1, q); }
API st hipMemset2DAsync(void *d, size_t p, int v, size_t w, size_t h, stream *q) { return core_fill((addr)d, p, (unsigned char)v, 1, w, h, q); }
API st hipStreamCreateWithPriority(stream **p, unsigned f, int priority) { return f != 1 || priority > 0 || priority < -2 ? INVALID : core_stream(p, priority); }
API st hipStreamDestroy(stream *s) { return core_stream_destroy(s); }
API st hipStreamQuery(stream *s) { return core_stream_query(s); }
API st hipStreamWaitEvent(stream *s, event *e, unsigned f) { return f ? INVALID : core_stream_wait(s, e); }
API st hipEventCreateWithFlags(event **p, unsigned f) { return f & ~0xe0000003u ? INVALID : core_event(p, !(f & 2)); }
API st hipEventDestroy(event *e) { return core_event_destroy(e); }
API st hipEventRecord(event *e, stream *s) { return core_event_record(e, s); }
API st hipEventQuery(event *e) { return core_event_query(e); }
API st hipEventElapsedTime(float *ms, event *a, event *b) { return core_event_elapsed(ms, a, b); }
API st hipModuleLoadData(module **m, const void *image) { return core_module(m, image); }
API st hipModuleUnload(module *m) { return core_module_unload(m); }
API st hipModuleGetFunction(function **f, module *m, const char *name) { return core_function(f, m, name); }
API st hipModuleLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, stream *s, void **params, void **extra) {
  /* No dimension has 2^32 work items; a block has what memory there is without asking. */
  if ((uint64_t)gx * bx >> 32 || (uint64_t)gy * by >> 32 || (uint64_t)gz * bz >> 32) return INVALID;
  core_function_room(f, 65536);
  return extra ? INVALID : core_launch_kernel(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, s, params);
}
API st hipStreamBeginCapture(stream *s, int mode) { return mode != 1 ? INVALID : core_capture_begin(s); }
API st hipStreamEndCapture(stream *s, graph **out) { return core_capture_end(s, out); }
API st hipGraphDestroy(graph *g) { return core_graph_destroy(g); }
API st hipGraphExecDestroy(graph *g) { return core_graph_destroy(g); }
API st hipGraphInstantiate(graph **out, graph *g, void *node, char *log, size_t n) { (void)node; (void)log; (void)n; return core_graph_instantiate(out, g); }
API st hipGraphLaunch(graph *g, stream *s) { return core_graph_launch(g, s); }

/* ---- HIPRTC */
typedef struct program { char *source; image image; } program;
API int hiprtcVersion(int *a, int *b) { *a = 5; *b = 2; return 0; }
API const char *hiprtcGetErrorString(int s) { return s == 6 ? "HIPRTC_ERROR_COMPILATION" : "simulated"; }
API int hiprtcCreateProgram(program **p, const char *src, const char *name, int n, const char **h, const char **i) { (void)name; (void)h; (void)i; if (n) return 1; *p = calloc(1, sizeof **p); (*p)->source = strdup(src); return 0; }
API int hiprtcDestroyProgram(program **p) { free((*p)->source); free((*p)->image.bytes); free((*p)->image.log); free(*p); *p = NULL; return 0; }
API int hiprtcCompileProgram(program *p, int n, const char **o) {
  int arch = 0, wave = 0;
  for (int i = 0; i < n; i++) { arch |= !strcmp(o[i], "--gpu-architecture=gfx90a:sramecc+:xnack-"); wave |= !strcmp(o[i], "-DCW_WARP=64"); }
  return arch && wave ? sim_compile(p->source, &p->image) : 5;
}
API int hiprtcGetCodeSize(program *p, size_t *n) { *n = p->image.n; return 0; }
API int hiprtcGetCode(program *p, char *out) { memcpy(out, p->image.bytes, p->image.n); return 0; }
API int hiprtcGetProgramLogSize(program *p, size_t *n) { *n = p->image.log ? strlen(p->image.log) + 1 : 1; return 0; }
API int hiprtcGetProgramLog(program *p, char *out) { strcpy(out, p->image.log ? p->image.log : ""); return 0; }
