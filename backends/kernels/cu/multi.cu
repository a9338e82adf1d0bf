// Many tensors in one launch: each is cut into chunks of one size, a block finds the tensor of its chunk, and every sum has one order.

struct MultiTensor { char* p[5]; u64 n, first; };
struct MultiHead { const char *a, *b; double par[8]; u32 dynamic[8]; u64 chunks, count; };
template <int N> struct MultiArgs { MultiHead h; MultiTensor t[N]; };
struct FinishArgs { float* out; const double* parts; u64 n; };

// A multiple of eight and of a block's threads.
#define CW_CHUNK 16384

template <int N> CW_DEVICE int cw_tensor_of(const MultiArgs<N>& a, u64 chunk) {
  int lo = 0, hi = (int)a.h.count;
  while (hi - lo > 1) { int mid = (lo + hi) / 2; if (a.t[mid].first <= chunk) lo = mid; else hi = mid; }
  return lo;
}
// Runs BODY for every group of eight of a chunk: `at` its first element, `count` how many it has.
#define CW_CHUNKS(...) \
  for (u64 chunk = blockIdx.x; chunk < a.h.chunks; chunk += gridDim.x) { \
    const MultiTensor& t = a.t[cw_tensor_of(a, chunk)]; \
    u64 start = (chunk - t.first) * CW_CHUNK, end = t.n - start < CW_CHUNK ? t.n : start + CW_CHUNK; \
    __VA_ARGS__ \
  }
#define CW_GROUPS(...) \
  for (u64 at = start + (u64)threadIdx.x * CW_V; at < end; at += (u64)blockDim.x * CW_V) { int count = cw_left(at, end); __VA_ARGS__ }

// p, g, m, v[, master]. The numbers of the group in par: b1, 1 - b1, b2, 1 - b2, eps, l2. Of the launch: gradient scale (f64), lr * decay,
// lr / bc1, sqrt(bc2). `a` points at the device's coefficient, `b` at the word that skips the step.
template <class TP, class TG, bool MASTER, int N> CW_DEVICE void cw_adamw(const MultiArgs<N>& a) {
  if (a.h.b && *(const u32*)a.h.b != 0) return;
  double coef = a.h.a ? (double)*(const float*)a.h.a : 1.0;
  const float grad = (float)(cw_double_of_bits((u64)a.h.dynamic[1] << 32 | a.h.dynamic[0]) * coef);
  const float decay = cw_float_of_bits(a.h.dynamic[2]), step = cw_float_of_bits(a.h.dynamic[3]), root = cw_float_of_bits(a.h.dynamic[4]);
  const float b1 = (float)a.h.par[0], c1 = (float)a.h.par[1], b2 = (float)a.h.par[2], c2 = (float)a.h.par[3];
  const float eps = (float)a.h.par[4], l2 = (float)a.h.par[5];
  CW_CHUNKS(CW_GROUPS(
    float p[CW_V]; float g[CW_V]; float m[CW_V]; float v[CW_V];
    TP* pp = (TP*)t.p[0] + at;
    float* pm = (float*)t.p[2] + at;
    float* pv = (float*)t.p[3] + at;
    float* pw = MASTER ? (float*)t.p[4] + at : (float*)0;
    if (MASTER) cw_load8(p, (const float*)pw, 1, count); else cw_load8(p, (const TP*)pp, 1, count);
    cw_load8(g, (const TG*)t.p[1] + at, 1, count);
    cw_load8(m, (const float*)pm, 1, count);
    cw_load8(v, (const float*)pv, 1, count);
    CW_UNROLL for (int i = 0; i < CW_V; i++) {
      float gs = g[i] * grad + l2 * p[i];
      float w = p[i] - decay * p[i];
      m[i] = b1 * m[i] + c1 * gs;
      v[i] = b2 * v[i] + c2 * (gs * gs);
      p[i] = w - step * m[i] / (sqrtf(v[i]) / root + eps);
    }
    if (MASTER) cw_store8(pw, p, 1, count);
    cw_store8(pp, p, 1, count);
    cw_store8(pm, m, 1, count);
    cw_store8(pv, v, 1, count);
  ))
}

// One f64 a chunk, of squares; `b` is where they go.
template <class T, int N> CW_DEVICE void cw_sumsq(const MultiArgs<N>& a) {
  CW_SHARED double shared[32];
  CW_CHUNKS(
    double sum = 0.0;
    CW_GROUPS(
      float x[CW_V];
      cw_load8(x, (const T*)t.p[0] + at, 1, count);
      CW_UNROLL for (int i = 0; i < CW_V; i++) sum += (double)x[i] * (double)x[i];
    )
    sum = cw_block_join(sum, Sum(), shared);
    if (threadIdx.x == 0) ((double*)a.h.b)[chunk] = sum;
  )
}

// Adds partial sums to a scalar, one block, one order.
CW_DEVICE void cw_finish_sum(const FinishArgs& a) {
  CW_SHARED double shared[32];
  double sum = 0.0;
  for (u64 i = threadIdx.x; i < a.n; i += blockDim.x) sum += a.parts[i];
  sum = cw_block_join(sum, Sum(), shared);
  if (threadIdx.x == 0) *a.out = (float)((double)*a.out + sum);
}

// Scales by a launch-time factor and a device one.
template <class T, int N> CW_DEVICE void cw_scale(const MultiArgs<N>& a) {
  float k = cw_float_of_bits(a.h.dynamic[0]);
  if (a.h.a) k *= *(const float*)a.h.a;
  CW_CHUNKS(CW_GROUPS(
    float x[CW_V];
    T* p = (T*)t.p[0] + at;
    cw_load8(x, (const T*)p, 1, count);
    CW_UNROLL for (int i = 0; i < CW_V; i++) x[i] = cw_mul(x[i], k);
    cw_store8(p, x, 1, count);
  ))
}

// Counts NaN and infinite elements into the word at `b`.
template <class T, int N> CW_DEVICE void cw_nonfinite(const MultiArgs<N>& a) {
  CW_SHARED u32 shared[32];
  CW_CHUNKS(
    u32 bad = 0;
    CW_GROUPS(
      float x[CW_V];
      cw_load8(x, (const T*)t.p[0] + at, 1, count);
      CW_UNROLL for (int i = 0; i < CW_V; i++) bad += (cw_bits_of_float(x[i]) & 0x7f800000u) == 0x7f800000u;
    )
    bad = cw_block_join(bad, Sum(), shared);
    if (threadIdx.x == 0 && bad) cw_atomic_add((u32*)a.h.b, bad);
  )
}
