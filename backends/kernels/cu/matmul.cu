// Matrix product by tiles of shared memory, for any strides: the route where no vendor library serves. 64 x 64 of C to a block, 4 x 4 to
// each of 256 threads, sums in f32 in order of k.

struct MatmulArgs {
  char* c; const char *a, *b, *bias; u64 m, n, k; i64 sa[3], sb[3], sc[2], bias_stride; double alpha; u64 accumulate; u32 first, pad;
};

#define CW_TILE 64
#define CW_DEPTH 16

template <class TC, class TA, class TBIAS> CW_DEVICE void cw_matmul(const MatmulArgs& a) {
  CW_SHARED float sa[CW_DEPTH][CW_TILE + 4];
  CW_SHARED float sb[CW_DEPTH][CW_TILE + 4];
  const int tid = (int)threadIdx.x, tx = tid % 16, ty = tid / 16;
  const u64 m0 = (u64)blockIdx.x * CW_TILE, n0 = (u64)blockIdx.y * CW_TILE;
  const TA* pa = (const TA*)a.a + (i64)(u32)(a.first + blockIdx.z) * a.sa[2];
  const TA* pb = (const TA*)a.b + (i64)(u32)(a.first + blockIdx.z) * a.sb[2];
  // Threads run along the side whose stride is 1.
  const bool a_rows = a.sa[0] == 1, b_cols = a.sb[1] == 1;
  float acc[4][4];
  CW_UNROLL for (int i = 0; i < 4; i++) CW_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = 0.0f;
  for (u64 k0 = 0; k0 < a.k; k0 += CW_DEPTH) {
    CW_SYNC();
    CW_UNROLL for (int e = 0; e < CW_TILE * CW_DEPTH / 256; e++) {
      int i = tid + e * 256;
      int r = a_rows ? i % CW_TILE : i / CW_DEPTH, k = a_rows ? i / CW_TILE : i % CW_DEPTH;
      sa[k][r] = m0 + r < a.m && k0 + k < a.k ? cw_load(pa + (i64)(m0 + r) * a.sa[0] + (i64)(k0 + k) * a.sa[1]) : 0.0f;
      int c = b_cols ? i % CW_TILE : i / CW_DEPTH, l = b_cols ? i / CW_TILE : i % CW_DEPTH;
      sb[l][c] = n0 + c < a.n && k0 + l < a.k ? cw_load(pb + (i64)(k0 + l) * a.sb[0] + (i64)(n0 + c) * a.sb[1]) : 0.0f;
    }
    CW_SYNC();
    CW_UNROLL for (int k = 0; k < CW_DEPTH; k++) {
      float x[4];
      float y[4];
      CW_UNROLL for (int i = 0; i < 4; i++) { x[i] = sa[k][ty * 4 + i]; y[i] = sb[k][tx * 4 + i]; }
      CW_UNROLL for (int i = 0; i < 4; i++) CW_UNROLL for (int j = 0; j < 4; j++) acc[i][j] += x[i] * y[j];
    }
  }
  TC* pc = (TC*)a.c + (i64)(u32)(a.first + blockIdx.z) * a.sc[1];
  const float alpha = (float)a.alpha;
  CW_UNROLL for (int i = 0; i < 4; i++) CW_UNROLL for (int j = 0; j < 4; j++) {
    u64 r = m0 + ty * 4 + i, c = n0 + tx * 4 + j;
    if (r >= a.m || c >= a.n) continue;
    float v = alpha * acc[i][j];
    if (a.bias) v += cw_load((const TBIAS*)a.bias + (i64)c * a.bias_stride);
    TC* p = pc + (i64)r * a.sc[0] + (i64)c;
    if (a.accumulate) v += cw_load((const TC*)p);
    cw_store(p, v);
  }
}
