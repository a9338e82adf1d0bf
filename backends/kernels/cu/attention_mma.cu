// Attention on tensor cores (mma m16n8k16, from sm_80 on) for 16-bit storage. A block of four warps owns 64 rows, a warp sixteen; tiles of
// the other side come in the background; scores and sums stay in registers, softmax is online in base 2. The backward has one owner for
// every sum, so it is deterministic: blocks of keys walk the queries, blocks of queries walk the keys. The kernels take whole sequences,
// packed ones (segments.h) and parts of rows (parts.h): a row of the latter two meets the rows of its segment only, and a block walks from the
// begin of its first row's segment to the end of its last row's.

struct AttentionArgs {
  char* o; float* lse; const char *q, *k, *v, *go; char *dq, *dk, *dv; float* delta; i64 os[3], qs[3], ks[3], vs[3], gos[3], dqs[3], dks[3], dvs[3],
  ls[3]; i64 window; u32 b, tq, tk, h, hkv, d, causal; float scale;
};

#define CW_BLOCK 64

// Whose segment is asked for: a query's or a key's. What is found is of the other side.
struct Query { static const bool key = false; };
struct Key { static const bool key = true; };

// What packed sequences and parts of rows have besides; of whole ones a row meets all rows of the other side.
CW_DEVICE i64 cw_tq(const AttentionArgs& a) { return (i64)a.tq; }
CW_DEVICE i64 cw_tk(const AttentionArgs& a) { return (i64)a.tk; }
// Query i stands at key i + this.
CW_DEVICE i64 cw_ahead(const AttentionArgs& a) { return (i64)a.tk - (i64)a.tq; }
// The begin of the tile of n rows in which row x is, where tiles begin at multiples.
CW_DEVICE i64 cw_begin(const AttentionArgs&, i64 x, i64 n) { return x / n * n; }
CW_DEVICE bool cw_wide(const AttentionArgs&) { return false; }
// Are there segments?
CW_DEVICE bool cw_parted(const AttentionArgs&) { return false; }
// Rows that a block has from row x on.
CW_DEVICE i64 cw_rows(i64 x, i64 all) { return all - x < CW_BLOCK ? all - x : CW_BLOCK; }
template <class S> CW_DEVICE void cw_span(const AttentionArgs&, S, u32, i64, int&, int&) {}
template <class S> CW_DEVICE void cw_common(const AttentionArgs&, S, u32, i64, int&, int&) {}
template <class S> CW_DEVICE void cw_narrow(const AttentionArgs&, S, u32, i64, i64&, i64&) {}
CW_DEVICE bool cw_meets(const AttentionArgs&, int, int, i64, i64) { return true; }

CW_DEVICE i64 cw_tq(const VarlenArgs& a) { return (i64)a.t; }
CW_DEVICE i64 cw_tk(const VarlenArgs& a) { return (i64)a.t; }
CW_DEVICE i64 cw_ahead(const VarlenArgs&) { return 0; }
CW_DEVICE i64 cw_begin(const VarlenArgs&, i64 x, i64 n) { return x / n * n; }
CW_DEVICE bool cw_wide(const VarlenArgs&) { return false; }
CW_DEVICE bool cw_parted(const VarlenArgs&) { return true; }
// The segment of position i of row b, empty where it has none.
template <class S> CW_DEVICE void cw_span(const VarlenArgs& a, S, u32 b, i64 i, int& from, int& to) {
  Segment s;
  const bool there = i < (i64)a.t && cw_segment(a, b, i, s);
  from = there ? (int)s.lo : 0;
  to = there ? (int)s.hi : 0;
}
CW_DEVICE i64 cw_block_end(const VarlenArgs& a, i64 t0) { return t0 + CW_BLOCK < (i64)a.t ? t0 + CW_BLOCK : (i64)a.t; }
// The segment of all positions of the block from t0 on, empty where they have not one.
template <class S> CW_DEVICE void cw_common(const VarlenArgs& a, S s, u32 b, i64 t0, int& from, int& to) {
  cw_span(a, s, b, t0, from, to);
  if ((i64)to < cw_block_end(a, t0)) to = from;
}
// Rows lo..hi of the other side without those that no position of the block from t0 on can meet.
template <class S> CW_DEVICE void cw_narrow(const VarlenArgs& a, S s, u32 b, i64 t0, i64& lo, i64& hi) {
  const i64 last = cw_block_end(a, t0) - 1;
  int from, to;
  cw_span(a, s, b, t0, from, to);
  const i64 first = from == to ? t0 : (i64)from;
  if (first > lo) lo = first;
  cw_span(a, s, b, last, from, to);
  const i64 end = from == to ? last + 1 : (i64)to;
  if (end < hi) hi = end;
}
// Do all of n rows from t on lie in from..to?
CW_DEVICE bool cw_meets(const VarlenArgs&, int from, int to, i64 t, i64 n) { return t >= (i64)from && t + n <= (i64)to; }

