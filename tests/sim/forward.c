/* HIP, HIPRTC, hipBLASLt and RCCL forwarded to the CUDA driver, NVRTC, cuBLASLt and NCCL: a test tool, with which the ROCm back end's own calls meet a device that runs beside
 * the host. It is not HIP, and no AMD device: devices are called `FORWARDED TO …`, their architecture is `forwarded:sm_90a` and the like, and waves have 32
 * threads. What has no counterpart answers "not supported" and names itself.
 *
 * The libraries behind it are opened when they are first asked for, under their usual names, or from the files in `CW_FORWARD` (by `:`), each of which
 * serves where it has the functions: the simulator of CUDA is one for all of them. */
#include "sim.h"
#include <dlfcn.h>

#ifndef SIM_KERNELS
#error "SIM_KERNELS is the folder of the kernels' sources"
#endif

/* ---- the libraries behind */
static const char *chosen;
/* The tests' own: as `CW_FORWARD` in the environment. */
API void forward_to(const char *files) { chosen = strdup(files); }
static void *library(const char *what, const char *function, const char *const *names) {
  const char *set = chosen ? chosen : getenv("CW_FORWARD");
  void *found = NULL;
  char *all = strdup(set ? set : ""), *next = all, *one;
  while (set && !found && (one = strsep(&next, ":"))) {
    void *lib = *one ? dlopen(one, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (lib && dlsym(lib, function)) found = lib;
  }
  free(all);
  for (; !set && !found && *names; names++) found = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
  if (!found) fprintf(stderr, "FORWARDED: there is no %s%s%s\n", what, set ? " in CW_FORWARD=" : "", set ? set : "");
  return found;
}
static int lacks(const char *name) { fprintf(stderr, "FORWARDED: not supported: %s\n", name); return UNSUPPORTED; }

typedef void *ptr;
typedef struct copy2d { size_t sx, sy; unsigned st; const void *sh; addr sd; ptr sa; size_t sp, dx, dy; unsigned dt; ptr dh; addr dd; ptr da; size_t dp, w, h; } copy2d;
#define DRIVER(F) \
  F(cuInit, unsigned) F(cuDriverGetVersion, int *) F(cuGetErrorString, st, const char **) F(cuDeviceGetCount, int *) F(cuDeviceGet, int *, int) F(cuDeviceGetName, char *, int, int) \
  F(cuDeviceGetPCIBusId, char *, int, int) F(cuDeviceGetUuid_v2, char *, int) F(cuDeviceGetAttribute, int *, int, int) F(cuDeviceCanAccessPeer, int *, int, int) \
  F(cuDevicePrimaryCtxRetain, ptr *, int) F(cuCtxPushCurrent_v2, ptr) F(cuCtxPopCurrent_v2, ptr *) F(cuCtxEnablePeerAccess, ptr, unsigned) F(cuCtxGetStreamPriorityRange, int *, int *) \
  F(cuMemGetInfo_v2, size_t *, size_t *) F(cuMemAlloc_v2, addr *, size_t) F(cuMemFree_v2, addr) F(cuMemHostAlloc, ptr *, size_t, unsigned) F(cuMemFreeHost, ptr) \
  F(cuMemHostRegister_v2, ptr, size_t, unsigned) F(cuMemHostUnregister, ptr) F(cuMemHostGetDevicePointer_v2, addr *, ptr, unsigned) F(cuMemcpyAsync, addr, addr, size_t, ptr) \
  F(cuMemcpyPeerAsync, addr, ptr, addr, ptr, size_t, ptr) F(cuMemcpy2DAsync_v2, const copy2d *, ptr) F(cuMemsetD8Async, addr, unsigned char, size_t, ptr) F(cuMemsetD16Async, addr, unsigned short, size_t, ptr) \
  F(cuMemsetD32Async, addr, unsigned, size_t, ptr) F(cuMemsetD2D8Async, addr, size_t, unsigned char, size_t, size_t, ptr) F(cuStreamCreateWithPriority, ptr *, unsigned, int) \
  F(cuStreamDestroy_v2, ptr) F(cuStreamQuery, ptr) F(cuStreamWaitEvent, ptr, ptr, unsigned) F(cuEventCreate, ptr *, unsigned) F(cuEventDestroy_v2, ptr) F(cuEventRecord, ptr, ptr) F(cuEventQuery, ptr) \
  F(cuEventElapsedTime, float *, ptr, ptr) F(cuModuleLoadData, ptr *, const void *) F(cuModuleUnload, ptr) F(cuModuleGetFunction, ptr *, ptr, const char *) F(cuFuncSetAttribute, ptr, unsigned, int) \
  F(cuLaunchKernel, ptr, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, ptr, ptr *, ptr *) F(cuStreamBeginCapture_v2, ptr, unsigned) F(cuStreamEndCapture, ptr, ptr *) \
  F(cuGraphInstantiateWithFlags, ptr *, ptr, unsigned long long) F(cuGraphDestroy, ptr) F(cuGraphLaunch, ptr, ptr) F(cuGraphExecDestroy, ptr)
#define COMPILER(F) \
  F(nvrtcVersion, int *, int *) F(nvrtcGetNumSupportedArchs, int *) F(nvrtcGetSupportedArchs, int *) F(nvrtcCreateProgram, ptr *, const char *, const char *, int, const char **, const char **) \
  F(nvrtcDestroyProgram, ptr *) F(nvrtcCompileProgram, ptr, int, const char **) F(nvrtcGetCUBINSize, ptr, size_t *) F(nvrtcGetCUBIN, ptr, char *) F(nvrtcGetPTXSize, ptr, size_t *) F(nvrtcGetPTX, ptr, char *) \
  F(nvrtcGetProgramLogSize, ptr, size_t *) F(nvrtcGetProgramLog, ptr, char *)
#define FIELD(name, ...) int (*name)(__VA_ARGS__);
#define FIND(name, ...) *(void **)&T.name = lib ? dlsym(lib, #name) : NULL;
static struct { int there; DRIVER(FIELD) } cu;
static struct { int there; COMPILER(FIELD) const char *(*nvrtcGetErrorString)(int); } rtc;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT, compiler_once = PTHREAD_ONCE_INIT;
#define T cu
static void open_driver(void) { void *lib = library("CUDA driver", "cuInit", (const char *const[]){"libcuda.so.1", "libcuda.so", NULL}); cu.there = lib != NULL; DRIVER(FIND) }
#undef T
#define T rtc
static void open_compiler(void) {
  void *lib = library("NVRTC", "nvrtcVersion", (const char *const[]){"libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so", NULL});
  rtc.there = lib != NULL;
  COMPILER(FIND)
  *(void **)&rtc.nvrtcGetErrorString = lib ? dlsym(lib, "nvrtcGetErrorString") : NULL;
}
#undef T
#define CU(f, ...) (cu.f ? cu.f(__VA_ARGS__) : lacks(#f))

/* ---- numbers: most of CUDA's are HIP's too. What HIP has no number for is the nearest, or unknown. */
static const struct { st s; const char *name; } numbers[] = {
  {OK, "hipSuccess"}, {INVALID, "hipErrorInvalidValue"}, {OOM, "hipErrorOutOfMemory"}, {3, "hipErrorNotInitialized"}, {4, "hipErrorDeinitialized"}, {9, "hipErrorInvalidConfiguration"},
  {21, "hipErrorInvalidMemcpyDirection"}, {35, "hipErrorInsufficientDriver"}, {NO_DEVICE, "hipErrorNoDevice"}, {BAD_DEVICE, "hipErrorInvalidDevice"}, {BAD_IMAGE, "hipErrorInvalidImage"},
  {NO_CONTEXT, "hipErrorInvalidContext"}, {205, "hipErrorMapFailed"}, {206, "hipErrorUnmapFailed"}, {208, "hipErrorAlreadyMapped"}, {209, "hipErrorNoBinaryForGpu"}, {211, "hipErrorNotMapped"},
  {214, "hipErrorECCNotCorrectable"}, {215, "hipErrorUnsupportedLimit"}, {217, "hipErrorPeerAccessUnsupported"}, {218, "hipErrorInvalidKernelFile"}, {301, "hipErrorFileNotFound"},
  {302, "hipErrorSharedObjectSymbolNotFound"}, {303, "hipErrorSharedObjectInitFailed"}, {304, "hipErrorOperatingSystem"}, {BAD_HANDLE, "hipErrorInvalidHandle"}, {401, "hipErrorIllegalState"},
  {NOT_FOUND, "hipErrorNotFound"}, {NOT_READY, "hipErrorNotReady"}, {700, "hipErrorIllegalAddress"}, {701, "hipErrorLaunchOutOfResources"}, {702, "hipErrorLaunchTimeOut"},
  {PEER_ALREADY, "hipErrorPeerAccessAlreadyEnabled"}, {705, "hipErrorPeerAccessNotEnabled"}, {709, "hipErrorContextIsDestroyed"}, {710, "hipErrorAssert"},
  {PINNED_ALREADY, "hipErrorHostMemoryAlreadyRegistered"}, {713, "hipErrorHostMemoryNotRegistered"}, {LAUNCH_FAILED, "hipErrorLaunchFailure"}, {720, "hipErrorCooperativeLaunchTooLarge"},
  {UNSUPPORTED, "hipErrorNotSupported"}, {CAPTURE_UNSUPPORTED, "hipErrorStreamCaptureUnsupported"}, {CAPTURE_INVALIDATED, "hipErrorStreamCaptureInvalidated"}, {902, "hipErrorStreamCaptureMerge"},
  {903, "hipErrorStreamCaptureUnmatched"}, {904, "hipErrorStreamCaptureUnjoined"}, {905, "hipErrorStreamCaptureIsolation"}, {906, "hipErrorStreamCaptureImplicit"}, {907, "hipErrorCapturedEvent"},
  {CAPTURE_WRONG_THREAD, "hipErrorStreamCaptureWrongThread"}, {910, "hipErrorGraphExecUpdateFailure"}, {999, "hipErrorUnknown"},
};
static const char *name_of(st s) {
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) if (numbers[i].s == s) return numbers[i].name;
  return NULL;
}
static st said(const char *f, st s) {
  if (name_of(s)) return s;
  st as = 999;
  switch (s) {
    case 34: case 803: case 804: as = 35; break;                          /* a stub, or a driver that does not fit */
    case 802: as = NO_DEVICE; break;                                      /* not ready yet */
    case 221: case 222: as = 218; break;                                  /* intermediate code of a later version */
    case 711: as = 217; break;                                            /* too many peers */
    case 714: case 715: case 716: case 717: case 718: as = LAUNCH_FAILED; break; /* what a kernel did wrong */
  }
  fprintf(stderr, "FORWARDED: %s: CUDA's error %d is given as %s\n", f, s, name_of(as));
  return as;
}
API const char *hipGetErrorName(st s) { const char *n = name_of(s); return n ? n : "hipErrorUnknown"; }
API const char *hipGetErrorString(st s) { const char *p = NULL; return s && cu.cuGetErrorString && !cu.cuGetErrorString(s, &p) && p ? p : s ? "an error of the device that calls are forwarded to" : "no error"; }

