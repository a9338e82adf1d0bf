/* Bugs of back ends: a library between a back end (ROCm's, or with `acl_` Ascend's) and the simulator, with one call that reaches the simulator otherwise than it should, as
 * if the back end had made it so. `tests/sim/build hip OUT BUG` makes one, `tests/sim/build acl OUT BUG` too; every other call goes through. `tests/tests/simulated.rs` holds each to
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

#elif defined(acl_missing_synchronisation) /* whoever asks a stream whether it is done is told yes */
API int aclrtStreamQuery(stream *s, int *v) { (void)s; *v = 0; return 0; }
API int aclrtSynchronizeStream(stream *s) { (void)s; return 0; }

#elif defined(acl_missing_event) /* a stream does not wait for the event of another */
API int aclrtStreamWaitEvent(stream *s, void *e) { (void)s; (void)e; return 0; }

#elif defined(acl_host_access) /* the host copies by itself, memory of the device too */
API int aclrtMemcpyAsync(void *d, size_t room, const void *s, size_t n, int kind, stream *q) { (void)room; (void)kind; (void)q; memmove(d, s, n); return 0; }

#elif defined(acl_wrong_room) /* more room is claimed at the destination than there is */
API int aclrtMemcpyAsync(void *d, size_t room, const void *s, size_t n, int kind, stream *q) {
  REAL(int, aclrtMemcpyAsync, void *, size_t, const void *, size_t, int, stream *);
  return real(d, room + 64, s, n, kind, q);
}

#elif defined(acl_wrong_direction) /* host to device and device to host are mistaken for one another */
API int aclrtMemcpyAsync(void *d, size_t room, const void *s, size_t n, int kind, stream *q) {
  REAL(int, aclrtMemcpyAsync, void *, size_t, const void *, size_t, int, stream *);
  return real(d, room, s, n, kind == 1 ? 2 : kind == 2 ? 1 : kind, q);
}

#elif defined(acl_use_after_free) /* a copy within the device goes by way of memory that is freed when the calls have returned */
API int aclrtMemcpyAsync(void *d, size_t room, const void *s, size_t n, int kind, stream *q) {
  REAL(int, aclrtMemcpyAsync, void *, size_t, const void *, size_t, int, stream *);
  int (*take)(void **, size_t, int) = (int (*)(void **, size_t, int))dlsym(RTLD_NEXT, "aclrtMalloc"), (*give)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "aclrtFree");
  void *way = NULL;
  if (kind != 3 || take(&way, n, 0)) return real(d, room, s, n, kind, q);
  int r = real(way, n, s, n, 3, q);
  if (!r) r = real(d, room, way, n, 3, q);
  give(way);
  return r;
}

#elif defined(acl_executor_twice) /* an executor is taken for a repeatable one that is none */
API int aclSetAclOpExecutorRepeatable(void *e) { (void)e; return 0; }

#elif defined(acl_ignored_workspace) /* a product is given no workspace */
API int aclnnMul(void *w, uint64_t n, void *e, stream *s) {
  REAL(int, aclnnMul, void *, uint64_t, void *, stream *);
  (void)w; (void)n;
  return real(NULL, 0, e, s);
}

#elif defined(acl_freed_workspace) /* a workspace is freed when the call has returned, and not when the stream has passed it */
API int aclnnInplaceCopy(void *w, uint64_t n, void *e, stream *s) {
  REAL(int, aclnnInplaceCopy, void *, uint64_t, void *, stream *);
  int (*take)(void **, size_t, int) = (int (*)(void **, size_t, int))dlsym(RTLD_NEXT, "aclrtMalloc"), (*give)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "aclrtFree");
  void *way = NULL;
  (void)w;
  if (take(&way, n, 0)) return 1;
  int r = real(way, n, e, s);
  give(way);
  return r;
}

#elif defined(acl_unstable_sort) /* equals come in any order */
API int aclnnSortGetWorkspaceSize(void *a, uint8_t stable, int64_t dim, uint8_t down, void *v, void *x, uint64_t *room, void **e) {
  REAL(int, aclnnSortGetWorkspaceSize, void *, uint8_t, int64_t, uint8_t, void *, void *, uint64_t *, void **);
  (void)stable;
  return real(a, 0, dim, down, v, x, room, e);
}

