// Attention without tensor cores, for any storage and head size up to 256: sixteen rows to a block, eight threads to a row, scores through
// shared memory, online softmax in f32. The backward has one owner for every sum, so it is deterministic: keys' gradients by blocks of keys
// that walk the queries, queries' gradients by blocks of queries that walk the keys.

struct AttentionArgs {
  char* o; float* lse; const char *q, *k, *v, *go; char *dq, *dk, *dv; float* delta; i64 os[3], qs[3], ks[3], vs[3], gos[3], dqs[3], dks[3], dvs[3],
  ls[3]; i64 window; u32 b, tq, tk, h, hkv, d, causal; float scale;
};

#define CW_ROWS 16

// Does query i see key j?
CW_DEVICE bool cw_sees(const AttentionArgs& a, i64 i, i64 j) {
  i64 at = i + (i64)a.tk - (i64)a.tq;
  return j < (i64)a.tk && i < (i64)a.tq && (!a.causal || j <= at) && (a.window <= 0 || j > at - a.window);
}
// Keys lo..hi that some query of i0 .. i0 + n sees.
CW_DEVICE void cw_keys(const AttentionArgs& a, i64 i0, i64 n, i64& lo, i64& hi) {
  i64 first = i0 + (i64)a.tk - (i64)a.tq, last = first + n - 1;
  hi = (i64)a.tk;
  if (a.causal && last + 1 < hi) hi = last + 1 > 0 ? last + 1 : 0;
  lo = a.window > 0 && first - a.window + 1 > 0 ? first - a.window + 1 : 0;
}
// Queries lo..hi that see some key of j0 .. j0 + n.
CW_DEVICE void cw_queries(const AttentionArgs& a, i64 j0, i64 n, i64& lo, i64& hi) {
  i64 shift = (i64)a.tk - (i64)a.tq;
  lo = a.causal && j0 - shift > 0 ? j0 - shift : 0;
  hi = (i64)a.tq;
  if (a.window > 0 && j0 + n - 1 + a.window - shift < hi) hi = j0 + n - 1 + a.window - shift;
}

// A tile of `n` rows of a head from row t0 on, as f32 with a pitch of d + 1; rows past the end are zero.
template <class T> CW_DEVICE void cw_tile(const AttentionArgs& a, float* to, const T* from, i64 pitch, i64 t0, i64 end, int n) {
  for (int e = (int)threadIdx.x; e < n * (int)a.d; e += (int)blockDim.x) {
    int r = e / (int)a.d, c = e % (int)a.d;
    to[r * ((int)a.d + 1) + c] = t0 + r < end ? cw_load(from + (t0 + r) * pitch + c) : 0.0f;
  }
}
// NC columns of a head to a thread: 8 NC >= d.
template <class TO, class TQ, class TK, class TV, int NC> CW_DEVICE void cw_attention(const AttentionArgs& a) {
  CW_DYN_SHARED(float, mem);
  const int d = (int)a.d, pitch = d + 1, row = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8, KEYS = 32;
  float *q = mem, *kv = q + CW_ROWS * pitch, *p = kv + KEYS * pitch;
  const u32 h = blockIdx.y % a.h, b = blockIdx.y / a.h, hk = h / (a.h / a.hkv);
  const i64 i0 = (i64)blockIdx.x * CW_ROWS, i = i0 + row;
  const TK* pk = (const TK*)a.k + b * a.ks[0] + hk * a.ks[2];
  const TV* pv = (const TV*)a.v + b * a.vs[0] + hk * a.vs[2];
  cw_tile(a, q, (const TQ*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, (i64)a.tq, CW_ROWS);
  float acc[NC];
  CW_UNROLL for (int c = 0; c < NC; c++) acc[c] = 0.0f;
  float m = -CW_INF, sum = 0.0f;
  i64 lo, hi;
  cw_keys(a, i0, CW_ROWS, lo, hi);
  for (i64 j0 = lo; j0 < hi; j0 += KEYS) {
    CW_SYNC();
    cw_tile(a, kv, pk, a.ks[1], j0, (i64)a.tk, KEYS);
    CW_SYNC();
    float s[4];
    float top = -CW_INF;
    CW_UNROLL for (int e = 0; e < 4; e++) {
      int j = lane + 8 * e;
      s[e] = cw_sees(a, i, j0 + j) ? cw_dot(q + row * pitch, kv + j * pitch, d) * a.scale : -CW_INF;
      top = Max()(top, s[e]);
    }
    top = Max()(m, cw_row_join(top, Max()));
    float base = top == -CW_INF ? 0.0f : top, keep = expf(m - base), part = 0.0f;
    CW_UNROLL for (int e = 0; e < 4; e++) {
      float w = expf(s[e] - base);
      p[row * (KEYS + 1) + lane + 8 * e] = w;
      part += w;
    }
    sum = sum * keep + cw_row_join(part, Sum());
    m = top;
    CW_SYNC();
    cw_tile(a, kv, pv, a.vs[1], j0, (i64)a.tk, KEYS);
    CW_SYNC();
    CW_UNROLL for (int c = 0; c < NC; c++) acc[c] *= keep;
    for (int j = 0; j < KEYS; j++) {
      float w = p[row * (KEYS + 1) + j];
      CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) acc[c] += w * kv[j * pitch + x]; }
    }
  }
  if (i >= (i64)a.tq) return;
  TO* o = (TO*)a.o + b * a.os[0] + i * a.os[1] + h * a.os[2];
  float k = sum == 0.0f ? 0.0f : 1.0f / sum;
  CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) cw_store(o + x, acc[c] * k); }
  if (lane == 0) a.lse[b * a.ls[0] + h * a.ls[1] + i * a.ls[2]] = sum == 0.0f ? -CW_INF : m + logf(sum);
}