/* ---- devices. HIP's current device of a thread is a context for each call: what the thread had current before is so again afterwards. */
static __thread int current;
static int devices;
static ptr contexts[16];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static st context(int d, ptr *out) {
  if (d < 0 || d >= devices) return BAD_DEVICE;
  if (!(*out = __atomic_load_n(&contexts[d], __ATOMIC_ACQUIRE))) {
    int dev;
    pthread_mutex_lock(&making);
    st s = contexts[d] ? OK : CU(cuDeviceGet, &dev, d);
    if (!s && !contexts[d]) { ptr made = NULL; s = CU(cuDevicePrimaryCtxRetain, &made, dev); if (!s) __atomic_store_n(&contexts[d], made, __ATOMIC_RELEASE); }
    pthread_mutex_unlock(&making);
    if (s) return s;
    *out = contexts[d];
  }
  return OK;
}
static st enter(void) { ptr c; st s = context(current, &c); return s ? s : CU(cuCtxPushCurrent_v2, c); }
static void leave(void) { ptr was; CU(cuCtxPopCurrent_v2, &was); }
#define HERE(f, ...) ({ st s_ = enter(); if (!s_) { s_ = CU(f, __VA_ARGS__); leave(); } said(#f, s_); })
#define DEVICE(f, d, ...) ({ int dev_; st s_ = CU(cuDeviceGet, &dev_, d); said(#f, s_ ? s_ : CU(f, __VA_ARGS__, dev_)); })

