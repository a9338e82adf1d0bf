// Packed sequences: a row of positions holds segments, which cumulative lengths on the device name (ADR 0043). What every kernel of them reads.

struct VarlenArgs {
  char* o; float* lse; const char *q, *k, *v, *go; char *dq, *dk, *dv; const float* delta; const int* cu; i64 os[3], qs[3], ks[3], vs[3], gos[3],
  dqs[3], dks[3], dvs[3], ls[3], cs[2], window; u32 n, t, h, hkv, d, causal; float scale; u32 reserved;
};

// Positions lo..hi of a segment.
struct Segment { i64 lo, hi; };

// Cumulative length x of row b, held between 0 and the end: whatever the numbers are, nobody leaves the operands.
CW_DEVICE i64 cw_length(const VarlenArgs& a, u32 b, u32 x) {
  i64 c = (i64)a.cu[b * a.cs[0] + x * a.cs[1]];
  return c < 0 ? 0 : c > (i64)a.t ? (i64)a.t : c;
}
// The segment of position i of row b; false where it has none.
CW_DEVICE bool cw_segment(const VarlenArgs& a, u32 b, i64 i, Segment& s) {
  u32 from = 0, to = a.n;
  while (from < to) {
    u32 mid = from + (to - from) / 2;
    if (cw_length(a, b, mid) <= i) from = mid + 1; else to = mid;
  }
  if (from == 0 || from == a.n) return false;
  s.lo = cw_length(a, b, from - 1);
  s.hi = cw_length(a, b, from);
  return s.lo <= i && i < s.hi;
}
