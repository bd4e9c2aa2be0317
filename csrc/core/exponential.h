// exp, sigmoid and tanh without branches, so that the compiler can vectorise loops over them on the
// CPU. The GPU uses the same formulas.
#pragma once

#include <cmath>

#include "exact_math.h"

namespace ds {

/// Returns e^x within 1 ulp, as 2^n times a polynomial of degree 7 in the remainder |r| <= ln(2) /
/// 2. Overflow gives infinity, underflow gives subnormals and 0, and NaN stays NaN.
DS_HOST_DEVICE float exp_of(float x) {
#ifdef __CUDA_ARCH__
  return expf(x);
#else
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer, in the low bits
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float shifted = fma_rn(x, kLog2e, kRound);
  const float n = shifted - kRound;
  const float r = fma_rn(-n, kLn2Low, fma_rn(-n, kLn2High, x));
  float p = 1.98412698e-4f;
  p = fma_rn(p, r, 1.38888889e-3f);
  p = fma_rn(p, r, 8.33333333e-3f);
  p = fma_rn(p, r, 4.16666667e-2f);
  p = fma_rn(p, r, 1.66666667e-1f);
  p = fma_rn(p, r, 5.00000000e-1f);
  p = fma_rn(p, r, 1.0f);
  p = fma_rn(p, r, 1.0f);
  // Multiplies by 2^n in two factors, because n may exceed the exponent range of normal floats.
  const int32_t exponent = static_cast<int32_t>(bits_of(shifted) - bits_of(kRound));
  const int32_t half = exponent >> 1;
  const float first = float_of_bits(static_cast<uint32_t>(half + 127) << 23);
  const float second = float_of_bits(static_cast<uint32_t>(exponent - half + 127) << 23);
  return p * first * second;
#endif
}

DS_HOST_DEVICE double exp_of(double x) { return exp(x); }

/// Returns a / b. The GPU uses its 2-ulp division, which returns 0 for |b| > 2^126.
DS_HOST_DEVICE float quotient(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

DS_HOST_DEVICE double quotient(double a, double b) { return a / b; }

/// Returns 1 / (1 + e^-x).
template <class T>
DS_HOST_DEVICE T sigmoid_of(T x) {
  return quotient(T(1), T(1) + exp_of(-x));
}

/// Returns tanh(x) within 2 ulp: an odd polynomial for |x| < 0.625 (Cephes tanhf), otherwise 1 - 2
/// / (e^2|x| + 1).
DS_HOST_DEVICE float tanh_of(float x) {
  const float magnitude = fabsf(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = fma_rn(p, z, 2.06390887954e-2f);
  p = fma_rn(p, z, -5.37397155531e-2f);
  p = fma_rn(p, z, 1.33314422036e-1f);
  p = fma_rn(p, z, -3.33332819422e-1f);
  const float near_zero = fma_rn(p * z, x, x);
  const float far = copysignf(1.0f - quotient(2.0f, exp_of(2.0f * magnitude) + 1.0f), x);
  // A mask selects the result, because a branch would keep the loop from being vectorised.
  const uint32_t mask = magnitude < 0.625f ? ~0u : 0u;
  return float_of_bits((bits_of(near_zero) & mask) | (bits_of(far) & ~mask));
}

DS_HOST_DEVICE double tanh_of(double x) { return tanh(x); }

}  // namespace ds
