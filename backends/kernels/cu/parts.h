// Attention with everything that attention_ext_* have, and its parts of rows (ADR 0143): what every kernel of them reads. `wide`: results are f32.

struct ExtArgs {
  char* o; float* lse; const char *q, *k, *v, *go; char *dq, *dk, *dv; const float* delta; const int *cu_q, *cu_k; const char *bias, *sinks;
  float* dsinks; i64 os[3], qs[3], ks[3], vs[3], gos[3], dqs[3], dks[3], dvs[3], ls[3], cqs[2], cks[2], bs, ss, dss, window, shift, first_key;
  u64 heads, queries, blocks; u32 dynamic[8]; u32 n, b, tq, tk, h, hkv, d, causal, in_row, threshold, bias_type, sinks_type;
  float scale, cap, kept; u32 wide;
};

// Queries qlo..qhi see keys of klo..khi. Query i stands at key i + ahead, and number j - i + zero of the bias is that of query i and key j.
struct Part { i64 qlo, qhi, klo, khi, ahead, zero; };

// Cumulative length x of row b, held between 0 and the end: whatever the numbers are, nobody leaves the operands.
CW_DEVICE i64 cw_length(const int* cu, const i64 (&s)[2], u32 b, u32 x, i64 t) {
  i64 c = (i64)cu[b * s[0] + x * s[1]];
  return c < 0 ? 0 : c > t ? t : c;
}
// The part in which position i of row b is, of the queries or of the keys; false where it is in none.
CW_DEVICE bool cw_part(const ExtArgs& a, u32 b, i64 i, bool of_keys, Part& p) {
  const i64 tq = (i64)a.tq, tk = (i64)a.tk;
  p.qlo = 0; p.qhi = tq; p.klo = 0; p.khi = tk;
  if (a.n) {
    u32 from = 0, to = a.n;
    while (from < to) {
      u32 mid = from + (to - from) / 2;
      i64 c = of_keys ? cw_length(a.cu_k, a.cks, b, mid, tk) : cw_length(a.cu_q, a.cqs, b, mid, tq);
      if (c <= i) from = mid + 1; else to = mid;
    }
    if (from == 0 || from == a.n) return false;
    p.qlo = cw_length(a.cu_q, a.cqs, b, from - 1, tq);
    p.qhi = cw_length(a.cu_q, a.cqs, b, from, tq);
    p.klo = cw_length(a.cu_k, a.cks, b, from - 1, tk);
    p.khi = cw_length(a.cu_k, a.cks, b, from, tk);
  }
  p.ahead = (a.in_row ? tk - tq : p.khi - p.qhi) + a.shift;
  p.zero = (a.in_row ? 0 : p.qlo - p.klo) + tq - 1;
  return of_keys ? p.klo <= i && i < p.khi : p.qlo <= i && i < p.qhi;
}