// Parts of rows whose positions count in the row. Tiles begin at the first row that somebody meets.
CW_DEVICE i64 cw_tq(const ExtArgs& a) { return (i64)a.tq; }
CW_DEVICE i64 cw_tk(const ExtArgs& a) { return (i64)a.tk; }
CW_DEVICE i64 cw_ahead(const ExtArgs& a) { return (i64)a.tk - (i64)a.tq + a.shift; }
CW_DEVICE i64 cw_begin(const ExtArgs&, i64 x, i64) { return x; }
CW_DEVICE bool cw_wide(const ExtArgs& a) { return a.wide != 0; }
CW_DEVICE bool cw_parted(const ExtArgs& a) { return a.n != 0; }
template <class S> CW_DEVICE i64 cw_block_end(const ExtArgs& a, S, i64 t0) {
  const i64 all = S::key ? (i64)a.tk : (i64)a.tq;
  return t0 + CW_BLOCK < all ? t0 + CW_BLOCK : all;
}
template <class S> CW_DEVICE void cw_span(const ExtArgs& a, S s, u32 b, i64 i, int& from, int& to) {
  Part p;
  const bool there = i < cw_block_end(a, s, i) && cw_part(a, b, i, S::key, p);
  from = there ? (int)(S::key ? p.qlo : p.klo) : 0;
  to = there ? (int)(S::key ? p.qhi : p.khi) : 0;
}
template <class S> CW_DEVICE void cw_common(const ExtArgs& a, S s, u32 b, i64 t0, int& from, int& to) {
  Part p;
  cw_span(a, s, b, t0, from, to);
  if (!cw_part(a, b, t0, S::key, p) || (S::key ? p.khi : p.qhi) < cw_block_end(a, s, t0)) to = from;
}
template <class S> CW_DEVICE void cw_narrow(const ExtArgs& a, S s, u32 b, i64 t0, i64& lo, i64& hi) {
  Part p;
  if (cw_part(a, b, t0, S::key, p)) {
    const i64 first = S::key ? p.qlo : p.klo;
    if (first > lo) lo = first;
  }
  if (cw_part(a, b, cw_block_end(a, s, t0) - 1, S::key, p)) {
    const i64 end = S::key ? p.qhi : p.khi;
    if (end < hi) hi = end;
  }
}
CW_DEVICE bool cw_meets(const ExtArgs&, int from, int to, i64 t, i64 n) { return t >= (i64)from && t + n <= (i64)to; }

template <class T> struct Core;
template <> struct Core<bf16> {
  static CW_DEVICE void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { cw_mma_bf16(d, a, b); }
  static CW_DEVICE u32 pack(float lo, float hi) { return cw_pack_bf16(lo, hi); }
};
template <> struct Core<f16> {
  static CW_DEVICE void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { cw_mma_f16(d, a, b); }
  static CW_DEVICE u32 pack(float lo, float hi) { return cw_pack_f16(lo, hi); }
};

