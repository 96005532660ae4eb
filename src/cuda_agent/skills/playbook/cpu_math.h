// SIMD-friendly single-precision functions for the cpu backend.
//
// GCC vectorises a loop only when everything in it is inlined and free of branches; libm calls are
// neither. Each function below is a range reduction and a polynomial, accurate to about 2 ulp, with
// infinities, NaN and denormals as eager PyTorch gives them. Use them inside `#pragma omp simd` loops.
// A section begins with "//@ name needs other sections"; copy the ones you call.

//@ prelude
// Math calls need not set errno, and comparisons need not trap: neither changes a value, and without
// these two GCC leaves loops with sqrt or a float comparison scalar.
#pragma GCC optimize("no-math-errno", "no-trapping-math")
#include <cmath>
#include <cstdint>
#include <algorithm>
#include <omp.h>
static inline int32_t pb_bits(float x) { return __builtin_bit_cast(int32_t, x); }
static inline float pb_float(int32_t b) { return __builtin_bit_cast(float, b); }

//@ expcore
// exp(x) = 2^n * (1 + m): n whole, m = expm1(x - n ln 2). Adding 1.5 * 2^23 rounds to a whole number.
struct PbExp { float n, m; int32_t k; };
static inline PbExp pb_expcore(float x) {
  float t = __builtin_fmaf(x, 1.44269504f, 12582912.0f);
  float n = t - 12582912.0f;
  float r = __builtin_fmaf(n, -0.693145752f, x);
  r = __builtin_fmaf(n, -1.42860677e-6f, r);
  float p = 0.0001978926593437791f;
  p = __builtin_fmaf(p, r, 0.0013945753453299403f);
  p = __builtin_fmaf(p, r, 0.00833350419998169f);
  p = __builtin_fmaf(p, r, 0.04166628047823906f);
  p = __builtin_fmaf(p, r, 0.1666666567325592f);
  p = __builtin_fmaf(p, r, 0.5f);
  return {n, __builtin_fmaf(p, r * r, r), pb_bits(t) - 0x4B400000};
}
static inline float pb_pow2(int32_t k) { return pb_float((k + 127) << 23); }

//@ exp needs expcore
// Scaling in two steps reaches denormal results and overflows to infinity where it must.
static inline float pb_exp(float x) {
  float c = x > 89.0f ? 89.0f : x;
  c = c < -104.5f ? -104.5f : c;
  PbExp e = pb_expcore(c);
  int32_t half = e.k >> 1;
  return (1.0f + e.m) * pb_pow2(half) * pb_pow2(e.k - half);
}

//@ expm1 needs expcore
static inline float pb_expm1(float x) {
  float c = x > 89.0f ? 89.0f : x;
  c = c < -30.0f ? -30.0f : c;
  PbExp e = pb_expcore(c);
  float s = pb_pow2(e.k - 1);
  return __builtin_fmaf(s, e.m, s - 0.5f) * 2.0f;
}

//@ exp2 needs exp
static inline float pb_exp2(float x) {
  float n = std::nearbyint(x);
  n = n > 129.0f ? 129.0f : (n < -151.0f ? -151.0f : n);
  float r = x - n;
  r = r > 200.0f ? 200.0f : (r < -200.0f ? -200.0f : r);
  int32_t k = (int32_t)(n != n ? 0.0f : n), half = k >> 1;
  return pb_exp(r * 0.693147181f) * pb_pow2(half) * pb_pow2(k - half);
}