API st hipInit(unsigned f) {
  pthread_once(&driver_once, open_driver);
  if (!cu.there) return NO_DEVICE;
  st s = CU(cuInit, f);
  int n = 0;
  if (!s) s = CU(cuDeviceGetCount, &n);
  devices = s ? 0 : n < 16 ? n : 16;
  return s ? said("cuInit", s) : devices ? OK : NO_DEVICE;
}
/* The interface of HIP 5.2, and behind it the driver's own number. */
API st hipRuntimeGetVersion(int *v) { int of = 0; pthread_once(&driver_once, open_driver); if (cu.there) CU(cuDriverGetVersion, &of); *v = 50200000 + of; return OK; }
API st hipGetDeviceCount(int *n) { *n = devices; return devices ? OK : NO_DEVICE; }
API st hipSetDevice(int d) { if (d < 0 || d >= devices) return BAD_DEVICE; current = d; return OK; }
API st hipGetDevice(int *d) { *d = current; return devices ? OK : NO_DEVICE; }
API st hipDeviceGet(int *d, int i) { if (i < 0 || i >= devices) return BAD_DEVICE; *d = i; return OK; }
API st hipDeviceGetName(char *p, int n, int d) {
  static const char before[] = "FORWARDED TO ";
  int m = (int)sizeof before - 1;
  if (n <= m) return INVALID;
  memcpy(p, before, sizeof before);
  return DEVICE(cuDeviceGetName, d, p + m, n - m);
}
API st hipDeviceGetPCIBusId(char *p, int n, int d) { return DEVICE(cuDeviceGetPCIBusId, d, p, n); }
API st hipDeviceGetUuid(char *p, int d) { return DEVICE(cuDeviceGetUuid_v2, d, p); }
static st attribute(int *v, int a, int d) { return DEVICE(cuDeviceGetAttribute, d, v, a); }
API st hipDeviceGetAttribute(int *v, int a, int d) {
  switch (a) {
    case 23: return attribute(v, 75, d); /* hipDeviceAttributeComputeCapabilityMajor */
    case 56: return attribute(v, 1, d);  /* MaxThreadsPerBlock */
    case 58: return attribute(v, 11, d); /* MaxPitch */
    case 61: return attribute(v, 76, d); /* ComputeCapabilityMinor */
    case 63: return attribute(v, 16, d); /* MultiprocessorCount */
    case 87: return attribute(v, 10, d); /* WarpSize */
    case 74: {                           /* MaxSharedMemoryPerBlock: without asking, as HIP gives it, and no more than AMD's devices have */
      st s = attribute(v, 97, d);
      if (!s && *v > 65536) *v = 65536;
      return s;
    }
    default: fprintf(stderr, "FORWARDED: not supported: hipDeviceGetAttribute(%d)\n", a); return INVALID;
  }
}
/* The architecture's name says what HIPRTC below is to compile for. */
static st properties(char *p, size_t n, size_t at, int d) {
  int major, minor;
  st s = attribute(&major, 75, d);
  if (!s) s = attribute(&minor, 76, d);
  if (s) return s;
  memset(p, 0, n);
  snprintf(p + at, 256, "forwarded:sm_%d%d%s", major, minor, major == 9 && minor == 0 ? "a" : "");
  return OK;
}
API st hipGetDeviceProperties(char *p, int d) { return properties(p, 792, 396, d); }
API st hipGetDevicePropertiesR0600(char *p, int d) { return properties(p, 1472, 1160, d); }
API st hipDeviceCanAccessPeer(int *v, int a, int b) {
  int x, y;
  st s = CU(cuDeviceGet, &x, a);
  if (!s) s = CU(cuDeviceGet, &y, b);
  return said("cuDeviceCanAccessPeer", s ? s : CU(cuDeviceCanAccessPeer, v, x, y));
}
API st hipDeviceEnablePeerAccess(int other, unsigned f) { ptr c; st s = context(other, &c); return s ? said("cuDevicePrimaryCtxRetain", s) : HERE(cuCtxEnablePeerAccess, c, f); }
API st hipDeviceGetStreamPriorityRange(int *least, int *greatest) { return HERE(cuCtxGetStreamPriorityRange, least, greatest); }

