// Products of a warpgroup (wgmma), emulated for tests as the PTX ISA has them ("Asynchronous Warpgroup Level Matrix Instructions"): operands are
// found by decoding descriptors, registers by the tables of fragments, nothing by what a kernel knows of its own layout. And they are as
// asynchronous as may be: from the instruction to its wait the accumulators are NaN and nothing an instruction reads may change; a result is
// in its registers when `cw_hold` has said so behind the wait. What breaks a rule ends the run with the rule.

namespace cwhost {
typedef float (*Value)(u16);
// What a thread brings to an instruction: accumulators, a fragment of A or its descriptor, B's descriptor.
struct Call { float* d; const u32* a; u64 a_desc, b_desc; u32 n; bool keep; Value value; };
// One in flight, with what it has read.
struct Product { Call of[128]; u32 regs[128][4]; u16 a[64][16], b[256][16]; u32 group; };
// A matrix of accumulators that is in nobody's registers.
struct Sum { float* at[128]; u32 n, group, left; bool live, done; float d[64][256]; };
// Registers as they were when held, and whether a wgmma.fence has passed since.
struct Held { const char* at; u32 bytes; bool fenced; char copy[512]; };
struct Group {
  u32 serial, n_products, committed, finished, n_held[128];
  Product products[64];
  Sum sums[4];
  Held held[128][4];
};
// Shared memory begins at no round address of its window.
static const u32 WINDOW = 0x430;
static const u32 POISON = 0xffffffffu;
static thread_local Group* groups[8];

static void finish() {
  for (Group* g : groups)
    if (g && g->serial == B->serial && g->n_products > 0) B->error = "a block ends with products that nobody awaits";
}
static Group& group() {
  u32 k = B->now / 128;
  if (B->warp != 32 || B->n % 128) fail("a warpgroup is four warps of 32");
  if (!groups[k]) groups[k] = (Group*)calloc(1, sizeof(Group));
  Group& g = *groups[k];
  if (g.serial != B->serial) {
    g.serial = B->serial;
    g.n_products = g.committed = g.finished = 0;
    memset(g.n_held, 0, sizeof(g.n_held));
    for (Sum& s : g.sums) s.live = false;
    B->finish = finish;
  }
  return g;
}

// Register Fragments, m64nNk16: where element i of thread t of the warpgroup stands in the accumulator, and in A.
static void place_d(u32 t, u32 i, u32& row, u32& col) {
  row = t / 32 * 16 + t % 32 / 4 + (i & 2 ? 8 : 0);
  col = i / 4 * 8 + t % 4 * 2 + (i & 1);
}
static void place_a(u32 t, u32 i, u32& row, u32& k) {
  row = t / 32 * 16 + t % 32 / 4 + (i & 2 ? 8 : 0);
  k = (i & 4 ? 8 : 0) + t % 4 * 2 + (i & 1);
}

// Shared Memory Matrix Layout, Canonical Layouts, for elements of 16 bits (T = 8, here in bytes); `w` is the swizzle's width in 16-byte units:
//   K-major, none      ((8,m),(T,2k)):((1T,SBO),(1,LBO))     K-major, swizzled    ((8,m),(T,2k)):((wT,SBO),(1,T))
//   MN-major, none     ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))  MN-major, swizzled   ((T,w,m),(8,k)):((1,T,LBO),(wT,SBO))
// and on the whole address Swizzle<B,4,3>: B bits from bit 7 on are added without carry to those from bit 4 on.
static u32 address(u64 desc, u32 mn, u32 k, bool by_mn) {
  // Matrix Descriptor Format.
  u32 start = (u32)(desc & 0x3fff) << 4, lbo = (u32)(desc >> 16 & 0x3fff) << 4, sbo = (u32)(desc >> 32 & 0x3fff) << 4, mode = (u32)(desc >> 62);
  u32 bits = mode == 0 ? 0 : 4 - mode, w = 1u << bits, at;
  if (!by_mn) at = mn % 8 * 16 * w + mn / 8 * sbo + k % 8 * 2 + k / 8 * (mode ? 16 : lbo);
  else if (mode == 0) at = mn % 8 * 2 + mn / 8 * sbo + k % 8 * 16 + k / 8 * lbo;
  else at = mn % 8 * 2 + mn / 8 % w * 16 + mn / (8 * w) * lbo + k % 8 * 16 * w + k / 8 * sbo;
  at += start;
  return at ^ (at >> 7 & (w - 1)) << 4;
}
// Reads a matrix of rows x 16; says what is wrong with it, if it is `fresh`.
static const char* read(u64 desc, u32 rows, bool by_mn, u16 (*to)[16], bool fresh) {
  if (desc & 0x3fffc000c000c000ull) return "a descriptor's bits that must be 0 are not, or the pattern begins at no multiple of its size, which is not emulated";
  for (u32 r = 0; r < rows; r++) for (u32 k = 0; k < 16; k++) {
    u32 at = address(desc, r, k, by_mn) - WINDOW;
    if (at + 2 > B->shared) return "a descriptor leads out of the block's shared memory";
    const Chunk& c = B->chunks[at / 16];
    if (fresh && c.writer == 0) return "a product reads shared memory that nobody wrote";
    if (fresh && c.coming) return "a product reads shared memory whose copy was not awaited";
    if (fresh && B->fibers[c.writer - 1].seen <= c.fences)
      return "a product reads shared memory that was written without fence.proxy.async and a barrier since";
    memcpy(&to[r][k], B->dynamic + at, 2);
  }
  return nullptr;
}

static bool held(Group& g, u32 t, const void* p, u32 bytes) {
  for (u32 i = 0; i < g.n_held[t]; i++) {
    Held& h = g.held[t][i];
    if ((const char*)p >= h.at && (const char*)p + bytes <= h.at + h.bytes) return h.fenced && memcmp(h.at, h.copy, h.bytes) == 0;
  }
  return false;
}

// The instruction, by one thread for all.
static const char* issue(Group& g) {
  u32 base = B->now / 128 * 128;
  if (g.n_products == 64) return "more products in flight than the emulation has room for";
  Product& p = g.products[g.n_products];
  for (u32 t = 0; t < 128; t++) p.of[t] = *(const Call*)B->fibers[base + t].mine;
  const Call& c = p.of[0];
  for (u32 t = 0; t < 128; t++) {
    const Call& o = p.of[t];
    if (o.a_desc != c.a_desc || o.b_desc != c.b_desc || o.n != c.n || o.keep != c.keep || !o.a != !c.a || o.value != c.value)
      return "threads of a warpgroup issue different products";
  }
  Sum* s = nullptr;
  for (Sum& e : g.sums) if (e.live && e.at[0] == c.d) s = &e;
  if (s) {
    for (u32 t = 0; t < 128; t++) if (s->n != c.n || s->at[t] != p.of[t].d) return "accumulators in flight are used in another shape, or by some threads";
  } else {
    for (Sum& e : g.sums) if (!e.live) s = &e;
    if (!s) return "more accumulators than the emulation has room for";
    *s = Sum{};
    s->n = c.n; s->left = 128; s->live = true;
    for (u32 t = 0; t < 128; t++) {
      s->at[t] = p.of[t].d;
      if (!held(g, t, s->at[t], c.n * 2)) return "accumulators were touched since the last wgmma.fence, or there was none";
      for (u32 i = 0; i < c.n / 2; i++) {
        u32 row, col;
        place_d(t, i, row, col);
        s->d[row][col] = s->at[t][i];
        memcpy(&s->at[t][i], &POISON, 4);
      }
    }
  }
  if (c.a) {
    for (u32 t = 0; t < 128; t++) {
      if (!held(g, t, p.of[t].a, 16)) return "registers of operand A were touched since the last wgmma.fence, or there was none";
      memcpy(p.regs[t], p.of[t].a, 16);
      for (u32 i = 0; i < 8; i++) {
        u32 row, k;
        place_a(t, i, row, k);
        p.a[row][k] = (u16)(p.regs[t][i / 2] >> i % 2 * 16);
      }
    }
  } else if (const char* why = read(c.a_desc, 64, false, p.a, true)) {
    return why;
  }
  if (const char* why = read(c.b_desc, c.n, c.a != nullptr, p.b, true)) return why;
  static thread_local float a[64][16], b[256][16];
  for (u32 k = 0; k < 16; k++) {
    for (u32 m = 0; m < 64; m++) a[m][k] = c.value(p.a[m][k]);
    for (u32 n = 0; n < c.n; n++) b[n][k] = c.value(p.b[n][k]);
  }
  for (u32 m = 0; m < 64; m++) for (u32 n = 0; n < c.n; n++) {
    float sum = 0;
    for (u32 k = 0; k < 16; k++) sum += a[m][k] * b[n][k];
    s->d[m][n] = (c.keep ? s->d[m][n] : 0.0f) + sum;
  }
  s->done = false;
  s->group = p.group = g.committed;
  g.n_products++;
  return nullptr;
}
// All groups but `n` are done: did anything change under them?
static const char* wait(Group& g, u32 n) {
  static thread_local u16 again[256][16];
  if (g.committed > n && g.committed - n > g.finished) g.finished = g.committed - n;
  u32 kept = 0;
  for (u32 i = 0; i < g.n_products; i++) {
    Product& p = g.products[i];
    if (p.group >= g.finished) {
      if (kept != i) g.products[kept] = p;
      kept++;
      continue;
    }
    const Call& c = p.of[0];
    for (u32 t = 0; c.a && t < 128; t++) if (memcmp(p.of[t].a, p.regs[t], 16)) return "registers of operand A changed under a product in flight";
    if (!c.a) { read(c.a_desc, 64, false, again, false); if (memcmp(again, p.a, sizeof(p.a))) return "shared memory changed under a product in flight"; }
    read(c.b_desc, c.n, c.a != nullptr, again, false);
    if (memcmp(again, p.b, c.n * 32)) return "shared memory changed under a product in flight";
  }
  g.n_products = kept;
  for (Sum& s : g.sums) if (s.live && s.group < g.finished) s.done = true;
  return nullptr;
}
// One thread acts when all have come, and all go on when it has.
template <class F> static void together(const void* mine, F act) {
  u32 me = B->now;
  B->fibers[me].mine = mine;
  yield(AT_GROUP);
  if (me % 128 == 0) if (const char* why = act(group())) fail(why);
  yield(AT_GROUP);
}
static void hold(void* at, u32 bytes) {
  Group& g = group();
  u32 t = B->now % 128;
  for (u32 i = 0; i < g.n_products; i++) {
    const char* a = (const char*)g.products[i].of[t].a;
    if (a >= (char*)at && a < (char*)at + bytes) return fail("registers of operand A are used while a product reads them");
  }
  for (Sum& s : g.sums) {
    if (!s.live || s.at[t] != at) continue;
    if (!s.done) return fail("accumulators are used before the product is awaited");
    for (u32 i = 0; i < s.n / 2; i++) {
      u32 row, col, was;
      memcpy(&was, &s.at[t][i], 4);
      if (was != POISON) return fail("accumulators changed while a product was in flight");
      place_d(t, i, row, col);
      s.at[t][i] = s.d[row][col];
    }
    s.at[t] = nullptr;
    if (--s.left == 0) s.live = false;
  }
  u32 i = 0;
  while (i < g.n_held[t] && g.held[t][i].at != at) i++;
  if (i == 4 || bytes > 512) return fail("more registers than the emulation has room for");
  if (i == g.n_held[t]) g.n_held[t]++;
  Held& h = g.held[t][i];
  h.at = (char*)at; h.bytes = bytes; h.fenced = false;
  memcpy(h.copy, at, bytes);
}
static void fence() {
  Group& g = group();
  u32 t = B->now % 128;
  for (u32 i = 0; i < g.n_held[t]; i++) { Held& h = g.held[t][i]; h.fenced = memcmp(h.at, h.copy, h.bytes) == 0; }
}
static float of_bf16(u16 x) { return cw_f32_of_bf16(x); }
static float of_f16(u16 x) { return cw_f32_of_f16(x); }
static void product(const Call& c) { together(&c, issue); }
}

