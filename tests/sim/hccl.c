/* HCCL over the simulators' collectives (ccl.c), whose numbers are NCCL's: forming a group waits for all ranks, ids are 4,108 bytes by address, and
 * sends and receives come as one batch. What is refused is on the function's page, of training devices of A2 and A3: docs/zh/api_ref of
 * github.com/hicann/hccl for collectives, docs/en/api_ref/comm_mgr_c of github.com/hicann/hcomm for communicators (`PAGES.md`). */
#include "sim.h"

typedef struct comm comm;
typedef struct uid { char b[128]; } uid;
typedef struct config { size_t size; uint32_t magic, version; int blocking; char rest[32]; } config;
typedef struct item { int32_t kind; void *at; uint64_t n; int32_t type; uint32_t peer; } item;
int ncclGetUniqueId(uid *u);
int ncclCommInitRankConfig(comm **out, int n, uid id, int rank, config *cfg);
int ncclCommDestroy(comm *c);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(const void *, void *, size_t, uint32_t, uint32_t, comm *, stream *);
int ncclReduceScatter(const void *, void *, size_t, uint32_t, uint32_t, comm *, stream *);
int ncclAllGather(const void *, void *, size_t, uint32_t, comm *, stream *);
int ncclBroadcast(const void *, void *, size_t, uint32_t, int, comm *, stream *);
int ncclReduce(const void *, void *, size_t, uint32_t, uint32_t, int, comm *, stream *);
int ncclSend(const void *, size_t, uint32_t, int, comm *, stream *);
int ncclRecv(void *, size_t, uint32_t, int, comm *, stream *);
int ccl_formed(comm *c), ccl_rank(comm *c), ccl_ranks(comm *c), ccl_busy(comm *c);

enum { ID = 4108, E_PARA = 1, E_PTR = 2, E_NOT_SUPPORT = 5, E_TIMEOUT = 9, E_AGAIN = 20, E_REMOTE = 21 };
/* NCCL's number of a type. */
static int of(int t) { static const int to[] = {0, -1, 2, 6, 7, 4, 5, 1, -1, 3, 8, 9}; return t >= 0 && t < 12 ? to[t] : -1; }
static int told(int r) { return r == 0 || r == 7 ? 0 : r == 6 ? E_REMOTE : r == 4 ? E_PARA : 4; }

API const char *HcclGetErrorString(int r) { return r == E_PARA ? "parameter error (simulated)" : r == E_TIMEOUT ? "timeout (simulated)" : r == E_REMOTE ? "remote process exited (simulated)" : "simulated"; }
API int HcclSetConfig(int config, int v) { return config || v != 1 ? E_PARA : 0; }
API int HcclGetRootInfo(char *id) {
  uid u;
  int r = ncclGetUniqueId(&u);
  memcpy(id, u.b, sizeof u.b);
  for (int i = 128; i < ID; i++) id[i] = (char)(i * 31 + u.b[i % 8]);
  return told(r);
}
/* Threads may call it at the same time for other devices, not for one (HcclCommInitRootInfo.md). */
static int joining[DEVICES];
static int joined(uint32_t n, const char *id, uint32_t rank, comm **out) {
  if (!n || rank >= n) return E_PARA;
  for (int i = 128; i < ID; i++) if (id[i] != (char)(i * 31 + id[i % 8])) { fprintf(stderr, "SIMULATED HCCL: an id whose byte %d was lost\n", i); return E_PARA; }
  uid u;
  memcpy(u.b, id, sizeof u.b);
  config c = {.size = 48, .magic = 0xcafebeef};
  comm *made = NULL;
  int r = ncclCommInitRankConfig(&made, (int)n, u, (int)rank, &c);
  if (r != 7 || !made) return told(r == 7 ? 4 : r);
  const char *limit = getenv("HCCL_CONNECT_TIMEOUT");
  long left = (limit ? atol(limit) : 120) * 1000;
  while ((r = ccl_formed(made)) == 7 && left-- > 0) { struct timespec t = {0, 1000000}; nanosleep(&t, NULL); }
  if (r) { ncclCommDestroy(made); return r == 7 ? E_TIMEOUT : E_REMOTE; }
  *out = made;
  return 0;
}
API int HcclCommInitRootInfo(uint32_t n, const char *id, uint32_t rank, comm **out) {
  device *here = sim_here();
  if (!id || !out) return E_PTR;
  if (!here) return 15;
  int alone = !__atomic_exchange_n(&joining[here->index], 1, __ATOMIC_SEQ_CST);
  if (!alone) { fprintf(stderr, "SIMULATED HCCL: two threads form groups of device %d at the same time\n", here->index); return E_PARA; }
  int r = joined(n, id, rank, out);
  __atomic_store_n(&joining[here->index], 0, __ATOMIC_SEQ_CST);
  return r;
}
/* One that is at work is to be asked again; one that waits for peers who do not come lets go (HcclCommDestroy.md). */
API int HcclCommDestroy(comm *c) { return !c ? E_PTR : ccl_busy(c) ? E_AGAIN : told(ncclCommDestroy(c)); }
/* Of a group that has formed (HcclGetCommAsyncError.md). */
API int HcclGetCommAsyncError(comm *c, int *r) { int f = ccl_formed(c); *r = told(f); return f == 7 ? E_PARA : 0; }
/* HcclAllReduce.md, HcclReduceScatter.md, HcclReduce.md: i8, i16, i32, i64, f16, f32, bf16; the product not of i16 and bf16; both addresses multiples
 * of the elements' bytes, and memory of the device. */
