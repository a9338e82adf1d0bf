// CUDA's words for products of a warpgroup (wgmma): four warps issue one instruction, which reads shared memory by itself and writes registers
// later. Only machine code for sm_90a has it. What may be done when is in the PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions";
// wgmma_host.h holds a kernel to it.

CW_DEVICE u32 cw_shared_at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
CW_DEVICE void cw_put16(void* shared, const Piece& p) { *(Piece*)shared = p; }
// What this thread wrote to shared memory, before what wgmma reads there behind the next barrier.
CW_DEVICE void cw_fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Registers that a product reads or writes have their values here: what stands before is done, and what stands behind does not move up.
template <int N> CW_DEVICE void cw_hold(float (&x)[N]) { CW_UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i]) :: "memory"); }
template <int N> CW_DEVICE void cw_hold(u32 (&x)[N][4]) {
  CW_UNROLL for (int i = 0; i < N; i++) CW_UNROLL for (int k = 0; k < 4; k++) asm volatile("" : "+r"(x[i][k]) :: "memory");
}
CW_DEVICE void cw_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
CW_DEVICE void cw_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All groups but the N youngest are done.
template <int N> CW_DEVICE void cw_wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }
CW_DEVICE float cw_ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

#define CW_D8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define CW_D32(d, i) CW_D8(d, i), CW_D8(d, i + 8), CW_D8(d, i + 16), CW_D8(d, i + 24)
#define CW_D0_31 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define CW_D32_63 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// d = a b^T (+ d where `keep`), 64 x 128: both from shared memory, their rows contiguous in k (imm-trans 0).
// d += a b, 64 x N: a in registers, the rows of b in shared memory contiguous in n (imm-trans-b 1).
#define CW_WGMMA(T, NAME) \
template <> struct Warpgroup<T> { \
  static CW_DEVICE u32 pack(float lo, float hi) { return cw_pack_##NAME(lo, hi); } \
  static CW_DEVICE void mma(float (&d)[64], u64 a, u64 b, int keep) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." #NAME "." #NAME " {" CW_D0_31 "," CW_D32_63 \
      "}, %64, %65, p, 1, 1, 0, 0;\n}\n" : CW_D32(d, 0), CW_D32(d, 32) : "l"(a), "l"(b), "r"(keep)); \
  } \
  static CW_DEVICE void mma(float (&d)[64], const u32 (&a)[4], u64 b) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." #NAME "." #NAME " {" CW_D0_31 "," CW_D32_63 \
      "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1;\n}\n" : CW_D32(d, 0), CW_D32(d, 32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1)); \
  } \
  static CW_DEVICE void mma(float (&d)[32], const u32 (&a)[4], u64 b) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." #NAME "." #NAME " {" CW_D0_31 \
      "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1;\n}\n" : CW_D32(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1)); \
  } \
};
template <class T> struct Warpgroup;
CW_WGMMA(bf16, bf16)
CW_WGMMA(f16, f16)
