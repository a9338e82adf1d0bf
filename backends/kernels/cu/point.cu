// Pointwise kernels. All are one walk: groups of eight neighbours of the innermost dim, loaded operand by operand, worked on in registers,
// stored. `V` is the working type: float for arithmetic, i64 for integers, raw for bits that only move.

struct PointHead { u64 groups, row_groups, inner, n[7]; double par[2]; u64 bits; u32 dynamic[8]; u32 rank, reserved; };
struct PointOperand { char* p; i64 inner; i64 stride[7]; };
template <int N> struct PointArgs { PointHead h; PointOperand o[N]; };

template <class T> struct In { typedef T type; static const bool reads = true, writes = false; };
template <class T> struct Out { typedef T type; static const bool reads = false, writes = true; };
template <class T> struct InOut { typedef T type; static const bool reads = true, writes = true; };

template <class V, class O> CW_DEVICE void cw_point_load(V (&x)[CW_V], const PointOperand& o, i64 at, int count) {
  typedef typename O::type T;
  if (!O::reads) return;
  // An absent operand is zero.
  cw_load8(x, (const T*)o.p + at, o.p ? o.inner : (i64)0, o.p ? count : 0);
}
template <class V, class O> CW_DEVICE void cw_point_store(const V (&x)[CW_V], const PointOperand& o, i64 at, int count) {
  typedef typename O::type T;
  if (O::writes) cw_store8((T*)o.p + at, x, o.inner, count);
}

template <class V, class F, class... O> CW_DEVICE void cw_point(const PointArgs<(int)sizeof...(O)>& a) {
  const int N = (int)sizeof...(O);
  for (u64 g = (u64)blockIdx.x * blockDim.x + threadIdx.x; g < a.h.groups; g += (u64)gridDim.x * blockDim.x) {
    u64 row = a.h.rank ? cw_div(g, a.h.row_groups) : 0, start = (g - row * a.h.row_groups) * CW_V;
    int count = cw_left(start, a.h.inner);
    i64 off[N];
    CW_UNROLL for (int k = 0; k < N; k++) off[k] = (i64)start * a.o[k].inner;
    u64 left = row;
    for (int d = (int)a.h.rank - 1; d >= 0; d--) {
      u64 q = d ? cw_div(left, a.h.n[d]) : 0, r = left - q * a.h.n[d];
      CW_UNROLL for (int k = 0; k < N; k++) off[k] += (i64)r * a.o[k].stride[d];
      left = q;
    }
    V x[N][CW_V];
    int k = 0;
    ((cw_point_load<V, O>(x[k], a.o[k], off[k], count), k++), ...);
    F::run(x, row * a.h.inner + start, a.h);
    k = 0;
    ((cw_point_store<V, O>(x[k], a.o[k], off[k], count), k++), ...);
  }
}

#define CW_POINT(...) template <class X> static CW_DEVICE void run(X& x, u64 e, const PointHead& h) { (void)e; (void)h; __VA_ARGS__ }
#define CW_EACH for (int i = 0; i < CW_V; i++)

struct Move { CW_POINT(CW_UNROLL CW_EACH x[0][i] = x[1][i];) };
struct Fill { CW_POINT(CW_UNROLL CW_EACH x[0][i].b = h.bits;) };

// ---- casts between types whose values a float cannot carry: bits in, bits out.
CW_DEVICE float cw_to_odd(double x) {
  float f = (float)x;
  if ((double)f == x || f != f) return f;
  u32 u = cw_bits_of_float(f);
  double back = (double)f;
  if ((back < 0 ? -back : back) > (x < 0 ? -x : x)) u -= 1;
  return cw_float_of_bits(u | 1);
}
template <class T> struct Number;
template <> struct Number<float> { static CW_DEVICE double of(u64 b) { return (double)cw_float_of_bits((u32)b); } static CW_DEVICE u64 put(double d) { return cw_bits_of_float((float)d); } };
template <> struct Number<double> { static CW_DEVICE double of(u64 b) { return cw_double_of_bits(b); } static CW_DEVICE u64 put(double d) { return cw_bits_of_double(d); } };
template <> struct Number<bf16> { static CW_DEVICE double of(u64 b) { return (double)cw_f32_of_bf16((u16)b); } static CW_DEVICE u64 put(double d) { return cw_bf16_of_f32(cw_to_odd(d)); } };
template <> struct Number<f16> { static CW_DEVICE double of(u64 b) { return (double)cw_f32_of_f16((u16)b); } static CW_DEVICE u64 put(double d) { return cw_f16_of_f32(cw_to_odd(d)); } };
CW_DEVICE i64 cw_saturate(double d, double lo, double hi, i64 ilo, i64 ihi) { return d != d ? 0 : d <= lo ? ilo : d >= hi ? ihi : (i64)d; }
#define CW_INTEGER(T, LO, HI) \
  template <> struct Number<T> { \
    static CW_DEVICE i64 value(u64 b) { return (i64)(T)b; } \
    static CW_DEVICE u64 put(double d) { return (u64)cw_saturate(d, (double)(LO), (double)(HI), (i64)(LO), (i64)(HI)); } \
  };
