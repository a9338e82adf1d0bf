// Attention forward by products of warpgroups (wgmma, sm_90a): a warpgroup owns 64 queries, a block W of them; keys and values come in the
// background, 128 at a time and two tiles deep. The scores of the next tile are multiplied while this tile's softmax runs, beside its product
// with the values. Scores, probabilities and sums stay in registers; softmax is online in base 2; the order of every sum follows from shapes.

struct AttentionArgs {
  char* o; float* lse; const char *q, *k, *v, *go; char *dq, *dk, *dv; float* delta; i64 os[3], qs[3], ks[3], vs[3], gos[3], dqs[3], dks[3], dvs[3],
  ls[3]; i64 window; u32 b, tq, tk, h, hkv, d, causal; float scale;
};

// Keys of a tile.
#define CW_KEYS 128

// A tile is panels of 64 columns; a row of a panel has 128 bytes, in which the 16-byte piece c of row r stands at c ^ r % 8: the "128-Byte
// swizzle" of the PTX ISA (Shared Memory Matrix Layout), whose pattern repeats every eight rows, so tiles begin at multiples of 1024 bytes.
// The same tile serves as A and B "K-major" (columns are what is summed over) and as B "MN-major" (rows are). Rows outside of begin..end are zero:
// nobody meets them, and a probability of 0 times what is there must be 0.
template <int D, int R> CW_DEVICE void cw_tile(u16* to, const u16* from, i64 pitch, i64 t0, i64 begin, i64 end) {
  const bool aligned = (((u64)from | (u64)(pitch * 2)) & 15) == 0;
  for (int e = (int)threadIdx.x; e < R * D / 8; e += (int)blockDim.x) {
    const int r = e / (D / 8), c = e % (D / 8);
    const bool there = t0 + r >= begin && t0 + r < end;
    const u16* p = from + (there ? t0 + r : 0) * pitch + c * 8;
    u16* s = to + (c / 8 * R + r) * 64 + ((c ^ r) & 7) * 8;
    if (aligned) {
      cw_copy_async(s, p, there);
    } else {
      Piece w;
      CW_UNROLL for (int i = 0; i < 4; i++) w.w[i] = there ? (u32)p[2 * i] | (u32)p[2 * i + 1] << 16 : 0u;
      cw_put16(s, w);
    }
  }
}

