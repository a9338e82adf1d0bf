// CUDA's words for what the kernels need. No header is included, so that NVRTC alone compiles it. Common to all dialects is common.h.
#define CW_WARP 32
#define CW_PARAM const __grid_constant__
#define CW_DYN_SHARED(T, n) extern __shared__ __align__(16) unsigned char cw_dynamic_[]; T* n = (T*)cw_dynamic_
#define CW_SHARED __shared__
#define CW_LANE() (threadIdx.x & 31)
#define CW_SYNC() __syncthreads()
#define CW_SYNC_WARP() __syncwarp()
#define CW_UNROLL _Pragma("unroll")
#define CW_T(...) __VA_ARGS__
// NVRTC has no offsetof; this is what its front end makes one of.
#define CW_OFFSET(T, F) __INTADDR__(&(((T*)0)->F))
#define CW_KERNEL(THREADS, NAME, ARGS, BODY) \
  extern "C" __global__ void __launch_bounds__(THREADS) NAME(CW_PARAM ARGS a) { BODY(a); }

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;

#define CW_DEVICE __device__ __forceinline__

CW_DEVICE float cw_float_of_bits(u32 u) { return __uint_as_float(u); }
CW_DEVICE u32 cw_bits_of_float(float f) { return __float_as_uint(f); }
CW_DEVICE double cw_double_of_bits(u64 u) { return __longlong_as_double((i64)u); }
CW_DEVICE u64 cw_bits_of_double(double d) { return (u64)__double_as_longlong(d); }
CW_DEVICE float cw_f32_of_f16(u16 h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
CW_DEVICE u16 cw_f16_of_f32(float f) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
// Two floats to two adjacent 16-bit numbers, `lo` in the low half.
CW_DEVICE u32 cw_pack_f16(float lo, float hi) { u32 r; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
#if __CUDA_ARCH__ >= 800
CW_DEVICE u16 cw_bf16_of_f32(float f) { u16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
CW_DEVICE u32 cw_pack_bf16(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
#define CW_HAS_BF16 1
#endif

// Rounded once each: the compiler must not contract these.
CW_DEVICE float cw_mul(float a, float b) { return __fmul_rn(a, b); }
CW_DEVICE float cw_add(float a, float b) { return __fadd_rn(a, b); }
CW_DEVICE double cw_mul64(double a, double b) { return __dmul_rn(a, b); }
CW_DEVICE double cw_add64(double a, double b) { return __dadd_rn(a, b); }
CW_DEVICE float cw_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }

template <class T> CW_DEVICE T cw_shfl_xor(T v, int m) { return __shfl_xor_sync(0xffffffffu, v, m); }
template <class T> CW_DEVICE T cw_shfl_up(T v, int d) { return __shfl_up_sync(0xffffffffu, v, d); }
CW_DEVICE u32 cw_atomic_add(u32* p, u32 v) { return atomicAdd(p, v); }
CW_DEVICE float cw_exp2(float x) { return exp2f(x); }

#if __CUDA_ARCH__ >= 800
// d += a b for a 16x16 tile a (row), 16... see PTX mma.m16n8k16: fragments as the instruction has them.
CW_DEVICE void cw_mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
CW_DEVICE void cw_mma_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Four 8x8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8.
CW_DEVICE void cw_ldmatrix(u32 (&r)[4], const void* p) {
  u32 at = (u32)__cvta_generic_to_shared(p);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
CW_DEVICE void cw_ldmatrix_t(u32 (&r)[4], const void* p) {
  u32 at = (u32)__cvta_generic_to_shared(p);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// Sixteen bytes from global to shared memory in the background; zeros when not `there`.
CW_DEVICE void cw_copy_async(void* shared, const void* global, bool there) {
  u32 at = (u32)__cvta_generic_to_shared(shared);
  u64 from = (u64)__cvta_generic_to_global(global);
  int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(bytes) : "memory");
}
CW_DEVICE void cw_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> CW_DEVICE void cw_copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
#endif
