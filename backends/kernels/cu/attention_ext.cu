// Attention with what attention_ext_* put on top, without tensor cores, as attention_varlen.cu: sixteen rows to a block, eight threads to a row.
// A block takes the parts that its rows lie in one after the other: a segment, or the row whole. What no query of a block sees is not read.

#define CW_ROWS 16

// Does query i of the part see key j?
CW_DEVICE bool cw_sees(const ExtArgs& a, const Part& p, i64 i, i64 j) {
  i64 at = i + p.ahead;
  return i >= p.qlo && i < p.qhi && j >= p.klo && j < p.khi && (!a.causal || j <= at) && (a.window <= 0 || j > at - a.window);
}
// Keys lo..hi that some of the queries first..end of the part sees.
CW_DEVICE void cw_keys(const ExtArgs& a, const Part& p, i64 first, i64 end, i64& lo, i64& hi) {
  lo = p.klo;
  hi = p.khi;
  if (a.causal && end + p.ahead < hi) hi = end + p.ahead;
  if (a.window > 0 && first + p.ahead - a.window + 1 > lo) lo = first + p.ahead - a.window + 1;
}
// Queries lo..hi that see some of its keys first..end.
CW_DEVICE void cw_queries(const ExtArgs& a, const Part& p, i64 first, i64 end, i64& lo, i64& hi) {
  lo = p.qlo;
  hi = p.qhi;
  if (a.causal && first - p.ahead > lo) lo = first - p.ahead;
  if (a.window > 0 && end - 1 + a.window - p.ahead < hi) hi = end - 1 + a.window - p.ahead;
}

// A number of an operand whose storage is one of the floats.
CW_DEVICE float cw_any(const char* p, u32 type, i64 at) {
  return type == 0 ? ((const float*)p)[at] : type == 1 ? cw_load((const bf16*)p + at) : cw_load((const f16*)p + at);
}
// The score of a pair whose product is x, and what its gradient is multiplied by for that of the product.
CW_DEVICE float cw_score(const ExtArgs& a, const Part& p, u32 h, i64 i, i64 j, float x, float& slope) {
  float s = x * a.scale;
  slope = 1.0f;
  if (a.cap > 0.0f) {
    float t = tanhf(s / a.cap);
    s = a.cap * t;
    slope = 1.0f - t * t;
  }
  if (a.bias) s += cw_any(a.bias, a.bias_type, h * a.bs + j - i + p.zero);
  return s;
}
// What the weight of a pair is multiplied by.
CW_DEVICE float cw_kept(const ExtArgs& a, u32 b, u32 h, i64 i, i64 j) {
  if (a.threshold == 0) return 1.0f;
  u64 key = (u64)(a.first_key + j), line = ((u64)b * a.heads + h) * a.queries + (u64)i;
  u64 seed = (u64)a.dynamic[1] << 32 | a.dynamic[0], offset = (u64)a.dynamic[3] << 32 | a.dynamic[2], stream = (u64)a.dynamic[5] << 32 | a.dynamic[4];
  Words w = cw_philox(offset + line * a.blocks + key / 4, stream, seed);
  u32 lane = (u32)key & 3, word = lane == 0 ? w.w[0] : lane == 1 ? w.w[1] : lane == 2 ? w.w[2] : w.w[3];
  return (word >> 8) >= a.threshold ? a.kept : 0.0f;
}

