// Softmax and cross-entropy over the last dim. A team has a row: in registers where it fits (G groups of eight a thread), else maximum and
// sum are found in one pass over memory with a running maximum, and a second pass writes.

struct SoftmaxArgs {
  char* y; float* lse; const char *x, *dy, *target, *g; Dims x_outer, dy_outer, target_from, lse_from, g_from; i64 x_inner, dy_inner;
  u64 n, d, shift; i64 ignore; u64 has_ignore;
};

#define CW_ROW for (int g = 0; G ? g < G : (u64)g * team.size() * CW_V < a.d; g++)
#define CW_COL ((u64)g * team.size() + team.place()) * CW_V
#define CW_KEEP(G) (G ? G : 1)

// Joins (m, s) pairs that stand for s exp(m).
CW_DEVICE void cw_rescale(float& m, double& s, float n, double t) {
  if (n != n || m != m) { m = CW_NAN; s = (double)CW_NAN; return; }
  float top = m > n ? m : n;
  if (top == -CW_INF) { s = 0.0; return; }
  s = (m == top ? s : s * (double)expf(m - top)) + (n == top ? t : t * (double)expf(n - top));
  m = top;
}

// Maximum and sum of exponentials of a row, the same in every thread. Keeps the row in x when G > 0.
template <class TX, int G, bool SHORT> CW_DEVICE void cw_statistics(const SoftmaxArgs& a, const Team<SHORT>& team, const TX* px, float (&x)[CW_KEEP(G)][CW_V], float& m, double& s,
    float* shared_m, double* shared_s) {
  m = -CW_INF;
  s = 0.0;
  CW_ROW {
    u64 c = CW_COL;
    int count = cw_left(c, a.d);
    float (&v)[CW_V] = x[G ? g : 0];
    if (!count) { CW_UNROLL for (int i = 0; i < CW_V; i++) v[i] = -CW_INF; continue; }
    cw_load8(v, px + (i64)c * a.x_inner, a.x_inner, count);
    float top = -CW_INF;
    CW_UNROLL for (int i = 0; i < CW_V; i++) { if (i >= count) v[i] = -CW_INF; top = Max()(top, v[i]); }
    if (top == -CW_INF) continue;
    float e[CW_V];
    CW_UNROLL for (int i = 0; i < CW_V; i++) e[i] = expf(v[i] - top);
    cw_rescale(m, s, top, (double)cw_sum8(e));
  }
  for (int k = (SHORT ? (int)team.size() : CW_WARP) / 2; k > 0; k >>= 1) { float n = cw_shfl_xor(m, k); double t = cw_shfl_xor(s, k); cw_rescale(m, s, n, t); }
  int warps = ((int)blockDim.x + CW_WARP - 1) / CW_WARP;
  if (!SHORT && warps > 1) {
    CW_SYNC();
    if (CW_LANE() == 0) { shared_m[threadIdx.x / CW_WARP] = m; shared_s[threadIdx.x / CW_WARP] = s; }
    CW_SYNC();
    m = shared_m[0];
    s = shared_s[0];
    for (int w = 1; w < warps; w++) cw_rescale(m, s, shared_m[w], shared_s[w]);
  }
}

template <class TY, class TX, int G, bool SHORT> CW_DEVICE void cw_softmax(const SoftmaxArgs& a) {
  CW_SHARED float shared_m[32];
  CW_SHARED double shared_s[32];
  Team<SHORT> team(a.shift);
  for (u64 base = team.first(); base < a.n; base += team.step()) {
    u64 r = base + team.mine();
    bool here = team.here(r, a.n);
    const TX* px = (const TX*)a.x + cw_offset(a.x_outer, r);
    float x[CW_KEEP(G)][CW_V];
    float m;
    double s;
    cw_statistics<TX, G, SHORT>(a, team, px, x, m, s, shared_m, shared_s);
    float k = (float)(1.0 / s);
    CW_ROW {
      u64 c = CW_COL;
      int count = cw_left(c, a.d);
      if (!count || !here) continue;
      float (&v)[CW_V] = x[G ? g : 0];
      if (!G) cw_load8(v, px + (i64)c * a.x_inner, a.x_inner, count);
      float y[CW_V];
      CW_UNROLL for (int i = 0; i < CW_V; i++) y[i] = expf(v[i] - m) * k;
      cw_store8((TY*)a.y + r * a.d + c, y, 1, count);
    }
  }
}

