// Device functions and reductions for the cuda backend. A section begins with
// "//@ name needs other sections"; copy the ones you call.

//@ prelude
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math_constants.h>

#include <cmath>
#include <cstdint>
#ifndef NAN
#define NAN CUDART_NAN_F
#endif
// V neighbouring elements, moved by one instruction of up to 16 bytes.
template <typename T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) PbVec {
  T v[V];
};
static inline bool pb_aligned(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

//@ reduce
// Combines one value a thread over the T threads that share a row, T a power of two; every thread gets
// the result. Up to a warp by shuffles alone; above that through shared memory.
struct PbSum { template <typename X> __device__ X operator()(X a, X b) const { return a + b; } };
struct PbProd { template <typename X> __device__ X operator()(X a, X b) const { return a * b; } };
// The larger (smaller) of two, NaN if either is: one instruction since sm_80.
__device__ __forceinline__ float pb_fmax(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return (a > b) | (a != a) ? a : b;
#endif
}
__device__ __forceinline__ float pb_fmin(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return (a < b) | (a != a) ? a : b;
#endif
}
struct PbMax {
  __device__ float operator()(float a, float b) const { return pb_fmax(a, b); }
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a > b ? a : b; }
};
struct PbMin {
  __device__ float operator()(float a, float b) const { return pb_fmin(a, b); }
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};
template <int W, typename X, typename Op>
__device__ __forceinline__ X pb_warp_reduce(X x, Op op) {
#pragma unroll
  for (int o = W / 2; o > 0; o /= 2) {
    if constexpr (sizeof(X) == 8) {
      x = op(x, (X)__shfl_xor_sync(0xffffffffu, (long long)x, o));
    } else {
      x = op(x, __shfl_xor_sync(0xffffffffu, x, o));
    }
  }
  return x;
}
// `shared` holds R * T / 32 slots of 8 bytes that no other reduction of the kernel uses: one barrier is enough.
template <int T, typename X, typename Op>
__device__ __forceinline__ X pb_reduce(X x, Op op, char* shared) {
  x = pb_warp_reduce<(T < 32 ? T : 32)>(x, op);
  if constexpr (T > 32) {
    constexpr int N = T / 32;
    X* slots = reinterpret_cast<X*>(shared) + threadIdx.y * N;
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
    __syncthreads();
    x = pb_warp_reduce<N>(slots[threadIdx.x % N], op);
  }
  return x;
}

//@ divisor
// Division of a whole row by one number: x * scale * reciprocal, within 1.5 ulp of x / d. The power of two
// keeps the reciprocal of a denormal finite and that of a huge number normal; 0, infinity and NaN divide as
// they should.
struct PbDivisor {
  float scale, reciprocal;
  __device__ __forceinline__ explicit PbDivisor(float d) {
    const float size = fabsf(d);
    scale = size < 0x1p-100f ? 0x1p100f : size > 0x1p100f ? 0x1p-100f : 1.0f;
    reciprocal = 1.0f / (d * scale);
  }
  __device__ __forceinline__ float into(float x) const { return x * scale * reciprocal; }
};

//@ edge
// A vector that lies partly outside its row (or tensor): position `at` of its first element, `limit` that of
// the first element past the end. What is outside is not touched.
template <typename X, int V, typename I>
__device__ __forceinline__ void pb_load_edge(PbVec<X, V>& x, const X* p, I at, I limit) {
#pragma unroll
  for (int j = 0; j < V; ++j) x.v[j] = at + j >= 0 && at + j < limit ? p[j] : X();
}
template <typename X, int V, typename I>
__device__ __forceinline__ void pb_store_edge(const PbVec<X, V>& x, X* p, I at, I limit) {
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (at + j >= 0 && at + j < limit) p[j] = x.v[j];
  }
}

//@ exp
__device__ __forceinline__ float pb_exp(float x) { return expf(x); }

//@ expm1
__device__ __forceinline__ float pb_expm1(float x) { return expm1f(x); }

//@ exp2
__device__ __forceinline__ float pb_exp2(float x) { return exp2f(x); }

//@ log
__device__ __forceinline__ float pb_log(float x) { return logf(x); }