// A tile of `n` rows of a head from row t0 on, as f32 with a pitch of d + 1; rows outside of from..end are zero.
template <class T> CW_DEVICE void cw_tile(const ExtArgs& a, float* to, const T* rows, i64 pitch, i64 t0, i64 from, i64 end, int n) {
  for (int e = (int)threadIdx.x; e < n * (int)a.d; e += (int)blockDim.x) {
    int r = e / (int)a.d, c = e % (int)a.d;
    i64 t = t0 + r;
    to[r * ((int)a.d + 1) + c] = t >= from && t < end ? cw_load(rows + t * pitch + c) : 0.0f;
  }
}
// NC columns of a head to a thread: 8 NC >= d.
template <class TO, class T, int NC> CW_DEVICE void cw_ext(const ExtArgs& a) {
  CW_DYN_SHARED(float, mem);
  const int d = (int)a.d, pitch = d + 1, row = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8, KEYS = 32;
  float *q = mem, *kv = q + CW_ROWS * pitch, *p = kv + KEYS * pitch;
  const u32 h = blockIdx.y % a.h, b = blockIdx.y / a.h, hk = h / (a.h / a.hkv);
  const i64 i0 = (i64)blockIdx.x * CW_ROWS, i = i0 + row, rows = i0 + CW_ROWS < (i64)a.tq ? i0 + CW_ROWS : (i64)a.tq;
  const T* pk = (const T*)a.k + b * a.ks[0] + hk * a.ks[2];
  const T* pv = (const T*)a.v + b * a.vs[0] + hk * a.vs[2];
  cw_tile(a, q, (const T*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, i0, rows, CW_ROWS);
  float acc[NC];
  CW_UNROLL for (int c = 0; c < NC; c++) acc[c] = 0.0f;
  float m = -CW_INF, sum = 0.0f;
  bool placed = false;
  Part g;
  for (i64 at = i0; at < rows;) {
    if (!cw_part(a, b, at, false, g)) { at++; continue; }
    const i64 end = g.qhi < rows ? g.qhi : rows;
    const bool mine = i >= at && i < end;
    placed = placed || mine;
    i64 lo, hi;
    cw_keys(a, g, at, end, lo, hi);
    for (i64 j0 = lo; j0 < hi; j0 += KEYS) {
      CW_SYNC();
      cw_tile(a, kv, pk, a.ks[1], j0, lo, hi, KEYS);
      CW_SYNC();
      float s[4];
      float top = -CW_INF, slope;
      CW_UNROLL for (int e = 0; e < 4; e++) {
        i64 j = j0 + lane + 8 * e;
        s[e] = mine && cw_sees(a, g, i, j) ? cw_score(a, g, h, i, j, cw_dot(q + row * pitch, kv + (lane + 8 * e) * pitch, d), slope) : -CW_INF;
        top = Max()(top, s[e]);
      }
      top = Max()(m, cw_row_join(top, Max()));
      float base = top == -CW_INF ? 0.0f : top, keep = expf(m - base), part = 0.0f;
      CW_UNROLL for (int e = 0; e < 4; e++) {
        float w = expf(s[e] - base);
        p[row * (KEYS + 1) + lane + 8 * e] = w == 0.0f ? 0.0f : w * cw_kept(a, b, h, i, j0 + lane + 8 * e);
        part += w;
      }
      part = cw_row_join(part, Sum());
      if (mine) { sum = sum * keep + part; m = top; }
      CW_SYNC();
      cw_tile(a, kv, pv, a.vs[1], j0, lo, hi, KEYS);
      CW_SYNC();
      if (mine) {
        CW_UNROLL for (int c = 0; c < NC; c++) acc[c] *= keep;
        for (int j = 0; j < KEYS; j++) {
          float w = p[row * (KEYS + 1) + j];
          CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) acc[c] += w * kv[j * pitch + x]; }
        }
      }
    }
    at = end;
  }
  if (i >= (i64)a.tq) return;
  float k = sum == 0.0f ? 0.0f : 1.0f / sum, lse = sum == 0.0f ? -CW_INF : m + logf(sum);
  if (a.sinks && placed) {
    float sink = cw_any(a.sinks, a.sinks_type, h * a.ss), top = Max()(m, sink), fade = expf(m - top), all = sum * fade + expf(sink - top);
    k = fade / all;
    lse = top + logf(all);
  }
  TO* o = (TO*)a.o + b * a.os[0] + i * a.os[1] + h * a.os[2];
  CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) cw_store(o + x, acc[c] * k); }
  if (lane == 0) a.lse[b * a.ls[0] + h * a.ls[1] + i * a.ls[2]] = lse;
}

