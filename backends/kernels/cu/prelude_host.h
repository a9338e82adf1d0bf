// An emulation of a device on the host, for tests: a fiber per thread, one block at a time, threads resumed in an order drawn from a seed.
// It shows what a kernel computes, that its barriers fit, and that it waits for its background copies, which arrive when they are waited for and
// not before; it says nothing of speed, of other memory ordering, or of a vendor's compiler.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;
typedef int8_t i8;
typedef int32_t i32;
typedef long long i64;

namespace cwhost {
struct Three { u32 x, y, z; };
enum State { READY, AT_BARRIER, AT_WARP, AT_GROUP, DONE };
// Sixteen bytes on their way to shared memory, from `from` or zeros.
struct Copy { void* to; const void* from; u32 group; };
static const u32 COPIES = 512;
struct Fiber {
  void* sp; State state; u32 letters;
  Three thread;
  // What the thread last said to its warp, and what before that: a thread that is a meeting ahead writes the other one.
  alignas(8) char letter[2][32];
  char* stack; const void* mine;
  Copy* copies;
  u32 n_copies, copy_groups;
  // Fences of the asynchronous proxy this thread has passed, now and when the block last met.
  u32 fences, seen;
};
// Sixteen bytes of dynamic shared memory: who wrote them last and behind how many fences; on their way still; 0 = nobody.
struct Chunk { u32 writer, fences; bool coming; };
struct Block {
  Three grid, block, at;
  Fiber *me, *fibers;
  // The thread that runs, its place in the order, and how many stand in each state.
  u32 now, turn, n, warp, count[DONE + 1];
  u32* order;
  void* scheduler;
  void (*body)(const void*);
  const void* args;
  char* dynamic;
  u32 shared;
  Chunk* chunks;
  // Which block of the thread's it is, of all runs, and what looks at its end whether all was awaited.
  u32 serial;
  void (*finish)();
  const char* error;
};
static thread_local Block* B;
static const size_t STACK = 256 * 1024;
// Not a power of two: stacks that lie alike would share a few places of the processor's caches and of its page table's.
static const size_t SPACING = STACK + 4096 + 192;

extern "C" void cwhost_switch(void** from, void* to);
#if defined(__x86_64__)
__asm__(".text\n.p2align 4\n.globl cwhost_switch\n.hidden cwhost_switch\n.type cwhost_switch,@function\ncwhost_switch:\n"
  " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
  " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n.size cwhost_switch,.-cwhost_switch\n");
static const int SAVED = 6;
#elif defined(__aarch64__)
__asm__(".text\n.p2align 4\n.globl cwhost_switch\n.hidden cwhost_switch\n.type cwhost_switch,%function\ncwhost_switch:\n"
  " sub sp, sp, #176\n stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
  " stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n"
  " stp d14, d15, [sp, #144]\n mov x9, sp\n str x9, [x0]\n mov sp, x1\n ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n"
  " ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n ldp d8, d9, [sp, #96]\n"
  " ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n add sp, sp, #176\n ret\n");
#endif

// The next thread that may run, from a place in the order on: null when all wait.
static inline Fiber* next(Block& b, u32 turn) {
  for (; turn < b.n; turn++) {
    u32 i = b.order[turn];
    if (b.fibers[i].state != READY) continue;
    // The stack of the thread after the next few is on its way meanwhile.
    if (turn + 3 < b.n) { const char* p = (const char*)b.fibers[b.order[turn + 3]].sp; __builtin_prefetch(p); __builtin_prefetch(p + 64); }
    b.turn = turn; b.now = i; b.me = &b.fibers[i];
    return b.me;
  }
  return nullptr;
}
// Goes on with the next thread, or with the scheduler when it was the last.
static void yield(State s) {
  Block& b = *B;
  Fiber& f = *b.me;
  f.state = s;
  b.count[READY]--;
  b.count[s]++;
  Fiber* to = next(b, b.turn + 1);
  cwhost_switch(&f.sp, to ? to->sp : b.scheduler);
}
// The kernel is wrong: the run ends with these words.
static void fail(const char* why) {
  if (!B->error) B->error = why;
  yield(DONE);
}
static void entry() { B->body(B->args); yield(DONE); __builtin_trap(); }

static inline void release(Block& b, State s, u32 from, u32 to) {
  for (u32 i = from; i < to; i++) b.fibers[i].state = READY;
  b.count[s] -= to - from;
  b.count[READY] += to - from;
}
// Warps (or warpgroups) all of whose threads have come go on.
static void meet(Block& b, State s, u32 size) {
  for (u32 from = 0; from < b.n && b.count[s]; from += size) {
    u32 to = from + size < b.n ? from + size : b.n, here = from;
    while (here < to && b.fibers[here].state == s) here++;
    if (here == to) release(b, s, from, to);
  }
}

static int run_block(Block& b) {
  B = &b;
  static thread_local u32 blocks;
  b.serial = ++blocks;
  b.finish = nullptr;
  memset(b.chunks, 0, b.shared / 16 * sizeof(Chunk));
  for (u32 i = 0; i < b.n; i++) {
    Fiber& f = b.fibers[i];
    f.state = READY;
    f.letters = 0;
    f.n_copies = f.copy_groups = f.fences = f.seen = 0;
    void** s = (void**)(((uintptr_t)f.stack + STACK - 256) & ~(uintptr_t)15);
#if defined(__aarch64__)
    s -= 22; memset(s, 0, 176); s[11] = (void*)entry;
#else
    *--s = nullptr; *--s = (void*)entry;
    for (int k = 0; k < SAVED; k++) *--s = nullptr;
#endif
    f.sp = s;
  }
  memset(b.count, 0, sizeof(b.count));
  b.count[READY] = b.n;
  for (;;) {
    if (Fiber* f = next(b, 0)) cwhost_switch(&b.scheduler, f->sp);
    if (b.error) return 1;
    if (b.count[DONE] == b.n) {
      if (b.finish) b.finish();
      return b.error != nullptr;
    }
    if (b.count[AT_BARRIER] == b.n) { for (u32 i = 0; i < b.n; i++) b.fibers[i].seen = b.fibers[i].fences; release(b, AT_BARRIER, 0, b.n); }
    else if (b.count[AT_WARP] == b.n) release(b, AT_WARP, 0, b.n);
    else { meet(b, AT_WARP, b.warp); meet(b, AT_GROUP, 128); }
    if (!b.count[READY]) { b.error = "threads of a block wait at different barriers, or some have left"; return 1; }
  }
}

struct Ctx { Three grid, block; u32 shared, warp; u64 seed; const char* error; };

static int run(void (*body)(const void*), const void* args, Ctx& c) {
  Block b{};
  b.grid = c.grid; b.block = c.block; b.n = c.block.x * c.block.y * c.block.z; b.warp = c.warp; b.body = body; b.args = args;
  if (b.n > 1024) { c.error = "more than 1024 threads"; return 2; }
  char* stacks = (char*)aligned_alloc(4096, (size_t)b.n * SPACING);
  b.fibers = (Fiber*)calloc(b.n, sizeof(Fiber));
  b.order = (u32*)calloc(b.n, sizeof(u32));
  Copy* copies = (Copy*)calloc((size_t)b.n * COPIES, sizeof(Copy));
  for (u32 i = 0; i < b.n; i++) {
    b.fibers[i].stack = stacks + (size_t)i * SPACING; b.fibers[i].copies = copies + (size_t)i * COPIES; b.order[i] = i;
    b.fibers[i].thread = Three{i % c.block.x, i / c.block.x % c.block.y, i / (c.block.x * c.block.y)};
  }
  u64 r = c.seed * 6364136223846793005ull + 1442695040888963407ull;
  if (c.seed) for (u32 i = b.n; i > 1; i--) {
    r = r * 6364136223846793005ull + 1442695040888963407ull;
    u32 j = (u32)((r >> 33) % i), t = b.order[i - 1];
    b.order[i - 1] = b.order[j]; b.order[j] = t;
  }
  // What nothing wrote is NaN.
  b.dynamic = (char*)aligned_alloc(256, ((size_t)c.shared + 511) & ~(size_t)255);
  b.shared = (c.shared + 15) & ~15u;
  b.chunks = (Chunk*)calloc(b.shared / 16 + 1, sizeof(Chunk));
  int rc = 0;
  for (u32 z = 0; z < c.grid.z && !rc; z++) for (u32 y = 0; y < c.grid.y && !rc; y++) for (u32 x = 0; x < c.grid.x && !rc; x++) {
    b.at = Three{x, y, z};
    memset(b.dynamic, 0xff, c.shared);
    rc = run_block(b);
  }
  free(b.chunks); free(b.dynamic); free(b.order); free(copies); free(b.fibers); free(stacks);
  c.error = b.error;
  return rc;
}

// Each lane of a warp says something to the others. They meet once: a lane that is ahead writes its other letter.
template <class T> struct Letters {
  Block* b;
  u32 first, number;
  explicit Letters(const T& mine) : b(B) {
    static_assert(sizeof(T) <= 32, "a letter's size");
    Fiber& f = *b->me;
    first = b->now / b->warp * b->warp;
    number = ++f.letters;
    memcpy(f.letter[number & 1], &mine, sizeof(T));
    yield(AT_WARP);
  }
  T of(u32 lane) const {
    T x{};
    if (first + lane >= b->n) return x;
    const Fiber& f = b->fibers[first + lane];
    if (f.letters - number > 1) fail("lanes of a warp exchange values at different places");
    memcpy((void*)&x, f.letter[number & 1], sizeof(T));
    return x;
  }
};
}

