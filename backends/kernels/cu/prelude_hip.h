// HIP's words for what the kernels need: clang's own built-ins, no header, and of the device libraries the mathematical functions alone. See common.h.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
// Loops over a wave have constant bounds, so the compiler gets its width (`hip_options`), and checks it where it can.
#ifndef CW_WARP
#error "CW_WARP, the threads of a wave, is given with the compiler's options"
#endif
#ifdef __AMDGCN_WAVEFRONT_SIZE
static_assert(CW_WARP == __AMDGCN_WAVEFRONT_SIZE, "CW_WARP is not the wave's width on this target");
#endif
#define CW_PARAM const
#define CW_DYN_SHARED(T, n) extern __shared__ __attribute__((aligned(16))) unsigned char cw_dynamic_[]; T* n = (T*)cw_dynamic_
#define CW_SHARED __shared__
#define CW_T(...) __VA_ARGS__
#define CW_OFFSET(T, F) __builtin_offsetof(T, F)
#define CW_UNROLL _Pragma("unroll")
#define CW_KERNEL(THREADS, NAME, ARGS, BODY) \
  extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(1, THREADS))) NAME(CW_PARAM ARGS a) { BODY(a); }
#define CW_DEVICE __device__ inline __attribute__((always_inline))
#define __device_index__(AXIS) \
  CW_DEVICE static unsigned AXIS##_thread() { return __builtin_amdgcn_workitem_id_##AXIS(); } \
  CW_DEVICE static unsigned AXIS##_block() { return __builtin_amdgcn_workgroup_id_##AXIS(); } \
  CW_DEVICE static unsigned AXIS##_dim() { return __builtin_amdgcn_workgroup_size_##AXIS(); } \
  CW_DEVICE static unsigned AXIS##_grid() { return __builtin_amdgcn_grid_size_##AXIS() / __builtin_amdgcn_workgroup_size_##AXIS(); }

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef long long i64;

struct cw_indices { __device_index__(x) __device_index__(y) __device_index__(z) };
struct cw_thread { __declspec(property(get = x_)) u32 x; __declspec(property(get = y_)) u32 y;
  CW_DEVICE u32 x_() const { return cw_indices::x_thread(); } CW_DEVICE u32 y_() const { return cw_indices::y_thread(); } };
struct cw_block { __declspec(property(get = x_)) u32 x; __declspec(property(get = y_)) u32 y; __declspec(property(get = z_)) u32 z;
  CW_DEVICE u32 x_() const { return cw_indices::x_block(); } CW_DEVICE u32 y_() const { return cw_indices::y_block(); }
  CW_DEVICE u32 z_() const { return cw_indices::z_block(); } };
struct cw_dim { __declspec(property(get = x_)) u32 x; CW_DEVICE u32 x_() const { return cw_indices::x_dim(); } };
struct cw_grid { __declspec(property(get = x_)) u32 x; __declspec(property(get = y_)) u32 y;
  CW_DEVICE u32 x_() const { return cw_indices::x_grid(); } CW_DEVICE u32 y_() const { return cw_indices::y_grid(); } };
#define threadIdx (cw_thread())
#define blockIdx (cw_block())
#define blockDim (cw_dim())
#define gridDim (cw_grid())

#define CW_LANE() (threadIdx.x & (CW_WARP - 1))
CW_DEVICE void CW_SYNC_() { __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); __builtin_amdgcn_s_barrier(); __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"); }
CW_DEVICE void CW_SYNC_WARP_() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"); __builtin_amdgcn_wave_barrier(); }
#define CW_SYNC() CW_SYNC_()
#define CW_SYNC_WARP() CW_SYNC_WARP_()

