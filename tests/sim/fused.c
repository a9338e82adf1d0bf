/* CANN's fused operators, each by the formula and within the limits of its document (hicann/ops-nn: norm, activation; hicann/ops-transformer:
 * posembedding, attention), in double and rounded once. What a document leaves open comes out as NaN: a query that sees no key. */
#include "aclnn.h"

static int64_t last(T t) { return t->dims[t->n - 1]; }
static int row_of(T w, T x) { return w->n == 1 && w->dims[0] == last(x); }
/* A statistic of each row has the rows' dims and 1. */
static int column_of(T s, T x) {
  for (int i = 0; i + 1 < x->n; i++) if (s->dims[i] != x->dims[i]) return 0;
  return s->n == x->n && last(s) == 1;
}
/* What is not there. */
static const tensor none = {.n = 1};
#define OR_NONE(t) (*((t) ? (t) : &none))

/* ---- norms */
static st run_rms_norm(exec *e) {
  T x = &e->t[0], g = &e->t[1], y = &e->t[2], r = &e->t[3];
  int64_t d = last(x);
  for (int64_t n = 0; n < count(r); n++) {
    double squares = 0;
    for (int64_t i = 0; i < d; i++) { double v = value(x, n * d + i); squares += v * v; }
    double rms = sqrt(squares / (double)d + e->f[0]);
    set(r, n, 1 / rms);
    for (int64_t i = 0; i < d; i++) set(y, n * d + i, 1 / rms * value(x, n * d + i) * value(g, i));
  }
  return OK;
}
API st aclnnRmsNormGetWorkspaceSize(T x, T g, double eps, T y, T r, ROOM) {
  HAVE(x && g && y && r);
  WANT(floats(x->type) && y->type == x->type && r->type == F32 && (g->type == x->type || g->type == F32));
  WANT(same(x, y) && row_of(g, x) && column_of(r, x));
  PLAN(RmsNorm, .run = run_rms_norm, .count = 4, .t = {*x, *g, *y, *r}, .f = {eps});
} RUN(RmsNorm)
static st run_rms_norm_grad(exec *e) {
  T dy = &e->t[0], x = &e->t[1], r = &e->t[2], g = &e->t[3], dx = &e->t[4], dg = &e->t[5];
  int64_t d = last(x);
  double *sums = calloc((size_t)d + 1, sizeof *sums);
  for (int64_t n = 0; n < count(r); n++) {
    double rstd = value(r, n), mean = 0;
    for (int64_t i = 0; i < d; i++) mean += value(dy, n * d + i) * value(g, i) * value(x, n * d + i) * rstd / (double)d;
    for (int64_t i = 0; i < d; i++) {
      double a = value(dy, n * d + i), b = value(x, n * d + i);
      set(dx, n * d + i, (a * value(g, i) - rstd * b * mean) * rstd);
      sums[i] += rstd * b * a;
    }
  }
  for (int64_t i = 0; i < d; i++) set(dg, i, sums[i]);
  free(sums);
  return OK;
}
API st aclnnRmsNormGradGetWorkspaceSize(T dy, T x, T r, T g, T dx, T dg, ROOM) {
  HAVE(dy && x && r && g && dx && dg);
  WANT(floats(x->type) && dy->type == x->type && dx->type == x->type && r->type == F32 && dg->type == F32 && (g->type == x->type || g->type == F32));
  WANT(x->n >= 2 && same(dy, x) && same(dx, x) && row_of(g, x) && same(dg, g) && r->n == x->n - 1 && !memcmp(r->dims, x->dims, 8 * (size_t)r->n));
  PLAN(RmsNormGrad, .run = run_rms_norm_grad, .count = 6, .t = {*dy, *x, *r, *g, *dx, *dg});
} RUN(RmsNormGrad)
static st run_layer_norm(exec *e) {
  T x = &e->t[0], w = &e->t[1], b = &e->t[2], y = &e->t[3], m = &e->t[4], r = &e->t[5];
  int64_t d = last(x);
  for (int64_t n = 0; n < count(r); n++) {
    double mean = 0, var = 0;
    for (int64_t i = 0; i < d; i++) mean += value(x, n * d + i) / (double)d;
    for (int64_t i = 0; i < d; i++) { double v = value(x, n * d + i) - mean; var += v * v / (double)d; }
    set(m, n, mean);
    set(r, n, 1 / sqrt(var + e->f[0]));
    for (int64_t i = 0; i < d; i++) set(y, n * d + i, (value(x, n * d + i) - mean) / sqrt(var + e->f[0]) * value(w, i) + (count(b) ? value(b, i) : 0));
  }
  return OK;
}
API st aclnnLayerNormGetWorkspaceSize(T x, I shape, T w, T b, double eps, T y, T m, T r, ROOM) {
  HAVE(x && shape && y);
  /* The document lets weights and statistics be absent; the back end always has them. */
  WANT(w && m && r && floats(x->type) && y->type == x->type && m->type == x->type && r->type == x->type && (w->type == x->type || w->type == F32));
  WANT(shape->n == 1 && shape->v[0] == last(x) && same(x, y) && row_of(w, x) && column_of(m, x) && column_of(r, x) && (!b || (same(b, w) && b->type == w->type)));
  PLAN(LayerNorm, .run = run_layer_norm, .count = 6, .t = {*x, *w, OR_NONE(b), *y, *m, *r}, .f = {eps});
} RUN(LayerNorm)
static st run_layer_norm_backward(exec *e) {
  T dy = &e->t[0], x = &e->t[1], m = &e->t[2], r = &e->t[3], w = &e->t[4], dx = &e->t[5], dw = &e->t[6], db = &e->t[7];
  int64_t d = last(x);
  double *sums = calloc(2 * (size_t)d + 1, sizeof *sums);
  for (int64_t n = 0; n < count(r); n++) {
    double mean = value(m, n), rstd = value(r, n), one = 0, two = 0;
    for (int64_t i = 0; i < d; i++) {
      double a = value(dy, n * d + i), h = (value(x, n * d + i) - mean) * rstd;
      one += a * value(w, i) / (double)d;
      two += a * value(w, i) * h / (double)d;
      sums[i] += a * h;
      sums[d + i] += a;
    }
    for (int64_t i = 0; i < d; i++) set(dx, n * d + i, (value(dy, n * d + i) * value(w, i) - (one + (value(x, n * d + i) - mean) * rstd * two)) * rstd);
  }
  for (int64_t i = 0; i < d; i++) { set(dw, i, sums[i]); if (e->flag) set(db, i, sums[d + i]); }
  free(sums);
  return OK;
}
API st aclnnLayerNormBackwardGetWorkspaceSize(T dy, T x, I shape, T m, T r, T w, T b, B mask, T dx, T dw, T db, ROOM) {
  HAVE(dy && x && shape && m && r && mask);
  WANT(mask->n == 3 && mask->v[0] && mask->v[1] && w && !b);
  HAVE(dx && dw && (db || !mask->v[2]));
  WANT(floats(x->type) && dy->type == x->type && dx->type == x->type && m->type == r->type && width(m->type) >= width(x->type) && floats(m->type) && (w->type == x->type || w->type == F32) && dw->type == w->type && (!db || db->type == w->type));
  WANT(shape->n == 1 && shape->v[0] == last(x) && same(dy, x) && same(dx, x) && row_of(w, x) && same(dw, w) && (!db || same(db, w)) && column_of(m, x) && column_of(r, x));
  PLAN(LayerNormBackward, .run = run_layer_norm_backward, .count = 8, .t = {*dy, *x, *m, *r, *w, *dx, *dw, OR_NONE(db)}, .flag = mask->v[2]);
} RUN(LayerNormBackward)