// The weight of a pair as it was used, and the gradient of its product.
CW_DEVICE void cw_pair(const ExtArgs& a, const Part& g, u32 b, u32 h, i64 i, i64 j, const float* q, const float* k, const float* go, const float* v, float& p, float& ds) {
  p = 0.0f;
  ds = 0.0f;
  if (!cw_sees(a, g, i, j)) return;
  float lse = a.lse[b * a.ls[0] + h * a.ls[1] + i * a.ls[2]], slope;
  if (lse == -CW_INF) return;
  float w = expf(cw_score(a, g, h, i, j, cw_dot(q, k, (int)a.d), slope) - lse), kept = cw_kept(a, b, h, i, j);
  p = w * kept;
  ds = w * (cw_dot(go, v, (int)a.d) * kept - a.delta[((u64)b * a.h + h) * a.tq + i]) * slope * a.scale;
}

template <class TD, class T, class TG, int NC> CW_DEVICE void cw_ext_keys(const ExtArgs& a) {
  CW_DYN_SHARED(float, mem);
  const int d = (int)a.d, pitch = d + 1, row = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8;
  float *k = mem, *v = k + CW_ROWS * pitch, *q = v + CW_ROWS * pitch, *g = q + CW_ROWS * pitch, *p = g + CW_ROWS * pitch, *ds = p + CW_ROWS * 17;
  const u32 hk = blockIdx.y % a.hkv, b = blockIdx.y / a.hkv, each = a.h / a.hkv;
  const i64 j0 = (i64)blockIdx.x * CW_ROWS, j = j0 + row, rows = j0 + CW_ROWS < (i64)a.tk ? j0 + CW_ROWS : (i64)a.tk;
  cw_tile(a, k, (const T*)a.k + b * a.ks[0] + hk * a.ks[2], a.ks[1], j0, j0, rows, CW_ROWS);
  cw_tile(a, v, (const T*)a.v + b * a.vs[0] + hk * a.vs[2], a.vs[1], j0, j0, rows, CW_ROWS);
  float dk[NC];
  float dv[NC];
  CW_UNROLL for (int c = 0; c < NC; c++) { dk[c] = 0.0f; dv[c] = 0.0f; }
  Part s;
  for (i64 at = j0; at < rows;) {
    if (!cw_part(a, b, at, true, s)) { at++; continue; }
    const i64 end = s.khi < rows ? s.khi : rows;
    const bool mine = j >= at && j < end;
    i64 lo, hi;
    cw_queries(a, s, at, end, lo, hi);
    for (u32 h = hk * each; h < (hk + 1) * each; h++)
      for (i64 i0 = lo; i0 < hi; i0 += CW_ROWS) {
        CW_SYNC();
        cw_tile(a, q, (const T*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, lo, hi, CW_ROWS);
        cw_tile(a, g, (const TG*)a.go + b * a.gos[0] + h * a.gos[2], a.gos[1], i0, lo, hi, CW_ROWS);
        CW_SYNC();
        for (int e = lane; e < CW_ROWS; e += 8)
          cw_pair(a, s, b, h, i0 + e, j, q + e * pitch, k + row * pitch, g + e * pitch, v + row * pitch, p[row * 17 + e], ds[row * 17 + e]);
        CW_SYNC();
        if (mine)
          for (int e = 0; e < CW_ROWS; e++) {
            float w = p[row * 17 + e], z = ds[row * 17 + e];
            CW_UNROLL for (int c = 0; c < NC; c++) {
              int x = lane + 8 * c;
              if (x < d) { dv[c] += w * g[e * pitch + x]; dk[c] += z * q[e * pitch + x]; }
            }
          }
      }
    at = end;
  }
  if (j >= (i64)a.tk) return;
  TD* ok = (TD*)a.dk + b * a.dks[0] + j * a.dks[1] + hk * a.dks[2];
  TD* ov = (TD*)a.dv + b * a.dvs[0] + j * a.dvs[1] + hk * a.dvs[2];
  CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) { cw_store(ok + x, dk[c]); cw_store(ov + x, dv[c]); } }
}