//@ log
// m in [sqrt(1/2), sqrt(2)), x = 2^e * m.
static inline float pb_log(float x) {
  bool tiny = x < 1.17549435e-38f;
  float big = tiny ? x * 8388608.0f : x;
  int32_t e = (pb_bits(big) - 0x3F3504F3) >> 23;
  float f = pb_float(pb_bits(big) - (e << 23)) - 1.0f;
  float k = (float)(tiny ? e - 23 : e);
  float p = 0.06746601313352585f;
  p = __builtin_fmaf(p, f, -0.11675640940666199f);
  p = __builtin_fmaf(p, f, 0.11888174712657928f);
  p = __builtin_fmaf(p, f, -0.12405591458082199f);
  p = __builtin_fmaf(p, f, 0.14219550788402557f);
  p = __builtin_fmaf(p, f, -0.1666799634695053f);
  p = __builtin_fmaf(p, f, 0.2000211924314499f);
  p = __builtin_fmaf(p, f, -0.25000008940696716f);
  p = __builtin_fmaf(p, f, 0.3333331346511841f);
  float f2 = f * f;
  float low = __builtin_fmaf(p, f2 * f, -0.5f * f2);
  low = __builtin_fmaf(k, -2.12194440e-4f, low);
  float y = __builtin_fmaf(k, 0.693359375f, f + low);
  y = x == INFINITY ? x : y;
  y = x == 0.0f ? -INFINITY : y;
  return x >= 0.0f ? y : NAN;
}

//@ log1p needs log
// The rounding error of 1 + x comes back through the derivative of the logarithm.
static inline float pb_log1p(float x) {
  float u = 1.0f + x;
  float y = pb_log(u);
  float c = (x - (u - 1.0f)) / u;
  float r = y + c;
  return (u == 0.0f) | (u == INFINITY) ? y : r;
}

//@ log2 needs log
static inline float pb_log2(float x) { return pb_log(x) * 1.44269504f; }

//@ log10 needs log
static inline float pb_log10(float x) { return pb_log(x) * 0.434294482f; }

//@ sigmoid needs exp
static inline float pb_sigmoid(float x) { return 1.0f / (1.0f + pb_exp(-x)); }

//@ tanh needs expm1
static inline float pb_tanh(float x) {
  float a = __builtin_fabsf(x);
  float t = pb_expm1(2.0f * (a > 10.0f ? 10.0f : a));
  return __builtin_copysignf(t / (t + 2.0f), x);
}

//@ erf needs expcore
// Below 1 a polynomial in x^2; above, 1 - exp(polynomial).
static inline float pb_erf(float x) {
  float a = __builtin_fabsf(x), t = x * x;
  float p = 7.889119297033176e-05f;
  p = __builtin_fmaf(p, t, -0.0008020841050893068f);
  p = __builtin_fmaf(p, t, 0.005189535208046436f);
  p = __builtin_fmaf(p, t, -0.026854444295167923f);
  p = __builtin_fmaf(p, t, 0.11283600330352783f);
  p = __builtin_fmaf(p, t, -0.3761262595653534f);
  p = __builtin_fmaf(p, t, 0.12837916612625122f);
  float small = __builtin_fmaf(p, x, x);
  float c = a > 4.0f ? 4.0f : a;
  float q = 9.57286488301179e-07f;
  q = __builtin_fmaf(q, c, -1.5341545804403722e-05f);
  q = __builtin_fmaf(q, c, 8.538697875337675e-05f);
  q = __builtin_fmaf(q, c, 1.4064659808354918e-05f);
  q = __builtin_fmaf(q, c, -0.003129876684397459f);
  q = __builtin_fmaf(q, c, 0.02344062551856041f);
  q = __builtin_fmaf(q, c, -0.10651642084121704f);
  q = __builtin_fmaf(q, c, -0.6345119476318359f);
  q = __builtin_fmaf(q, c, -1.1290754079818726f);
  q = __builtin_fmaf(q, c, 0.00010247861064272001f);
  PbExp e = pb_expcore(q);
  float s = pb_pow2(e.k);
  float large = __builtin_copysignf(1.0f - __builtin_fmaf(s, e.m, s), x);
  return a < 1.0f ? small : large;
}