CW_INTEGER(i8, -128, 127)
CW_INTEGER(u8, 0, 255)
CW_INTEGER(i32, -2147483647 - 1, 2147483647)
CW_INTEGER(u32, 0, 4294967295ll)
template <> struct Number<i64> {
  static CW_DEVICE i64 value(u64 b) { return (i64)b; }
  static CW_DEVICE u64 put(double d) { return (u64)cw_saturate(d, -9223372036854775808.0, 9223372036854775808.0, -9223372036854775807ll - 1, 9223372036854775807ll); }
};
template <> struct Number<u64> {
  static CW_DEVICE u64 put(double d) { return !(d > 0.0) ? 0 : d >= 18446744073709551616.0 ? ~0ull : (u64)d; }
};
template <class T> struct IsInt { static const bool value = false; };
template <> struct IsInt<i8> { static const bool value = true; };
template <> struct IsInt<u8> { static const bool value = true; };
template <> struct IsInt<i32> { static const bool value = true; };
template <> struct IsInt<u32> { static const bool value = true; };
template <> struct IsInt<i64> { static const bool value = true; };
template <> struct IsInt<u64> { static const bool value = true; };

template <class T> CW_DEVICE bool cw_sign(u64 b) { if constexpr (sizeof(T) == 8 && (T)-1 > (T)0) return false; else return Number<T>::value(b) < 0; }
template <class T> CW_DEVICE u64 cw_whole(u64 b) { if constexpr (sizeof(T) == 8) return b; else return (u64)Number<T>::value(b); }
template <class TD, class TS> CW_DEVICE u64 cw_cast(u64 b) {
  if constexpr (IsInt<TS>::value) {
    // Integers wrap into a narrower integer; into a float they round once.
    u64 w = cw_whole<TS>(b);
    if constexpr (IsInt<TD>::value) return w;
    bool minus = cw_sign<TS>(b);
    u64 m = minus ? 0 - w : w;
    if constexpr (sizeof(TD) == 8) { double d = (double)m; return Number<double>::put(minus ? -d : d); }
    if constexpr (sizeof(TD) == 4) { float f = (float)m; return cw_bits_of_float(minus ? -f : f); }
    double d = m < (1ull << 53) ? (double)m : (double)((m >> 11) | (u64)((m & 0x7ff) != 0)) * 2048.0;
    return Number<TD>::put(minus ? -d : d);
  } else {
    return Number<TD>::put(Number<TS>::of(b));
  }
}
template <class TD, class TS> struct Cast { CW_POINT(CW_UNROLL CW_EACH x[0][i].b = cw_cast<TD, TS>(x[1][i].b);) };
template <class TD> struct Iota { CW_POINT(CW_UNROLL CW_EACH x[0][i].b = Number<TD>::put(cw_add64(h.par[0], cw_mul64(h.par[1], (double)(e + i))));) };

// ---- arithmetic
template <int K> CW_DEVICE float cw_unary(float x) {
  if constexpr (K == 1) return -x;
  if constexpr (K == 2) return fabsf(x);
  if constexpr (K == 3) return expf(x);
  if constexpr (K == 4) return logf(x);
  if constexpr (K == 5) return sqrtf(x);
  if constexpr (K == 6) return 1.0f / sqrtf(x);
  if constexpr (K == 7) return tanhf(x);
  if constexpr (K == 8) return erff(x);
  if constexpr (K == 9) return cw_sigmoid(x);
  if constexpr (K == 10) return sinf(x);
  if constexpr (K == 11) return cosf(x);
  if constexpr (K == 12) return floorf(x);
}
template <int K> struct Unary { CW_POINT(CW_UNROLL CW_EACH x[0][i] = cw_unary<K>(x[1][i]);) };

