// Attention of packed sequences without tensor cores, as attention.cu: sixteen rows to a block, eight threads to a row. A block takes the segments
// that its rows lie in one after the other; tiles of keys begin at the first position of the segment, and what is masked adds exact zeros, so the
// bits of a segment depend neither on where it lies nor on what lies beside it. Every thread searches the cumulative lengths alike.

#define CW_ROWS 16

// Does query i of the segment see key j?
CW_DEVICE bool cw_sees(const VarlenArgs& a, const Segment& s, i64 i, i64 j) {
  return i >= s.lo && i < s.hi && j >= s.lo && j < s.hi && (!a.causal || j <= i) && (a.window <= 0 || j > i - a.window);
}
// Keys lo..hi that some of the queries first..end of the segment sees, from the begin of a tile on.
CW_DEVICE void cw_keys(const VarlenArgs& a, const Segment& s, i64 first, i64 end, i64 tile, i64& lo, i64& hi) {
  hi = a.causal ? end : s.hi;
  lo = s.lo;
  if (a.window > 0 && first - a.window + 1 > lo) lo += (first - a.window + 1 - s.lo) / tile * tile;
}
// Queries lo..hi of the segment that see some of its keys first..end.
CW_DEVICE void cw_queries(const VarlenArgs& a, const Segment& s, i64 first, i64 end, i64& lo, i64& hi) {
  lo = a.causal ? first : s.lo;
  hi = a.window > 0 && end - 1 + a.window < s.hi ? end - 1 + a.window : s.hi;
}

