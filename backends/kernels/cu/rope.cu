// Rotates pairs of the first 2 * half elements of each head by the angles of its position; the rest is copied. A thread has a pair of
// groups (or a group of interleaved pairs), read before it is written, so y may be x.

struct RopeArgs { char* y; const char* x; const float *cos, *sin; u64 b, t, h, d, half; i64 ys[3], xs[3], cs[2], ss[2]; double sign; u64 interleaved; };

template <class TY, class TX> CW_DEVICE void cw_rope(const RopeArgs& a) {
  const float sign = (float)a.sign;
  u64 half_groups = (a.half + CW_V - 1) / CW_V, rest = a.d - 2 * a.half, rest_groups = (rest + CW_V - 1) / CW_V, each = half_groups + rest_groups;
  u64 total = a.b * a.t * a.h * each;
  for (u64 g = (u64)blockIdx.x * blockDim.x + threadIdx.x; g < total; g += (u64)gridDim.x * blockDim.x) {
    u64 head = cw_div(g, each), k = g - head * each, row = cw_div(head, a.h), ih = head - row * a.h, ib = cw_div(row, a.t), it = row - ib * a.t;
    const TX* x = (const TX*)a.x + (i64)ib * a.xs[0] + (i64)it * a.xs[1] + (i64)ih * a.xs[2];
    TY* y = (TY*)a.y + (i64)ib * a.ys[0] + (i64)it * a.ys[1] + (i64)ih * a.ys[2];
    if (k >= half_groups) {
      u64 c = (k - half_groups) * CW_V;
      int count = cw_left(c, rest);
      float v[CW_V];
      cw_load8(v, x + 2 * a.half + c, 1, count);
      cw_store8(y + 2 * a.half + c, v, 1, count);
      continue;
    }
    u64 i = k * CW_V;
    int count = cw_left(i, a.half);
    float c[CW_V];
    float s[CW_V];
    float p[CW_V];
    float q[CW_V];
    cw_load8(c, a.cos + (i64)it * a.cs[0] + (i64)i * a.cs[1], a.cs[1], count);
    cw_load8(s, a.sin + (i64)it * a.ss[0] + (i64)i * a.ss[1], a.ss[1], count);
    if (a.interleaved) {
      float lo[CW_V];
      float hi[CW_V];
      int more = 2 * count > CW_V ? 2 * count - CW_V : 0;
      cw_load8(lo, x + 2 * i, 1, 2 * count < CW_V ? 2 * count : CW_V);
      cw_load8(hi, x + 2 * i + CW_V, 1, more);
      CW_UNROLL for (int j = 0; j < CW_V / 2; j++) { p[j] = lo[2 * j]; q[j] = lo[2 * j + 1]; p[j + 4] = hi[2 * j]; q[j + 4] = hi[2 * j + 1]; }
    } else {
      cw_load8(p, x + i, 1, count);
      cw_load8(q, x + a.half + i, 1, count);
    }
    CW_UNROLL for (int j = 0; j < CW_V; j++) {
      float u = p[j], v = q[j], w = sign * s[j];
      p[j] = u * c[j] - v * w;
      q[j] = v * c[j] + u * w;
    }
    if (a.interleaved) {
      float lo[CW_V];
      float hi[CW_V];
      CW_UNROLL for (int j = 0; j < CW_V / 2; j++) { lo[2 * j] = p[j]; lo[2 * j + 1] = q[j]; hi[2 * j] = p[j + 4]; hi[2 * j + 1] = q[j + 4]; }
      cw_store8(y + 2 * i, lo, 1, 2 * count < CW_V ? 2 * count : CW_V);
      cw_store8(y + 2 * i + CW_V, hi, 1, 2 * count > CW_V ? 2 * count - CW_V : 0);
    } else {
      cw_store8(y + i, p, 1, count);
      cw_store8(y + a.half + i, q, 1, count);
    }
  }
}