// x here is y of the forward.
template <class TD, class TG, class TY, int G, bool SHORT> CW_DEVICE void cw_softmax_grad(const SoftmaxArgs& a) {
  CW_SHARED double shared[32];
  Team<SHORT> team(a.shift);
  for (u64 base = team.first(); base < a.n; base += team.step()) {
    u64 r = base + team.mine();
    bool here = team.here(r, a.n);
    const TY* py = (const TY*)a.x + cw_offset(a.x_outer, r);
    const TG* pg = (const TG*)a.dy + cw_offset(a.dy_outer, r);
    float y[CW_KEEP(G)][CW_V];
    float d[CW_KEEP(G)][CW_V];
    double s = 0.0;
    CW_ROW {
      u64 c = CW_COL;
      int count = cw_left(c, a.d), k = G ? g : 0;
      float p[CW_V];
      cw_load8(y[k], py + (i64)c * a.x_inner, a.x_inner, count);
      cw_load8(d[k], pg + (i64)c * a.dy_inner, a.dy_inner, count);
      CW_UNROLL for (int i = 0; i < CW_V; i++) p[i] = i < count ? y[k][i] * d[k][i] : 0.0f;
      s += (double)cw_sum8(p);
    }
    float sum = (float)team.join(s, Sum(), shared);
    CW_ROW {
      u64 c = CW_COL;
      int count = cw_left(c, a.d), k = G ? g : 0;
      if (!count || !here) continue;
      if (!G) {
        cw_load8(y[0], py + (i64)c * a.x_inner, a.x_inner, count);
        cw_load8(d[0], pg + (i64)c * a.dy_inner, a.dy_inner, count);
      }
      float o[CW_V];
      CW_UNROLL for (int i = 0; i < CW_V; i++) o[i] = y[k][i] * (d[k][i] - sum);
      cw_store8((TD*)a.y + r * a.d + c, o, 1, count);
    }
  }
}

// The class of a row's target: -1 ignored, -2 none.
template <class TI> CW_DEVICE i64 cw_target(const SoftmaxArgs& a, u64 r) {
  i64 t = (i64)((const TI*)a.target)[cw_offset(a.target_from, r)];
  if (a.has_ignore && t == a.ignore) return -1;
  return t < 0 || (u64)t >= a.d ? -2 : t;
}

// y is the loss. One pass over the logits.
template <class TX, class TI, bool SHORT> CW_DEVICE void cw_xent(const SoftmaxArgs& a) {
  CW_SHARED float shared_m[32];
  CW_SHARED double shared_s[32];
  Team<SHORT> team(a.shift);
  for (u64 base = team.first(); base < a.n; base += team.step()) {
    u64 r = base + team.mine();
    bool here = team.here(r, a.n);
    const TX* px = (const TX*)a.x + cw_offset(a.x_outer, r);
    float x[1][CW_V];
    float m;
    double s;
    cw_statistics<TX, 0, SHORT>(a, team, px, x, m, s, shared_m, shared_s);
    if (here && team.place() == 0) {
      double z = (double)m + log(s);
      i64 t = cw_target<TI>(a, r);
      a.lse[r] = (float)z;
      ((float*)a.y)[r] = t == -1 ? 0.0f : t == -2 ? CW_NAN : (float)(z - (double)cw_load(px + t * a.x_inner));
    }
  }
}

// dlogits may be the logits: a group is read before it is written.
template <class TD, class TX, class TI> CW_DEVICE void cw_xent_grad(const SoftmaxArgs& a) {
  u64 row_groups = (a.d + CW_V - 1) / CW_V, tiles = (row_groups + blockDim.x - 1) / blockDim.x;
  for (u64 b = blockIdx.x; b < a.n * tiles; b += gridDim.x) {
    u64 r = cw_div(b, tiles), c = ((b - r * tiles) * blockDim.x + threadIdx.x) * CW_V;
    int count = cw_left(c, a.d);
    if (!count) continue;
    const TX* px = (const TX*)a.x + cw_offset(a.x_outer, r);
    i64 t = cw_target<TI>(a, r);
    float v[CW_V];
    if (t < 0) { CW_UNROLL for (int i = 0; i < CW_V; i++) v[i] = t == -1 ? 0.0f : CW_NAN; }
    else {
      float z = a.lse[cw_offset(a.lse_from, r)], k = ((const float*)a.g)[cw_offset(a.g_from, r)];
      cw_load8(v, px + (i64)c * a.x_inner, a.x_inner, count);
      CW_UNROLL for (int i = 0; i < CW_V; i++) v[i] = expf(v[i] - z) * k - ((u64)t == c + i ? k : 0.0f);
    }
    cw_store8((TD*)a.y + r * a.d + c, v, 1, count);
  }
}