// A tile of `n` rows of a head from row t0 on, as f32 with a pitch of d + 1; rows outside of from..end are zero.
template <class T> CW_DEVICE void cw_tile(const VarlenArgs& a, float* to, const T* rows, i64 pitch, i64 t0, i64 from, i64 end, int n) {
  for (int e = (int)threadIdx.x; e < n * (int)a.d; e += (int)blockDim.x) {
    int r = e / (int)a.d, c = e % (int)a.d;
    i64 t = t0 + r;
    to[r * ((int)a.d + 1) + c] = t >= from && t < end ? cw_load(rows + t * pitch + c) : 0.0f;
  }
}
// NC columns of a head to a thread: 8 NC >= d.
template <class TO, class TQ, class TK, class TV, int NC> CW_DEVICE void cw_varlen(const VarlenArgs& a) {
  CW_DYN_SHARED(float, mem);
  const int d = (int)a.d, pitch = d + 1, row = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8, KEYS = 32;
  float *q = mem, *kv = q + CW_ROWS * pitch, *p = kv + KEYS * pitch;
  const u32 h = blockIdx.y % a.h, b = blockIdx.y / a.h, hk = h / (a.h / a.hkv);
  const i64 i0 = (i64)blockIdx.x * CW_ROWS, i = i0 + row, rows = i0 + CW_ROWS < (i64)a.t ? i0 + CW_ROWS : (i64)a.t;
  const TK* pk = (const TK*)a.k + b * a.ks[0] + hk * a.ks[2];
  const TV* pv = (const TV*)a.v + b * a.vs[0] + hk * a.vs[2];
  cw_tile(a, q, (const TQ*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, i0, rows, CW_ROWS);
  float acc[NC];
  CW_UNROLL for (int c = 0; c < NC; c++) acc[c] = 0.0f;
  float m = -CW_INF, sum = 0.0f;
  Segment g;
  for (i64 at = i0; at < rows;) {
    if (!cw_segment(a, b, at, g)) { at++; continue; }
    const i64 end = g.hi < rows ? g.hi : rows;
    const bool mine = i >= at && i < end;
    i64 lo, hi;
    cw_keys(a, g, at, end, KEYS, lo, hi);
    for (i64 j0 = lo; j0 < hi; j0 += KEYS) {
      CW_SYNC();
      cw_tile(a, kv, pk, a.ks[1], j0, g.lo, g.hi, KEYS);
      CW_SYNC();
      float s[4];
      float top = -CW_INF;
      CW_UNROLL for (int e = 0; e < 4; e++) {
        int j = lane + 8 * e;
        s[e] = mine && cw_sees(a, g, i, j0 + j) ? cw_dot(q + row * pitch, kv + j * pitch, d) * a.scale : -CW_INF;
        top = Max()(top, s[e]);
      }
      top = Max()(m, cw_row_join(top, Max()));
      float base = top == -CW_INF ? 0.0f : top, keep = expf(m - base), part = 0.0f;
      CW_UNROLL for (int e = 0; e < 4; e++) {
        float w = expf(s[e] - base);
        p[row * (KEYS + 1) + lane + 8 * e] = w;
        part += w;
      }
      part = cw_row_join(part, Sum());
      if (mine) { sum = sum * keep + part; m = top; }
      CW_SYNC();
      cw_tile(a, kv, pv, a.vs[1], j0, g.lo, g.hi, KEYS);
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
  if (i >= (i64)a.t) return;
  TO* o = (TO*)a.o + b * a.os[0] + i * a.os[1] + h * a.os[2];
  float k = sum == 0.0f ? 0.0f : 1.0f / sum;
  CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) cw_store(o + x, acc[c] * k); }
  if (lane == 0) a.lse[b * a.ls[0] + h * a.ls[1] + i * a.ls[2]] = sum == 0.0f ? -CW_INF : m + logf(sum);
}

// The probability of a pair and the gradient of its score.
CW_DEVICE void cw_pair(const VarlenArgs& a, const Segment& s, u32 b, u32 h, i64 i, i64 j, const float* q, const float* k, const float* g, const float* v, float& p, float& ds) {
  p = 0.0f;
  ds = 0.0f;
  if (!cw_sees(a, s, i, j)) return;
  float lse = a.lse[b * a.ls[0] + h * a.ls[1] + i * a.ls[2]];
  p = expf(cw_dot(q, k, (int)a.d) * a.scale - lse);
  ds = p * (cw_dot(g, v, (int)a.d) - a.delta[((u64)b * a.h + h) * a.t + i]) * a.scale;
}

template <class TDK, class TDV, class TQ, class TK, class TV, class TG, int NC> CW_DEVICE void cw_varlen_keys(const VarlenArgs& a) {
  CW_DYN_SHARED(float, mem);
  const int d = (int)a.d, pitch = d + 1, row = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8;
  float *k = mem, *v = k + CW_ROWS * pitch, *q = v + CW_ROWS * pitch, *g = q + CW_ROWS * pitch, *p = g + CW_ROWS * pitch, *ds = p + CW_ROWS * 17;
  const u32 hk = blockIdx.y % a.hkv, b = blockIdx.y / a.hkv, each = a.h / a.hkv;
  const i64 j0 = (i64)blockIdx.x * CW_ROWS, j = j0 + row, rows = j0 + CW_ROWS < (i64)a.t ? j0 + CW_ROWS : (i64)a.t;
  cw_tile(a, k, (const TK*)a.k + b * a.ks[0] + hk * a.ks[2], a.ks[1], j0, j0, rows, CW_ROWS);
  cw_tile(a, v, (const TV*)a.v + b * a.vs[0] + hk * a.vs[2], a.vs[1], j0, j0, rows, CW_ROWS);
  float dk[NC];
  float dv[NC];
  CW_UNROLL for (int c = 0; c < NC; c++) { dk[c] = 0.0f; dv[c] = 0.0f; }
  Segment s;
  for (i64 at = j0; at < rows;) {
    if (!cw_segment(a, b, at, s)) { at++; continue; }
    const i64 end = s.hi < rows ? s.hi : rows;
    const bool mine = j >= at && j < end;
    i64 lo, hi;
    cw_queries(a, s, at, end, lo, hi);
    for (u32 h = hk * each; h < (hk + 1) * each; h++)
      for (i64 i0 = lo; i0 < hi; i0 += CW_ROWS) {
        CW_SYNC();
        cw_tile(a, q, (const TQ*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, s.lo, s.hi, CW_ROWS);
        cw_tile(a, g, (const TG*)a.go + b * a.gos[0] + h * a.gos[2], a.gos[1], i0, s.lo, s.hi, CW_ROWS);
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
  if (j >= (i64)a.t) return;
  TDK* ok = (TDK*)a.dk + b * a.dks[0] + j * a.dks[1] + hk * a.dks[2];
  TDV* ov = (TDV*)a.dv + b * a.dvs[0] + j * a.dvs[1] + hk * a.dvs[2];
  CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) { cw_store(ok + x, dk[c]); cw_store(ov + x, dv[c]); } }
}

template <class TDQ, class TQ, class TK, class TV, class TG, int NC> CW_DEVICE void cw_varlen_queries(const VarlenArgs& a) {
  CW_DYN_SHARED(float, mem);
  const int d = (int)a.d, pitch = d + 1, row = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8;
  float *k = mem, *v = k + CW_ROWS * pitch, *q = v + CW_ROWS * pitch, *g = q + CW_ROWS * pitch, *ds = g + CW_ROWS * pitch;
  const u32 h = blockIdx.y % a.h, b = blockIdx.y / a.h, hk = h / (a.h / a.hkv);
  const i64 i0 = (i64)blockIdx.x * CW_ROWS, i = i0 + row, rows = i0 + CW_ROWS < (i64)a.t ? i0 + CW_ROWS : (i64)a.t;
  cw_tile(a, q, (const TQ*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, i0, rows, CW_ROWS);
  cw_tile(a, g, (const TG*)a.go + b * a.gos[0] + h * a.gos[2], a.gos[1], i0, i0, rows, CW_ROWS);
  float dq[NC];
  CW_UNROLL for (int c = 0; c < NC; c++) dq[c] = 0.0f;
  Segment s;
  for (i64 at = i0; at < rows;) {
    if (!cw_segment(a, b, at, s)) { at++; continue; }
    const i64 end = s.hi < rows ? s.hi : rows;
    const bool mine = i >= at && i < end;
    i64 lo, hi;
    cw_keys(a, s, at, end, CW_ROWS, lo, hi);
    for (i64 j0 = lo; j0 < hi; j0 += CW_ROWS) {
      CW_SYNC();
      cw_tile(a, k, (const TK*)a.k + b * a.ks[0] + hk * a.ks[2], a.ks[1], j0, s.lo, s.hi, CW_ROWS);
      cw_tile(a, v, (const TV*)a.v + b * a.vs[0] + hk * a.vs[2], a.vs[1], j0, s.lo, s.hi, CW_ROWS);
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
  if (i >= (i64)a.t) return;
  TDQ* o = (TDQ*)a.dq + b * a.dqs[0] + i * a.dqs[1] + h * a.dqs[2];
  CW_UNROLL for (int c = 0; c < NC; c++) { int x = lane + 8 * c; if (x < d) cw_store(o + x, dq[c]); }
}