/* ---- softmax along the last dim */
static st run_softmax(exec *e) {
  T x = &e->t[0], y = &e->t[1];
  int64_t d = last(x);
  for (int64_t n = 0; d && n < count(x) / d; n++) {
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < d; i++) { double v = value(x, n * d + i); if (!(v <= most)) most = v; }
    for (int64_t i = 0; i < d; i++) sum += exp(value(x, n * d + i) - most);
    for (int64_t i = 0; i < d; i++) set(y, n * d + i, exp(value(x, n * d + i) - most) / sum);
  }
  return OK;
}
API st aclnnSoftmaxGetWorkspaceSize(T x, int64_t dim, T y, ROOM) {
  HAVE(x && y);
  WANT(dim == x->n - 1 && floats(x->type) && y->type == x->type && same(x, y));
  PLAN(Softmax, .run = run_softmax, .count = 2, .t = {*x, *y});
} RUN(Softmax)
static st run_softmax_backward(exec *e) {
  T dy = &e->t[0], y = &e->t[1], dx = &e->t[2];
  int64_t d = last(y);
  for (int64_t n = 0; d && n < count(y) / d; n++) {
    double sum = 0;
    for (int64_t i = 0; i < d; i++) sum += value(dy, n * d + i) * value(y, n * d + i);
    for (int64_t i = 0; i < d; i++) set(dx, n * d + i, value(dy, n * d + i) * value(y, n * d + i) - sum * value(y, n * d + i));
  }
  return OK;
}
API st aclnnSoftmaxBackwardGetWorkspaceSize(T dy, T y, int64_t dim, T dx, ROOM) {
  HAVE(dy && y && dx);
  WANT(dim == y->n - 1 && floats(y->type) && dy->type == y->type && dx->type == y->type && same(dy, y) && same(dx, y));
  PLAN(SoftmaxBackward, .run = run_softmax_backward, .count = 3, .t = {*dy, *y, *dx});
} RUN(SoftmaxBackward)

