/* Collectives of ranks that are threads of this process, and of those only what the core cannot do without: all-reduce of f32 sums, all-gather
 * and broadcast of bytes, groups of sends and receives. It composes everything else of these.
 *
 * Each is a handful of messages: a rank posts the address of what it sends, the receiver copies or adds it, and the sender's stream goes on when
 * that is done. With a fabric, `post`, `take` and `leave` become its transfers, and ids reach other processes by the host's kv_set and kv_get. */
#define _POSIX_C_SOURCE 200809L
#include "plugin.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST 4096 /* ranks */
#define ROOT(d) ((d)->kind == CW_COLL_BROADCAST ? (d)->root : (d)->peer)

enum { POSTED, TAKEN, DONE };
struct message {
  int from, to, kind, state; /* messages of a pair and a kind are taken in the order in which they were posted */
  const char *at;
  uint64_t bytes;
  struct message *next;
};
struct group {
  uint64_t id[2];
  int n, here, members; /* ranks that have joined, and those that are still members */
  bool joined[MOST];
  cw_status failed; /* the first failure of any rank, for ever; `culprit` caused it */
  int culprit;
  char why[160];
  struct message *posted;
  struct group *next;
};
struct cw_comm_impl {
  struct group *group;
  int rank;
  unsigned refs;            /* the host's, and one for each launch under way */
  uint64_t ready_by;        /* when all must have joined */
  int64_t timeout_ns;
  uint64_t enqueued, passed; /* launches run in the order in which they were made, also those on several streams */
};
struct launch {
  cw_comm comm;
  cw_stream stream;
  uint64_t number, until; /* its place among the communicator's launches; when it gives up */
  uint32_t n, messages;
  cw_coll_desc *all;
  struct message *sent;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all that follows, groups and their messages */
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;  /* something was posted, taken or passed, or a group has failed */
static struct group *groups;

/* ------------------------------------------------------------------ failures and waiting, with the lock held */
static void give_up(struct group *g, cw_status status, int culprit, const char *format, ...) {
  if (g->failed) return;
  va_list args;
  va_start(args, format);
  vsnprintf(g->why, sizeof g->why, format, args);
  va_end(args);
  g->culprit = culprit, g->failed = status;
  pthread_cond_broadcast(&moved);
}
/* A moment, for `peer`; false when there is nothing left to wait for. */
static bool wait_for(struct launch *l, int peer) {
  struct group *g = l->comm->group;
  uint64_t now = now_ns(), wake = now + 20000000;
  if (g->failed) return false;
  if (now >= l->until) give_up(g, CW_E_TIMEOUT, peer, "rank %d has waited %lld ms for rank %d", l->comm->rank, (long long)(l->comm->timeout_ns / 1000000), peer);
  if (given_up(l->stream)) give_up(g, CW_E_ABORTED, l->comm->rank, "the stream of rank %d was destroyed", l->comm->rank);
  if (g->failed) return false;
  struct timespec t = {(time_t)(wake / 1000000000), (long)(wake % 1000000000)};
  pthread_cond_timedwait(&moved, &lock, &t);
  return true;
}
/* The failure of a communicator, into the caller's record: the communicator is dead, and a rank that is to blame is named. */
static cw_status failure(cw_comm c, const char *where, cw_error *err) {
  struct group *g = c->group;
  pthread_mutex_lock(&lock);
  cw_status status = g->failed;
  int culprit = g->culprit;
  pthread_mutex_unlock(&lock);
  if (!status) return CW_OK;
  fail(err, status, where, "%s", g->why); /* written once, before `failed` */
  if (err && err->size >= offsetof(cw_error, where_)) err->flags = CW_ERRF_STICKY, err->peer_rank = culprit == c->rank ? -1 : culprit;
  return status;
}
static void drop(cw_comm c) { /* one reference less */
  pthread_mutex_lock(&lock);
  bool last = --c->refs == 0;
  if (last && --c->group->members == 0)
    for (struct group **g = &groups; *g; g = &(*g)->next)
      if (*g == c->group) {
        *g = c->group->next;
        free(c->group);
        break;
      }
  pthread_mutex_unlock(&lock);
  if (last) free(c);
}

/* ------------------------------------------------------------------ messages */
static void post(struct launch *l, int to, int kind, const char *at, uint64_t bytes) {
  struct group *g = l->comm->group;
  struct message *m = &l->sent[l->messages++], **end = &g->posted;
  *m = (struct message){l->comm->rank, to, kind, POSTED, at, bytes, NULL};
  while (*end) end = &(*end)->next;
  *end = m;
}
static struct message **find(struct group *g, int from, int to, int kind) {
  struct message **m = &g->posted;
  while (*m && ((*m)->from != from || (*m)->to != to || (*m)->kind != kind)) m = &(*m)->next;
  return m;
}
/* What `from` has posted for this rank, copied or, with `add`, added as f32. */
static bool take(struct launch *l, int from, int kind, char *into, uint64_t bytes, bool add) {
  struct group *g = l->comm->group;
  struct message **at;
  while (!*(at = find(g, from, l->comm->rank, kind)))
    if (!wait_for(l, from)) return false;
  struct message *m = *at;
  if (m->bytes != bytes) return give_up(g, CW_E_COMM, from, "rank %d sends %llu bytes, rank %d takes %llu", from, (unsigned long long)m->bytes, l->comm->rank, (unsigned long long)bytes), false;
  *at = m->next, m->state = TAKEN;
  pthread_mutex_unlock(&lock);
  for (uint64_t i = 0; add && i < bytes; i += 4) {
    float x, y;
    memcpy(&x, into + i, 4), memcpy(&y, m->at + i, 4);
    x += y;
    memcpy(into + i, &x, 4);
  }
  if (!add && bytes) memmove(into, m->at, bytes);
  pthread_mutex_lock(&lock);
  m->state = DONE;
  pthread_cond_broadcast(&moved);
  return true;
}
/* Until everything sent is with its receivers. A message that nobody will take any more is taken back; one being taken is waited for. */
static void leave(struct launch *l) {
  for (uint32_t i = 0; i < l->messages; i++) {
    struct message *m = &l->sent[i];
    while (m->state == TAKEN || (m->state == POSTED && wait_for(l, m->to)))
      if (m->state == TAKEN) pthread_cond_wait(&moved, &lock);
    if (m->state != POSTED) continue;
    struct message **at = &l->comm->group->posted;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
  }
}

/* ------------------------------------------------------------------ the collectives: all sends first, so that no member of a group waits for a later one */
static void send_parts(struct launch *l, const cw_coll_desc *d) {
  int me = l->comm->rank;
  if (d->kind == CW_COLL_SEND) post(l, d->peer, d->kind, address(d->send), d->count);
  if (d->kind == CW_COLL_SEND || d->kind == CW_COLL_RECV || (d->kind == CW_COLL_BROADCAST && d->root != me)) return;
  for (int r = 0; r < l->comm->group->n; r++)
    if (r != me) post(l, r, d->kind, address(d->send), d->count * (d->kind == CW_COLL_ALL_REDUCE ? 4 : 1));
}
static bool take_parts(struct launch *l, const cw_coll_desc *d, char *sum) {
  int me = l->comm->rank, n = l->comm->group->n;
  char *from = address(d->send), *into = address(d->recv);
  switch (d->kind) {
    case CW_COLL_RECV: return take(l, d->peer, CW_COLL_SEND, into, d->count, false);
    case CW_COLL_BROADCAST:
      if (d->root != me) return take(l, d->root, d->kind, into, d->count, false);
      if (d->count) memmove(into, from, d->count);
      return true;
    case CW_COLL_ALL_GATHER:
      for (int r = 0; r < n; r++) {
        if (r == me && d->count) memmove(into + (uint64_t)r * d->count, from, d->count);
        if (r != me && !take(l, r, d->kind, into + (uint64_t)r * d->count, d->count, false)) return false;
      }
      return true;
    case CW_COLL_ALL_REDUCE: /* in the order of ranks, so that all get the same bits; beside the operands, which others still read */
      for (int r = 0; r < n; r++) {
        for (uint64_t i = 0; r == me && i < d->count; i++) {
          float x = 0, y;
          if (r) memcpy(&x, sum + 4 * i, 4);
          memcpy(&y, from + 4 * i, 4);
          y = r ? x + y : y;
          memcpy(sum + 4 * i, &y, 4);
        }
        if (r != me && !take(l, r, d->kind, sum, d->count * 4, r > 0)) return false;
      }
      return true;
  }
  return true; /* a send */
}
static cw_status run_launch(struct command *c, cw_status status) {
  struct launch *l = c->arg;
  struct group *g = l->comm->group;
  char **sums = calloc(l->n + 1, sizeof *sums);
  bool room = sums != NULL;
  for (uint32_t i = 0; room && i < l->n; i++)
    if (l->all[i].kind == CW_COLL_ALL_REDUCE && l->all[i].count) room = (sums[i] = malloc(l->all[i].count * 4)) != NULL;
  pthread_mutex_lock(&lock);
  l->until = l->comm->timeout_ns > 0 ? now_ns() + (uint64_t)l->comm->timeout_ns : UINT64_MAX;
  if (status) give_up(g, CW_E_COMM, l->comm->rank, "the stream of rank %d has failed before its collective", l->comm->rank);
  if (!room) give_up(g, CW_E_OOM, l->comm->rank, "rank %d has no host memory for a sum", l->comm->rank);
  while (l->comm->passed < l->number && wait_for(l, l->comm->rank)) {}
  for (uint32_t i = 0; !g->failed && i < l->n; i++) send_parts(l, &l->all[i]);
  pthread_cond_broadcast(&moved);
  bool well = !g->failed;
  for (uint32_t i = 0; well && i < l->n; i++) well = take_parts(l, &l->all[i], sums[i]);
  leave(l);
  if (l->comm->passed == l->number) l->comm->passed++;
  pthread_cond_broadcast(&moved);
  if (!status) status = g->failed == CW_E_TIMEOUT ? CW_E_COMM : g->failed; /* TIMEOUT of a stream would be that of who waits for it */
  pthread_mutex_unlock(&lock);
  for (uint32_t i = 0; room && i < l->n; i++)
    if (!status && sums[i]) memcpy(address(l->all[i].recv), sums[i], l->all[i].count * 4);
  for (uint32_t i = 0; sums && i < l->n; i++) free(sums[i]);
  drop(l->comm);
  free(sums), free(l->all), free(l->sent), free(l);
  return status;
}

/* ------------------------------------------------------------------ checks */
/* Without operands: what query and launch agree on. */
static cw_status claimed(const cw_coll_desc *d, cw_error *err) {
  bool moves = d->kind == CW_COLL_ALL_GATHER || d->kind == CW_COLL_BROADCAST || d->kind == CW_COLL_SEND || d->kind == CW_COLL_RECV;
  bool sums = d->kind == CW_COLL_ALL_REDUCE && d->dtype == CW_DT_F32 && d->reduce == CW_RED_SUM;
  NEED(sums || (moves && d->dtype == CW_DT_U8), CW_E_UNSUPPORTED, "collective %u of dtype %#x, reduction %u", d->kind, d->dtype, d->reduce);
  NEED(!d->flags && !d->reserved, CW_E_UNSUPPORTED, "collective flags %#x", d->flags);
  return CW_OK;
}
/* Operands too; a span that is absent and must be the other one becomes it. */
static cw_status checked(cw_comm c, cw_coll_desc *d, cw_error *err) {
  TRY(claimed(d, err));
  uint64_t n = (uint64_t)c->group->n, unit = d->kind == CW_COLL_ALL_REDUCE ? 4 : 1;
  bool named = d->kind != CW_COLL_ALL_REDUCE && d->kind != CW_COLL_ALL_GATHER;
  NEED(!named || (ROOT(d) >= 0 && ROOT(d) < c->group->n), CW_E_INVALID, "rank %d of %d", ROOT(d), c->group->n);
  NEED(d->count <= UINT64_MAX / 4 / n, CW_E_INVALID, "%llu elements are beyond any memory", (unsigned long long)d->count);
  if (d->kind == CW_COLL_ALL_REDUCE || d->kind == CW_COLL_BROADCAST) {
    if (!d->send.mem) d->send = d->recv;
    if (!d->recv.mem) d->recv = d->send;
  }
  bool gives = d->kind != CW_COLL_RECV && (d->kind != CW_COLL_BROADCAST || d->root == c->rank), takes = d->kind != CW_COLL_SEND;
  uint64_t in = gives ? d->count * unit : 0, out = takes ? d->count * unit * (d->kind == CW_COLL_ALL_GATHER ? n : 1) : 0;
  NEED(!in || (address(d->send) && d->send.bytes >= in), CW_E_INVALID, "send needs %llu bytes", (unsigned long long)in);
  NEED(!out || (address(d->recv) && d->recv.bytes >= out), CW_E_INVALID, "recv needs %llu bytes", (unsigned long long)out);
  return CW_OK;
}

/* ------------------------------------------------------------------ the table */
static cw_status unique_id(cw_device dev, void *out, uint64_t cap, uint64_t *len, cw_error *err) {
  static uint64_t ids;
  NEED(dev && len, CW_E_INVALID, "the device or the pointer for the length is NULL");
  *len = sizeof groups->id;
  if (!cap) return CW_OK;
  NEED(out && cap >= *len, CW_E_INVALID, "an id has %llu bytes", (unsigned long long)*len);
  pthread_mutex_lock(&lock);
  uint64_t id[2] = {(uint64_t)getpid(), ++ids};
  pthread_mutex_unlock(&lock);
  memcpy(out, id, sizeof id);
  return CW_OK;
}
static cw_status comm_init(cw_device dev, const void *id, uint64_t len, const cw_comm_config *config, cw_comm *out, cw_error *err) {
  cw_comm_config x;
  uint64_t key[2];
  NEED(dev && out && id && len == sizeof key, CW_E_INVALID, "the device or the pointer for the communicator is NULL, or the id is none of this plugin");
  TRY(read_struct(&x, sizeof x, config, UINT64_MAX, err));
  NEED(x.nranks >= 1 && x.nranks <= MOST && x.rank >= 0 && x.rank < x.nranks, CW_E_INVALID, "rank %d of %d, at most %d", x.rank, x.nranks, MOST);
  NEED(!x.flags, CW_E_UNSUPPORTED, "communicator flags %#x", x.flags);
  TRY(fault(__func__, err));
  memcpy(key, id, sizeof key);
  NEED(key[0] == (uint64_t)getpid(), CW_E_UNSUPPORTED, "the id is another process's: ranks are threads of one");
  cw_comm c = calloc(1, sizeof *c);
  struct group *fresh = calloc(1, sizeof *fresh), *g;
  if (!c || !fresh) return free(c), free(fresh), fail(err, CW_E_OOM, __func__, "no host memory for a communicator");
  pthread_mutex_lock(&lock);
  for (g = groups; g && memcmp(g->id, key, sizeof key);) g = g->next;
  if (!g) {
    g = fresh, fresh = NULL;
    memcpy(g->id, key, sizeof key);
    g->n = x.nranks, g->next = groups, groups = g;
  }
  bool fits = g->n == x.nranks && !g->joined[x.rank];
  if (fits) g->joined[x.rank] = true, g->here++, g->members++;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&lock);
  free(fresh);
  if (!fits) return free(c), fail(err, CW_E_INVALID, __func__, "rank %d of %d: it has joined already, or others say another number", x.rank, x.nranks);
  c->group = g, c->rank = x.rank, c->refs = 1, c->timeout_ns = x.timeout_ns;
  c->ready_by = x.timeout_ns > 0 ? now_ns() + (uint64_t)x.timeout_ns : UINT64_MAX;
  *out = c;
  return CW_OK;
}
static cw_status comm_query(cw_comm c, const cw_coll_desc *desc, cw_coll_support *out, cw_error *err) {
  cw_coll_desc d;
  cw_coll_support s = {.latency_ns = 20000};
  NEED(c && out, CW_E_INVALID, "the communicator or the pointer to fill is NULL");
  TRY(read_struct(&d, sizeof d, desc, UINT64_MAX, err));
  TRY(claimed(&d, err));
  return write_struct(out, &s, sizeof s, err);
}
static cw_status comm_async_error(cw_comm c, cw_error *err) {
  NEED(c, CW_E_INVALID, "the communicator is NULL");
  struct group *g = c->group;
  pthread_mutex_lock(&lock);
  bool ready = g->here == g->n;
  int missing = 0;
  while (missing < g->n - 1 && g->joined[missing]) missing++;
  if (!ready && now_ns() >= c->ready_by) give_up(g, CW_E_TIMEOUT, missing, "rank %d has not joined", missing);
  pthread_mutex_unlock(&lock);
  TRY(failure(c, __func__, err));
  return ready ? CW_OK : CW_NOT_READY;
}
static cw_status comm_abort(cw_comm c, cw_error *err) {
  NEED(c, CW_E_INVALID, "the communicator is NULL");
  pthread_mutex_lock(&lock);
  give_up(c->group, CW_E_ABORTED, c->rank, "rank %d has aborted the communicator", c->rank);
  pthread_mutex_unlock(&lock);
  return CW_OK;
}
static void comm_destroy(cw_comm c) {
  if (c) drop(c);
}
static cw_status launch(cw_comm c, cw_stream s, const cw_coll_desc *descs, uint32_t n, cw_error *err) {
  NEED(c && s && (descs || !n), CW_E_INVALID, "the communicator, the stream or the array of collectives is NULL");
  TRY(failure(c, __func__, err));
  if (!n) return CW_OK;
  struct launch *l = calloc(1, sizeof *l);
  cw_coll_desc *all = calloc(n, sizeof *all);
  struct message *sent = calloc((size_t)n * (size_t)c->group->n, sizeof *sent);
  cw_status status = l && all && sent ? CW_OK : fail(err, CW_E_OOM, __func__, "no host memory for a launch");
  uint32_t stride = descs->size;
  for (uint32_t i = 0; !status && i < n; i++) {
    status = read_struct(&all[i], sizeof *all, (const char *)descs + (size_t)i * stride, UINT64_MAX, err);
    if (!status) status = checked(c, &all[i], err);
  }
  if (status) return free(l), free(all), free(sent), status;
  *l = (struct launch){.comm = c, .stream = s, .n = n, .all = all, .sent = sent};
  pthread_mutex_lock(&lock);
  c->refs++, l->number = c->enqueued++;
  pthread_mutex_unlock(&lock);
  return enqueue(s, (struct command){.run = run_launch, .arg = l}, "coll_launch", err);
}
const cw_collective_api collective_table = {
    .size = sizeof(cw_collective_api), .unique_id = unique_id, .comm_init = comm_init, .comm_query = comm_query, .comm_async_error = comm_async_error,
    .comm_abort = comm_abort, .comm_destroy = comm_destroy, .launch = launch,
};
