// Layer and RMS norm. A team has a row in registers (G groups of eight a thread; G 0 reads again what does not fit), so memory is passed
// once. Statistics are sums of eights in f32 and of those in f64; weight gradients are partial sums over blocks of rows, joined in order.

struct NormArgs {
  char* y; float *mean, *rstd; const char *x, *w, *b, *dy, *dres; float* parts_at; Dims x_outer, dy_outer, dres_outer;
  i64 x_inner, dy_inner, dres_inner, w_inner, b_inner; u64 n, d, rows, shift; double eps;
};
struct NormSumArgs { float *dw, *db; const float* parts_at; u64 d, parts; };

#define CW_ROW for (int g = 0; G ? g < G : (u64)g * team.size() * CW_V < a.d; g++)
#define CW_COL ((u64)g * team.size() + team.place()) * CW_V
// Groups kept in registers, or the one that is being looked at.
#define CW_KEEP(G) (G ? G : 1)

template <class TY, class TX, class TW, class TB, int G, bool LAYER, bool SHORT> CW_DEVICE void cw_norm(const NormArgs& a) {
  CW_SHARED double shared[32];
  Team<SHORT> team(a.shift);
  for (u64 base = team.first(); base < a.n; base += team.step()) {
    u64 r = base + team.mine();
    bool here = team.here(r, a.n);
    const TX* px = (const TX*)a.x + cw_offset(a.x_outer, r);
    float x[CW_KEEP(G)][CW_V];
    double sum = 0.0;
    if (LAYER || G) CW_ROW {
      u64 c = CW_COL;
      float (&v)[CW_V] = x[G ? g : 0];
      cw_load8(v, px + (i64)c * a.x_inner, a.x_inner, cw_left(c, a.d));
      if (cw_left(c, a.d) < CW_V) CW_UNROLL for (int i = 0; i < CW_V; i++) if (i >= cw_left(c, a.d)) v[i] = 0.0f;
      if (LAYER) sum += (double)cw_sum8(v);
    }
    float mean = 0.0f;
    if (LAYER) mean = (float)(team.join(sum, Sum(), shared) / (double)a.d);
    double q = 0.0;
    CW_ROW {
      u64 c = CW_COL;
      int count = cw_left(c, a.d);
      float (&v)[CW_V] = x[G ? g : 0];
      if (!G) cw_load8(v, px + (i64)c * a.x_inner, a.x_inner, count);
      float s[CW_V];
      CW_UNROLL for (int i = 0; i < CW_V; i++) { float t = i < count ? v[i] - mean : 0.0f; s[i] = t * t; }
      q += (double)cw_sum8(s);
    }
    q = team.join(q, Sum(), shared) / (double)a.d;
    float rstd = (float)(1.0 / sqrt(q + a.eps));
    if (here && team.place() == 0) {
      if (LAYER) a.mean[r] = mean;
      a.rstd[r] = rstd;
    }
    CW_ROW {
      u64 c = CW_COL;
      int count = cw_left(c, a.d);
      if (!count || !here) continue;
      float (&v)[CW_V] = x[G ? g : 0];
      float w[CW_V];
      float b[CW_V];
      float y[CW_V];
      if (!G) cw_load8(v, px + (i64)c * a.x_inner, a.x_inner, count);
      cw_load8(w, (const TW*)a.w + (i64)c * a.w_inner, a.w_inner, count);
      if (LAYER) cw_load8(b, (const TB*)a.b + (i64)c * a.b_inner, a.b ? a.b_inner : (i64)0, a.b ? count : 0);
      CW_UNROLL for (int i = 0; i < CW_V; i++) y[i] = (v[i] - mean) * rstd * w[i] + (LAYER ? b[i] : 0.0f);
      cw_store8((TY*)a.y + r * a.d + c, y, 1, count);
    }
  }
}

