/* A simulator of cuDNN's graph interface: descriptors are held to their types, counts and order, graphs to the shapes and the order of their ops,
 * and a plan that is executed computes its graph op by op in f32 on the host. Its one engine is this loop: nothing it shows says what cuDNN does. */
#include <math.h>
#include "sim.h"

int sim_depth(void);

enum { POINTWISE, CONV, ENGINE, ENGINECFG, HEUR, PLAN, OP_POINTWISE = 13, GRAPH = 15, PACK, TENSOR, MATMUL, OP_MATMUL, REDUCTION = 21, OP_REDUCTION, OP_RESHAPE = 31 };
enum { T_HANDLE, T_DATA, T_BOOL, T_INT64, T_PTR = 6, T_HEUR = 8, T_NOTE = 11, T_MODE = 14, T_DESC, T_RED = 18 };
typedef struct desc desc;
typedef struct attr { int name, n; int64_t v[64]; struct attr *next; } attr;
struct desc { int kind, final, uses; attr *first; };
typedef struct handle { stream *s; } handle;

/* Of a kind of descriptor: an attribute, its type, most elements, whether it must be there, and what kind of descriptor it is. */
static const struct rule { int kind, name, type, most, must, of; } rules[] = {
  {POINTWISE, 0, T_MODE, 1, 1, -1}, {POINTWISE, 1, T_DATA, 1, 1, -1}, {POINTWISE, 9, T_INT64, 1, 0, -1},
  {ENGINECFG, 300, T_DESC, 1, 1, ENGINE}, {HEUR, 200, T_HEUR, 1, 1, -1}, {HEUR, 201, T_DESC, 1, 1, GRAPH},
  {PLAN, 400, T_HANDLE, 1, 1, -1}, {PLAN, 401, T_DESC, 1, 1, ENGINECFG},
  {OP_POINTWISE, 750, T_DESC, 1, 1, POINTWISE}, {OP_POINTWISE, 751, T_DESC, 1, 1, TENSOR}, {OP_POINTWISE, 752, T_DESC, 1, 0, TENSOR},
  {OP_POINTWISE, 753, T_DESC, 1, 1, TENSOR}, {OP_POINTWISE, 758, T_DESC, 1, 0, TENSOR},
  {GRAPH, 800, T_HANDLE, 1, 1, -1}, {GRAPH, 801, T_DESC, 64, 1, -1},
  {TENSOR, 900, T_INT64, 1, 1, -1}, {TENSOR, 901, T_DATA, 1, 1, -1}, {TENSOR, 902, T_INT64, 8, 1, -1}, {TENSOR, 903, T_INT64, 8, 1, -1},
  {TENSOR, 906, T_INT64, 1, 1, -1}, {TENSOR, 907, T_BOOL, 1, 0, -1}, {TENSOR, 908, T_BOOL, 1, 0, -1},
  {PACK, 1000, T_INT64, 64, 1, -1}, {PACK, 1001, T_PTR, 64, 1, -1}, {PACK, 1003, T_PTR, 1, 1, -1},
  {MATMUL, 1500, T_DATA, 1, 1, -1}, {OP_MATMUL, 1520, T_DESC, 1, 1, TENSOR}, {OP_MATMUL, 1521, T_DESC, 1, 1, TENSOR}, {OP_MATMUL, 1522, T_DESC, 1, 1, TENSOR},
  {OP_MATMUL, 1523, T_DESC, 1, 1, MATMUL}, {REDUCTION, 1600, T_RED, 1, 1, -1}, {REDUCTION, 1601, T_DATA, 1, 1, -1}, {OP_REDUCTION, 1610, T_DESC, 1, 1, TENSOR},
  {OP_REDUCTION, 1611, T_DESC, 1, 1, TENSOR}, {OP_REDUCTION, 1612, T_DESC, 1, 1, REDUCTION}, {OP_RESHAPE, 2200, T_DESC, 1, 1, TENSOR}, {OP_RESHAPE, 2201, T_DESC, 1, 1, TENSOR},
};
enum { RULES = sizeof rules / sizeof *rules };

static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static int live, created, asked, built, executed, fails, engines = 1, varying, broken;
static char last[256];
static int no(int status, const char *why) { snprintf(last, sizeof last, "%s", why); return status; }
API int sim_dnn_live(void) { return live; }
API int sim_dnn_created(void) { return created; }
API int sim_dnn_asked(void) { return asked; }
API int sim_dnn_built(void) { return built; }
API int sim_dnn_executed(void) { return executed; }
API int sim_dnn_broken(void) { return broken; }
API void sim_dnn_engines(int64_t n) { engines = (int)n; }
API void sim_dnn_varying(int64_t yes) { varying = (int)yes; }
API void sim_dnn_fails(int64_t yes) { fails = (int)yes; }

