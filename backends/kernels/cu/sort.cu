// Stable sorting of rows: items carry their position, so they are distinct and every correct sort gives the one answer. Chunks (a part of a row, or
// several SHORT rows of 2^shift places each) are sorted in shared memory, then merged by pairs: an item's place is its own index plus its rank in the other run.

struct SortArgs { char* items; const char* keys; Dims from; u64 rows, n, descending, shift; };
struct MergeArgs { const char* from; char* to; u64 rows, n, run; };
struct TakeArgs { char *keys_out, *values_out; const char *items, *keys, *values; Dims keys_from, values_from; u64 rows, n, k; };

#define CW_SORT 1024

// Keys as unsigned numbers in the order wanted: NaN above all, -0 equal to 0.
CW_DEVICE u64 cw_order(float x) {
  if (cw_nan(x)) return 0xffffffffull;
  u32 u = cw_bits_of_float(x);
  if (u == 0x80000000u) u = 0;
  return (u64)(u & 0x80000000u ? ~u : u | 0x80000000u);
}
CW_DEVICE u64 cw_order(i32 x) { return (u64)((u32)x ^ 0x80000000u); }
CW_DEVICE u64 cw_order(i64 x) { return (u64)x ^ 0x8000000000000000ull; }
CW_DEVICE u64 cw_order(bf16 x) { return cw_order(cw_f32_of_bf16(x.x)); }
CW_DEVICE u64 cw_order(f16 x) { return cw_order(cw_f32_of_f16(x.x)); }

// Keys of up to 32 bits share a word with their position; longer ones have two.
struct Narrow {
  u64 w;
  static CW_DEVICE Narrow make(u64 key, u64 at, bool down) { Narrow r; r.w = (down ? 0xffffffffull - key : key) << 32 | at; return r; }
  static CW_DEVICE Narrow last() { Narrow r; r.w = ~0ull; return r; }
  CW_DEVICE bool operator<(const Narrow& o) const { return w < o.w; }
  CW_DEVICE u64 at() const { return w & 0xffffffffull; }
};
struct Wide {
  u64 w, i;
  static CW_DEVICE Wide make(u64 key, u64 at, bool down) { Wide r; r.w = down ? ~key : key; r.i = at; return r; }
  static CW_DEVICE Wide last() { Wide r; r.w = ~0ull; r.i = ~0ull; return r; }
  CW_DEVICE bool operator<(const Wide& o) const { return w < o.w || (w == o.w && i < o.i); }
  CW_DEVICE u64 at() const { return i; }
};

// Every `each` places by themselves.
template <class I> CW_DEVICE void cw_sort_shared(I* s, u32 each) {
  for (u32 k = 2; k <= each; k <<= 1)
    for (u32 j = k >> 1; j > 0; j >>= 1) {
      CW_SYNC();
      for (u32 i = threadIdx.x; i < CW_SORT; i += blockDim.x) {
        u32 o = i ^ j;
        if (o > i) {
          I x = s[i], y = s[o];
          bool up = (i & (each - 1) & k) == 0;
          if (up ? y < x : x < y) { s[i] = y; s[o] = x; }
        }
      }
    }
  CW_SYNC();
}

// T is a key's storage, or Narrow where the items are made already.
template <class I, class T> CW_DEVICE I cw_item(const SortArgs& a, u64 row, u64 i) {
  return I::make(cw_order(((const T*)a.keys)[cw_offset(a.from, row * a.n + i)]), i, a.descending != 0);
}
template <> CW_DEVICE Narrow cw_item<Narrow, Narrow>(const SortArgs& a, u64 row, u64 i) { return ((const Narrow*)a.items)[row * a.n + i]; }

template <class I, class T, bool SHORT> CW_DEVICE void cw_sort(const SortArgs& a) {
  CW_SHARED I s[CW_SORT];
  if constexpr (SHORT) {
    u32 each = 1u << a.shift, rows = CW_SORT >> a.shift;
    for (u64 base = (u64)blockIdx.x * rows; base < a.rows; base += (u64)gridDim.x * rows) {
      CW_SYNC();
      for (u32 i = threadIdx.x; i < CW_SORT; i += blockDim.x) {
        u64 row = base + (i >> a.shift), at = i & (each - 1);
        s[i] = row < a.rows && at < a.n ? cw_item<I, T>(a, row, at) : I::last();
      }
      cw_sort_shared(s, each);
      for (u32 i = threadIdx.x; i < CW_SORT; i += blockDim.x) {
        u64 row = base + (i >> a.shift), at = i & (each - 1);
        if (row < a.rows && at < a.n) ((I*)a.items)[row * a.n + at] = s[i];
      }
    }
    return;
  }
  u64 chunks = (a.n + CW_SORT - 1) / CW_SORT;
  for (u64 b = blockIdx.x; b < a.rows * chunks; b += gridDim.x) {
    u64 row = cw_div(b, chunks), start = (b - row * chunks) * CW_SORT;
    CW_SYNC();
    for (u32 i = threadIdx.x; i < CW_SORT; i += blockDim.x) s[i] = start + i < a.n ? cw_item<I, T>(a, row, start + i) : I::last();
    cw_sort_shared(s, CW_SORT);
    for (u32 i = threadIdx.x; i < CW_SORT; i += blockDim.x) if (start + i < a.n) ((I*)a.items)[row * a.n + start + i] = s[i];
  }
}

template <class I> CW_DEVICE void cw_merge(const MergeArgs& a) {
  u64 total = a.rows * a.n;
  for (u64 g = (u64)blockIdx.x * blockDim.x + threadIdx.x; g < total; g += (u64)gridDim.x * blockDim.x) {
    u64 row = cw_div(g, a.n), i = g - row * a.n, pair = i / (2 * a.run) * 2 * a.run;
    const I* from = (const I*)a.from + row * a.n;
    u64 middle = pair + a.run < a.n ? pair + a.run : a.n, end = pair + 2 * a.run < a.n ? pair + 2 * a.run : a.n;
    bool left = i < middle;
    I x = from[i];
    u64 lo = left ? middle : pair, hi = left ? end : middle, first = lo;
    while (lo < hi) { u64 mid = (lo + hi) / 2; if (from[mid] < x) lo = mid + 1; else hi = mid; }
    ((I*)a.to)[row * a.n + pair + (i - (left ? pair : middle)) + (lo - first)] = x;
  }
}

// The first k of each row: keys, and what goes with them (or, without values, where they were).
template <class I, class T, class TV> CW_DEVICE void cw_take(const TakeArgs& a) {
  for (u64 g = (u64)blockIdx.x * blockDim.x + threadIdx.x; g < a.rows * a.k; g += (u64)gridDim.x * blockDim.x) {
    u64 row = cw_div(g, a.k), at = ((const I*)a.items)[row * a.n + (g - row * a.k)].at();
    ((T*)a.keys_out)[g] = ((const T*)a.keys)[cw_offset(a.keys_from, row * a.n + at)];
    ((TV*)a.values_out)[g] = a.values ? ((const TV*)a.values)[cw_offset(a.values_from, row * a.n + at)] : (TV)at;
  }
}