// PTX ISA, Matrix Descriptor Format: start address, leading and stride dimension byte offsets, all in 16 bytes, and 1 for the 128-byte swizzle.
// The stride is from eight rows to the next eight (of the tile), whichever way it is read. The leading dimension counts MN-major only: from 64
// columns to the next 64, which is a panel.
CW_DEVICE u64 cw_descriptor(u32 at, u32 leading) { return (u64)(at >> 4) | (u64)(leading >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62; }

// s = q k^T: 64 rows from `q`, in a tile of M, and a tile of keys. Sixteen columns on are 32 bytes on, four times, then the next panel.
template <class T, int D, int M> CW_DEVICE void cw_scores(float (&s)[64], u32 q, u32 k) {
  CW_UNROLL for (int i = 0; i < D / 16; i++)
    Warpgroup<T>::mma(s, cw_descriptor(q + i / 4 * M * 128 + i % 4 * 32, 16), cw_descriptor(k + i / 4 * CW_KEYS * 128 + i % 4 * 32, 16), i > 0);
}
// o += p v. Sixteen keys on are sixteen rows on.
template <class T, int D> CW_DEVICE void cw_values(float (&o)[D / 2], const u32 (&p)[CW_KEYS / 16][4], u32 v) {
  CW_UNROLL for (int i = 0; i < CW_KEYS / 16; i++) Warpgroup<T>::mma(o, p[i], cw_descriptor(v + i * 16 * 128, CW_KEYS * 128));
}

// What a thread knows of its two rows, lane / 4 and lane / 4 + 8 of its warp's sixteen: greatest score and sum of what it was part of.
struct Rows { float top[2], sum[2], keep[2]; };

CW_DEVICE int cw_clip(i64 x) { return x < 0 ? 0 : x > CW_KEYS ? CW_KEYS : (int)x; }

// Scores to probabilities, in place; `at` is the last key that the warp's first row may see under a causal mask. Element i of a thread is
// column i / 4 * 8 + lane % 4 * 2 + i % 2 of row i / 2 % 2 (PTX ISA, Register Fragments, accumulator D).
CW_DEVICE void cw_softmax(float (&s)[64], Rows& rows, const AttentionArgs& a, i64 at, i64 j0, float scale, int lane) {
  const bool whole = j0 + CW_KEYS <= (i64)a.tk && (!a.causal || j0 + CW_KEYS - 1 <= at) && (a.window <= 0 || j0 > at + 15 - a.window);
  if (!whole) {
    int from[2];
    int to[2];
    CW_UNROLL for (int r = 0; r < 2; r++) {
      const i64 mine = at + lane / 4 + r * 8, end = a.causal && mine + 1 < (i64)a.tk ? mine + 1 : (i64)a.tk;
      from[r] = a.window > 0 ? cw_clip(mine - a.window + 1 - j0) : 0;
      to[r] = cw_clip(end - j0);
    }
    CW_UNROLL for (int i = 0; i < 64; i++) {
      const int c = i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (c < from[i / 2 % 2] || c >= to[i / 2 % 2]) s[i] = -CW_INF;
    }
  }
  CW_UNROLL for (int r = 0; r < 2; r++) {
    float best = rows.top[r];
    CW_UNROLL for (int n = 0; n < 16; n++) CW_UNROLL for (int e = 0; e < 2; e++) best = Max()(best, s[n * 4 + r * 2 + e]);
    best = Max()(best, cw_shfl_xor(best, 1));
    best = Max()(best, cw_shfl_xor(best, 2));
    const float base = best == -CW_INF ? 0.0f : best * scale;
    rows.keep[r] = cw_ex2(cw_fma(rows.top[r], scale, -base));
    float part = 0.0f;
    CW_UNROLL for (int n = 0; n < 16; n++) CW_UNROLL for (int e = 0; e < 2; e++) {
      const float w = cw_ex2(cw_fma(s[n * 4 + r * 2 + e], scale, -base));
      s[n * 4 + r * 2 + e] = w;
      part += w;
    }
    rows.sum[r] = rows.sum[r] * rows.keep[r] + part;
    rows.top[r] = best;
  }
}
// An accumulator as operand A of the next product: eight columns of two neighbours make sixteen of k (PTX ISA, Register Fragments, A and D).
template <class T> CW_DEVICE void cw_pack(u32 (&p)[CW_KEYS / 16][4], const float (&s)[64]) {
  CW_UNROLL for (int i = 0; i < CW_KEYS / 16; i++) CW_UNROLL for (int k = 0; k < 4; k++)
    p[i][k] = Warpgroup<T>::pack(s[i * 8 + k * 2], s[i * 8 + k * 2 + 1]);
}

template <class T, int D, int W> CW_DEVICE void cw_attention_wgmma(const AttentionArgs& a) {
  CW_DYN_SHARED(u16, mem);
  const int M = 64 * W;
  u16* const sq = mem + (1024 - cw_shared_at(mem) % 1024) % 1024 / 2;
  u16 *const sk = sq + M * D, *const sv = sk + 2 * CW_KEYS * D;
  const u32 tile = CW_KEYS * D * 2, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 mine = cw_shared_at(sq) + warp / 4 * 64 * 128, keys = cw_shared_at(sk), values = cw_shared_at(sv);
  const u32 h = blockIdx.y % a.h, b = blockIdx.y / a.h, hk = h / (a.h / a.hkv);
  // The longest rows of a causal mask start first.
  const i64 i0 = (i64)(a.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * M;
  const u16* pk = (const u16*)a.k + b * a.ks[0] + hk * a.ks[2];
  const u16* pv = (const u16*)a.v + b * a.vs[0] + hk * a.vs[2];
  const i64 first = i0 + (i64)a.tk - (i64)a.tq, last = (i0 + M < (i64)a.tq ? first + M : (i64)a.tk) - 1, at = first + warp * 16;
  const i64 begin = a.window > 0 && first - a.window + 1 > 0 ? first - a.window + 1 : 0, lo = begin / CW_KEYS * CW_KEYS;
  i64 hi = (i64)a.tk;
  if (a.causal && last + 1 < hi) hi = last + 1 > 0 ? last + 1 : 0;
  const i64 tiles = hi > lo ? (hi - lo + CW_KEYS - 1) / CW_KEYS : 0;
  const float scale = a.scale * 1.44269504f;

  float o[D / 2];
  CW_UNROLL for (int i = 0; i < D / 2; i++) o[i] = 0.0f;
  Rows rows;
  CW_UNROLL for (int r = 0; r < 2; r++) { rows.top[r] = -CW_INF; rows.sum[r] = 0.0f; }
  if (tiles > 0) {
    float s[64];
    CW_UNROLL for (int i = 0; i < 64; i++) s[i] = 0.0f;
    u32 p[CW_KEYS / 16][4];
    cw_tile<D, M>(sq, (const u16*)a.q + b * a.qs[0] + h * a.qs[2], a.qs[1], i0, i0, (i64)a.tq);
    cw_tile<D, CW_KEYS>(sk, pk, a.ks[1], lo, begin, hi);
    cw_copy_commit();
    cw_copy_wait<0>();
    cw_fence_async();
    CW_SYNC();
    cw_tile<D, CW_KEYS>(sv, pv, a.vs[1], lo, begin, hi);
    if (tiles > 1) cw_tile<D, CW_KEYS>(sk + CW_KEYS * D, pk, a.ks[1], lo + CW_KEYS, begin, hi);
    cw_copy_commit();
    cw_hold(s);
    cw_wgmma_fence();
    cw_scores<T, D, M>(s, mine, keys);
    cw_wgmma_commit();
    cw_wgmma_wait<0>();
    cw_hold(s);
    cw_softmax(s, rows, a, at, lo, scale, (int)lane);
    cw_pack<T>(p, s);

    for (i64 t = 0; t + 1 < tiles; t++) {
      const u32 now = (u32)(t & 1), next = now ^ 1;
      // The keys of the next tile and the values of this one are there, and nobody reads what the next copies overwrite.
      cw_copy_wait<0>();
      cw_fence_async();
      CW_SYNC();
      cw_tile<D, CW_KEYS>(sv + next * CW_KEYS * D, pv, a.vs[1], lo + (t + 1) * CW_KEYS, begin, hi);
      if (t + 2 < tiles) cw_tile<D, CW_KEYS>(sk + now * CW_KEYS * D, pk, a.ks[1], lo + (t + 2) * CW_KEYS, begin, hi);
      cw_copy_commit();
      cw_hold(s);
      cw_hold(o);
      cw_hold(p);
      cw_wgmma_fence();
      cw_scores<T, D, M>(s, mine, keys + next * tile);
      cw_wgmma_commit();
      cw_values<T, D>(o, p, values + now * tile);
      cw_wgmma_commit();
      cw_wgmma_wait<1>();
      cw_hold(s);
      cw_softmax(s, rows, a, at, lo + (t + 1) * CW_KEYS, scale, (int)lane);
      cw_wgmma_wait<0>();
      cw_hold(o);
      cw_hold(p);
      CW_UNROLL for (int i = 0; i < D / 2; i++) o[i] *= rows.keep[i / 2 % 2];
      cw_pack<T>(p, s);
    }
    cw_copy_wait<0>();
    cw_fence_async();
    CW_SYNC();
    cw_hold(o);
    cw_hold(p);
    cw_wgmma_fence();
    cw_values<T, D>(o, p, values + (u32)(tiles - 1 & 1) * tile);
    cw_wgmma_commit();
    cw_wgmma_wait<0>();
    cw_hold(o);
    cw_hold(p);
  }

  CW_UNROLL for (int r = 0; r < 2; r++) {
    float sum = rows.sum[r];
    sum += cw_shfl_xor(sum, 1);
    sum += cw_shfl_xor(sum, 2);
    const i64 i = i0 + warp * 16 + lane / 4 + r * 8;
    if (i >= (i64)a.tq) continue;
    const float k = sum == 0.0f ? 0.0f : 1.0f / sum;
    u16* out = (u16*)a.o + b * a.os[0] + i * a.os[1] + h * a.os[2];
    const bool pairs = ((u64)out & 3) == 0;
    CW_UNROLL for (int n = 0; n < D / 8; n++) {
      const u32 w = Warpgroup<T>::pack(o[n * 4 + r * 2] * k, o[n * 4 + r * 2 + 1] * k);
      u16* to = out + n * 8 + lane % 4 * 2;
      if (pairs) *(u32*)to = w;
      else { to[0] = (u16)w; to[1] = (u16)(w >> 16); }
    }
    if (lane % 4 == 0) a.lse[b * a.ls[0] + h * a.ls[1] + i * a.ls[2]] = sum == 0.0f ? -CW_INF : (cw_fma(rows.top[r], scale, log2f(sum))) * 0.69314718f;
  }
}