CW_DEVICE float cw_float_of_bits(u32 u) { return __builtin_bit_cast(float, u); }
CW_DEVICE u32 cw_bits_of_float(float f) { return __builtin_bit_cast(u32, f); }
CW_DEVICE double cw_double_of_bits(u64 u) { return __builtin_bit_cast(double, u); }
CW_DEVICE u64 cw_bits_of_double(double d) { return __builtin_bit_cast(u64, d); }
CW_DEVICE float cw_f32_of_f16(u16 h) { return (float)__builtin_bit_cast(_Float16, h); }
CW_DEVICE u16 cw_f16_of_f32(float f) { return __builtin_bit_cast(u16, (_Float16)f); }
CW_DEVICE float cw_mul(float a, float b) { _Pragma("clang fp contract(off)") return a * b; }
CW_DEVICE float cw_add(float a, float b) { _Pragma("clang fp contract(off)") return a + b; }
CW_DEVICE double cw_mul64(double a, double b) { _Pragma("clang fp contract(off)") return a * b; }
CW_DEVICE double cw_add64(double a, double b) { _Pragma("clang fp contract(off)") return a + b; }
CW_DEVICE float cw_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

CW_DEVICE u32 cw_from_lane(u32 v, int lane) { return (u32)__builtin_amdgcn_ds_bpermute(lane << 2, (int)v); }
template <class T> CW_DEVICE T cw_take(T v, int lane) {
  if constexpr (sizeof(T) == 8) {
    u64 w = __builtin_bit_cast(u64, v);
    return __builtin_bit_cast(T, (u64)cw_from_lane((u32)(w >> 32), lane) << 32 | cw_from_lane((u32)w, lane));
  } else {
    return __builtin_bit_cast(T, cw_from_lane(__builtin_bit_cast(u32, v), lane));
  }
}
template <class T> CW_DEVICE T cw_shfl_xor(T v, int m) { return cw_take(v, (int)CW_LANE() ^ m); }
template <class T> CW_DEVICE T cw_shfl_up(T v, int d) { int l = (int)CW_LANE(); return cw_take(v, l >= d ? l - d : l); }
CW_DEVICE u32 cw_atomic_add(u32* p, u32 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }

// The device library's functions, which the compiler links in. Under names of our own, since HIPRTC puts vendor's headers with functions of
// the usual names before the source.
#define CW_OCML1(NAME, F32, F64) \
  extern "C" __device__ float F32(float); extern "C" __device__ double F64(double); \
  CW_DEVICE float cw_##NAME(float x) { return F32(x); } CW_DEVICE double cw_##NAME(double x) { return F64(x); }
CW_OCML1(ocml_exp, __ocml_exp_f32, __ocml_exp_f64)
CW_OCML1(ocml_log, __ocml_log_f32, __ocml_log_f64)
CW_OCML1(ocml_sin, __ocml_sin_f32, __ocml_sin_f64)
CW_OCML1(ocml_cos, __ocml_cos_f32, __ocml_cos_f64)
CW_OCML1(ocml_tanh, __ocml_tanh_f32, __ocml_tanh_f64)
CW_OCML1(ocml_erf, __ocml_erf_f32, __ocml_erf_f64)
CW_OCML1(ocml_sqrt, __ocml_sqrt_f32, __ocml_sqrt_f64)
extern "C" __device__ float __ocml_pow_f32(float, float);
extern "C" __device__ float __ocml_exp2_f32(float);
CW_DEVICE float cw_exp2(float x) { return __ocml_exp2_f32(x); }
#define expf(x) cw_ocml_exp((float)(x))
#define exp(x) cw_ocml_exp((double)(x))
#define logf(x) cw_ocml_log((float)(x))
#define log(x) cw_ocml_log((double)(x))
#define sinf(x) cw_ocml_sin((float)(x))
#define sin(x) cw_ocml_sin((double)(x))
#define cosf(x) cw_ocml_cos((float)(x))
#define cos(x) cw_ocml_cos((double)(x))
#define tanhf(x) cw_ocml_tanh((float)(x))
#define tanh(x) cw_ocml_tanh((double)(x))
#define erff(x) cw_ocml_erf((float)(x))
#define erf(x) cw_ocml_erf((double)(x))
#define sqrtf(x) cw_ocml_sqrt((float)(x))
#define sqrt(x) cw_ocml_sqrt((double)(x))
#define powf(a, b) __ocml_pow_f32(a, b)
#define floorf(x) __builtin_floorf(x)
#define fabsf(x) __builtin_fabsf(x)
#define fmaxf(a, b) __builtin_fmaxf(a, b)
#define fminf(a, b) __builtin_fminf(a, b)
#define rintf(x) __builtin_rintf(x)