template <class TD, class T, class TG, int NC> CW_DEVICE void cw_ext_queries(const ExtArgs& a) {
  CW_DYN_SHARED(float, mem);
  const int d = (int)a.d, pitch = d + 1, row = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8;
  float *k = mem, *v = k + CW_ROWS * pitch, *q = v + CW_ROWS * pitch, *g = q + CW_ROWS * pitch, *ds = g + CW_ROWS * pitch;
  const u32 h = blockIdx.y % a.h, b = blockIdx.y / a.h, hk = h / (a.h / a.hkv);
  const i64 i0 = (i64)blockIdx.x * CW_ROWS, i = i0 + row, rows = i0 + CW_ROWS < (i64)a.tq ? i0 + CW_ROWS : (i64)a.tq;
  cw_tile(a, q, (const T*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, i0, rows, CW_ROWS);
  cw_tile(a, g, (const TG*)a.go + b * a.gos[0] + h * a.gos[2], a.gos[1], i0, i0, rows, CW_ROWS);
  float dq[NC];
  CW_UNROLL for (int c = 0; c < NC; c++) dq[c] = 0.0f;
  Part s;
  for (i64 at = i0; at < rows;) {
    if (!cw_part(a, b, at, false, s)) { at++; continue; }
    const i64 end = s.qhi < rows ? s.qhi : rows;
    const bool mine = i >= at && i < end;
    i64 lo, hi;
    cw_keys(a, s, at, end, lo, hi);
    for (i64 j0 = lo; j0 < hi; j0 += CW_ROWS) {
      CW_SYNC();
      cw_tile(a, k, (const T*)a.k + b * a.ks[0] + hk * a.ks[2], a.ks[1], j0, lo, hi, CW_ROWS);
      cw_tile(a, v, (const T*)a.v + b * a.vs[0] + hk * a.vs[2], a.vs[1], j0, lo, hi, CW_ROWS);
      CW_SYNC();
      for (int e = lane; e < CW_ROWS; e += 8) {
        float p;
        cw_pair(a, s, b, h, i, j0 + e, q + row * pitch, k + e * pitch, g + row * pitch, v + e * pitch, p, ds[row * 17 + e]);
      }
      CW_SYNC();
      if (mine)
        for (int e = 0; e < CW_ROWS; e++) {
          float z = ds[row * 17 + e];
          CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) dq[c] += z * k[e * pitch + x]; }
        }
    }
    at = end;
  }
  if (i >= (i64)a.tq) return;
  TD* o = (TD*)a.dq + b * a.dqs[0] + i * a.dqs[1] + h * a.dqs[2];
  CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) cw_store(o + x, dq[c]); }
}

// dsinks[h] += the sum of -exp(sink - lse) delta over the queries that are in a part, a block to a head.
CW_DEVICE void cw_ext_sinks(const ExtArgs& a) {
  CW_SHARED float shared[32];
  const u32 h = blockIdx.x;
  const float sink = cw_any(a.sinks, a.sinks_type, h * a.ss);
  const u64 all = (u64)a.b * a.tq;
  float s = 0.0f;
  for (u64 e = threadIdx.x; e < all; e += blockDim.x) {
    u64 b = e / a.tq, i = e % a.tq;
    float lse = a.lse[(i64)b * a.ls[0] + h * a.ls[1] + (i64)i * a.ls[2]];
    if (lse != -CW_INF) s -= expf(sink - lse) * a.delta[(b * a.h + h) * a.tq + i];
  }
  s = cw_block_join(s, Sum(), shared);
  if (threadIdx.x == 0) a.dsinks[h * a.dss] += s;
}
