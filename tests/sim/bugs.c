/* Bugs of back ends: a library between the ROCm back end and the simulator, with one call that reaches the simulator otherwise than it should, as
 * if the back end had made it so. `tests/sim/build hip OUT BUG` makes one; every other call goes through. `tests/tests/simulated.rs` holds each to
 * the case of the kit that names it, where the simulator is at its worst (CW_SIM: lazy, late). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
typedef struct stream stream;
typedef struct comm comm;
typedef struct uid { char b[128]; } uid;
/* The simulator's function of this name. */
#define REAL(result, name, ...) result (*real)(__VA_ARGS__) = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#if defined(missing_synchronisation) /* whoever asks a stream whether it is done is told yes */
API int hipStreamQuery(stream *s) { (void)s; return 0; }

#elif defined(missing_event) /* a stream does not wait for the event of another */
API int hipStreamWaitEvent(stream *s, void *e, unsigned f) { (void)s; (void)e; (void)f; return 0; }

#elif defined(host_access) /* the host copies by itself, memory of the device too */
API int hipMemcpyAsync(void *d, const void *s, size_t n, int kind, stream *q) { (void)kind; (void)q; memmove(d, s, n); return 0; }

#elif defined(out_of_bounds) /* whole lines of a cache are copied */
API int hipMemcpyAsync(void *d, const void *s, size_t n, int kind, stream *q) {
  REAL(int, hipMemcpyAsync, void *, const void *, size_t, int, stream *);
  return real(d, s, n ? (n + 63) / 64 * 64 : 0, kind, q);
}

#elif defined(fill_out_of_bounds) /* whole lines are filled */
API int hipMemsetD8Async(void *d, unsigned char v, size_t n, stream *q) {
  REAL(int, hipMemsetD8Async, void *, unsigned char, size_t, stream *);
  return real(d, v, n ? (n + 15) / 16 * 16 : 0, q);
}

#elif defined(use_after_free) /* a copy goes by way of memory that is freed when the calls have returned, and not when the stream has passed them */
API int hipMemcpyAsync(void *d, const void *s, size_t n, int kind, stream *q) {
  REAL(int, hipMemcpyAsync, void *, const void *, size_t, int, stream *);
  int (*take)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_NEXT, "hipMalloc"), (*give)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "hipFree");
  void *way = NULL;
  if (!n || take(&way, n)) return real(d, s, n, kind, q);
  int r = real(way, s, n, 4, q);
  if (!r) r = real(d, way, n, 4, q);
  give(way);
  return r;
}

#elif defined(shared_scratch) /* copies of all streams go by way of the same memory */
API int hipMemcpyAsync(void *d, const void *s, size_t n, int kind, stream *q) {
  REAL(int, hipMemcpyAsync, void *, const void *, size_t, int, stream *);
  int (*take)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_NEXT, "hipMalloc");
  static void *way;
  if (!way && take(&way, 1 << 22)) return real(d, s, n, kind, q);
  if (!n || n > 1 << 22) return real(d, s, n, kind, q);
  int r = real(way, s, n, 4, q);
  return r ? r : real(d, way, n, 4, q);
}

#elif defined(wrong_direction) /* hipMemcpyDeviceToDevice in place of hipMemcpyDefault */
API int hipMemcpyAsync(void *d, const void *s, size_t n, int kind, stream *q) {
  REAL(int, hipMemcpyAsync, void *, const void *, size_t, int, stream *);
  return real(d, s, n, kind - 1, q);
}

#elif defined(wrong_enum) /* RCCL's numbers of types, one off: f32 is f64 */
API int ncclAllReduce(const void *a, void *b, size_t n, uint32_t t, uint32_t op, comm *c, stream *s) {
  REAL(int, ncclAllReduce, const void *, void *, size_t, uint32_t, uint32_t, comm *, stream *);
  return real(a, b, n, t + 1, op, c, s);
}

#elif defined(mismatched_collective) /* one rank leaves out the last element */
static comm *last[16];
API int ncclCommInitRankConfig(comm **out, int n, uid id, int rank, void *cfg) {
  REAL(int, ncclCommInitRankConfig, comm **, int, uid, int, void *);
  int r = real(out, n, id, rank, cfg);
  if (rank == n - 1 && n > 1) for (int i = 0; i < 16; i++) if (!last[i]) { last[i] = *out; break; }
  return r;
}
API int ncclAllReduce(const void *a, void *b, size_t n, uint32_t t, uint32_t op, comm *c, stream *s) {
  REAL(int, ncclAllReduce, const void *, void *, size_t, uint32_t, uint32_t, comm *, stream *);
  int short_of_one = 0;
  for (int i = 0; i < 16; i++) short_of_one |= last[i] && last[i] == c;
  return real(a, b, short_of_one && n ? n - 1 : n, t, op, c, s);
}

#elif defined(wave_of_32) /* sums over a wave begin at lane 16, as if it had 32 */
API int hiprtcCreateProgram(void **p, const char *source, const char *name, int n, const char **h, const char **i) {
  REAL(int, hiprtcCreateProgram, void **, const char *, const char *, int, const char **, const char **);
  static const char from[] = "= CW_WARP / 2", to[] = "=      32 / 2";
  char *text = strdup(source);
  for (char *at = text; (at = strstr(at, from)); at++) memcpy(at, to, sizeof to - 1);
  int r = real(p, text, name, n, h, i);
  free(text);
  return r;
}

#else
#error "no such bug"
#endif