/* ---- memory. Flags of HIP's own (coherence, NUMA) have no counterpart, and none of CUDA's is meant by them. */
API st hipMemGetInfo(size_t *f, size_t *t) { return HERE(cuMemGetInfo_v2, f, t); }
API st hipMalloc(ptr *p, size_t n) { addr a = 0; st s = HERE(cuMemAlloc_v2, &a, n); *p = (ptr)a; return s; }
API st hipFree(ptr p) { return p ? HERE(cuMemFree_v2, (addr)p) : OK; }
API st hipHostMalloc(ptr *p, size_t n, unsigned f) { return f & ~0xe0000007u ? INVALID : HERE(cuMemHostAlloc, p, n, f & 7); }
API st hipHostFree(ptr p) { return p ? HERE(cuMemFreeHost, p) : OK; }
API st hipHostRegister(ptr p, size_t n, unsigned f) { return HERE(cuMemHostRegister_v2, p, n, f); }
API st hipHostUnregister(ptr p) { return HERE(cuMemHostUnregister, p); }
API st hipHostGetDevicePointer(ptr *a, ptr p, unsigned f) { addr at = 0; st s = HERE(cuMemHostGetDevicePointer_v2, &at, p, f); *a = (ptr)at; return s; }
/* CUDA sees by the addresses which way it goes; HIP's kinds but the last say it too. */
API st hipMemcpyAsync(ptr d, const void *s, size_t n, int kind, ptr q) { return kind < 0 || kind > 4 ? 21 : HERE(cuMemcpyAsync, (addr)d, (addr)s, n, q); }
API st hipMemcpy2DAsync(ptr d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int kind, ptr q) {
  copy2d x = {.st = 4, .sd = (addr)s, .sp = sp, .dt = 4, .dd = (addr)d, .dp = dp, .w = w, .h = h};
  return kind < 0 || kind > 4 ? 21 : HERE(cuMemcpy2DAsync_v2, &x, q);
}
API st hipMemcpyPeerAsync(ptr d, int dd, const void *s, int sd, size_t n, ptr q) {
  ptr to, from;
  st r = context(dd, &to);
  if (!r) r = context(sd, &from);
  return r ? said("cuDevicePrimaryCtxRetain", r) : HERE(cuMemcpyPeerAsync, (addr)d, to, (addr)s, from, n, q);
}
API st hipMemsetD8Async(ptr d, unsigned char v, size_t n, ptr q) { return HERE(cuMemsetD8Async, (addr)d, v, n, q); }
API st hipMemsetD16Async(ptr d, unsigned short v, size_t n, ptr q) { return HERE(cuMemsetD16Async, (addr)d, v, n, q); }
API st hipMemsetD32Async(ptr d, int v, size_t n, ptr q) { return HERE(cuMemsetD32Async, (addr)d, (unsigned)v, n, q); }
API st hipMemset2DAsync(ptr d, size_t pitch, int v, size_t w, size_t h, ptr q) { return HERE(cuMemsetD2D8Async, (addr)d, pitch, (unsigned char)v, w, h, q); }