// delta[b, h, i] = sum of do * o over a head.
template <class TG, class TO> CW_DEVICE void cw_attention_delta(const AttentionArgs& a) {
  const int lane = (int)threadIdx.x % 8;
  const u32 h = blockIdx.y % a.h, b = blockIdx.y / a.h;
  const i64 i = (i64)blockIdx.x * CW_ROWS + (i64)(threadIdx.x / 8);
  float s = 0.0f;
  if (i < (i64)a.tq) {
    const TG* g = (const TG*)a.go + b * a.gos[0] + i * a.gos[1] + h * a.gos[2];
    const TO* o = (const TO*)a.o + b * a.os[0] + i * a.os[1] + h * a.os[2];
    for (int c = lane; c < (int)a.d; c += 8) s += cw_load(g + c) * cw_load(o + c);
  }
  s = cw_row_join(s, Sum());
  if (lane == 0 && i < (i64)a.tq) a.delta[((u64)b * a.h + h) * a.tq + i] = s;
}

// The probability of a pair and the gradient of its score.
CW_DEVICE void cw_pair(const AttentionArgs& a, u32 b, u32 h, i64 i, i64 j, const float* q, const float* k, const float* g, const float* v, float& p, float& ds) {
  p = 0.0f;
  ds = 0.0f;
  if (!cw_sees(a, i, j)) return;
  float lse = a.lse[b * a.ls[0] + h * a.ls[1] + i * a.ls[2]];
  p = expf(cw_dot(q, k, (int)a.d) * a.scale - lse);
  ds = p * (cw_dot(g, v, (int)a.d) - a.delta[((u64)b * a.h + h) * a.tq + i]) * a.scale;
}