// Does somebody of the block of queries from t0 on meet key x, and of the block of keys query x?
template <class A> CW_DEVICE bool cw_met(const A& a, Query, u32 b, i64 t0, i64 x) {
  int from = 0, to = (int)cw_tq(a);
  cw_span(a, Key(), b, x, from, to);
  i64 lo = t0 > from ? t0 : from, hi = t0 + CW_BLOCK < to ? t0 + CW_BLOCK : to;
  const i64 at = x - cw_ahead(a);
  if (a.causal && at > lo) lo = at;
  if (a.window > 0 && at + a.window < hi) hi = at + a.window;
  return lo < hi;
}
template <class A> CW_DEVICE bool cw_met(const A& a, Key, u32 b, i64 t0, i64 x) {
  int from = 0, to = (int)cw_tk(a);
  cw_span(a, Query(), b, x, from, to);
  i64 lo = t0 > from ? t0 : from, hi = t0 + CW_BLOCK < to ? t0 + CW_BLOCK : to;
  const i64 at = x + cw_ahead(a);
  if (a.causal && at + 1 < hi) hi = at + 1;
  if (a.window > 0 && at - a.window + 1 > lo) lo = at - a.window + 1;
  return lo < hi;
}

// The rows of the other side that a block from t0 on meets.
template <class A, class S> struct Rows {
  const A& a; u32 b; i64 t0; int begin, end, all_from, all_to;
  // Rows of a tile of one segment are met where they are in begin..end; of several each is looked at.
  CW_DEVICE bool each(i64 x, i64 n) const { return cw_parted(a) && !cw_meets(a, all_from, all_to, x, n); }
  CW_DEVICE bool has(i64 x, bool each) const { return (int)x >= begin && (int)x < end && (!each || cw_met(a, S(), b, t0, x)); }
};
// All rows of the operand.
struct All {
  i64 end;
  CW_DEVICE bool each(i64, i64) const { return false; }
  CW_DEVICE bool has(i64 x, bool) const { return x < end; }
};

// N rows of a head into shared memory with a pitch of D + 8 (which keeps ldmatrix free of bank conflicts). Rows that nobody meets are zero: a
// probability of 0 times what is there must be 0.
template <int D, int N, class R> CW_DEVICE void cw_fetch(u16* to, const u16* from, i64 pitch, i64 t0, const R& rows) {
  const bool each = rows.each(t0, N);
  const bool aligned = (((u64)from | (u64)(pitch * 2)) & 15) == 0;
  for (int e = (int)threadIdx.x; e < N * D / 8; e += 128) {
    int r = e / (D / 8), c = e % (D / 8) * 8;
    bool there = rows.has(t0 + r, each);
    const u16* p = from + (there ? t0 + r : 0) * pitch + c;
    u16* s = to + r * (D + 8) + c;
    if (aligned) cw_copy_async(s, p, there);
    else for (int i = 0; i < 8; i++) s[i] = there ? p[i] : (u16)0;
  }
}

// A row of results times k, at element `at` of the operand, in its storage or in f32.
template <class T, int D> CW_DEVICE void cw_put(bool wide, char* to, i64 at, const float (&o)[D / 8][4], int r, float k, int lane) {
  u16* out = (u16*)to + at;
  const bool pairs = ((u64)out & 3) == 0;
  CW_UNROLL for (int n = 0; n < D / 8; n++) {
    const int c = n * 8 + lane % 4 * 2;
    if (wide) {
      float* x = (float*)to + at + c;
      x[0] = o[n][r * 2] * k;
      x[1] = o[n][r * 2 + 1] * k;
      continue;
    }
    u32 w = Core<T>::pack(o[n][r * 2] * k, o[n][r * 2 + 1] * k);
    u16* p = out + c;
    if (pairs) *(u32*)p = w;
    else { p[0] = (u16)w; p[1] = (u16)(w >> 16); }
  }
}