#define threadIdx (cwhost::B->me->thread)
#define blockIdx (cwhost::B->at)
#define blockDim (cwhost::B->block)
#define gridDim (cwhost::B->grid)
#define CW_WARP ((int)cwhost::B->warp)
#define CW_PARAM const
#define CW_DYN_SHARED(T, n) T* n = (T*)cwhost::B->dynamic
#define CW_SHARED static thread_local
#define CW_LANE() (cwhost::B->now % cwhost::B->warp)
#define CW_SYNC() cwhost::yield(cwhost::AT_BARRIER)
#define CW_SYNC_WARP() cwhost::yield(cwhost::AT_WARP)
#define CW_UNROLL
#define CW_T(...) __VA_ARGS__
#define CW_OFFSET(T, F) __builtin_offsetof(T, F)
#define CW_DEVICE inline
#define CW_HOST 1
#define CW_KERNEL(THREADS, NAME, ARGS, BODY) \
  extern "C" int NAME(const void* args, cwhost::Ctx* c) { \
    if (c->block.x * c->block.y * c->block.z > THREADS) { c->error = "more threads than the kernel was bounded to"; return 3; } \
    return cwhost::run([](const void* p) { BODY(*(const ARGS*)p); }, args, *c); \
  } \
  extern "C" const u32 NAME##_bytes = sizeof(ARGS);