CW_DEVICE i64 cw_power(i64 a, i64 b) {
  if (a == 1) return 1;
  if (a == -1) return b & 1 ? -1 : 1;
  if (b < 0) return 0;
  u64 r = 1, s = (u64)a;
  for (u64 e = (u64)b; e; e >>= 1) { if (e & 1) r *= s; s *= s; }
  return (i64)r;
}
template <int K> CW_DEVICE float cw_binary(float a, float b) {
  if constexpr (K == 1) return cw_add(a, b);
  if constexpr (K == 2) return cw_add(a, -b);
  if constexpr (K == 3) return cw_mul(a, b);
  if constexpr (K == 4) return a / b;
  if constexpr (K == 5) return a > b || cw_nan(a) ? a : b;
  if constexpr (K == 6) return a < b || cw_nan(a) ? a : b;
  if constexpr (K == 7) return powf(a, b);
}
template <int K> CW_DEVICE i64 cw_binary(i64 a, i64 b) {
  if constexpr (K == 1) return (i64)((u64)a + (u64)b);
  if constexpr (K == 2) return (i64)((u64)a - (u64)b);
  if constexpr (K == 3) return (i64)((u64)a * (u64)b);
  if constexpr (K == 4) return b == 0 ? 0 : b == -1 ? (i64)(0 - (u64)a) : a / b;
  if constexpr (K == 5) return a > b ? a : b;
  if constexpr (K == 6) return a < b ? a : b;
  if constexpr (K == 7) return cw_power(a, b);
}
template <int K> struct Binary { CW_POINT(CW_UNROLL CW_EACH x[0][i] = cw_binary<K>(x[1][i], x[2][i]);) };
template <int K, class V> CW_DEVICE bool cw_compare(V a, V b) {
  if constexpr (K == 1) return a == b;
  if constexpr (K == 2) return a != b;
  if constexpr (K == 3) return a < b;
  if constexpr (K == 4) return a <= b;
  if constexpr (K == 5) return a > b;
  if constexpr (K == 6) return a >= b;
}
template <int K> struct Compare { CW_POINT(CW_UNROLL CW_EACH x[0][i] = cw_compare<K>(x[1][i], x[2][i]) ? 1 : 0;) };
struct Select { CW_POINT(CW_UNROLL CW_EACH x[0][i] = x[1][i].b ? x[2][i] : x[3][i];) };
// y, x. With beta 0 the output is not read.
struct Axpby { CW_POINT(float p = (float)h.par[0], q = (float)h.par[1]; CW_UNROLL CW_EACH x[0][i] = cw_add(cw_mul(p, x[1][i]), cw_mul(q, x[0][i]));) };
struct Scaled { CW_POINT(float p = (float)h.par[0]; CW_UNROLL CW_EACH x[0][i] = cw_mul(p, x[1][i]);) };
struct Clamp { CW_POINT(float lo = (float)h.par[0], hi = (float)h.par[1]; CW_UNROLL CW_EACH {
  float v = x[1][i]; v = v < lo ? lo : v; x[0][i] = v > hi ? hi : v; }) };
// x, coef: by a launch-time factor and a device one (absent: bits say so).
struct ScaleBy { CW_POINT(float k = cw_float_of_bits(h.dynamic[0]) * (h.bits ? x[1][0] : 1.0f); CW_UNROLL CW_EACH x[0][i] = cw_mul(x[0][i], k);) };