//@ log1p
__device__ __forceinline__ float pb_log1p(float x) { return log1pf(x); }

//@ log2
__device__ __forceinline__ float pb_log2(float x) { return log2f(x); }

//@ log10
__device__ __forceinline__ float pb_log10(float x) { return log10f(x); }

//@ sigmoid
__device__ __forceinline__ float pb_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

//@ tanh
__device__ __forceinline__ float pb_tanh(float x) { return tanhf(x); }

//@ erf
__device__ __forceinline__ float pb_erf(float x) { return erff(x); }

//@ erfc
__device__ __forceinline__ float pb_erfc(float x) { return erfcf(x); }

//@ sin
__device__ __forceinline__ float pb_sin(float x) { return sinf(x); }

//@ cos
__device__ __forceinline__ float pb_cos(float x) { return cosf(x); }

//@ tan
__device__ __forceinline__ float pb_tan(float x) { return tanf(x); }

//@ asin
__device__ __forceinline__ float pb_asin(float x) { return asinf(x); }

//@ acos
__device__ __forceinline__ float pb_acos(float x) { return acosf(x); }

//@ atan
__device__ __forceinline__ float pb_atan(float x) { return atanf(x); }

//@ sinh
__device__ __forceinline__ float pb_sinh(float x) { return sinhf(x); }

//@ cosh
__device__ __forceinline__ float pb_cosh(float x) { return coshf(x); }

//@ asinh
__device__ __forceinline__ float pb_asinh(float x) { return asinhf(x); }

//@ acosh
__device__ __forceinline__ float pb_acosh(float x) { return acoshf(x); }

//@ atanh
__device__ __forceinline__ float pb_atanh(float x) { return atanhf(x); }

//@ atan2
__device__ __forceinline__ float pb_atan2(float a, float b) { return atan2f(a, b); }

//@ pow
__device__ __forceinline__ float pb_pow(float a, float b) { return powf(a, b); }

//@ sqrt
__device__ __forceinline__ float pb_sqrt(float x) { return sqrtf(x); }

//@ rsqrt
__device__ __forceinline__ float pb_rsqrt(float x) { return rsqrtf(x); }

//@ floor
__device__ __forceinline__ float pb_floor(float x) { return floorf(x); }

//@ ceil
__device__ __forceinline__ float pb_ceil(float x) { return ceilf(x); }

//@ trunc
__device__ __forceinline__ float pb_trunc(float x) { return truncf(x); }

//@ round
__device__ __forceinline__ float pb_round(float x) { return rintf(x); }

//@ abs
__device__ __forceinline__ float pb_abs(float x) { return fabsf(x); }
__device__ __forceinline__ int64_t pb_abs(int64_t x) { return x < 0 ? -x : x; }

//@ sign
__device__ __forceinline__ float pb_sign(float x) { return (float)((x > 0.0f) - (x < 0.0f)); }
__device__ __forceinline__ int64_t pb_sign(int64_t x) { return (x > 0) - (x < 0); }

//@ max
__device__ __forceinline__ float pb_max(float a, float b) { return (a > b) | (a != a) ? a : b; }
__device__ __forceinline__ int64_t pb_max(int64_t a, int64_t b) { return a > b ? a : b; }

//@ min
__device__ __forceinline__ float pb_min(float a, float b) { return (a < b) | (a != a) ? a : b; }
__device__ __forceinline__ int64_t pb_min(int64_t a, int64_t b) { return a < b ? a : b; }

//@ fmod
__device__ __forceinline__ float pb_fmod(float a, float b) { return fmodf(a, b); }
__device__ __forceinline__ int64_t pb_fmod(int64_t a, int64_t b) { return a % b; }

//@ remainder
__device__ __forceinline__ float pb_remainder(float a, float b) {
  float r = fmodf(a, b);
  return (r != 0.0f) & ((r < 0.0f) != (b < 0.0f)) ? r + b : r;
}
__device__ __forceinline__ int64_t pb_remainder(int64_t a, int64_t b) {
  int64_t r = a % b;
  return (r != 0) & ((r < 0) != (b < 0)) ? r + b : r;
}