/* ---- streams, events, kernels, graphs */
API st hipStreamCreateWithPriority(ptr *p, unsigned f, int priority) { return HERE(cuStreamCreateWithPriority, p, f, priority); }
API st hipStreamDestroy(ptr s) { return HERE(cuStreamDestroy_v2, s); }
API st hipStreamQuery(ptr s) { return HERE(cuStreamQuery, s); }
API st hipStreamWaitEvent(ptr s, ptr e, unsigned f) { return HERE(cuStreamWaitEvent, s, e, f); }
API st hipEventCreateWithFlags(ptr *p, unsigned f) { return f & ~0xe0000007u ? INVALID : HERE(cuEventCreate, p, f & 7); }
API st hipEventDestroy(ptr e) { return HERE(cuEventDestroy_v2, e); }
API st hipEventRecord(ptr e, ptr s) { return HERE(cuEventRecord, e, s); }
API st hipEventQuery(ptr e) { return HERE(cuEventQuery, e); }
API st hipEventElapsedTime(float *ms, ptr a, ptr b) { return HERE(cuEventElapsedTime, ms, a, b); }
API st hipModuleLoadData(ptr *m, const void *image) { return HERE(cuModuleLoadData, m, image); }
API st hipModuleUnload(ptr m) { return HERE(cuModuleUnload, m); }
API st hipModuleGetFunction(ptr *f, ptr m, const char *name) { return HERE(cuModuleGetFunction, f, m, name); }
/* HIP counts the threads of a direction in 32 bits. More than 48 KiB of shared memory CUDA gives to who has asked. */
API st hipModuleLaunchKernel(ptr f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, ptr s, ptr *params, ptr *extra) {
  if (extra) return lacks("hipModuleLaunchKernel with a packed buffer");
  if ((uint64_t)gx * bx >> 32 || (uint64_t)gy * by >> 32 || (uint64_t)gz * bz >> 32) return 9;
  if (shared > 65536) return INVALID;
  st r = shared > 49152 ? HERE(cuFuncSetAttribute, f, 8, (int)shared) : OK;
  return r ? r : HERE(cuLaunchKernel, f, gx, gy, gz, bx, by, bz, shared, s, params, NULL);
}
API st hipStreamBeginCapture(ptr s, int mode) { return HERE(cuStreamBeginCapture_v2, s, (unsigned)mode); }
API st hipStreamEndCapture(ptr s, ptr *out) { return HERE(cuStreamEndCapture, s, out); }
API st hipGraphInstantiate(ptr *out, ptr g, ptr *node, char *log, size_t n) { if (node) *node = NULL; if (log && n) *log = 0; return HERE(cuGraphInstantiateWithFlags, out, g, 0); }
API st hipGraphDestroy(ptr g) { return HERE(cuGraphDestroy, g); }
API st hipGraphLaunch(ptr g, ptr s) { return HERE(cuGraphLaunch, g, s); }
API st hipGraphExecDestroy(ptr g) { return HERE(cuGraphExecDestroy, g); }