#elif defined(acl_lost_eps) /* a number is passed where another register holds it */
API int aclnnRmsNormGetWorkspaceSize(void *x, void *g, double eps, void *y, void *r, uint64_t *room, void **e) {
  REAL(int, aclnnRmsNormGetWorkspaceSize, void *, void *, double, void *, void *, uint64_t *, void **);
  return real(x, g, eps * 0, y, r, room, e);
}

#elif defined(acl_other_gelu) /* the gradient is that of the other form */
API int aclnnGeluBackwardV2GetWorkspaceSize(void *dy, void *x, const char *form, void *dx, uint64_t *room, void **e) {
  REAL(int, aclnnGeluBackwardV2GetWorkspaceSize, void *, void *, const char *, void *, uint64_t *, void **);
  return real(dy, x, *form == 't' ? "none" : "tanh", dx, room, e);
}

#elif defined(acl_causal_from_the_first_key) /* the first query sees the first key, not the last the last (`leftUpCausal`) */
API int aclnnFlashAttentionScoreGetWorkspaceSize(void *q, void *k, void *v, void *shift, void *drop, void *padding, void *mask, void *prefix, double scale, double keep, int64_t before,
                                                 int64_t behind, int64_t heads, const char *layout, int64_t precise, int64_t sparse, void *max, void *sum, void *soft, void *o, uint64_t *room, void **e) {
  REAL(int, aclnnFlashAttentionScoreGetWorkspaceSize, void *, void *, void *, void *, void *, void *, void *, void *, double, double, int64_t, int64_t, int64_t, const char *, int64_t, int64_t, void *,
       void *, void *, void *, uint64_t *, void **);
  return real(q, k, v, shift, drop, padding, mask, prefix, scale, keep, before, behind, heads, layout, precise, sparse == 3 ? 2 : sparse, max, sum, soft, o, room, e);
}

#elif defined(acl_wrong_enum) /* numbers of types: a half of one kind is described as the other */
API void *aclCreateTensor(const int64_t *dims, uint64_t n, int type, const int64_t *strides, int64_t offset, int format, const int64_t *storage, uint64_t ns, void *data) {
  REAL(void *, aclCreateTensor, const int64_t *, uint64_t, int, const int64_t *, int64_t, int, const int64_t *, uint64_t, void *);
  return real(dims, n, type == 1 ? 27 : type == 27 ? 1 : type, strides, offset, format, storage, ns, data);
}

#elif defined(acl_short_id) /* of an id only as much is carried as NCCL's have */
API int HcclCommInitRootInfo(uint32_t n, const char *id, uint32_t rank, comm **out) {
  REAL(int, HcclCommInitRootInfo, uint32_t, const char *, uint32_t, comm **);
  char part[4108] = {0};
  memcpy(part, id, 128);
  return real(n, part, rank, out);
}

#elif defined(acl_mismatched_collective) /* one rank leaves out the last element */
static comm *last[16];
API int HcclCommInitRootInfo(uint32_t n, const char *id, uint32_t rank, comm **out) {
  REAL(int, HcclCommInitRootInfo, uint32_t, const char *, uint32_t, comm **);
  int r = real(n, id, rank, out);
  if (rank == n - 1 && n > 1) for (int i = 0; i < 16; i++) if (!last[i]) { last[i] = *out; break; }
  return r;
}
API int HcclAllReduce(void *a, void *b, uint64_t n, int t, int op, comm *c, stream *s) {
  REAL(int, HcclAllReduce, void *, void *, uint64_t, int, int, comm *, stream *);
  int short_of_one = 0;
  for (int i = 0; i < 16; i++) short_of_one |= last[i] && last[i] == c;
  return real(a, b, short_of_one && n > 1 ? n - 1 : n, t, op, c, s);
}

#else
#error "no such bug"
#endif