// A team walks `rows` rows and keeps the sums of dw and db of its columns in registers (G > 0) or in its part of the workspace (G 0).
template <class TD, class TX, class TW, class TG, class TR, int G, bool LAYER, bool SHORT> CW_DEVICE void cw_norm_grad(const NormArgs& a) {
  CW_SHARED double shared[32];
  Team<SHORT> team(a.shift);
  u64 part = team.first() + team.mine(), first = part * a.rows, end = SHORT || first + a.rows < a.n ? first + a.rows : a.n;
  float* dw = a.parts_at + part * 2 * a.d;
  float* db = dw + a.d;
  float sw[CW_KEEP(G)][CW_V];
  float sb[CW_KEEP(G)][CW_V];
  CW_UNROLL for (int g = 0; g < CW_KEEP(G); g++) CW_UNROLL for (int i = 0; i < CW_V; i++) { sw[g][i] = 0.0f; sb[g][i] = 0.0f; }
  if (!G) CW_ROW { u64 c = CW_COL; for (int i = 0; i < cw_left(c, a.d); i++) { dw[c + i] = 0.0f; db[c + i] = 0.0f; } }
  for (u64 row = first; row < end; row++) {
    u64 r = row;
    bool here = team.here(r, a.n);
    const TX* px = (const TX*)a.x + cw_offset(a.x_outer, r);
    const TG* pg = (const TG*)a.dy + cw_offset(a.dy_outer, r);
    const TR* pr = (const TR*)a.dres + (a.dres ? cw_offset(a.dres_outer, r) : 0);
    float mean = LAYER ? a.mean[r] : 0.0f, rstd = a.rstd[r];
    // x becomes xhat, dy becomes w dy.
    float x[CW_KEEP(G)][CW_V];
    float d[CW_KEEP(G)][CW_V];
    double s1 = 0.0, s2 = 0.0;
    CW_ROW {
      u64 c = CW_COL;
      int count = here ? cw_left(c, a.d) : 0, k = G ? g : 0;
      float w[CW_V];
      float p[CW_V];
      cw_load8(x[k], px + (i64)c * a.x_inner, a.x_inner, count);
      cw_load8(d[k], pg + (i64)c * a.dy_inner, a.dy_inner, count);
      cw_load8(w, (const TW*)a.w + (i64)c * a.w_inner, a.w_inner, count);
      CW_UNROLL for (int i = 0; i < CW_V; i++) {
        bool has = i < count;
        float h = has ? (x[k][i] - mean) * rstd : 0.0f, dy = has ? d[k][i] : 0.0f;
        if (G) { sw[k][i] += dy * h; sb[k][i] += dy; }
        else if (has) { dw[c + i] += dy * h; db[c + i] += dy; }
        x[k][i] = h;
        d[k][i] = has ? w[i] * dy : 0.0f;
        p[i] = d[k][i] * h;
      }
      if (LAYER) s1 += (double)cw_sum8(d[k]);
      s2 += (double)cw_sum8(p);
    }
    float c1 = LAYER ? (float)(team.join(s1, Sum(), shared) / (double)a.d) : 0.0f;
    float c2 = (float)(team.join(s2, Sum(), shared) / (double)a.d);
    CW_ROW {
      u64 c = CW_COL;
      int count = cw_left(c, a.d), k = G ? g : 0;
      if (!count || !here) continue;
      if (!G) {
        float w[CW_V];
        cw_load8(x[0], px + (i64)c * a.x_inner, a.x_inner, count);
        cw_load8(d[0], pg + (i64)c * a.dy_inner, a.dy_inner, count);
        cw_load8(w, (const TW*)a.w + (i64)c * a.w_inner, a.w_inner, count);
        CW_UNROLL for (int i = 0; i < CW_V; i++) { x[0][i] = (x[0][i] - mean) * rstd; d[0][i] *= w[i]; }
      }
      float y[CW_V];
      CW_UNROLL for (int i = 0; i < CW_V; i++) y[i] = rstd * (d[k][i] - c1 - x[k][i] * c2);
      if (a.dres) {
        float e[CW_V];
        cw_load8(e, pr + (i64)c * a.dres_inner, a.dres_inner, count);
        CW_UNROLL for (int i = 0; i < CW_V; i++) y[i] += e[i];
      }
      cw_store8((TD*)a.y + r * a.d + c, y, 1, count);
    }
  }
  if (G && (!SHORT || first < a.n)) CW_ROW {
    u64 c = CW_COL;
    cw_store8(dw + c, sw[g], 1, cw_left(c, a.d));
    cw_store8(db + c, sb[g], 1, cw_left(c, a.d));
  }
}

// dw += the parts of dw, db += those of db, in f64. Eight rows of threads share the parts of 32 columns.
CW_DEVICE void cw_norm_sum(const NormSumArgs& a) {
  CW_SHARED double shared[2][8][32];
  int x = (int)threadIdx.x % 32, way = (int)threadIdx.x / 32;
  u64 c = (u64)blockIdx.x * 32 + x;
  double w = 0.0, b = 0.0;
  if (c < a.d) for (u64 p = way; p < a.parts; p += 8) {
    w += (double)a.parts_at[p * 2 * a.d + c];
    b += (double)a.parts_at[(p * 2 + 1) * a.d + c];
  }
  shared[0][way][x] = w;
  shared[1][way][x] = b;
  CW_SYNC();
  if (way == 0 && c < a.d) {
    for (int k = 1; k < 8; k++) { w += shared[0][k][x]; b += shared[1][k][x]; }
    a.dw[c] = (float)((double)a.dw[c] + w);
    if (a.db) a.db[c] = (float)((double)a.db[c] + b);
  }
}