template <class T, int D, class A> CW_DEVICE void cw_attention_mma(const A& a) {
  CW_DYN_SHARED(u16, mem);
  const int P = D + 8;
  u16 *sq = mem, *sk = sq + CW_BLOCK * P, *sv = sk + CW_BLOCK * P;
  const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
  const u32 h = blockIdx.y % a.h, b = blockIdx.y / a.h, hk = h / (a.h / a.hkv);
  // The longest rows of a causal mask start first.
  const i64 i0 = (i64)(a.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * CW_BLOCK;
  const u16* pq = (const u16*)a.q + b * a.qs[0] + h * a.qs[2];
  const u16* pk = (const u16*)a.k + b * a.ks[0] + hk * a.ks[2];
  const u16* pv = (const u16*)a.v + b * a.vs[0] + hk * a.vs[2];
  const i64 first = i0 + cw_ahead(a), last = first + cw_rows(i0, cw_tq(a)) - 1;
  i64 hi = cw_tk(a), begin = a.window > 0 && first - a.window + 1 > 0 ? first - a.window + 1 : 0, lo = begin > 0 ? cw_begin(a, begin, CW_BLOCK) : 0;
  if (a.causal && last + 1 < hi) hi = last + 1 > 0 ? last + 1 : 0;
  cw_narrow(a, Query(), b, i0, lo, hi);
  if (lo > begin) begin = lo;
  int all_from = 0, all_to = 0;
  cw_common(a, Query(), b, i0, all_from, all_to);
  const Rows<A, Query> met{a, b, i0, (int)begin, (int)hi, all_from, all_to};
  int from[2];
  int to[2];
  CW_UNROLL for (int r = 0; r < 2; r++) {
    from[r] = to[r] = 0;
    cw_span(a, Query(), b, i0 + warp * 16 + lane / 4 + r * 8, from[r], to[r]);
  }

  cw_fetch<D, CW_BLOCK>(sq, pq, a.qs[1], i0, All{cw_tq(a)});
  if (lo < hi) cw_fetch<D, CW_BLOCK>(sk, pk, a.ks[1], lo, met);
  cw_copy_commit();
  cw_copy_wait<0>();
  CW_SYNC();
  u32 fq[D / 16][4];
  CW_UNROLL for (int k = 0; k < D / 16; k++) cw_ldmatrix(fq[k], sq + (warp * 16 + lane % 16) * P + k * 16 + lane / 16 * 8);

  float o[D / 8][4];
  CW_UNROLL for (int n = 0; n < D / 8; n++) CW_UNROLL for (int e = 0; e < 4; e++) o[n][e] = 0.0f;
  float top[2];
  float sum[2];
  top[0] = top[1] = -CW_INF;
  sum[0] = sum[1] = 0.0f;
  const float scale = a.scale * 1.44269504f;

  for (i64 j0 = lo; j0 < hi; j0 += CW_BLOCK) {
    cw_fetch<D, CW_BLOCK>(sv, pv, a.vs[1], j0, met);
    cw_copy_commit();
    float s[8][4];
    CW_UNROLL for (int n = 0; n < 8; n++) CW_UNROLL for (int e = 0; e < 4; e++) s[n][e] = 0.0f;
    CW_UNROLL for (int k = 0; k < D / 16; k++)
      CW_UNROLL for (int n = 0; n < 8; n += 2) {
        u32 f[4];
        cw_ldmatrix(f, sk + (n * 8 + lane / 16 * 8 + lane % 8) * P + k * 16 + lane / 8 % 2 * 8);
        u32 f0[2]; u32 f1[2];
        f0[0] = f[0]; f0[1] = f[1]; f1[0] = f[2]; f1[1] = f[3];
        Core<T>::mma(s[n], fq[k], f0);
        Core<T>::mma(s[n + 1], fq[k], f1);
      }
    CW_SYNC();
    bool more = j0 + CW_BLOCK < hi;
    if (more) cw_fetch<D, CW_BLOCK>(sk, pk, a.ks[1], j0 + CW_BLOCK, met);
    cw_copy_commit();

    // Rows lane / 4 and lane / 4 + 8 of the warp's sixteen.
    bool whole = j0 + CW_BLOCK <= cw_tk(a) && cw_meets(a, all_from, all_to, j0, CW_BLOCK) && (!a.causal || j0 + CW_BLOCK - 1 <= first + warp * 16) && (a.window <= 0 || j0 > last - a.window);
    float best[2];
    best[0] = top[0]; best[1] = top[1];
    CW_UNROLL for (int n = 0; n < 8; n++) CW_UNROLL for (int e = 0; e < 4; e++) {
      float x = s[n][e] * scale;
      if (!whole) {
        i64 j = j0 + n * 8 + lane % 4 * 2 + (e & 1), at = first + warp * 16 + lane / 4 + (e >= 2 ? 8 : 0);
        bool seen = j < cw_tk(a) && cw_meets(a, from[e / 2], to[e / 2], j, 1) && (!a.causal || j <= at) && (a.window <= 0 || j > at - a.window);
        if (!seen) x = -CW_INF;
      }
      s[n][e] = x;
      best[e / 2] = Max()(best[e / 2], x);
    }
    CW_UNROLL for (int r = 0; r < 2; r++) {
      best[r] = Max()(best[r], cw_shfl_xor(best[r], 1));
      best[r] = Max()(best[r], cw_shfl_xor(best[r], 2));
      float base = best[r] == -CW_INF ? 0.0f : best[r], keep = cw_exp2(top[r] - base), part = 0.0f;
      CW_UNROLL for (int n = 0; n < 8; n++) CW_UNROLL for (int e = 0; e < 2; e++) {
        float w = cw_exp2(s[n][r * 2 + e] - base);
        s[n][r * 2 + e] = w;
        part += w;
      }
      sum[r] = sum[r] * keep + part;
      top[r] = best[r];
      CW_UNROLL for (int n = 0; n < D / 8; n++) { o[n][r * 2] *= keep; o[n][r * 2 + 1] *= keep; }
    }

    cw_copy_wait<1>();
    CW_SYNC();
    CW_UNROLL for (int k = 0; k < 4; k++) {
      u32 p[4];
      p[0] = Core<T>::pack(s[2 * k][0], s[2 * k][1]);
      p[1] = Core<T>::pack(s[2 * k][2], s[2 * k][3]);
      p[2] = Core<T>::pack(s[2 * k + 1][0], s[2 * k + 1][1]);
      p[3] = Core<T>::pack(s[2 * k + 1][2], s[2 * k + 1][3]);
      CW_UNROLL for (int n = 0; n < D / 8; n += 2) {
        u32 f[4];
        cw_ldmatrix_t(f, sv + (k * 16 + lane % 16) * P + n * 8 + lane / 16 * 8);
        u32 f0[2]; u32 f1[2];
        f0[0] = f[0]; f0[1] = f[1]; f1[0] = f[2]; f1[1] = f[3];
        Core<T>::mma(o[n], p, f0);
        Core<T>::mma(o[n + 1], p, f1);
      }
    }
    cw_copy_wait<0>();
    CW_SYNC();
  }

  CW_UNROLL for (int r = 0; r < 2; r++) {
    sum[r] += cw_shfl_xor(sum[r], 1);
    sum[r] += cw_shfl_xor(sum[r], 2);
    i64 i = i0 + warp * 16 + lane / 4 + r * 8;
    if (i >= cw_tq(a)) continue;
    float k = sum[r] == 0.0f ? 0.0f : 1.0f / sum[r];
    cw_put<T, D>(cw_wide(a), a.o, b * a.os[0] + i * a.os[1] + h * a.os[2], o, r, k, lane);
    if (lane % 4 == 0) a.lse[b * a.ls[0] + h * a.ls[1] + i * a.ls[2]] = sum[r] == 0.0f ? -CW_INF : (top[r] + log2f(sum[r])) * 0.69314718f;
  }
}

// ---- backward

// s = x y^T for sixteen rows of x and N of y, both D wide in shared memory.
template <class T, int D, int N> CW_DEVICE void cw_by_rows(float (&s)[N / 8][4], const u16* x, const u16* y, int lane) {
  const int P = D + 8;
  CW_UNROLL for (int n = 0; n < N / 8; n++) CW_UNROLL for (int e = 0; e < 4; e++) s[n][e] = 0.0f;
  CW_UNROLL for (int k = 0; k < D / 16; k++) {
    u32 f[4];
    cw_ldmatrix(f, x + (lane % 16) * P + k * 16 + lane / 16 * 8);
    CW_UNROLL for (int n = 0; n < N / 8; n += 2) {
      u32 g[4]; u32 g0[2]; u32 g1[2];
      cw_ldmatrix(g, y + (n * 8 + lane / 16 * 8 + lane % 8) * P + k * 16 + lane / 8 % 2 * 8);
      g0[0] = g[0]; g0[1] = g[1]; g1[0] = g[2]; g1[1] = g[3];
      Core<T>::mma(s[n], f, g0);
      Core<T>::mma(s[n + 1], f, g1);
    }
  }
}
// o += s y for sixteen rows of s, in registers and rounded to the storage, and the N rows of y.
template <class T, int D, int N> CW_DEVICE void cw_by_columns(float (&o)[D / 8][4], const float (&s)[N / 8][4], const u16* y, int lane) {
  const int P = D + 8;
  CW_UNROLL for (int k = 0; k < N / 16; k++) {
    u32 f[4];
    f[0] = Core<T>::pack(s[2 * k][0], s[2 * k][1]);
    f[1] = Core<T>::pack(s[2 * k][2], s[2 * k][3]);
    f[2] = Core<T>::pack(s[2 * k + 1][0], s[2 * k + 1][1]);
    f[3] = Core<T>::pack(s[2 * k + 1][2], s[2 * k + 1][3]);
    CW_UNROLL for (int n = 0; n < D / 8; n += 2) {
      u32 g[4]; u32 g0[2]; u32 g1[2];
      cw_ldmatrix_t(g, y + (k * 16 + lane % 16) * P + n * 8 + lane / 16 * 8);
      g0[0] = g[0]; g0[1] = g[1]; g1[0] = g[2]; g1[1] = g[3];
      Core<T>::mma(o[n], f, g0);
      Core<T>::mma(o[n + 1], f, g1);
    }
  }
}
template <class A> CW_DEVICE bool cw_seen(const A& a, i64 i, i64 j) {
  i64 at = i + cw_ahead(a);
  return j < cw_tk(a) && (!a.causal || j <= at) && (a.window <= 0 || j > at - a.window);
}

// dk and dv of 64 keys: N queries at a time, over the heads that read these keys.
template <class T, int D, int N, class A> CW_DEVICE void cw_attention_mma_keys(const A& a) {
  CW_DYN_SHARED(u16, mem);
  const int P = D + 8;
  u16 *sk = mem, *sv = sk + CW_BLOCK * P, *sq = sv + CW_BLOCK * P, *sg = sq + 2 * N * P;
  float *sl = (float*)(sg + 2 * N * P), *sd = sl + 2 * N;
  const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
  const u32 hk = blockIdx.y % a.hkv, b = blockIdx.y / a.hkv, each = a.h / a.hkv;
  const i64 j0 = (i64)blockIdx.x * CW_BLOCK, shift = cw_ahead(a);
  const i64 past = j0 + cw_rows(j0, cw_tk(a)) - 1 + a.window - shift;
  i64 begin = a.causal && j0 - shift > 0 ? j0 - shift : 0, lo = begin > 0 ? cw_begin(a, begin, N) : 0, hi = cw_tq(a);
  if (a.window > 0 && past < hi) hi = past;
  cw_narrow(a, Key(), b, j0, lo, hi);
  if (lo > begin) begin = lo;
  int all_from = 0, all_to = 0;
  cw_common(a, Key(), b, j0, all_from, all_to);
  const Rows<A, Key> met{a, b, j0, (int)begin, (int)hi, all_from, all_to};
  int from[2];
  int to[2];
  CW_UNROLL for (int r = 0; r < 2; r++) {
    from[r] = to[r] = 0;
    cw_span(a, Key(), b, j0 + warp * 16 + lane / 4 + r * 8, from[r], to[r]);
  }
  const i64 tiles = hi > lo ? (hi - lo + N - 1) / N : 0, rounds = tiles * (i64)each;
  const float scale = a.scale * 1.44269504f;

  float dk[D / 8][4];
  float dv[D / 8][4];
  CW_UNROLL for (int n = 0; n < D / 8; n++) CW_UNROLL for (int e = 0; e < 4; e++) { dk[n][e] = 0.0f; dv[n][e] = 0.0f; }
  for (i64 round = -1; round < rounds; round++) {
    // What the last round brought is there, and nobody reads what the next one overwrites.
    cw_copy_wait<0>();
    CW_SYNC();
    if (round < 0 && rounds > 0) {
      cw_fetch<D, CW_BLOCK>(sk, (const u16*)a.k + b * a.ks[0] + hk * a.ks[2], a.ks[1], j0, All{cw_tk(a)});
      cw_fetch<D, CW_BLOCK>(sv, (const u16*)a.v + b * a.vs[0] + hk * a.vs[2], a.vs[1], j0, All{cw_tk(a)});
    }
    if (round + 1 < rounds) {
      const int stage = (int)((round + 1) & 1);
      const u32 h = hk * each + (u32)((round + 1) / tiles);
      const i64 i0 = lo + (round + 1) % tiles * N;
      cw_fetch<D, N>(sq + stage * N * P, (const u16*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, met);
      cw_fetch<D, N>(sg + stage * N * P, (const u16*)a.go + b * a.gos[0] + h * a.gos[2], a.gos[1], i0, met);
      if (threadIdx.x < N) {
        const i64 i = i0 + threadIdx.x;
        const bool there = met.has(i, met.each(i0, N));
        // A query that meets none of these keys has no probability here.
        sl[stage * N + threadIdx.x] = there ? a.lse[b * a.ls[0] + h * a.ls[1] + i * a.ls[2]] * 1.44269504f : CW_INF;
        sd[stage * N + threadIdx.x] = there ? a.delta[((u64)b * a.h + h) * cw_tq(a) + i] : 0.0f;
      }
    }
    cw_copy_commit();
    if (round < 0) continue;
    const int stage = (int)(round & 1);
    const i64 i0 = lo + round % tiles * N;
    const u16 *q = sq + stage * N * P, *g = sg + stage * N * P;
    const bool whole = cw_meets(a, all_from, all_to, i0, N) && (!a.causal || j0 + CW_BLOCK - 1 <= i0 + shift) && (a.window <= 0 || j0 > i0 + N - 1 + shift - a.window);
    float p[N / 8][4];
    cw_by_rows<T, D, N>(p, sk + warp * 16 * P, q, lane);
    CW_UNROLL for (int n = 0; n < N / 8; n++) CW_UNROLL for (int e = 0; e < 4; e++) {
      const int c = n * 8 + lane % 4 * 2 + (e & 1);
      float w = cw_exp2(p[n][e] * scale - sl[stage * N + c]);
      if (!whole && !(cw_meets(a, from[e / 2], to[e / 2], i0 + c, 1) && cw_seen(a, i0 + c, j0 + warp * 16 + lane / 4 + (e >= 2 ? 8 : 0)))) w = 0.0f;
      p[n][e] = w;
    }
    cw_by_columns<T, D, N>(dv, p, g, lane);
    float d[N / 8][4];
    cw_by_rows<T, D, N>(d, sv + warp * 16 * P, g, lane);
    CW_UNROLL for (int n = 0; n < N / 8; n++) CW_UNROLL for (int e = 0; e < 4; e++) {
      const int c = n * 8 + lane % 4 * 2 + (e & 1);
      d[n][e] = p[n][e] == 0.0f ? 0.0f : p[n][e] * (d[n][e] - sd[stage * N + c]);
    }
    cw_by_columns<T, D, N>(dk, d, q, lane);
  }
  CW_UNROLL for (int r = 0; r < 2; r++) {
    const i64 j = j0 + warp * 16 + lane / 4 + r * 8;
    if (j >= cw_tk(a)) continue;
    cw_put<T, D>(cw_wide(a), a.dk, b * a.dks[0] + j * a.dks[1] + hk * a.dks[2], dk, r, a.scale, lane);
    cw_put<T, D>(cw_wide(a), a.dv, b * a.dvs[0] + j * a.dvs[1] + hk * a.dvs[2], dv, r, 1.0f, lane);
  }
}

// dq of 64 queries: N keys at a time.
template <class T, int D, int N, class A> CW_DEVICE void cw_attention_mma_queries(const A& a) {
  CW_DYN_SHARED(u16, mem);
  const int P = D + 8;
  u16 *sq = mem, *sg = sq + CW_BLOCK * P, *sk = sg + CW_BLOCK * P, *sv = sk + 2 * N * P;
  const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
  const u32 h = blockIdx.y % a.h, b = blockIdx.y / a.h, hk = h / (a.h / a.hkv);
  const i64 i0 = (i64)(a.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * CW_BLOCK, first = i0 + cw_ahead(a), last = first + cw_rows(i0, cw_tq(a)) - 1;
  i64 begin = a.window > 0 && first - a.window + 1 > 0 ? first - a.window + 1 : 0, lo = begin > 0 ? cw_begin(a, begin, N) : 0, hi = cw_tk(a);
  if (a.causal && last + 1 < hi) hi = last + 1 > 0 ? last + 1 : 0;
  cw_narrow(a, Query(), b, i0, lo, hi);
  if (lo > begin) begin = lo;
  int all_from = 0, all_to = 0;
  cw_common(a, Query(), b, i0, all_from, all_to);
  const Rows<A, Query> met{a, b, i0, (int)begin, (int)hi, all_from, all_to};
  int from[2];
  int to[2];
  const i64 rounds = hi > lo ? (hi - lo + N - 1) / N : 0;
  const float scale = a.scale * 1.44269504f;
  float lse[2];
  float delta[2];
  CW_UNROLL for (int r = 0; r < 2; r++) {
    const i64 i = i0 + warp * 16 + lane / 4 + r * 8;
    const bool there = i < cw_tq(a);
    lse[r] = there ? a.lse[b * a.ls[0] + h * a.ls[1] + i * a.ls[2]] * 1.44269504f : CW_INF;
    delta[r] = there ? a.delta[((u64)b * a.h + h) * cw_tq(a) + i] : 0.0f;
    from[r] = to[r] = 0;
    cw_span(a, Query(), b, i, from[r], to[r]);
  }

  float dq[D / 8][4];
  CW_UNROLL for (int n = 0; n < D / 8; n++) CW_UNROLL for (int e = 0; e < 4; e++) dq[n][e] = 0.0f;
  for (i64 round = -1; round < rounds; round++) {
    cw_copy_wait<0>();
    CW_SYNC();
    if (round < 0 && rounds > 0) {
      cw_fetch<D, CW_BLOCK>(sq, (const u16*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, All{cw_tq(a)});
      cw_fetch<D, CW_BLOCK>(sg, (const u16*)a.go + b * a.gos[0] + h * a.gos[2], a.gos[1], i0, All{cw_tq(a)});
    }
    if (round + 1 < rounds) {
      const int stage = (int)((round + 1) & 1);
      const i64 j0 = lo + (round + 1) * N;
      cw_fetch<D, N>(sk + stage * N * P, (const u16*)a.k + b * a.ks[0] + hk * a.ks[2], a.ks[1], j0, met);
      cw_fetch<D, N>(sv + stage * N * P, (const u16*)a.v + b * a.vs[0] + hk * a.vs[2], a.vs[1], j0, met);
    }
    cw_copy_commit();
    if (round < 0) continue;
    const int stage = (int)(round & 1);
    const i64 j0 = lo + round * N;
    const u16 *k = sk + stage * N * P, *v = sv + stage * N * P;
    const bool whole = j0 + N <= cw_tk(a) && cw_meets(a, all_from, all_to, j0, N) && (!a.causal || j0 + N - 1 <= first) && (a.window <= 0 || j0 > last - a.window);
    float p[N / 8][4];
    cw_by_rows<T, D, N>(p, sq + warp * 16 * P, k, lane);
    float d[N / 8][4];
    cw_by_rows<T, D, N>(d, sg + warp * 16 * P, v, lane);
    CW_UNROLL for (int n = 0; n < N / 8; n++) CW_UNROLL for (int e = 0; e < 4; e++) {
      float w = cw_exp2(p[n][e] * scale - lse[e / 2]);
      if (!whole && !(cw_meets(a, from[e / 2], to[e / 2], j0 + n * 8 + lane % 4 * 2 + (e & 1), 1) &&
                      cw_seen(a, i0 + warp * 16 + lane / 4 + (e >= 2 ? 8 : 0), j0 + n * 8 + lane % 4 * 2 + (e & 1)))) w = 0.0f;
      d[n][e] = w == 0.0f ? 0.0f : w * (d[n][e] - delta[e / 2]);
    }
    cw_by_columns<T, D, N>(dq, d, k, lane);
  }
  CW_UNROLL for (int r = 0; r < 2; r++) {
    const i64 i = i0 + warp * 16 + lane / 4 + r * 8;
    if (i >= cw_tq(a)) continue;
    cw_put<T, D>(cw_wide(a), a.dq, b * a.dqs[0] + i * a.dqs[1] + h * a.dqs[2], dq, r, a.scale, lane);
  }
}
