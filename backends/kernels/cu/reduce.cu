// Sums and the like over chosen dims, first-best indices, running sums, histograms. Partial results are f64 and join in one order.

struct ReduceArgs { char* dst; const char* src; double* parts_at; Dims kept, gone; u64 piece, parts, accumulate, shift; };
struct LineArgs { char* dst; const char* src; Dims from, to; u64 n; i64 step_in, step_out; u64 kind, shift; };
struct HistogramArgs { u32* dst; const char* index; Dims from; u64 bins; };

// Kinds: 1 sum, 2 sum of squares, 3 max, 4 min, 5 product.
template <int K> CW_DEVICE double cw_nothing() { return K == 3 ? -(double)CW_INF : K == 4 ? (double)CW_INF : K == 5 ? 1.0 : 0.0; }
template <int K> CW_DEVICE double cw_join(double a, double b) {
  if constexpr (K == 3) return a > b || a != a ? a : b;
  if constexpr (K == 4) return a < b || a != a ? a : b;
  if constexpr (K == 5) return a * b;
  return a + b;
}
template <int K> CW_DEVICE double cw_term(float x) { return K == 2 ? (double)x * (double)x : (double)x; }
template <int K> struct Join { CW_DEVICE double operator()(double a, double b) const { return cw_join<K>(a, b); } };

template <class TD> CW_DEVICE void cw_reduce_out(const ReduceArgs& a, u64 i, u64 part, double v) {
  if (a.parts > 1) { a.parts_at[part * a.kept.total + i] = v; return; }
  TD* y = (TD*)a.dst + i;
  cw_store(y, a.accumulate ? (float)((double)cw_load((const TD*)y) + v) : (float)v);
}

// A team for each element that stays (and each part of what goes): neighbours lie in the dims that go.
template <class TD, class TS, int K, bool SHORT> CW_DEVICE void cw_reduce_along(const ReduceArgs& a) {
  CW_SHARED double shared[32];
  u64 work = a.kept.total * a.parts;
  bool flat = a.gone.rank <= 1;
  i64 step = a.gone.rank ? a.gone.stride[0] : 1;
  Team<SHORT> team(a.shift);
  for (u64 base = team.first(); base < work; base += team.step()) {
    u64 b = base + team.mine();
    bool here = team.here(b, work);
    u64 part = cw_div(b, a.kept.total), i = b - part * a.kept.total;
    const TS* x = (const TS*)a.src + cw_offset(a.kept, i);
    u64 start = part * a.piece, end = start + a.piece < a.gone.total ? start + a.piece : a.gone.total;
    double acc = cw_nothing<K>();
    for (u64 at = start + (u64)team.place() * CW_V; at < end; at += (u64)team.size() * CW_V) {
      int count = cw_left(at, end);
      float v[CW_V];
      if (flat) cw_load8(v, x + (i64)at * step, step, count);
      else for (int k = 0; k < CW_V; k++) v[k] = k < count ? cw_load(x + cw_offset(a.gone, at + k)) : 0.0f;
      CW_UNROLL for (int k = 0; k < CW_V; k++) if (k < count) acc = cw_join<K>(acc, cw_term<K>(v[k]));
    }
    acc = team.join(acc, Join<K>(), shared);
    if (here && team.place() == 0) cw_reduce_out<TD>(a, i, part, acc);
  }
}

// Eight neighbouring elements that stay to a thread, a warp's worth to a row; the block's warps share the part of what goes.
template <class TD, class TS, int K> CW_DEVICE void cw_reduce_across(const ReduceArgs& a) {
  CW_SHARED double shared[8][32 * CW_V];
  const int lane = (int)threadIdx.x % 32, way = (int)threadIdx.x / 32, ways = (int)blockDim.x / 32;
  u64 inner = a.kept.rank ? a.kept.n[a.kept.rank - 1] : 1;
  i64 step = a.kept.rank ? a.kept.stride[a.kept.rank - 1] : 1;
  u64 row_groups = (inner + CW_V - 1) / CW_V, groups = row_groups * (a.kept.total / inner), tiles = (groups + 31) / 32, work = tiles * a.parts;
  for (u64 b = blockIdx.x; b < work; b += gridDim.x) {
    u64 part = cw_div(b, tiles), g = (b - part * tiles) * 32 + lane;
    u64 row = cw_div(g, row_groups), col = (g - row * row_groups) * CW_V, i = row * inner + col;
    int count = g < groups ? cw_left(col, inner) : 0;
    const TS* x = (const TS*)a.src + (count ? cw_offset(a.kept, i) : 0);
    u64 start = part * a.piece, end = start + a.piece < a.gone.total ? start + a.piece : a.gone.total;
    double acc[CW_V];
    CW_UNROLL for (int k = 0; k < CW_V; k++) acc[k] = cw_nothing<K>();
    if (count) for (u64 at = start + way; at < end; at += ways) {
      float v[CW_V];
      cw_load8(v, x + cw_offset(a.gone, at), step, count);
      CW_UNROLL for (int k = 0; k < CW_V; k++) acc[k] = cw_join<K>(acc[k], cw_term<K>(v[k]));
    }
    CW_SYNC();
    CW_UNROLL for (int k = 0; k < CW_V; k++) shared[way][lane * CW_V + k] = acc[k];
    CW_SYNC();
    if (way == 0) for (int k = 0; k < count; k++) {
      double r = shared[0][lane * CW_V + k];
      for (int w = 1; w < ways; w++) r = cw_join<K>(r, shared[w][lane * CW_V + k]);
      cw_reduce_out<TD>(a, i + k, part, r);
    }
  }
}

