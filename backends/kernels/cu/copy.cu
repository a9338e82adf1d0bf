// Copies whose source runs along another dim than their destination: 32 x 32 tiles through shared memory, both sides touched in lines.

struct CopyArgs { char* dst; const char* src; u64 ni, nj; i64 dj, si; u64 tiles_i, tiles_j, tiles, n[6]; i64 ds[6], ss[6]; u64 rank; };

template <class T> CW_DEVICE void cw_transpose(const CopyArgs& a) {
  CW_SHARED T tile[32][33];
  int x = (int)threadIdx.x % 32, y = (int)threadIdx.x / 32;
  for (u64 t = blockIdx.x; t < a.tiles; t += gridDim.x) {
    u64 rest = cw_div(t, a.tiles_j), tj = t - rest * a.tiles_j;
    u64 outer = cw_div(rest, a.tiles_i), ti = rest - outer * a.tiles_i;
    i64 d0 = 0, s0 = 0;
    for (int k = (int)a.rank - 1; k >= 0; k--) {
      u64 q = cw_div(outer, a.n[k]), r = outer - q * a.n[k];
      d0 += (i64)r * a.ds[k];
      s0 += (i64)r * a.ss[k];
      outer = q;
    }
    u64 i0 = ti * 32, j0 = tj * 32;
    CW_UNROLL for (int k = 0; k < 32; k += 8) {
      u64 i = i0 + y + k, j = j0 + x;
      if (i < a.ni && j < a.nj) tile[y + k][x] = ((const T*)a.src)[s0 + (i64)i * a.si + (i64)j];
    }
    CW_SYNC();
    CW_UNROLL for (int k = 0; k < 32; k += 8) {
      u64 i = i0 + x, j = j0 + y + k;
      if (i < a.ni && j < a.nj) ((T*)a.dst)[d0 + (i64)j * a.dj + (i64)i] = tile[x][y + k];
    }
    CW_SYNC();
  }
}