//@ floordiv
__device__ __forceinline__ int64_t pb_floordiv(int64_t a, int64_t b) {
  return a / b - ((a % b != 0) & ((a < 0) != (b < 0)));
}

//@ truncdiv
__device__ __forceinline__ int64_t pb_truncdiv(int64_t a, int64_t b) { return a / b; }

//@ float16
__device__ __forceinline__ float pb_from_float16(__half x) { return __half2float(x); }
__device__ __forceinline__ __half pb_to_float16(float x) { return __float2half_rn(x); }

//@ bfloat16
__device__ __forceinline__ float pb_from_bfloat16(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ __nv_bfloat16 pb_to_bfloat16(float x) { return __float2bfloat16_rn(x); }

//@ gemm
// Row-major C[m, n] = A[m, k] B[k, n] as cuBLAS's column-major C^T = B^T A^T, accumulated in float32.
// `ta`, `tb`: the operand lies transposed in memory. config 1 lets float32 use TF32 tensor cores: only
// where the task's precision contract allows it.
#include <cublas_v2.h>
static cublasHandle_t pb_cublas() {
  static thread_local cublasHandle_t handles[64] = {};
  int device = 0;
  cudaGetDevice(&device);
  if (!handles[device] && cublasCreate(&handles[device]) != CUBLAS_STATUS_SUCCESS) return nullptr;
  return handles[device];
}
static const char* pb_gemm(const void* a, bool ta, int64_t lda, int64_t sa, const void* b, bool tb, int64_t ldb,
                           int64_t sb, void* c, int64_t batch, int64_t m, int64_t n, int64_t k, cudaDataType_t type,
                           int64_t config, cudaStream_t stream) {
  cublasHandle_t handle = pb_cublas();
  if (!handle) return "cublasCreate failed";
  const float one = 1.0f, zero = 0.0f;
  const cublasComputeType_t compute =
      type == CUDA_R_32F && (config & 1) ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cublasSetStream(handle, stream);
  cublasSetMathMode(handle, (cublasMath_t)(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
  const cublasStatus_t status = cublasGemmStridedBatchedEx(
      handle, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, (int)n, (int)m, (int)k, &one, b, type,
      (int)ldb, sb, a, type, (int)lda, sa, &zero, c, type, (int)n, m * n, (int)batch, compute, CUBLAS_GEMM_DEFAULT);
  return status == CUBLAS_STATUS_SUCCESS ? nullptr : cublasGetStatusString(status);
}

//@ pack
struct PbLayout { int64_t sizes[16], strides[16]; };
template <typename T>
__global__ void pb_pack(const T* source, T* target, int64_t total, int dims, PbLayout layout) {
  for (int64_t k = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; k < total; k += gridDim.x * (int64_t)blockDim.x) {
    int64_t rest = k, offset = 0;
    for (int d = dims - 1; d >= 0; --d) {
      offset += rest % layout.sizes[d] * layout.strides[d];
      rest /= layout.sizes[d];
    }
    target[k] = source[offset];
  }
}
extern "C" void playbook_pack(const char* source, char* target, int64_t itemsize, int dims, const int64_t* sizes,
                              const int64_t* strides, void* stream) {
  PbLayout layout{};
  int64_t total = 1;
  for (int d = 0; d < dims && d < 16; ++d) {
    layout.sizes[d] = sizes[d];
    layout.strides[d] = strides[d];
    total *= sizes[d];
  }
  const int blocks = (int)((total + 255) / 256 < 65535 ? (total + 255) / 256 : 65535);
  auto s = (cudaStream_t)stream;
  if (!total) return;
  if (itemsize == 4) pb_pack<<<blocks, 256, 0, s>>>((const int32_t*)source, (int32_t*)target, total, dims, layout);
  if (itemsize == 2) pb_pack<<<blocks, 256, 0, s>>>((const int16_t*)source, (int16_t*)target, total, dims, layout);
  if (itemsize == 8) pb_pack<<<blocks, 256, 0, s>>>((const int64_t*)source, (int64_t*)target, total, dims, layout);
  if (itemsize == 1) pb_pack<<<blocks, 256, 0, s>>>(source, target, total, dims, layout);
}
