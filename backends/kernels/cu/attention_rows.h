// What the portable attention kernels of whole and of packed sequences share: eight threads to a row.

CW_DEVICE float cw_dot(const float* x, const float* y, int d) {
  float s = 0.0f;
  for (int c = 0; c < d; c++) s += x[c] * y[c];
  return s;
}
// Over the eight threads of a row.
template <class F> CW_DEVICE float cw_row_join(float v, F f) {
  v = f(v, cw_shfl_xor(v, 1));
  v = f(v, cw_shfl_xor(v, 2));
  return f(v, cw_shfl_xor(v, 4));
}