//@ trigcore
// x = n pi/2 + r, reduced in double: right for |x| < 1e9.
struct PbTrig { float s, c; int32_t n; };
static inline PbTrig pb_trigcore(float x) {
  double t = __builtin_fma((double)x, 0.63661977236758134, 6755399441055744.0);
  double n = t - 6755399441055744.0;
  double d = __builtin_fma(n, -1.5707963267948966, (double)x);
  float r = (float)__builtin_fma(n, -6.123233995736766e-17, d), z = r * r;
  float p = 2.7175681225344306e-06f;
  p = __builtin_fmaf(p, z, -0.0001983925758395344f);
  p = __builtin_fmaf(p, z, 0.008333329111337662f);
  p = __builtin_fmaf(p, z, -0.1666666716337204f);
  float q = -2.720333895922522e-07f;
  q = __builtin_fmaf(q, z, 2.4799437596811913e-05f);
  q = __builtin_fmaf(q, z, -0.0013888883404433727f);
  q = __builtin_fmaf(q, z, 0.0416666679084301f);
  float c = __builtin_fmaf(q, z * z, __builtin_fmaf(z, -0.5f, 1.0f));
  return {__builtin_fmaf(p, z * r, r), c, (int32_t)__builtin_bit_cast(int64_t, t)};
}

//@ sin needs trigcore
static inline float pb_sin(float x) {
  PbTrig t = pb_trigcore(x);
  float y = t.n & 1 ? t.c : t.s;
  return t.n & 2 ? -y : y;
}

//@ cos needs trigcore
static inline float pb_cos(float x) {
  PbTrig t = pb_trigcore(x);
  float y = t.n & 1 ? t.s : t.c;
  return (t.n + 1) & 2 ? -y : y;
}

//@ tan needs trigcore
static inline float pb_tan(float x) {
  PbTrig t = pb_trigcore(x);
  return t.n & 1 ? -t.c / t.s : t.s / t.c;
}

//@ sqrt
static inline float pb_sqrt(float x) { return __builtin_sqrtf(x); }

//@ rsqrt
static inline float pb_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

//@ floor
static inline float pb_floor(float x) { return __builtin_floorf(x); }

//@ ceil
static inline float pb_ceil(float x) { return __builtin_ceilf(x); }

//@ trunc
static inline float pb_trunc(float x) { return __builtin_truncf(x); }

//@ round
static inline float pb_round(float x) { return __builtin_nearbyintf(x); }

//@ abs
static inline float pb_abs(float x) { return __builtin_fabsf(x); }
static inline int64_t pb_abs(int64_t x) { return x < 0 ? -x : x; }

//@ sign
static inline float pb_sign(float x) { return (float)((x > 0.0f) - (x < 0.0f)); }
static inline int64_t pb_sign(int64_t x) { return (x > 0) - (x < 0); }

//@ max
// NaN wins, as in eager.
static inline float pb_max(float a, float b) { return (a > b) | (a != a) ? a : b; }
static inline int64_t pb_max(int64_t a, int64_t b) { return a > b ? a : b; }

//@ min
static inline float pb_min(float a, float b) { return (a < b) | (a != a) ? a : b; }
static inline int64_t pb_min(int64_t a, int64_t b) { return a < b ? a : b; }

//@ fmod
// Remainders of doubles: exact, since the quotient of each of three steps stays below 2^53; together they
// cover quotients up to 2^150.
static inline double pb_modstep(double a, double m) {
  double r = __builtin_fma(-__builtin_trunc(a / m), m, a);
  return r < 0.0 ? r + m : r;
}
static inline float pb_fmod(float a, float b) {
  double x = __builtin_fabs((double)a), m = __builtin_fabs((double)b);
  double r = pb_modstep(pb_modstep(pb_modstep(x, m * 0x1p100), m * 0x1p50), m);
  float y = __builtin_copysignf((float)r, a);
  return (m == INFINITY) & (x < INFINITY) ? a : y;
}
static inline int64_t pb_fmod(int64_t a, int64_t b) { return a % b; }