/* ---- HIPRTC: the shared source with CUDA's prelude in place of HIP's, whose words are clang's own, for the device that the architecture's name says. */
#define EMBED(name, file) \
  extern const char name[] __attribute__((visibility("hidden"))); \
  __asm__(".section .rodata\n.global " #name "\n.hidden " #name "\n" #name ": .incbin \"" SIM_KERNELS "/" file "\"\n.byte 0\n.previous\n")
EMBED(forward_prelude_hip, "prelude_hip.h");
EMBED(forward_prelude_cuda, "prelude_cuda.h");
typedef struct program { ptr of; int ptx; } program;
enum { RTC_INVALID = 3, RTC_OPTION = 5, RTC_INTERNAL = 11 };
#define RTC(f, ...) (rtc.f ? rtc.f(__VA_ARGS__) : (lacks(#f), RTC_INTERNAL))

API int hiprtcVersion(int *a, int *b) { *a = *b = 0; pthread_once(&compiler_once, open_compiler); return RTC(nvrtcVersion, a, b); }
API const char *hiprtcGetErrorString(int s) { return rtc.nvrtcGetErrorString ? rtc.nvrtcGetErrorString(s) : "there is no NVRTC to forward to"; }
API int hiprtcCreateProgram(program **out, const char *source, const char *name, int n, const char **headers, const char **includes) {
  pthread_once(&compiler_once, open_compiler);
  size_t was = strlen(forward_prelude_hip);
  if (strncmp(source, forward_prelude_hip, was)) { fprintf(stderr, "FORWARDED: %s does not begin with the prelude that this library was built with\n", name ? name : "a kernel"); return RTC_INVALID; }
  char *text = malloc(strlen(forward_prelude_cuda) + strlen(source + was) + 1);
  strcat(strcpy(text, forward_prelude_cuda), source + was);
  program *p = calloc(1, sizeof *p);
  int s = RTC(nvrtcCreateProgram, &p->of, text, name, n, headers, includes);
  free(text);
  if (s) free(p); else *out = p;
  return s;
}
API int hiprtcDestroyProgram(program **p) { int s = RTC(nvrtcDestroyProgram, &(*p)->of); free(*p); *p = NULL; return s; }
/* `sm_90a` where the compiler knows it, else the newest older architecture's intermediate code, which the driver finishes. */
static int architecture(const char *named, char *option, size_t n, int *ptx) {
  const char *sm = strstr(named, "forwarded:sm_");
  int wanted = sm ? atoi(sm + 13) : 0, count = 0, known[64], older = 0;
  if (!wanted) return RTC_OPTION;
  int said = RTC(nvrtcGetNumSupportedArchs, &count) || count <= 0 || count > 64 || RTC(nvrtcGetSupportedArchs, known);
  for (int i = 0; !said && i < count; i++) if (known[i] <= wanted && known[i] > older) older = known[i];
  *ptx = older != wanted && older > 0;
  if (*ptx) snprintf(option, n, "--gpu-architecture=compute_%d", older); else snprintf(option, n, "--gpu-architecture=%s", sm + 10);
  return 0;
}
API int hiprtcCompileProgram(program *p, int n, const char **options) {
  char target[64] = "";
  const char *out[16];
  int m = 0;
  out[m++] = target;
  out[m++] = "-default-device";
  out[m++] = "--fmad=true";
  for (int i = 0; i < n; i++) {
    const char *o = options[i];
    int s = 0;
    if (!strncmp(o, "--gpu-architecture=", 19)) s = architecture(o + 19, target, sizeof target, &p->ptx);
    else if (!strcmp(o, "-std=c++17")) out[m++] = "--std=c++17";
    else if (!strcmp(o, "-fno-gpu-flush-denormals-to-zero")) out[m++] = "--ftz=false";
    else if (!strcmp(o, "-fhip-fp32-correctly-rounded-divide-sqrt")) { out[m++] = "--prec-div=true"; out[m++] = "--prec-sqrt=true"; }
    /* Optimised and without device headers NVRTC compiles anyway; CUDA's prelude says the same width of a warp. */
    else if (strcmp(o, "-O2") && strcmp(o, "-nogpuinc") && strcmp(o, "-DCW_WARP=32")) s = RTC_OPTION;
    if (s || m > 12) { fprintf(stderr, "FORWARDED: not supported: HIPRTC's option %s\n", o); return RTC_OPTION; }
  }
  return *target ? RTC(nvrtcCompileProgram, p->of, m, out) : RTC_OPTION;
}
API int hiprtcGetCodeSize(program *p, size_t *n) { return p->ptx ? RTC(nvrtcGetPTXSize, p->of, n) : RTC(nvrtcGetCUBINSize, p->of, n); }
API int hiprtcGetCode(program *p, char *out) { return p->ptx ? RTC(nvrtcGetPTX, p->of, out) : RTC(nvrtcGetCUBIN, p->of, out); }
API int hiprtcGetProgramLogSize(program *p, size_t *n) { return RTC(nvrtcGetProgramLogSize, p->of, n); }
API int hiprtcGetProgramLog(program *p, char *out) { return RTC(nvrtcGetProgramLog, p->of, out); }

/* ---- hipBLASLt: cuBLASLt's calls with other numbers. An algorithm is kept here for good, and the caller has its address. */
#define PRODUCTS(F) \
  F(cublasLtCreate, ptr *) F(cublasLtDestroy, ptr) F(cublasLtMatmulDescCreate, ptr *, int, int) F(cublasLtMatmulDescDestroy, ptr) F(cublasLtMatmulDescSetAttribute, ptr, int, const void *, size_t) \
  F(cublasLtMatrixLayoutCreate, ptr *, int, uint64_t, uint64_t, int64_t) F(cublasLtMatrixLayoutDestroy, ptr) F(cublasLtMatrixLayoutSetAttribute, ptr, int, const void *, size_t) \
  F(cublasLtMatmulPreferenceCreate, ptr *) F(cublasLtMatmulPreferenceDestroy, ptr) F(cublasLtMatmulPreferenceSetAttribute, ptr, int, const void *, size_t) \
  F(cublasLtMatmulAlgoGetHeuristic, ptr, ptr, ptr, ptr, ptr, ptr, ptr, int, ptr, int *) \
  F(cublasLtMatmul, ptr, ptr, const void *, const void *, ptr, const void *, ptr, const void *, const void *, ptr, ptr, ptr, const void *, ptr, size_t, ptr)
static struct { int there; PRODUCTS(FIELD) size_t (*cublasLtGetVersion)(void); } lt;
static pthread_once_t lt_once = PTHREAD_ONCE_INIT;
#define T lt
static void open_lt(void) {
  void *lib = library("cuBLASLt", "cublasLtCreate", (const char *const[]){"libcublasLt.so.12", "libcublasLt.so.13", "libcublasLt.so", NULL});
  lt.there = lib != NULL;
  PRODUCTS(FIND)
  *(void **)&lt.cublasLtGetVersion = lib ? dlsym(lib, "cublasLtGetVersion") : NULL;
}
#undef T
enum { LT_UNKNOWN = 11, LT_INVALID = 3 };
static int lt_said(const char *f, int s) {
  switch (s) {
    case 0: return 0;
    case 1: return 1;   /* NOT_INITIALIZED */
    case 3: return 2;   /* ALLOC_FAILED */
    case 7: return 3;   /* INVALID_VALUE */
    case 8: return 8;   /* ARCH_MISMATCH */
    case 11: return 4;  /* MAPPING_ERROR */
    case 13: return 5;  /* EXECUTION_FAILED */
    case 14: return 6;  /* INTERNAL_ERROR */
    case 15: return 7;  /* NOT_SUPPORTED */
    default: fprintf(stderr, "FORWARDED: %s: cuBLASLt's status %d\n", f, s); return LT_UNKNOWN;
  }
}
#define LT(f, ...) ({ pthread_once(&lt_once, open_lt); int r_ = 1; if (!lt.f) lacks(#f); else if (!enter()) { r_ = lt.f(__VA_ARGS__); leave(); } lt_said(#f, r_); })
API int hipblasLtCreate(ptr *h) { return LT(cublasLtCreate, h); }
API int hipblasLtDestroy(ptr h) { return LT(cublasLtDestroy, h); }
API int hipblasLtGetVersion(ptr h, int *v) { size_t of = h && lt.cublasLtGetVersion ? lt.cublasLtGetVersion() : 0; *v = (int)(of / 10000 * 100000 + of / 100 % 100 * 100 + of % 100); return of ? 0 : 1; }
API int hipblasLtMatmulDescCreate(ptr *d, int compute, int scale) { return compute != 2 ? LT_INVALID : LT(cublasLtMatmulDescCreate, d, 68, scale); }
API int hipblasLtMatmulDescDestroy(ptr d) { return LT(cublasLtMatmulDescDestroy, d); }
API int hipblasLtMatmulDescSetAttribute(ptr d, int a, const void *v, size_t n) {
  static const int as[] = {3, 4, 7, 8, 26}; /* TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, BIAS_DATA_TYPE */
  if (a < 0 || a > 4) { fprintf(stderr, "FORWARDED: not supported: attribute %d of a product\n", a); return LT_INVALID; }
  int op = a < 2 && n == 4 ? *(const int *)v - 111 : 0;
  return op < 0 || op > 2 ? LT_INVALID : LT(cublasLtMatmulDescSetAttribute, d, as[a], a < 2 ? &op : v, n);
}
API int hipblasLtMatrixLayoutCreate(ptr *l, int type, uint64_t rows, uint64_t cols, int64_t ld) { return LT(cublasLtMatrixLayoutCreate, l, type, rows, cols, ld); }
API int hipblasLtMatrixLayoutDestroy(ptr l) { return LT(cublasLtMatrixLayoutDestroy, l); }
API int hipblasLtMatrixLayoutSetAttribute(ptr l, int a, const void *v, size_t n) { return a != 0 && a != 1 ? LT_INVALID : LT(cublasLtMatrixLayoutSetAttribute, l, a + 5, v, n); }
/* cuBLASLt counts on operands at multiples of 256 bytes unless it is told otherwise, and may add partial sums in the output's type. */
API int hipblasLtMatmulPreferenceCreate(ptr *p) {
  int s = LT(cublasLtMatmulPreferenceCreate, p);
  uint32_t align = 16, in_compute_type = 2;
  for (int a = 5; !s && a <= 8; a++) s = LT(cublasLtMatmulPreferenceSetAttribute, *p, a, &align, 4);
  return s ? s : LT(cublasLtMatmulPreferenceSetAttribute, *p, 3, &in_compute_type, 4);
}
API int hipblasLtMatmulPreferenceDestroy(ptr p) { return LT(cublasLtMatmulPreferenceDestroy, p); }
API int hipblasLtMatmulPreferenceSetAttribute(ptr p, int a, const void *v, size_t n) { return a != 1 ? LT_INVALID : LT(cublasLtMatmulPreferenceSetAttribute, p, a, v, n); }
typedef struct found_cuda { uint64_t algo[8]; size_t workspace; int state; float waves; int reserved[4]; } found_cuda;
typedef struct found_hip { found_cuda *kept; uint64_t more; size_t most, workspace; int state; float waves; int reserved[4]; } found_hip;
API int hipblasLtMatmulAlgoGetHeuristic(ptr h, ptr d, ptr a, ptr b, ptr c, ptr o, ptr p, int most, found_hip *out, int *n) {
  found_cuda *f = calloc(1, sizeof *f);
  int s = most != 1 ? LT_INVALID : LT(cublasLtMatmulAlgoGetHeuristic, h, d, a, b, c, o, p, 1, f, n);
  if (s || *n < 1) { free(f); return s; }
  *out = (found_hip){.kept = f, .most = f->workspace, .workspace = f->workspace, .state = lt_said("a heuristic", f->state), .waves = f->waves};
  return 0;
}
API int hipblasLtMatmul(ptr h, ptr d, const void *alpha, const void *a, ptr la, const void *b, ptr lb, const void *beta, const void *c, ptr lc, ptr o, ptr lo, const found_hip *algo, ptr ws, size_t n, ptr s) {
  return LT(cublasLtMatmul, h, d, alpha, a, la, b, lb, beta, c, lc, o, lo, algo->kept->algo, ws, n, s);
}

/* ---- RCCL: NCCL's functions under their own names, with the thread's device current. */
typedef struct uid { char b[128]; } uid;
#define COLLECTIVES(F) \
  F(ncclGetUniqueId, (uid * a), (a)) F(ncclCommInitRankConfig, (ptr * a, int b, uid c, int d, ptr e), (a, b, c, d, e)) F(ncclCommSplit, (ptr a, int b, int c, ptr *d, ptr e), (a, b, c, d, e)) \
  F(ncclCommFinalize, (ptr a), (a)) F(ncclCommDestroy, (ptr a), (a)) F(ncclCommAbort, (ptr a), (a)) F(ncclCommGetAsyncError, (ptr a, int *b), (a, b)) F(ncclGroupStart, (void), ()) F(ncclGroupEnd, (void), ()) \
  F(ncclAllReduce, (ptr a, ptr b, size_t c, int d, int e, ptr f, ptr g), (a, b, c, d, e, f, g)) F(ncclReduceScatter, (ptr a, ptr b, size_t c, int d, int e, ptr f, ptr g), (a, b, c, d, e, f, g)) \
  F(ncclAllGather, (ptr a, ptr b, size_t c, int d, ptr e, ptr f), (a, b, c, d, e, f)) F(ncclBroadcast, (ptr a, ptr b, size_t c, int d, int e, ptr f, ptr g), (a, b, c, d, e, f, g)) \
  F(ncclReduce, (ptr a, ptr b, size_t c, int d, int e, int f, ptr g, ptr h), (a, b, c, d, e, f, g, h)) F(ncclSend, (ptr a, size_t b, int c, int d, ptr e, ptr f), (a, b, c, d, e, f)) \
  F(ncclRecv, (ptr a, size_t b, int c, int d, ptr e, ptr f), (a, b, c, d, e, f)) F(ncclRedOpCreatePreMulSum, (int *a, ptr b, int c, int d, ptr e), (a, b, c, d, e)) F(ncclRedOpDestroy, (int a, ptr b), (a, b)) \
  F(ncclMemAlloc, (ptr * a, size_t b), (a, b)) F(ncclMemFree, (ptr a), (a)) F(ncclCommRegister, (ptr a, ptr b, size_t c, ptr *d), (a, b, c, d)) F(ncclCommDeregister, (ptr a, ptr b), (a, b))
#define CCL_FIELD(name, types, args) int (*name) types;
static struct { int there; COLLECTIVES(CCL_FIELD) int (*ncclGetVersion)(int *); const char *(*ncclGetErrorString)(int), *(*ncclGetLastError)(ptr); } ccl;
static pthread_once_t ccl_once = PTHREAD_ONCE_INIT;
static void open_ccl(void) {
  void *lib = library("NCCL", "ncclGetVersion", (const char *const[]){"libnccl.so.2", "libnccl.so", NULL});
  if (!(ccl.there = lib != NULL)) return;
#define CCL_FIND(name, types, args) *(void **)&ccl.name = dlsym(lib, #name);
  COLLECTIVES(CCL_FIND)
  *(void **)&ccl.ncclGetVersion = dlsym(lib, "ncclGetVersion");
  *(void **)&ccl.ncclGetErrorString = dlsym(lib, "ncclGetErrorString");
  *(void **)&ccl.ncclGetLastError = dlsym(lib, "ncclGetLastError");
}
enum { CCL_UNHANDLED = 1, CCL_INTERNAL = 3, CCL_USAGE = 5 };
#define CCL_FORWARD(name, types, args) \
  API int name types { \
    pthread_once(&ccl_once, open_ccl); \
    if (!ccl.name) { lacks(#name); return CCL_USAGE; } \
    if (enter()) return CCL_UNHANDLED; \
    int s = ccl.name args; \
    leave(); \
    return s; \
  }
COLLECTIVES(CCL_FORWARD)
API int ncclGetVersion(int *v) { *v = 0; pthread_once(&ccl_once, open_ccl); return ccl.ncclGetVersion ? ccl.ncclGetVersion(v) : CCL_INTERNAL; }
API const char *ncclGetErrorString(int s) { return ccl.ncclGetErrorString ? ccl.ncclGetErrorString(s) : "there is no NCCL to forward to"; }
API const char *ncclGetLastError(ptr c) { return ccl.ncclGetLastError ? ccl.ncclGetLastError(c) : ""; }