// ---- activations
template <int K> CW_DEVICE float cw_act(float v) {
  const float K0 = 0.7978846f, C = 0.044715f;
  // 0.5 (1 + tanh u) is sigmoid(2 u), which keeps its accuracy in the lower tail.
  if constexpr (K == 1) return v * cw_sigmoid(2.0f * K0 * (v + C * v * v * v));
  if constexpr (K == 2) return v * (0.5f + 0.5f * erff(v * 0.70710678f));
  if constexpr (K == 3) return v * cw_sigmoid(v);
  if constexpr (K == 4) return v < 0.0f ? 0.0f : v;
}
template <int K> CW_DEVICE float cw_act_slope(float v) {
  const float K0 = 0.7978846f, C = 0.044715f;
  if constexpr (K == 1) {
    float s, ds;
    cw_logistic(2.0f * K0 * (v + C * v * v * v), s, ds);
    // Far out ds is 0 and the rest may be infinite.
    return ds == 0.0f ? s : s + v * ds * (2.0f * K0 * (1.0f + 3.0f * C * v * v));
  }
  if constexpr (K == 2) {
    float phi = 0.5f + 0.5f * erff(v * 0.70710678f), pdf = 0.3989423f * expf(-0.5f * v * v);
    return pdf == 0.0f ? phi : phi + v * pdf;
  }
  if constexpr (K == 3) { float s, ds; cw_logistic(v, s, ds); return ds == 0.0f ? s : s + v * ds; }
  if constexpr (K == 4) return v <= 0.0f ? 0.0f : 1.0f;
}
template <int K> struct Act { CW_POINT(CW_UNROLL CW_EACH x[0][i] = cw_act<K>(x[1][i]);) };
// dx, dy, x
template <int K> struct ActGrad { CW_POINT(CW_UNROLL CW_EACH x[0][i] = (K == 4) ? (x[2][i] <= 0.0f ? 0.0f : x[1][i]) : x[1][i] * cw_act_slope<K>(x[2][i]);) };
// y, gate, up
struct Swiglu { CW_POINT(CW_UNROLL CW_EACH x[0][i] = cw_act<3>(x[1][i]) * x[2][i];) };
// dgate, dup, dy, gate, up
struct SwigluGrad { CW_POINT(CW_UNROLL CW_EACH {
  float s; float ds; float v = x[3][i]; cw_logistic(v, s, ds);
  float t = ds == 0.0f ? 0.0f : v * ds;
  x[0][i] = x[2][i] * x[4][i] * (s + t);
  x[1][i] = x[2][i] * (v * s); }) };

// ---- random numbers: element e is word e % 4 of counter offset + e / 4
struct Generator { u64 seed, offset, stream; };
CW_DEVICE Generator cw_generator(const u32 (&d)[8]) {
  Generator g;
  g.seed = (u64)d[1] << 32 | d[0]; g.offset = (u64)d[3] << 32 | d[2]; g.stream = (u64)d[5] << 32 | d[4];
  return g;
}
CW_DEVICE void cw_words8(u32 (&w)[CW_V], u64 e, const Generator& g) {
  Words now = cw_philox(g.offset + e / 4, g.stream, g.seed);
  CW_UNROLL for (int i = 0; i < CW_V; i++) {
    u32 lane = (u32)(e + i) & 3;
    if (i > 0 && lane == 0) now = cw_philox(g.offset + (e + i) / 4, g.stream, g.seed);
    w[i] = lane == 0 ? now.w[0] : lane == 1 ? now.w[1] : lane == 2 ? now.w[2] : now.w[3];
  }
}
struct Bits { CW_POINT(u32 w[CW_V]; cw_words8(w, e, cw_generator(h.dynamic)); CW_UNROLL CW_EACH x[0][i].b = w[i];) };
struct Uniform { CW_POINT(u32 w[CW_V]; cw_words8(w, e, cw_generator(h.dynamic));
  float lo = (float)h.par[0]; float span = cw_add((float)h.par[1], -lo);
  CW_UNROLL CW_EACH x[0][i] = cw_add(lo, cw_mul(span, (float)(w[i] >> 8) * (1.0f / 16777216.0f)));) };
struct Normal { CW_POINT(Generator g = cw_generator(h.dynamic); float lo = (float)h.par[0]; float hi = (float)h.par[1];
  for (int i = 0; i < CW_V; i++) {
    u64 at = e + i; Words w = cw_philox(g.offset + at / 4, g.stream, g.seed);
    u32 a = at & 2 ? w.w[2] : w.w[0]; u32 b = at & 2 ? w.w[3] : w.w[1];
    double u1 = ((double)(a >> 8) + 1.0) * (1.0 / 16777216.0); double u2 = (double)(b >> 8) * (1.0 / 16777216.0);
    double r = sqrt(-2.0 * log(u1)); double t = 2.0 * 3.14159265358979323846 * u2;
    x[0][i] = cw_add(lo, cw_mul(hi, (float)(r * (at & 1 ? sin(t) : cos(t)))));
  }) };
// y, x, residual
struct Dropout { CW_POINT(u32 w[CW_V]; cw_words8(w, e, cw_generator(h.dynamic)); float keep = (float)h.par[0];
  CW_UNROLL CW_EACH x[0][i] = ((w[i] >> 8) >= (u32)h.bits ? x[1][i] / keep : 0.0f) + x[2][i];) };