//@ remainder needs fmod
static inline float pb_remainder(float a, float b) {
  float r = pb_fmod(a, b);
  return (r != 0.0f) & ((r < 0.0f) != (b < 0.0f)) ? r + b : r;
}
static inline int64_t pb_remainder(int64_t a, int64_t b) {
  int64_t r = a % b;
  return (r != 0) & ((r < 0) != (b < 0)) ? r + b : r;
}

//@ floordiv
static inline int64_t pb_floordiv(int64_t a, int64_t b) {
  return a / b - ((a % b != 0) & ((a < 0) != (b < 0)));
}

//@ truncdiv
static inline int64_t pb_truncdiv(int64_t a, int64_t b) { return a / b; }

//@ pow
// 2^(b log2 |a|) in double, by series: the exponent multiplies the error of the logarithm, so float is not
// enough. A float is never a denormal double.
static inline float pb_pow(float a, float b) {
  const double x = __builtin_fabs((double)a);
  const uint64_t bits = __builtin_bit_cast(uint64_t, x);
  const uint64_t step = (bits - 0x3FE6A09E667F3BCDu + (1024ull << 52)) >> 52;
  const double e = __builtin_bit_cast(double, step + 0x4330000000000000u) - (0x1p52 + 1024.0);
  const double m = __builtin_bit_cast(double, bits - ((step - 1024) << 52));
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 1.0 / 15;
  p = __builtin_fma(p, z, 1.0 / 13);
  p = __builtin_fma(p, z, 1.0 / 11);
  p = __builtin_fma(p, z, 1.0 / 9);
  p = __builtin_fma(p, z, 1.0 / 7);
  p = __builtin_fma(p, z, 1.0 / 5);
  p = __builtin_fma(p, z, 1.0 / 3);
  const double log2 = __builtin_fma(__builtin_fma(p * z, s, s), 2.8853900817779268, e);
  double t = (double)b * (x == 0.0 ? -INFINITY : x == INFINITY ? INFINITY : log2);
  t = t > 200.0 ? 200.0 : (t < -200.0 ? -200.0 : t);
  const double shifted = t + 0x1.8p52, n = shifted - 0x1.8p52, f = (t - n) * 0.69314718055994531;
  double q = 1.0 / 362880;
  q = __builtin_fma(q, f, 1.0 / 40320);
  q = __builtin_fma(q, f, 1.0 / 5040);
  q = __builtin_fma(q, f, 1.0 / 720);
  q = __builtin_fma(q, f, 1.0 / 120);
  q = __builtin_fma(q, f, 1.0 / 24);
  q = __builtin_fma(q, f, 1.0 / 6);
  q = __builtin_fma(q, f, 0.5);
  q = __builtin_fma(q * f, f, f) + 1.0;
  const uint64_t power = (__builtin_bit_cast(uint64_t, shifted) + 1023) << 52;
  float y = (float)(q * __builtin_bit_cast(double, power));
  const float size = __builtin_fabsf(b), half = b * 0.5f;
  const bool whole = __builtin_truncf(b) == b, odd = whole & (size < 16777216.0f) & (__builtin_truncf(half) != half);
  const bool negative = pb_bits(a) < 0;
  y = negative & odd ? -y : y;
  y = (a < 0.0f) & !whole & (x < INFINITY) ? NAN : y;
  y = (a != a) | (b != b) ? NAN : y;
  return (b == 0.0f) | (a == 1.0f) | ((x == 1.0) & (size == INFINITY)) ? 1.0f : y;
}

//@ atancore
// atan of 0 <= x <= 1: above tan(pi/8) by the difference to pi/4.
static inline float pb_atancore(float x) {
  const bool far = x > 0.414213562f;
  const float r = far ? (x - 1.0f) / (x + 1.0f) : x, z = r * r;
  float p = -0.06457294523715973f;
  p = __builtin_fmaf(p, z, 0.10745672881603241f);
  p = __builtin_fmaf(p, z, -0.14264175295829773f);
  p = __builtin_fmaf(p, z, 0.1999954879283905f);
  p = __builtin_fmaf(p, z, -0.3333333134651184f);
  const float y = __builtin_fmaf(p * z, r, r);
  return far ? 0.785398163f + y : y;
}