API size_t cudnnGetVersion(void) { return 92800; }
API const char *cudnnGetErrorString(int s) { return s == 5000 ? "CUDNN_STATUS_EXECUTION_FAILED" : s / 1000 == 3 ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM"; }
API void cudnnGetLastErrorString(char *to, size_t n) { snprintf(to, n, "%s", last); last[0] = 0; }
API int cudnnCreate(handle **h) { if (!sim_depth()) return no(1001, "no context"); *h = calloc(1, sizeof **h); __atomic_fetch_add(&live, 1, __ATOMIC_SEQ_CST); return 0; }
API int cudnnDestroy(handle *h) { free(h); __atomic_fetch_sub(&live, 1, __ATOMIC_SEQ_CST); return 0; }
API int cudnnSetStream(handle *h, stream *s) { h->s = s; return 0; }

/* Descriptors are counted: a plan keeps what it was made of when its maker lets go. */
static void let_go(desc *d);
static void drop_attrs(desc *d) {
  for (attr *a = d->first; a;) {
    for (int i = 0; i < RULES; i++)
      if (rules[i].kind == d->kind && rules[i].name == a->name && rules[i].type == T_DESC) for (int k = 0; k < a->n; k++) let_go((desc *)a->v[k]);
    attr *next = a->next;
    free(a); a = next;
  }
}
static void let_go(desc *d) { if (__atomic_sub_fetch(&d->uses, 1, __ATOMIC_SEQ_CST)) return; drop_attrs(d); free(d); }
API int cudnnBackendCreateDescriptor(int kind, desc **d) {
  int known = kind == ENGINE;
  for (int i = 0; i < RULES; i++) known |= rules[i].kind == kind;
  if (!known) return no(3000, "no such descriptor");
  *d = calloc(1, sizeof **d); (*d)->kind = kind; (*d)->uses = 1;
  __atomic_fetch_add(&live, 1, __ATOMIC_SEQ_CST); __atomic_fetch_add(&created, 1, __ATOMIC_SEQ_CST);
  return 0;
}
API int cudnnBackendDestroyDescriptor(desc *d) { if (d->kind == PLAN && !sim_depth()) broken++; __atomic_fetch_sub(&live, 1, __ATOMIC_SEQ_CST); let_go(d); return 0; }
static attr *at(const desc *d, int name) { for (attr *a = d->first; a; a = a->next) if (a->name == name) return a; return NULL; }
static int64_t num(const desc *d, int name, int64_t or) { attr *a = at(d, name); return a ? a->v[0] : or; }
static const desc *sub(const desc *d, int name) { return (const desc *)num(d, name, 0); }
API int cudnnBackendSetAttribute(desc *d, int name, int type, int64_t n, const void *v) {
  if (d->final) return no(2000, "set after finalize");
  const struct rule *r = NULL;
  for (int i = 0; i < RULES; i++) if (rules[i].kind == d->kind && rules[i].name == name) r = &rules[i];
  if (!r) return no(3000, "no such attribute");
  if (r->type != type) return no(2010, "the attribute has another type");
  if (n < 1 || n > r->most || !v) return no(2000, "elements");
  if (at(d, name)) return no(2009, "set twice");
  attr *a = calloc(1, sizeof *a);
  a->name = name; a->n = (int)n; a->next = d->first;
  for (int i = 0; i < n; i++) {
    if (type == T_BOOL) a->v[i] = ((const uint8_t *)v)[i];
    else if (type == T_INT64 || type == T_PTR || type == T_DESC || type == T_HANDLE) a->v[i] = ((const int64_t *)v)[i];
    else a->v[i] = ((const int32_t *)v)[i];
    if (type == T_DESC) {
      desc *x = (desc *)a->v[i];
      if (!x || !x->final || (r->of >= 0 && x->kind != r->of)) { free(a); return no(2004, "a descriptor that is not final, or of another kind"); }
    }
  }
  if (type == T_DESC) for (int i = 0; i < n; i++) __atomic_fetch_add(&((desc *)a->v[i])->uses, 1, __ATOMIC_SEQ_CST);
  d->first = a;
  return 0;
}

/* ---- graphs */
static const int64_t *dims(const desc *t) { return at(t, 902)->v; }
static int in_memory(const desc *t) { return !num(t, 907, 0); }
static int inputs(const desc *o, const desc **in) {
  int n = 0;
  switch (o->kind) {
    case OP_POINTWISE: for (const int *k = (const int[]){751, 752, 758, 0}; *k; k++) if (at(o, *k)) in[n++] = sub(o, *k); break;
    case OP_MATMUL: in[n++] = sub(o, 1520); in[n++] = sub(o, 1521); break;
    case OP_REDUCTION: in[n++] = sub(o, 1610); break;
    default: in[n++] = sub(o, 2200);
  }
  return n;
}
static const desc *output(const desc *o) { return sub(o, o->kind == OP_POINTWISE ? 753 : o->kind == OP_MATMUL ? 1522 : o->kind == OP_REDUCTION ? 1611 : 2201); }
static int shapes(const desc *o) {
  const desc *in[3] = {0}, *y = output(o);
  int n = inputs(o, in);
  const int64_t *a = dims(in[0]), *b = n > 1 ? dims(in[1]) : NULL, *c = dims(y);
  if (o->kind == OP_MATMUL) return a[0] == c[0] && b[0] == c[0] && a[1] == c[1] && c[1] % b[1] == 0 && a[2] == c[2] && b[3] == c[3] && a[3] == b[2];
  if (o->kind == OP_REDUCTION) { for (int i = 0; i < 4; i++) if (c[i] != a[i] && c[i] != 1 && !(i == 1 && a[1] % c[1] == 0)) return 0; return 1; }
  if (o->kind == OP_RESHAPE) return a[0] * a[1] * a[2] * a[3] == c[0] * c[1] * c[2] * c[3];
  int mode = (int)num(sub(o, 750), 0, -1), want = mode == 601 ? 3 : mode == 13 || mode == 15 || mode == 21 || mode == 501 ? 1 : 2;
  if (n != want || (mode == 501 && !at(sub(o, 750), 9))) return 0;
  for (int k = 0; k < n; k++) for (int i = 0; i < 4; i++) if (dims(in[k])[i] != c[i] && dims(in[k])[i] != 1) return 0;
  return 1;
}
static int graph_is_whole(const desc *g) {
  attr *ops = at(g, 801);
  for (int i = 0; i < ops->n; i++) {
    const desc *o = (const desc *)ops->v[i], *in[3];
    if (o->kind != OP_POINTWISE && o->kind != OP_MATMUL && o->kind != OP_REDUCTION && o->kind != OP_RESHAPE) return no(2012, "no op");
    if (!shapes(o)) return no(2008, "shapes of an op");
    int n = inputs(o, in);
    for (int k = 0; k < n; k++) {
      int made = 0;
      for (int j = 0; j < i; j++) made |= output((const desc *)ops->v[j]) == in[k];
      if (!made && !in_memory(in[k])) return no(3001, "what is never in memory is used before it is made");
    }
    for (int j = 0; j < i; j++) {
      const desc *other = output((const desc *)ops->v[j]);
      if (other == output(o)) return no(3001, "made twice");
      if (num(other, 906, 0) == num(output(o), 906, 0)) return no(2009, "a number is given twice");
    }
  }
  return 0;
}
API int cudnnBackendFinalize(desc *d) {
  if (d->final) return no(2000, "finalized twice");
  for (int i = 0; i < RULES; i++) if (rules[i].kind == d->kind && rules[i].must && !at(d, rules[i].name)) return no(2000, "an attribute is missing");
  if (d->kind == TENSOR) {
    attr *n = at(d, 902), *s = at(d, 903);
    if (n->n != 4 || s->n != 4) return no(3000, "four dimensions");
    for (int i = 0; i < 4; i++) if (n->v[i] < 1 || s->v[i] < 1) return no(2000, "a dimension or stride below 1");
    if (num(d, 907, 0) && num(d, 908, 0)) return no(2000, "virtual and by value");
  }
  if (d->kind == PACK && at(d, 1000)->n != at(d, 1001)->n) return no(2000, "ids and pointers");
  if (d->kind == GRAPH) { int s = graph_is_whole(d); if (s) return s; }
  if (d->kind == HEUR) { asked++; if (!engines) return no(3000, "no engine of this simulator"); }
  if (d->kind == PLAN) { if (!sim_depth()) return no(1001, "no context"); built++; }
  d->final = 1;
  return 0;
}
API int cudnnBackendGetAttribute(desc *d, int name, int type, int64_t want, int64_t *n, void *to) {
  if (d->kind == PLAN && name == 402 && type == T_INT64 && want == 1 && d->final) { *n = 1; *(int64_t *)to = 1000; return 0; }
  if (d->kind == HEUR && name == 202 && type == T_DESC && d->final) {
    *n = want ? (want < engines ? want : engines) : engines;
    for (int i = 0; i < *n && want; i++) {
      desc *c = ((desc **)to)[i];
      if (c->kind != ENGINECFG || c->final) return no(2012, "fills settings that are new");
      desc *e = calloc(1, sizeof *e);
      e->kind = ENGINE; e->final = 1; e->uses = 1;
      attr *g = calloc(1, sizeof *g), *a = calloc(1, sizeof *a);
      g->name = -1; g->n = 1; g->v[0] = (int64_t)sub(d, 201); e->first = g;
      __atomic_fetch_add(&((desc *)g->v[0])->uses, 1, __ATOMIC_SEQ_CST); /* stays: engines are few */
      a->name = 300; a->n = 1; a->v[0] = (int64_t)e; c->first = a; c->final = 1;
    }
    return 0;
  }
  if (d->kind == ENGINECFG && name == 300 && type == T_DESC && want == 1 && d->final) { *n = 1; (*(desc **)to)->final = 1; return 0; }
  if (d->kind == ENGINE && name == 1303 && type == T_NOTE && d->final) { *n = 1 + varying; ((int *)to)[0] = 0; if (varying) ((int *)to)[1] = 4; return 0; }
  return no(2000, "no such attribute to get");
}

/* ---- execution: every tensor is bytes in memory, or floats of its own, by its strides */
typedef struct mem { const desc *t; char *p; float *own; float value; int by_value; } mem;
typedef struct job { const desc *graph; mem m[64]; int n; } job;
static float rounded(int type, float x) { return type == 2 ? of_f16(to_f16(x)) : type == 9 ? of_bf16(to_bf16(x)) : x; }
static mem *find(job *j, const desc *t) {
  for (int i = 0; i < j->n; i++) if (j->m[i].t == t) return &j->m[i];
  mem *m = &j->m[j->n++];
  int64_t end = 1;
  for (int i = 0; i < 4; i++) end += (dims(t)[i] - 1) * at(t, 903)->v[i];
  *m = (mem){.t = t, .own = calloc((size_t)end, 4)};
  return m;
}
static float get(const mem *m, int64_t o) {
  int type = (int)num(m->t, 901, 0);
  if (m->by_value) return m->value;
  if (m->own) return m->own[o];
  return type == 2 ? of_f16(((uint16_t *)m->p)[o]) : type == 9 ? of_bf16(((uint16_t *)m->p)[o]) : ((float *)m->p)[o];
}
static void put(mem *m, int64_t o, float v) {
  int type = (int)num(m->t, 901, 0);
  if (m->own) m->own[o] = rounded(type, v);
  else if (type == 2) ((uint16_t *)m->p)[o] = to_f16(v);
  else if (type == 9) ((uint16_t *)m->p)[o] = to_bf16(v);
  else ((float *)m->p)[o] = v;
}
static int64_t where(const mem *m, const int64_t *i) {
  const int64_t *n = dims(m->t), *s = at(m->t, 903)->v;
  int64_t o = 0;
  for (int k = 0; k < 4; k++) o += (n[k] == 1 ? 0 : i[k]) * s[k];
  return o;
}
static float apply(int mode, int axis, const int64_t *i, const float *x) {
  switch (mode) {
    case 0: return x[0] + x[1];
    case 1: return x[0] * x[1];
    case 6: return x[0] / x[1];
    case 9: return x[0] - x[1];
    case 13: return expf(x[0]);
    case 15: return logf(x[0]);
    case 21: return x[0];
    case 302: return x[0] > x[1];
    case 303: return x[0] >= x[1];
    case 501: return (float)i[axis];
    case 601: return x[2] ? x[0] : x[1];
    default: broken++; return NAN;
  }
}
#define EACH(i, n) for (int64_t i[4] = {0}; i[0] < n[0]; i[0]++) for (i[1] = 0; i[1] < n[1]; i[1]++) for (i[2] = 0; i[2] < n[2]; i[2]++) for (i[3] = 0; i[3] < n[3]; i[3]++)
static void step(job *j, const desc *o) {
  const desc *in[3];
  int n = inputs(o, in);
  mem *x[3], *y = find(j, output(o));
  for (int k = 0; k < n; k++) x[k] = find(j, in[k]);
  const int64_t *d = dims(y->t), *e = dims(in[0]);
  if (o->kind == OP_RESHAPE) { EACH(i, d) put(y, where(y, i), get(x[0], where(y, i))); return; }
  if (o->kind == OP_POINTWISE) {
    int mode = (int)num(sub(o, 750), 0, 0), axis = (int)num(sub(o, 750), 9, 0);
    EACH(i, d) { float v[3] = {0}; for (int k = 0; k < n; k++) v[k] = get(x[k], where(x[k], i)); put(y, where(y, i), apply(mode, axis, i, v)); }
    return;
  }
  if (o->kind == OP_MATMUL) {
    int64_t group = d[1] / dims(in[1])[1];
    EACH(i, d) {
      float s = 0;
      for (int64_t k = 0; k < e[3]; k++) s += get(x[0], where(x[0], (int64_t[]){i[0], i[1], i[2], k})) * get(x[1], where(x[1], (int64_t[]){i[0], i[1] / group, k, i[3]}));
      put(y, where(y, i), s);
    }
    return;
  }
  int most = num(sub(o, 1612), 1600, 0) == 3;
  EACH(i, d) {
    float s = most ? -INFINITY : 0;
    int64_t span[4];
    for (int k = 0; k < 4; k++) span[k] = e[k] / d[k];
    EACH(z, span) { int64_t at_x[4]; for (int k = 0; k < 4; k++) at_x[k] = i[k] * span[k] + z[k]; float v = get(x[0], where(x[0], at_x)); s = most ? fmaxf(s, v) : s + v; }
    put(y, where(y, i), s);
  }
}
/* A captured execution runs as often as its graph is launched: what it makes for itself is gone afterwards, and what it was given stays. */
static st compute(void *data, device *d) {
  (void)d;
  job *j = data;
  attr *ops = at(j->graph, 801);
  int given = j->n;
  for (int i = 0; i < ops->n; i++) step(j, (const desc *)ops->v[i]);
  for (int i = given; i < j->n; i++) free(j->m[i].own);
  j->n = given;
  return OK;
}
API int cudnnBackendExecute(handle *h, desc *plan, desc *pack) {
  if (!sim_depth()) return no(1001, "no context");
  if (!h->s || plan->kind != PLAN || pack->kind != PACK || !plan->final || !pack->final) return no(2004, "handle, plan or addresses");
  if (fails) return no(5000, "the simulator was set to fail");
  uint64_t ws = (uint64_t)num(pack, 1003, 0);
  if (!ws || ws % 256) return no(2003, "workspace");
  job *j = calloc(1, sizeof *j);
  j->graph = (const desc *)num(sub(sub(plan, 401), 300), -1, 0);
  attr *ids = at(pack, 1000), *ptr = at(pack, 1001), *ops = at(j->graph, 801);
  int bound = 0, status = 0;
  for (int i = 0; i < ops->n && !status; i++) {
    const desc *t[4];
    int n = inputs((const desc *)ops->v[i], t);
    t[n++] = output((const desc *)ops->v[i]);
    for (int k = 0; k < n && !status; k++) {
      int known = !in_memory(t[k]);
      for (int m = 0; m < j->n; m++) known |= j->m[m].t == t[k];
      if (known) continue;
      int64_t p = 0;
      for (int m = 0; m < ids->n; m++) if (ids->v[m] == num(t[k], 906, 0)) p = ptr->v[m];
      int value = (int)num(t[k], 908, 0), type = (int)num(t[k], 901, 0);
      if (!p || (!value && p % num(t[k], 900, 1))) { status = no(2003, "an address that is missing or not aligned"); break; }
      float f = 0;
      if (value) { if (type == 4) f = (float)*(int32_t *)p; else f = *(float *)p; }
      j->m[j->n++] = (mem){.t = t[k], .p = value ? (char *)p : sim_real((addr)p), .by_value = value, .value = f};
      bound++;
    }
  }
  if (!status && bound != ids->n) status = no(2000, "addresses of tensors that are not there");
  if (status) { free(j); return status; }
  pthread_mutex_lock(&big); executed++; pthread_mutex_unlock(&big);
  /* The graph lives on with its engine. */
  st r = core_compute(h->s, compute, j, sizeof *j);
  if (r) { free(j); return no(5000, "the stream does not take it"); }
  return 0;
}