template <class TD, int K> CW_DEVICE void cw_reduce_finish(const ReduceArgs& a) {
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.kept.total; i += (u64)gridDim.x * blockDim.x) {
    double r = a.parts_at[i];
    for (u64 p = 1; p < a.parts; p++) r = cw_join<K>(r, a.parts_at[p * a.kept.total + i]);
    TD* y = (TD*)a.dst + i;
    cw_store(y, a.accumulate ? (float)((double)cw_load((const TD*)y) + r) : (float)r);
  }
}

// NaN is the largest; of equals the first wins. `at` < 0 is nobody.
struct Best { float v; int pad; i64 at; };
template <bool SMALLEST> CW_DEVICE bool cw_beats(float a, i64 i, float b, i64 j) {
  if (i < 0 || j < 0) return j < 0 && i >= 0;
  bool na = cw_nan(a), nb = cw_nan(b);
  if (na || nb) return na && nb ? i < j : SMALLEST ? nb : na;
  return a == b ? i < j : SMALLEST ? a < b : a > b;
}
template <class TI, class T, bool SMALLEST, bool SHORT> CW_DEVICE void cw_arg_reduce(const LineArgs& a) {
  CW_SHARED float values[32];
  CW_SHARED i64 places[32];
  Team<SHORT> team(a.shift);
  for (u64 base = team.first(); base < a.from.total; base += team.step()) {
    u64 line = base + team.mine();
    bool here = team.here(line, a.from.total);
    const T* x = (const T*)a.src + cw_offset(a.from, line);
    float best = 0.0f;
    i64 at = -1;
    for (u64 i = team.place(); i < a.n; i += team.size()) {
      float v = cw_load(x + (i64)i * a.step_in);
      if (cw_beats<SMALLEST>(v, (i64)i, best, at)) { best = v; at = (i64)i; }
    }
    for (int m = (SHORT ? (int)team.size() : CW_WARP) / 2; m > 0; m >>= 1) {
      float v = cw_shfl_xor(best, m);
      i64 j = cw_shfl_xor(at, m);
      if (cw_beats<SMALLEST>(v, j, best, at)) { best = v; at = j; }
    }
    if (!SHORT) {
      CW_SYNC();
      if (CW_LANE() == 0) { values[threadIdx.x / CW_WARP] = best; places[threadIdx.x / CW_WARP] = at; }
      CW_SYNC();
    }
    if (here && team.place() == 0) {
      if (!SHORT) for (int w = 1; w < ((int)blockDim.x + CW_WARP - 1) / CW_WARP; w++)
        if (cw_beats<SMALLEST>(values[w], places[w], best, at)) { best = values[w]; at = places[w]; }
      ((TI*)a.dst)[line] = (TI)at;
    }
  }
}

// What a sum is kept in, and what its elements are read as.
template <class A> struct Work { typedef float type; };
template <> struct Work<i64> { typedef i64 type; };

// Running sums of a line, a tile of its team's threads times eight at a time. A tile is read before it is written, so in place works.
template <class A, class T, bool SHORT> CW_DEVICE void cw_cumsum(const LineArgs& a) {
  CW_SHARED A sums[32];
  typedef Conv<typename Work<A>::type, T> C;
  Team<SHORT> team(a.shift);
  int lane = SHORT ? (int)team.place() : (int)CW_LANE(), warp = (int)threadIdx.x / CW_WARP, warps = ((int)blockDim.x + CW_WARP - 1) / CW_WARP;
  for (u64 first = team.first(); first < a.from.total; first += team.step()) {
    u64 line = first + team.mine();
    bool here = team.here(line, a.from.total);
    const T* x = (const T*)a.src + cw_offset(a.from, line);
    T* y = (T*)a.dst + cw_offset(a.to, line);
    A carry = 0;
    for (u64 base = 0; base < a.n; base += (u64)team.size() * CW_V) {
      u64 start = base + (u64)team.place() * CW_V;
      int count = here ? cw_left(start, a.n) : 0;
      A v[CW_V];
      A sum = 0;
      for (int k = 0; k < CW_V; k++) {
        v[k] = k < count ? (A)C::get(x[(i64)(start + k) * a.step_in]) : (A)0;
        sum += v[k];
      }
      A before = sum;
      for (int d = 1; d < (SHORT ? (int)team.size() : CW_WARP); d <<= 1) { A o = cw_shfl_up(before, d); if (lane >= d) before += o; }
      if (!SHORT) {
        CW_SYNC();
        if (lane == CW_WARP - 1 || threadIdx.x == blockDim.x - 1) sums[warp] = before;
        CW_SYNC();
      }
      // Of the lanes before, not less its own: NaN and infinities count from their place on.
      A run = cw_shfl_up(before, 1);
      run = carry + (lane > 0 ? run : (A)0);
      if (!SHORT) for (int w = 0; w < warps; w++) { if (w < warp) run += sums[w]; carry += sums[w]; }
      for (int k = 0; k < count; k++) { run += v[k]; y[(i64)(start + k) * a.step_out] = C::put((typename Work<A>::type)run); }
    }
  }
}

template <class TI> CW_DEVICE void cw_histogram(const HistogramArgs& a) {
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.from.total; i += (u64)gridDim.x * blockDim.x) {
    i64 v = (i64)((const TI*)a.index)[cw_offset(a.from, i)];
    if (v >= 0 && (u64)v < a.bins) cw_atomic_add(a.dst + v, 1u);
  }
}

// NaN and infinite elements of a strided tensor, into a word.
template <class T> CW_DEVICE void cw_nonfinite_strided(const HistogramArgs& a) {
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.from.total; i += (u64)gridDim.x * blockDim.x)
    if ((cw_bits_of_float(cw_load((const T*)a.index + cw_offset(a.from, i))) & 0x7f800000u) == 0x7f800000u) cw_atomic_add(a.dst, 1u);
}