//@ atan needs atancore
static inline float pb_atan(float x) {
  const float a = __builtin_fabsf(x), y = pb_atancore(a > 1.0f ? 1.0f / a : a);
  return __builtin_copysignf(a > 1.0f ? 1.57079633f - y : y, x);
}

//@ atan2 needs atancore
static inline float pb_atan2(float y, float x) {
  const float a = __builtin_fabsf(y), b = __builtin_fabsf(x);
  const float low = a < b ? a : b, high = a < b ? b : a;
  float q = low / high;
  q = high == 0.0f ? 0.0f : q;
  q = low == INFINITY ? 1.0f : q;
  float r = pb_atancore(q);
  r = a > b ? 1.57079633f - r : r;
  r = pb_bits(x) < 0 ? 3.14159265f - r : r;
  return (x != x) | (y != y) ? NAN : __builtin_copysignf(r, y);
}

//@ erfc
static inline float pb_erfc(float x) { return std::erfc(x); }

//@ asincore
// (asin(r) - r) / r for r * r = z <= 1/4.
static inline float pb_asincore(float z) {
  float p = 0.033815767616033554f;
  p = __builtin_fmaf(p, z, 0.017072223126888275f);
  p = __builtin_fmaf(p, z, 0.031117253005504608f);
  p = __builtin_fmaf(p, z, 0.04459794610738754f);
  p = __builtin_fmaf(p, z, 0.07500098645687103f);
  p = __builtin_fmaf(p, z, 0.1666666567325592f);
  return p * z;
}

//@ asin needs asincore
static inline float pb_asin(float x) {
  const float a = __builtin_fabsf(x);
  const bool far = a > 0.5f;
  const float z = far ? (1.0f - a) * 0.5f : a * a, r = far ? __builtin_sqrtf(z) : a;
  const float y = __builtin_fmaf(pb_asincore(z), r, r);
  return __builtin_copysignf(far ? __builtin_fmaf(-2.0f, y, 1.57079633f) : y, x);
}

//@ acos needs asincore
static inline float pb_acos(float x) {
  const float a = __builtin_fabsf(x);
  const bool far = a > 0.5f;
  const float z = far ? (1.0f - a) * 0.5f : a * a, r = far ? __builtin_sqrtf(z) : x;
  const float y = __builtin_fmaf(pb_asincore(z), r, r);
  const float edge = x < 0.0f ? 3.14159265f - 2.0f * y : 2.0f * y;
  return far ? edge : 1.57079633f - y;
}

//@ sinh needs exp expm1
// Beyond 88 by the square of exp(x / 2): exp(x) overflows before its half does.
static inline float pb_sinh(float x) {
  const float a = __builtin_fabsf(x), t = pb_expm1(a), h = pb_exp(a * 0.5f);
  const float y = a > 88.0f ? 0.5f * h * h : 0.5f * (t + t / (t + 1.0f));
  return __builtin_copysignf(y, x);
}

//@ cosh needs exp
static inline float pb_cosh(float x) {
  const float a = __builtin_fabsf(x), e = pb_exp(a), h = pb_exp(a * 0.5f);
  return a > 88.0f ? 0.5f * h * h : 0.5f * e + 0.5f / e;
}

//@ asinh needs log log1p
static inline float pb_asinh(float x) {
  const float a = __builtin_fabsf(x), z = a * a;
  const float near = pb_log1p(a + z / (1.0f + __builtin_sqrtf(z + 1.0f)));
  return __builtin_copysignf(a > 1e9f ? pb_log(a) + 0.693147181f : near, x);
}

//@ acosh needs log log1p
static inline float pb_acosh(float x) {
  const float t = x - 1.0f;
  const float near = pb_log1p(t + __builtin_sqrtf(t * (t + 2.0f)));
  return x >= 1.0f ? (x > 1e9f ? pb_log(x) + 0.693147181f : near) : NAN;
}