/* ---- activations */
enum { GELU, GELU_TANH, SILU };
static double act(int kind, double x) {
  switch (kind) {
    case GELU: return x / 2 * (1 + erf(x / sqrt(2)));
    case GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default: return x / (1 + exp(-x));
  }
}
static double slope(int kind, double x) {
  double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)), s = 1 / (1 + exp(-x));
  switch (kind) {
    case GELU: return 0.5 + 0.5 * erf(x / sqrt(2)) + x / sqrt(2 * M_PI) * exp(-x * x / 2);
    case GELU_TANH: return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    default: return s * (1 + x - x * s);
  }
}
static st run_act(exec *e) {
  T a = &e->t[0], x = &e->t[e->count - 2], o = &e->t[e->count - 1];
  for (int64_t i = 0; i < count(o); i++) set(o, i, e->count == 2 ? act(e->kind, value(x, i)) : value(a, i) * slope(e->kind, value(x, i)));
  return OK;
}
static st plan_act(const char *name, int kind, T a, T x, T o, ROOM) {
  HAVE(x && o);
  WANT(floats(x->type) && o->type == x->type && same(x, o) && (!a || (same(a, x) && a->type == x->type)));
  if (a) return aclnn_first(room, out, (exec){.name = name, .run = run_act, .kind = kind, .count = 3, .t = {*a, *x, *o}});
  return aclnn_first(room, out, (exec){.name = name, .run = run_act, .kind = kind, .count = 2, .t = {*x, *o}});
}
API st aclnnGeluV2GetWorkspaceSize(T x, int64_t approximate, T o, ROOM) { WANT(approximate == 0 || approximate == 1); return plan_act("GeluV2", approximate ? GELU_TANH : GELU, NULL, x, o, room, out); } RUN(GeluV2)
API st aclnnSiluGetWorkspaceSize(T x, T o, ROOM) { return plan_act("Silu", SILU, NULL, x, o, room, out); } RUN(Silu)
API st aclnnGeluBackwardV2GetWorkspaceSize(T dy, T x, const char *approximate, T o, ROOM) {
  HAVE(dy && approximate);
  WANT(!strcmp(approximate, "none") || !strcmp(approximate, "tanh"));
  return plan_act("GeluBackwardV2", *approximate == 't' ? GELU_TANH : GELU, dy, x, o, room, out);
} RUN(GeluBackwardV2)
API st aclnnSiluBackwardGetWorkspaceSize(T dy, T x, T o, ROOM) { HAVE(dy); return plan_act("SiluBackward", SILU, dy, x, o, room, out); } RUN(SiluBackward)

/* ---- four dims, by B, S, N and D */
static char *at(T t, int64_t b, int64_t s, int64_t n, int64_t d) { return base(t) + (b * t->strides[0] + s * t->strides[1] + n * t->strides[2] + d * t->strides[3]) * width(t->type); }
static int shape4(T t, int64_t b, int64_t s, int64_t n, int64_t d) { return t->n == 4 && t->dims[0] == b && t->dims[1] == s && t->dims[2] == n && t->dims[3] == d; }

static st run_rotary(exec *e) {
  T x = &e->t[0], cosines = &e->t[1], sines = &e->t[2], o = &e->t[3];
  int64_t d = last(x), half = d / 2;
  for (int64_t b = 0; b < x->dims[0]; b++) for (int64_t s = 0; s < x->dims[1]; s++) for (int64_t n = 0; n < x->dims[2]; n++) for (int64_t i = 0; i < d; i++) {
    int first = e->kind ? i % 2 == 0 : i < half;
    int64_t other = e->kind ? i ^ 1 : first ? i + half : i - half;
    double turned = get(x->type, at(x, b, s, n, other));
    double y = get(x->type, at(x, b, s, n, i)) * get(x->type, at(cosines, 0, s, 0, i)) + (first ? -turned : turned) * get(x->type, at(sines, 0, s, 0, i));
    put(o->type, at(o, b, s, n, i), y);
  }
  return OK;
}
API st aclnnRotaryPositionEmbeddingGetWorkspaceSize(T x, T cosines, T sines, int64_t mode, T o, ROOM) {
  HAVE(x && cosines && sines && o);
  WANT(floats(x->type) && cosines->type == x->type && sines->type == x->type && o->type == x->type);
  if (x->n != 4 || mode < 0 || mode > 1 || !same(x, o) || !dense(o) || last(x) % 2 || last(x) >= 896) return 561002;
  if (!shape4(cosines, 1, x->dims[1], 1, last(x)) || !same(sines, cosines)) return 561002;
  if (mode ? x->dims[0] * x->dims[2] >= 1000 : x->dims[0] >= 1000 || x->dims[2] >= 1000) return 561002;
  PLAN(RotaryPositionEmbedding, .run = run_rotary, .kind = (int)mode, .count = 4, .t = {*x, *cosines, *sines, *o});
} RUN(RotaryPositionEmbedding)