static int memory(const void *p, uint64_t n, int t) {
  static const uint8_t bytes[] = {1, 2, 4, 2, 4, 8, 8, 1, 2, 4, 8, 2};
  return core_kind((addr)p, n * bytes[t]) == 'd' && (addr)p % bytes[t] == 0;
}
static int sums(int t, int op) { return t < 0 || t > 11 || !(1 << t & (1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 11)) || of(t) < 0 || op < 0 || op > 3 || (op == 1 && (t == 1 || t == 11)); }
#define ONE(x) ncclGroupStart(); int r = (x); ncclGroupEnd(); return told(r)
#define SUMS(in, out) if (sums(t, op) || !n) return E_NOT_SUPPORT; if (!memory(a, in, t) || ((out) && !memory(b, out, t))) return E_PARA
API int HcclAllReduce(void *a, void *b, uint64_t n, int t, int op, comm *c, stream *s) { SUMS(n, n); ONE(ncclAllReduce(a, b, n, of(t), op, c, s)); }
API int HcclReduceScatter(void *a, void *b, uint64_t n, int t, int op, comm *c, stream *s) { SUMS(n * (uint64_t)ccl_ranks(c), n); ONE(ncclReduceScatter(a, b, n, of(t), op, c, s)); }
API int HcclAllGather(void *a, void *b, uint64_t n, int t, comm *c, stream *s) { if (of(t) < 0 || !n || !memory(a, n, t) || !memory(b, n * (uint64_t)ccl_ranks(c), t)) return E_PARA; ONE(ncclAllGather(a, b, n, of(t), c, s)); }
API int HcclBroadcast(void *a, uint64_t n, int t, uint32_t root, comm *c, stream *s) { if (of(t) < 0 || !n || root >= (uint32_t)ccl_ranks(c) || !memory(a, n, t)) return E_PARA; ONE(ncclBroadcast(a, a, n, of(t), (int)root, c, s)); }
API int HcclReduce(void *a, void *b, uint64_t n, int t, int op, uint32_t root, comm *c, stream *s) { if (root >= (uint32_t)ccl_ranks(c)) return E_PARA; SUMS(n, root == (uint32_t)ccl_rank(c) ? n : 0); ONE(ncclReduce(a, b, n, of(t), op, (int)root, c, s)); }
/* HcclBatchSendRecv.md: a peer and direction once. */
API int HcclBatchSendRecv(item *x, uint32_t n, comm *c, stream *s) {
  if (!x || !n) return E_PARA;
  for (uint32_t i = 0; i < n; i++) {
    if (of(x[i].type) < 0 || !x[i].n || x[i].kind < 0 || x[i].kind > 1 || (int)x[i].peer == ccl_rank(c) || x[i].peer >= (uint32_t)ccl_ranks(c) || !memory(x[i].at, x[i].n, x[i].type)) return E_PARA;
    for (uint32_t k = 0; k < i; k++) if (x[k].kind == x[i].kind && x[k].peer == x[i].peer) { fprintf(stderr, "SIMULATED HCCL: a batch %s rank %u twice\n", x[i].kind ? "receives from" : "sends to", x[i].peer); return E_PARA; }
  }
  ncclGroupStart();
  int r = 7;
  for (uint32_t i = 0; i < n && r == 7; i++) r = x[i].kind ? ncclRecv(x[i].at, x[i].n, of(x[i].type), (int)x[i].peer, c, s) : ncclSend(x[i].at, x[i].n, of(x[i].type), (int)x[i].peer, c, s);
  ncclGroupEnd();
  return told(r);
}