inline u32 cw_shared_at(const void* p) { return cwhost::WINDOW + (u32)((const char*)p - cwhost::B->dynamic); }
inline void cw_put16(void* shared, const Piece& p) { memcpy(shared, &p, 16); cwhost::wrote(shared, false); }
inline void cw_fence_async() { cwhost::B->fibers[cwhost::B->now].fences++; }
template <int N> inline void cw_hold(float (&x)[N]) { cwhost::hold(x, sizeof(x)); }
template <int N> inline void cw_hold(u32 (&x)[N][4]) { cwhost::hold(x, sizeof(x)); }
inline void cw_wgmma_fence() { cwhost::fence(); }
inline void cw_wgmma_commit() { cwhost::together(nullptr, [](cwhost::Group& g) -> const char* { g.committed++; return nullptr; }); }
template <int N> inline void cw_wgmma_wait() { cwhost::together(nullptr, [](cwhost::Group& g) { return cwhost::wait(g, N); }); }
inline float cw_ex2(float x) { return exp2f(x); }
template <class T> struct Warpgroup;
template <> struct Warpgroup<bf16> {
  static u32 pack(float lo, float hi) { return cw_pack_bf16(lo, hi); }
  static void mma(float (&d)[64], u64 a, u64 b, int keep) { cwhost::product({d, nullptr, a, b, 128, keep != 0, cwhost::of_bf16}); }
  template <int N> static void mma(float (&d)[N], const u32 (&a)[4], u64 b) { cwhost::product({d, a, 0, b, 2 * N, true, cwhost::of_bf16}); }
};
template <> struct Warpgroup<f16> {
  static u32 pack(float lo, float hi) { return cw_pack_f16(lo, hi); }
  static void mma(float (&d)[64], u64 a, u64 b, int keep) { cwhost::product({d, nullptr, a, b, 128, keep != 0, cwhost::of_f16}); }
  template <int N> static void mma(float (&d)[N], const u32 (&a)[4], u64 b) { cwhost::product({d, a, 0, b, 2 * N, true, cwhost::of_f16}); }
};
