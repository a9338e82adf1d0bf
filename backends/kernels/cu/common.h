// What all kernels share: storage types and their conversions, strided offsets, block sums, the Philox generator.

#define CW_INF cw_float_of_bits(0x7f800000u)
#define CW_NAN cw_float_of_bits(0x7fc00000u)

struct bf16 { u16 x; };
struct f16 { u16 x; };
struct f8 { u8 x; };
// Bits that only move.
struct raw { u64 b; };

CW_DEVICE float cw_f32_of_bf16(u16 h) { return cw_float_of_bits((u32)h << 16); }
#ifndef CW_HAS_BF16
CW_DEVICE u16 cw_bf16_of_f32(float f) {
  u32 u = cw_bits_of_float(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (u16)((u >> 16) | 0x40);
  return (u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
#endif
#ifdef CW_HOST
CW_DEVICE u32 cw_pack_bf16(float lo, float hi) { return (u32)cw_bf16_of_f32(lo) | (u32)cw_bf16_of_f32(hi) << 16; }
#endif

// OCP E4M3: no infinity; what rounds beyond 448 is NaN.
CW_DEVICE u8 cw_f8_of_f32(float x) {
  u32 bits = cw_bits_of_float(x);
  u8 sign = (u8)(bits >> 24 & 0x80);
  u32 a = bits & 0x7fffffffu;
  float m = cw_float_of_bits(a);
  if (m < 0.015625f) return sign | (u8)rintf(m * 512.0f);
  if (a > 0x7f800000u) return sign | 0x7f;
  u32 code = ((a + 0x7ffffu + (a >> 20 & 1u)) >> 20) - (120u << 3);
  return sign | (u8)(code < 0x7f ? code : 0x7f);
}
CW_DEVICE float cw_f32_of_f8(u8 code) {
  u32 e = code >> 3 & 15, m = code & 7;
  float a = (code & 0x7f) == 0x7f ? CW_NAN : e == 0 ? (float)m * cw_float_of_bits((127u - 9u) << 23) : (float)(8 + m) * cw_float_of_bits((e + 127u - 10u) << 23);
  return code & 0x80 ? -a : a;
}

CW_DEVICE bool cw_nan(float x) { return x != x; }

// Reading a storage type as a working type, and back.
template <class V, class T> struct Conv;
template <> struct Conv<float, float> { static CW_DEVICE float get(float x) { return x; } static CW_DEVICE float put(float x) { return x; } };
template <> struct Conv<float, bf16> { static CW_DEVICE float get(bf16 x) { return cw_f32_of_bf16(x.x); } static CW_DEVICE bf16 put(float x) { bf16 r; r.x = cw_bf16_of_f32(x); return r; } };
template <> struct Conv<float, f16> { static CW_DEVICE float get(f16 x) { return cw_f32_of_f16(x.x); } static CW_DEVICE f16 put(float x) { f16 r; r.x = cw_f16_of_f32(x); return r; } };
template <> struct Conv<float, f8> { static CW_DEVICE float get(f8 x) { return cw_f32_of_f8(x.x); } static CW_DEVICE f8 put(float x) { f8 r; r.x = cw_f8_of_f32(x); return r; } };
template <> struct Conv<float, u8> { static CW_DEVICE float get(u8 x) { return (float)x; } static CW_DEVICE u8 put(float x) { return (u8)x; } };
template <> struct Conv<float, u32> {
  static CW_DEVICE float get(u32 x) { return (float)x; }
  static CW_DEVICE u32 put(float x) { return !(x > 0.0f) ? 0u : x >= 4294967296.0f ? 0xffffffffu : (u32)x; }
};
template <class T> struct Conv<i64, T> { static CW_DEVICE i64 get(T x) { return (i64)x; } static CW_DEVICE T put(i64 x) { return (T)x; } };
template <> struct Conv<raw, u8> { static CW_DEVICE raw get(u8 x) { raw r; r.b = x; return r; } static CW_DEVICE u8 put(raw x) { return (u8)x.b; } };
template <> struct Conv<raw, u16> { static CW_DEVICE raw get(u16 x) { raw r; r.b = x; return r; } static CW_DEVICE u16 put(raw x) { return (u16)x.b; } };
template <> struct Conv<raw, u32> { static CW_DEVICE raw get(u32 x) { raw r; r.b = x; return r; } static CW_DEVICE u32 put(raw x) { return (u32)x.b; } };
template <> struct Conv<raw, u64> { static CW_DEVICE raw get(u64 x) { raw r; r.b = x; return r; } static CW_DEVICE u64 put(raw x) { return x.b; } };

template <class T> CW_DEVICE float cw_load(const T* p) { return Conv<float, T>::get(*p); }
template <class T> CW_DEVICE void cw_store(T* p, float v) { *p = Conv<float, T>::put(v); }

template <class V> struct Zero { static CW_DEVICE V of() { return (V)0; } };
template <> struct Zero<raw> { static CW_DEVICE raw of() { raw r; r.b = 0; return r; } };

// Eight adjacent elements at a time, in 16-byte pieces where the address allows.
#define CW_V 8
struct alignas(16) Piece { u32 w[4]; };
template <class T> union Eight { Piece piece[sizeof(T) >= 2 ? sizeof(T) / 2 : 1]; T t[8]; CW_DEVICE Eight() {} };

template <class V, class T> CW_DEVICE void cw_load8(V (&x)[CW_V], const T* p, i64 step, int count) {
  if (step == 1 && count == CW_V && sizeof(T) >= 2 && ((u64)p & 15) == 0) {
    Eight<T> e;
    CW_UNROLL for (int i = 0; i < (int)(sizeof(T) / 2); i++) e.piece[i] = ((const Piece*)p)[i];
    CW_UNROLL for (int i = 0; i < CW_V; i++) x[i] = Conv<V, T>::get(e.t[i]);
  } else if (step == 0) {
    V v = count > 0 ? Conv<V, T>::get(*p) : Zero<V>::of();
    CW_UNROLL for (int i = 0; i < CW_V; i++) x[i] = v;
  } else {
    CW_UNROLL for (int i = 0; i < CW_V; i++) x[i] = i < count ? Conv<V, T>::get(p[i * step]) : Zero<V>::of();
  }
}
template <class V, class T> CW_DEVICE void cw_store8(T* p, const V (&x)[CW_V], i64 step, int count) {
  if (step == 1 && count == CW_V && sizeof(T) >= 2 && ((u64)p & 15) == 0) {
    Eight<T> e;
    CW_UNROLL for (int i = 0; i < CW_V; i++) e.t[i] = Conv<V, T>::put(x[i]);
    CW_UNROLL for (int i = 0; i < (int)(sizeof(T) / 2); i++) ((Piece*)p)[i] = e.piece[i];
  } else {
    CW_UNROLL for (int i = 0; i < CW_V; i++) if (i < count) p[i * step] = Conv<V, T>::put(x[i]);
  }
}
// Elements of a row that a group of eight still has.
CW_DEVICE int cw_left(u64 start, u64 end) { return start >= end ? 0 : end - start < CW_V ? (int)(end - start) : CW_V; }

CW_DEVICE u64 cw_div(u64 i, u64 n) { return ((i | n) >> 32) == 0 ? (u64)((u32)i / (u32)n) : i / n; }

// Dims of a strided walk, innermost last; rank 0 is one element.
struct Dims { u64 n[8]; i64 stride[8]; u64 total; u64 rank; };
CW_DEVICE i64 cw_offset(const Dims& d, u64 i) {
  if (d.rank == 0) return 0;
  i64 at = 0;
  for (int k = (int)d.rank - 1; k > 0; k--) {
    u64 q = cw_div(i, d.n[k]);
    at += (i64)(i - q * d.n[k]) * d.stride[k];
    i = q;
  }
  return at + (i64)i * d.stride[0];
}

struct Sum { template <class T> CW_DEVICE T operator()(T a, T b) const { return a + b; } };
struct Max { template <class T> CW_DEVICE T operator()(T a, T b) const { return a > b || a != a ? a : b; } };
struct Min { template <class T> CW_DEVICE T operator()(T a, T b) const { return a < b || a != a ? a : b; } };
struct Product { template <class T> CW_DEVICE T operator()(T a, T b) const { return a * b; } };

// The same value in every thread of the block, in an order the block's size alone decides. `shared` has 32 places.
template <class T, class F> CW_DEVICE T cw_block_join(T v, F f, T* shared) {
  for (int m = CW_WARP / 2; m > 0; m >>= 1) v = f(v, cw_shfl_xor(v, m));
  int warps = ((int)blockDim.x + CW_WARP - 1) / CW_WARP;
  if (warps == 1) return v;
  CW_SYNC();
  if (CW_LANE() == 0) shared[threadIdx.x / CW_WARP] = v;
  CW_SYNC();
  T r = shared[0];
  for (int i = 1; i < warps; i++) r = f(r, shared[i]);
  return r;
}

// Who has a row: the whole block, or, of SHORT ones, 2^shift neighbouring threads of a warp, so that few stand idle. `first` and `step` lead through a
// block's rows; all threads of a warp go round alike, since they meet within a row, and who comes beyond the last one takes it along, not `here`.
template <bool SHORT> struct Team {
  CW_DEVICE explicit Team(u64) {}
  CW_DEVICE u64 first() const { return blockIdx.x; }
  CW_DEVICE u64 step() const { return gridDim.x; }
  CW_DEVICE u64 mine() const { return 0; }
  CW_DEVICE bool here(u64&, u64) const { return true; }
  CW_DEVICE u32 place() const { return threadIdx.x; }
  CW_DEVICE u32 size() const { return blockDim.x; }
  template <class T, class F> CW_DEVICE T join(T v, F f, T* shared) const { return cw_block_join(v, f, shared); }
};
template <> struct Team<true> {
  u32 shift;
  CW_DEVICE explicit Team(u64 s) : shift((u32)s) {}
  CW_DEVICE u64 first() const { return (u64)blockIdx.x * (blockDim.x >> shift); }
  CW_DEVICE u64 step() const { return (u64)gridDim.x * (blockDim.x >> shift); }
  CW_DEVICE u64 mine() const { return threadIdx.x >> shift; }
  CW_DEVICE bool here(u64& row, u64 n) const { bool is = row < n; if (!is) row = n - 1; return is; }
  CW_DEVICE u32 place() const { return threadIdx.x & (size() - 1); }
  CW_DEVICE u32 size() const { return 1u << shift; }
  template <class T, class F> CW_DEVICE T join(T v, F f, T*) const {
    for (int m = (int)size() / 2; m > 0; m >>= 1) v = f(v, cw_shfl_xor(v, m));
    return v;
  }
};

// Eight floats as a tree.
CW_DEVICE float cw_sum8(const float (&x)[CW_V]) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

struct Words { u32 w[4]; };
CW_DEVICE Words cw_philox(u64 counter, u64 stream, u64 seed) {
  u32 a = (u32)counter, b = (u32)(counter >> 32), c = (u32)stream, d = (u32)(stream >> 32), k0 = (u32)seed, k1 = (u32)(seed >> 32);
  CW_UNROLL for (int i = 0; i < 10; i++) {
    u64 p = (u64)a * 0xD2511F53u, q = (u64)c * 0xCD9E8D57u;
    u32 x = (u32)(q >> 32) ^ b ^ k0, y = (u32)(p >> 32) ^ d ^ k1;
    a = x; b = (u32)q; c = y; d = (u32)p;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  Words r; r.w[0] = a; r.w[1] = b; r.w[2] = c; r.w[3] = d;
  return r;
}

// A logistic function that keeps its accuracy in both tails: e = exp(-|x|), s = sigmoid(x), ds = s (1 - s).
CW_DEVICE float cw_sigmoid(float x) { float e = expf(-fabsf(x)); return (x < 0.0f ? e : 1.0f) / (1.0f + e); }
CW_DEVICE void cw_logistic(float x, float& s, float& ds) {
  float e = expf(-fabsf(x)), q = 1.0f / (1.0f + e);
  s = x < 0.0f ? e * q : q;
  ds = e * q * q;
}

CW_DEVICE i64 cw_index(const void* p, bool wide, i64 at) { return wide ? ((const i64*)p)[at] : (i64)((const i32*)p)[at]; }