inline float cw_float_of_bits(u32 u) { float f; memcpy(&f, &u, 4); return f; }
inline u32 cw_bits_of_float(float f) { u32 u; memcpy(&u, &f, 4); return u; }
inline double cw_double_of_bits(u64 u) { double f; memcpy(&f, &u, 8); return f; }
inline u64 cw_bits_of_double(double f) { u64 u; memcpy(&u, &f, 8); return u; }
inline float cw_f32_of_f16(u16 h) {
  u32 sign = (u32)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
  if (e == 31) return cw_float_of_bits(sign | 0x7f800000u | m << 13);
  if (e == 0) { float f = (float)m * (1.0f / 16777216.0f); return sign ? -f : f; }
  return cw_float_of_bits(sign | (e + 112) << 23 | m << 13);
}
inline u16 cw_f16_of_f32(float f) {
  u32 u = cw_bits_of_float(f), a = u & 0x7fffffffu;
  u16 sign = (u16)(u >> 16 & 0x8000);
  if (a > 0x7f800000u) return sign | 0x7e00 | (u16)(a >> 13 & 0x3ff);
  if (a >= 0x477ff000u) return sign | 0x7c00;
  if (a < 0x38800000u) return sign | (u16)rintf(cw_float_of_bits(a) * 16777216.0f);
  return sign | (u16)((a + 0xfffu + (a >> 13 & 1u) - (112u << 23)) >> 13);
}
inline u32 cw_pack_f16(float lo, float hi) { return (u32)cw_f16_of_f32(lo) | (u32)cw_f16_of_f32(hi) << 16; }
inline float cw_mul(float a, float b) { return a * b; }
inline float cw_add(float a, float b) { return a + b; }
inline double cw_mul64(double a, double b) { return a * b; }
inline double cw_add64(double a, double b) { return a + b; }
inline float cw_fma(float a, float b, float c) { return fmaf(a, b, c); }
inline float cw_exp2(float x) { return exp2f(x); }