//@ atanh needs log1p
static inline float pb_atanh(float x) {
  const float a = __builtin_fabsf(x);
  return __builtin_copysignf(0.5f * pb_log1p(2.0f * a / (1.0f - a)), x);
}

//@ divisor
// Division of a whole row by one number: x * scale * reciprocal, within 1.5 ulp of x / d. The power of two
// keeps the reciprocal of a denormal finite and that of a huge number normal; 0, infinity and NaN divide as
// they should.
struct PbDivisor {
  float scale, reciprocal;
  explicit PbDivisor(float d) {
    const float size = __builtin_fabsf(d);
    scale = size < 0x1p-100f ? 0x1p100f : size > 0x1p100f ? 0x1p-100f : 1.0f;
    reciprocal = 1.0f / (d * scale);
  }
  float into(float x) const { return x * scale * reciprocal; }
};

//@ float16
// Bit arithmetic, so that loops over half-precision data stay vector loops.
static inline float pb_from_float16(uint16_t h) {
  int32_t em = h & 0x7FFF;
  int32_t b = pb_bits(pb_float(em << 13) * 5.192296858534828e33f);
  b = em >= 0x7C00 ? b | 0x7F800000 : b;
  return pb_float(b | ((int32_t)(h & 0x8000) << 16));
}
static inline uint16_t pb_to_float16(float x) {
  int32_t b = pb_bits(x), a = b & 0x7FFFFFFF;
  int32_t normal = (a + 0xFFF + ((a >> 13) & 1) - 0x38000000) >> 13;
  int32_t small = pb_bits(pb_float(a < 0x38800000 ? a : 0) + 0.5f) - 0x3F000000;
  int32_t r = a < 0x38800000 ? small : normal;
  r = a >= 0x47800000 ? 0x7C00 : r;
  r = a > 0x7F800000 ? 0x7E00 : r;
  return (uint16_t)(r | ((b >> 16) & 0x8000));
}

//@ bfloat16
static inline float pb_from_bfloat16(uint16_t h) { return pb_float((int32_t)((uint32_t)h << 16)); }
static inline uint16_t pb_to_bfloat16(float x) {
  uint32_t b = (uint32_t)pb_bits(x);
  uint32_t r = (b + 0x7FFF + ((b >> 16) & 1)) >> 16;
  return (uint16_t)(x != x ? 0x7FC0 : r);
}

//@ gemm
// BLAS as libtorch exports it, column-major: C^T = B^T A^T. `ta`, `tb` say that an operand lies
// transposed in memory; lda, ldb are its leading strides.
extern "C" void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                       const int*, const float*, const int*, const float*, float*, const int*);
static inline void pb_gemm(const float* a, bool ta, int64_t lda, const float* b, bool tb, int64_t ldb, float* c,
                           int64_t m, int64_t n, int64_t k, int64_t ldc) {
  const float one = 1.0f, zero = 0.0f;
  const int im = (int)m, in = (int)n, ik = (int)k, ia = (int)lda, ib = (int)ldb, ic = (int)ldc;
  sgemm_(tb ? "T" : "N", ta ? "T" : "N", &in, &im, &ik, &one, b, &ib, a, &ia, &zero, c, &ic);
}

//@ pack
extern "C" void playbook_pack(const char* source, char* target, int64_t itemsize, int dims, const int64_t* sizes,
                              const int64_t* strides, void*) {
  int64_t total = 1;
  for (int d = 0; d < dims; ++d) total *= sizes[d];
  #pragma omp parallel for schedule(static) if (total >= 65536)
  for (int64_t k = 0; k < total; ++k) {
    int64_t rest = k, offset = 0;
    for (int d = dims - 1; d >= 0; --d) {
      offset += rest % sizes[d] * strides[d];
      rest /= sizes[d];
    }
    __builtin_memcpy(target + k * itemsize, source + offset * itemsize, itemsize);
  }
}