/* ---- attention (BSND): 1 in the mask hides. Mode 3 counts from the last query and key on, mode 2 from the first, by the triangle of 2048 whatever the sizes. */
enum { TRIANGLE = 2048, PLACES = 8 };
static int hidden(T mask, int sparse, int64_t i, int64_t j, int64_t sq, int64_t sk) {
  if (!count(mask)) return 0;
  if (sparse == 1) return get(mask->type, nth(mask, i * sk + j)) != 0;
  int64_t beyond = j - (sparse == 2 ? i : i + sk - sq);
  if (beyond >= TRIANGLE || beyond <= -TRIANGLE) return beyond > 0;
  return get(mask->type, nth(mask, beyond < 0 ? -beyond * TRIANGLE : beyond)) != 0;
}
static double dot(T a, T b, int64_t z, int64_t i, int64_t n, int64_t j, int64_t m) {
  double s = 0;
  char *p = at(a, z, i, n, 0), *q = at(b, z, j, m, 0);
  for (int64_t c = 0; c < a->dims[3]; c++) s += get(a->type, p + c * a->strides[3] * width(a->type)) * get(b->type, q + c * b->strides[3] * width(b->type));
  return s;
}
static st run_flash(exec *e) {
  T q = &e->t[0], k = &e->t[1], v = &e->t[2], mask = &e->t[3], max = &e->t[4], sum = &e->t[5], o = &e->t[6];
  int64_t sq = q->dims[1], sk = k->dims[1], heads = q->dims[2], each = heads / k->dims[2], d = last(v);
  double *w = malloc(sizeof *w * (size_t)(sk + d));
  for (int64_t z = 0; z < q->dims[0]; z++) for (int64_t n = 0; n < heads; n++) for (int64_t i = 0; i < sq; i++) {
    double most = -INFINITY, total = 0, *row = w + sk;
    for (int64_t j = 0; j < sk; j++) {
      w[j] = hidden(mask, e->kind, i, j, sq, sk) ? -INFINITY : e->f[0] * dot(q, k, z, i, n, j, n / each);
      if (!(w[j] <= most)) most = w[j];
    }
    for (int64_t c = 0; c < d; c++) row[c] = 0;
    for (int64_t j = 0; j < sk; j++) {
      double p = exp(w[j] - most);
      total += p;
      for (int64_t c = 0; p != 0 && c < d; c++) row[c] += p * get(v->type, at(v, z, j, n / each, c));
    }
    for (int64_t c = 0; c < d; c++) put(o->type, at(o, z, i, n, c), row[c] / total);
    for (int64_t c = 0; c < PLACES; c++) { put(F32, at(max, z, n, i, c), most); put(F32, at(sum, z, n, i, c), total); }
  }
  free(w);
  return OK;
}
static st run_flash_grad(exec *e) {
  T q = &e->t[0], k = &e->t[1], v = &e->t[2], dy = &e->t[3], mask = &e->t[4], max = &e->t[5], sum = &e->t[6], o = &e->t[7], dq = &e->t[8], dk = &e->t[9], dv = &e->t[10];
  int64_t sq = q->dims[1], sk = k->dims[1], heads = q->dims[2], each = heads / k->dims[2], d = last(q);
  size_t keys = (size_t)(sk * d);
  double *own = malloc(sizeof *own * (2 * keys + (size_t)d + 1)), *gk = own + d, *gv = gk + keys;
  for (int64_t z = 0; z < q->dims[0]; z++) for (int64_t m = 0; m < k->dims[2]; m++) {
    memset(gk, 0, sizeof *gk * 2 * keys);
    for (int64_t n = m * each; n < (m + 1) * each; n++) for (int64_t i = 0; i < sq; i++) {
      double delta = dot(dy, o, z, i, n, i, n), most = f32_of(at(max, z, n, i, 0)), total = f32_of(at(sum, z, n, i, 0));
      for (int64_t c = 0; c < d; c++) own[c] = 0;
      for (int64_t j = 0; j < sk; j++) {
        if (hidden(mask, e->kind, i, j, sq, sk)) continue;
        double p = exp(e->f[0] * dot(q, k, z, i, n, j, m) - most) / total;
        double ds = p * (dot(dy, v, z, i, n, j, m) - delta);
        for (int64_t c = 0; c < d; c++) {
          own[c] += e->f[0] * ds * get(k->type, at(k, z, j, m, c));
          gk[j * d + c] += e->f[0] * ds * get(q->type, at(q, z, i, n, c));
          gv[j * d + c] += p * get(dy->type, at(dy, z, i, n, c));
        }
      }
      for (int64_t c = 0; c < d; c++) put(dq->type, at(dq, z, i, n, c), own[c]);
    }
    for (int64_t j = 0; j < sk; j++) for (int64_t c = 0; c < d; c++) { put(dk->type, at(dk, z, j, m, c), gk[j * d + c]); put(dv->type, at(dv, z, j, m, c), gv[j * d + c]); }
  }
  free(own);
  return OK;
}
/* What both take alike. */
static st fits(T q, T k, T v, T o, T mask, T max, T sum, double keep, int64_t heads, const char *layout, int64_t precise, int64_t sparse) {
  HAVE(q && k && v && o && max && sum && layout);
  WANT(!strcmp(layout, "BSND") && keep == 1 && precise >= 0 && precise <= 2 && sparse >= 0 && sparse <= 6);
  WANT(floats(q->type) && k->type == q->type && v->type == q->type && o->type == q->type && max->type == F32 && sum->type == F32);
  WANT(q->n == 4 && k->n == 4 && same(k, v) && same(q, o) && heads == q->dims[2] && q->dims[0] == k->dims[0] && last(q) == last(k));
  int64_t b = q->dims[0], s = q->dims[1], n = q->dims[2];
  WANT(n >= 1 && n <= 256 && k->dims[2] >= 1 && n % k->dims[2] == 0 && s >= 1 && k->dims[1] >= 1 && last(q) >= 1 && last(q) <= 768);
  WANT(shape4(max, b, n, s, PLACES) && shape4(sum, b, n, s, PLACES));
  if (!mask) return OK;
  WANT((mask->type == BOOL || mask->type == U8) && mask->n == 2 && sparse >= 1 && sparse <= 3);
  WANT(sparse > 1 ? mask->dims[0] == TRIANGLE && mask->dims[1] == TRIANGLE : mask->dims[0] == s && mask->dims[1] == k->dims[1]);
  return OK;
}
API st aclnnFlashAttentionScoreGetWorkspaceSize(T q, T k, T v, T shift, T drop, T padding, T mask, I prefix, double scale, double keep, int64_t before, int64_t behind, int64_t heads,
                                                const char *layout, int64_t precise, int64_t sparse, T max, T sum, T soft, T o, ROOM) {
  (void)before; (void)behind;
  WANT(!shift && !drop && !padding && !prefix && !soft);
  st r = fits(q, k, v, o, mask, max, sum, keep, heads, layout, precise, sparse);
  if (r) return r;
  PLAN(FlashAttentionScore, .run = run_flash, .kind = (int)sparse, .count = 7, .t = {*q, *k, *v, OR_NONE(mask), *max, *sum, *o}, .f = {scale});
} RUN(FlashAttentionScore)
API st aclnnFlashAttentionScoreGradGetWorkspaceSize(T q, T k, T v, T dy, T shift, T drop, T padding, T mask, T max, T sum, T soft, T o, I prefix, double scale, double keep, int64_t before,
                                                    int64_t behind, int64_t heads, const char *layout, int64_t precise, int64_t sparse, T dq, T dk, T dv, T dshift, ROOM) {
  (void)before; (void)behind;
  HAVE(dy && dq && dk && dv);
  WANT(!shift && !drop && !padding && !prefix && !soft && !dshift);
  st r = fits(q, k, v, o, mask, max, sum, keep, heads, layout, precise, sparse);
  if (r) return r;
  WANT(same(dy, q) && same(dq, q) && same(dk, k) && same(dv, v) && dy->type == q->type && dq->type == q->type && dk->type == q->type && dv->type == q->type);
  PLAN(FlashAttentionScoreGrad, .run = run_flash_grad, .kind = (int)sparse, .count = 11, .t = {*q, *k, *v, *dy, OR_NONE(mask), *max, *sum, *o, *dq, *dk, *dv}, .f = {scale});
} RUN(FlashAttentionScoreGrad)