template <class T> inline T cw_shfl_xor(T v, int m) {
  u32 lane = CW_LANE();
  return cwhost::Letters<T>(v).of(lane ^ (u32)m);
}
template <class T> inline T cw_shfl_up(T v, int d) {
  u32 lane = CW_LANE();
  cwhost::Letters<T> all(v);
  return lane >= (u32)d ? all.of(lane - d) : v;
}
inline u32 cw_atomic_add(u32* p, u32 v) { u32 old = *p; *p = old + v; return old; }

// The tensor cores' instructions by their documented fragments.
struct CwFragment { u32 a[4], b[2]; };
template <class F> inline void cw_mma_of(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], F value) {
  CwFragment mine;
  memcpy(mine.a, a, 16); memcpy(mine.b, b, 8);
  u32 lane = CW_LANE();
  cwhost::Letters<CwFragment> said(mine);
  CwFragment all[32];
  for (u32 i = 0; i < 32; i++) all[i] = said.of(i);
  for (int i = 0; i < 4; i++) {
    u32 row = lane / 4 + (i >= 2 ? 8 : 0), col = lane % 4 * 2 + (i & 1);
    float sum = 0;
    for (u32 k = 0; k < 16; k++) {
      u32 la = row % 8 * 4 + k % 8 / 2, ra = (row >= 8 ? 1 : 0) + (k >= 8 ? 2 : 0), lb = col * 4 + k % 8 / 2, rb = k >= 8 ? 1 : 0;
      sum += value((u16)(all[la].a[ra] >> (k & 1) * 16)) * value((u16)(all[lb].b[rb] >> (k & 1) * 16));
    }
    d[i] += sum;
  }
}
inline void cw_mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  cw_mma_of(d, a, b, [](u16 h) { return cw_float_of_bits((u32)h << 16); });
}
inline void cw_mma_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) { cw_mma_of(d, a, b, cw_f32_of_f16); }
inline void cw_ldmatrix_of(u32 (&r)[4], const void* p, bool transposed) {
  u32 lane = CW_LANE();
  cwhost::Letters<const void*> all(p);
  for (u32 j = 0; j < 4; j++) {
    u16 v[2];
    for (u32 i = 0; i < 2; i++) {
      u32 row = transposed ? lane % 4 * 2 + i : lane / 4, col = transposed ? lane / 4 : lane % 4 * 2 + i;
      v[i] = ((const u16*)all.of(8 * j + row))[col];
    }
    r[j] = (u32)v[0] | (u32)v[1] << 16;
  }
}
inline void cw_ldmatrix(u32 (&r)[4], const void* p) { cw_ldmatrix_of(r, p, false); }
inline void cw_ldmatrix_t(u32 (&r)[4], const void* p) { cw_ldmatrix_of(r, p, true); }

// Background copies: what is on its way is NaN.
namespace cwhost {
inline Chunk* chunk(const void* shared) {
  size_t at = (const char*)shared - B->dynamic;
  return at < B->shared ? &B->chunks[at / 16] : nullptr;
}
inline void wrote(void* shared, bool coming) {
  if (Chunk* c = chunk(shared)) *c = Chunk{B->now + 1, B->fibers[B->now].fences, coming};
}
}
inline void cw_copy_async(void* shared, const void* global, bool there) {
  cwhost::Fiber& f = cwhost::B->fibers[cwhost::B->now];
  if (f.n_copies == cwhost::COPIES) return cwhost::fail("more copies in the background than the emulation has room for");
  f.copies[f.n_copies++] = cwhost::Copy{shared, there ? global : nullptr, f.copy_groups};
  memset(shared, 0xff, 16);
  cwhost::wrote(shared, true);
}
inline void cw_copy_commit() { cwhost::B->fibers[cwhost::B->now].copy_groups++; }
// All groups of this thread but the N youngest arrive.
template <int N> inline void cw_copy_wait() {
  cwhost::Fiber& f = cwhost::B->fibers[cwhost::B->now];
  u32 kept = 0;
  for (u32 i = 0; i < f.n_copies; i++) {
    cwhost::Copy c = f.copies[i];
    if (c.group + N >= f.copy_groups) { f.copies[kept++] = c; continue; }
    if (c.from) memcpy(c.to, c.from, 16); else memset(c.to, 0, 16);
    cwhost::wrote(c.to, false);
  }
  f.n_copies = kept;
}
