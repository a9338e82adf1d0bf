// Rows by index: gathers, embeddings, and sums into rows. The sums run in order of position: positions are sorted by row (see sort.cu), and
// one thread owns a column of a row, so nothing depends on timing.

struct GatherArgs {
  char* dst; const char *table, *index, *pos; Dims from, row; i64 row_stride; u64 limit; i64 ignore; u64 has_ignore, width, seq;
  i64 pos_row, pos_inner;
};
struct ItemsArgs { u64* out; const char* index; Dims from; u64 limit; i64 ignore; u64 has_ignore; };
struct ScatterArgs { char* table; const char* src; const u64* items; Dims pos_from, row; u64 n, width, seq; };

// The row an index means, or -1.
template <class A> CW_DEVICE i64 cw_row(const A& a, i64 v) { return (a.has_ignore && v == a.ignore) || v < 0 || (u64)v >= a.limit ? -1 : v; }

// dst[i, :] = table[index[i], :], zeros where the index means no row; V is float to add positions, raw to move bits.
template <class V, class TD, class TT, class TP, class TI> CW_DEVICE void cw_gather(const GatherArgs& a) {
  u64 row_groups = (a.width + CW_V - 1) / CW_V, groups = row_groups * a.from.total;
  bool flat = a.row.rank <= 1;
  i64 step = a.row.rank ? a.row.stride[0] : 1;
  for (u64 g = (u64)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += (u64)gridDim.x * blockDim.x) {
    u64 i = cw_div(g, row_groups), col = (g - i * row_groups) * CW_V;
    int count = cw_left(col, a.width);
    i64 r = cw_row(a, (i64)((const TI*)a.index)[cw_offset(a.from, i)]);
    V x[CW_V];
    if (r < 0) { CW_UNROLL for (int k = 0; k < CW_V; k++) x[k] = Zero<V>::of(); }
    else {
      const TT* t = (const TT*)a.table + r * a.row_stride;
      if (flat) cw_load8(x, t + (i64)col * step, step, count);
      else for (int k = 0; k < CW_V; k++) x[k] = k < count ? Conv<V, TT>::get(t[cw_offset(a.row, col + k)]) : Zero<V>::of();
    }
    if constexpr (sizeof(V) == sizeof(float)) {
      if (a.pos) {
        float p[CW_V];
        cw_load8(p, (const TP*)a.pos + (i64)(i % a.seq) * a.pos_row + (i64)col * a.pos_inner, a.pos_inner, count);
        CW_UNROLL for (int k = 0; k < CW_V; k++) x[k] += p[k];
      }
    }
    cw_store8((TD*)a.dst + i * a.width + col, x, 1, count);
  }
}

// One sort item a position: its row above, the position below; positions without a row sort last.
template <class TI> CW_DEVICE void cw_items(const ItemsArgs& a) {
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.from.total; i += (u64)gridDim.x * blockDim.x) {
    i64 r = cw_row(a, (i64)((const TI*)a.index)[cw_offset(a.from, i)]);
    a.out[i] = (r < 0 ? 0xffffffffull : (u64)r) << 32 | i;
  }
}

// table[r, :] += src[i, :] for the run of sorted items that starts at this block's item; f32 sums, one rounding to the storage.
template <class TT, class TS> CW_DEVICE void cw_scatter(const ScatterArgs& a) {
  u64 tiles = (a.width + (u64)blockDim.x * CW_V - 1) / ((u64)blockDim.x * CW_V), work = a.n * tiles;
  bool flat = a.row.rank <= 1;
  i64 step = a.row.rank ? a.row.stride[0] : 1;
  for (u64 b = blockIdx.x; b < work; b += gridDim.x) {
    u64 s = cw_div(b, tiles), col = ((b - s * tiles) * blockDim.x + threadIdx.x) * CW_V;
    u64 row = a.items[s] >> 32;
    if (row == 0xffffffffull || (s > 0 && a.items[s - 1] >> 32 == row) || col >= a.width) continue;
    int count = cw_left(col, a.width);
    TT* t = (TT*)a.table + row * a.width + col;
    float acc[CW_V];
    cw_load8(acc, (const TT*)t, 1, count);
    for (u64 k = s; k < a.n && a.items[k] >> 32 == row; k++) {
      const TS* x = (const TS*)a.src + cw_offset(a.pos_from, a.items[k] & 0xffffffffull);
      float v[CW_V];
      if (flat) cw_load8(v, x + (i64)col * step, step, count);
      else for (int j = 0; j < CW_V; j++) v[j] = j < count ? cw_load(x + cw_offset(a.row, col + j)) : 0.0f;
      CW_UNROLL for (int j = 0; j < CW_V; j++) acc[j] += v[j];
    }
    cw_store8(t, acc, 1, count);
  }
}

// dpos[t, :] += dy[b, t, :] in order of b.
template <class TS> CW_DEVICE void cw_positions(const ScatterArgs& a) {
  u64 row_groups = (a.width + CW_V - 1) / CW_V, groups = row_groups * a.seq;
  bool flat = a.row.rank <= 1;
  i64 step = a.row.rank ? a.row.stride[0] : 1;
  for (u64 g = (u64)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += (u64)gridDim.x * blockDim.x) {
    u64 p = cw_div(g, row_groups), col = (g - p * row_groups) * CW_V;
    int count = cw_left(col, a.width);
    float* t = (float*)a.table + p * a.width + col;
    float acc[CW_V];
    cw_load8(acc, (const float*)t, 1, count);
    for (u64 i = p; i < a.n; i += a.seq) {
      const TS* x = (const TS*)a.src + cw_offset(a.pos_from, i);
      float v[CW_V];
      if (flat) cw_load8(v, x + (i64)col * step, step, count);
      else for (int j = 0; j < CW_V; j++) v[j] = j < count ? cw_load(x + cw_offset(a.row, col + j)) : 0.0f;
      CW_UNROLL for (int j = 0; j < CW_V; j++) acc[j] += v[j];
    }
    cw_store8(t, acc, 1, count);
  }
}