template <class TDK, class TDV, class TQ, class TK, class TV, class TG, int NC> CW_DEVICE void cw_attention_keys(const AttentionArgs& a) {
  CW_DYN_SHARED(float, mem);
  const int d = (int)a.d, pitch = d + 1, row = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8;
  float *k = mem, *v = k + CW_ROWS * pitch, *q = v + CW_ROWS * pitch, *g = q + CW_ROWS * pitch, *p = g + CW_ROWS * pitch, *ds = p + CW_ROWS * 17;
  const u32 hk = blockIdx.y % a.hkv, b = blockIdx.y / a.hkv, each = a.h / a.hkv;
  const i64 j0 = (i64)blockIdx.x * CW_ROWS, j = j0 + row;
  cw_tile(a, k, (const TK*)a.k + b * a.ks[0] + hk * a.ks[2], a.ks[1], j0, (i64)a.tk, CW_ROWS);
  cw_tile(a, v, (const TV*)a.v + b * a.vs[0] + hk * a.vs[2], a.vs[1], j0, (i64)a.tk, CW_ROWS);
  float dk[NC];
  float dv[NC];
  CW_UNROLL for (int c = 0; c < NC; c++) { dk[c] = 0.0f; dv[c] = 0.0f; }
  i64 lo, hi;
  cw_queries(a, j0, CW_ROWS, lo, hi);
  for (u32 h = hk * each; h < (hk + 1) * each; h++)
    for (i64 i0 = lo; i0 < hi; i0 += CW_ROWS) {
      CW_SYNC();
      cw_tile(a, q, (const TQ*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, (i64)a.tq, CW_ROWS);
      cw_tile(a, g, (const TG*)a.go + b * a.gos[0] + h * a.gos[2], a.gos[1], i0, (i64)a.tq, CW_ROWS);
      CW_SYNC();
      for (int e = lane; e < CW_ROWS; e += 8)
        cw_pair(a, b, h, i0 + e, j, q + e * pitch, k + row * pitch, g + e * pitch, v + row * pitch, p[row * 17 + e], ds[row * 17 + e]);
      CW_SYNC();
      for (int e = 0; e < CW_ROWS; e++) {
        float w = p[row * 17 + e], s = ds[row * 17 + e];
        CW_UNROLL for (int c = 0; c < NC; c++) {
          int x = lane + 8 * c;
          if (x < d) { dv[c] += w * g[e * pitch + x]; dk[c] += s * q[e * pitch + x]; }
        }
      }
    }
  if (j >= (i64)a.tk) return;
  TDK* ok = (TDK*)a.dk + b * a.dks[0] + j * a.dks[1] + hk * a.dks[2];
  TDV* ov = (TDV*)a.dv + b * a.dvs[0] + j * a.dvs[1] + hk * a.dvs[2];
  CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) { cw_store(ok + x, dk[c]); cw_store(ov + x, dv[c]); } }
}

template <class TDQ, class TQ, class TK, class TV, class TG, int NC> CW_DEVICE void cw_attention_queries(const AttentionArgs& a) {
  CW_DYN_SHARED(float, mem);
  const int d = (int)a.d, pitch = d + 1, row = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8;
  float *k = mem, *v = k + CW_ROWS * pitch, *q = v + CW_ROWS * pitch, *g = q + CW_ROWS * pitch, *ds = g + CW_ROWS * pitch;
  const u32 h = blockIdx.y % a.h, b = blockIdx.y / a.h, hk = h / (a.h / a.hkv);
  const i64 i0 = (i64)blockIdx.x * CW_ROWS, i = i0 + row;
  cw_tile(a, q, (const TQ*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, (i64)a.tq, CW_ROWS);
  cw_tile(a, g, (const TG*)a.go + b * a.gos[0] + h * a.gos[2], a.gos[1], i0, (i64)a.tq, CW_ROWS);
  float dq[NC];
  CW_UNROLL for (int c = 0; c < NC; c++) dq[c] = 0.0f;
  i64 lo, hi;
  cw_keys(a, i0, CW_ROWS, lo, hi);
  for (i64 j0 = lo; j0 < hi; j0 += CW_ROWS) {
    CW_SYNC();
    cw_tile(a, k, (const TK*)a.k + b * a.ks[0] + hk * a.ks[2], a.ks[1], j0, (i64)a.tk, CW_ROWS);
    cw_tile(a, v, (const TV*)a.v + b * a.vs[0] + hk * a.vs[2], a.vs[1], j0, (i64)a.tk, CW_ROWS);
    CW_SYNC();
    for (int e = lane; e < CW_ROWS; e += 8) {
      float p;
      cw_pair(a, b, h, i, j0 + e, q + row * pitch, k + e * pitch, g + row * pitch, v + e * pitch, p, ds[row * 17 + e]);
    }
    CW_SYNC();
    for (int e = 0; e < CW_ROWS; e++) {
      float s = ds[row * 17 + e];
      CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) dq[c] += s * k[e * pitch + x]; }
    }
  }
  if (i >= (i64)a.tq) return;
  TDQ* o = (TDQ*)a.dq + b * a.dqs[0] + i * a.dqs[1] + h * a.dqs[2];
  CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) cw_store(o + x, dq[c]); }
}
