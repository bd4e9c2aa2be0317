// Loops over one row: conversion to and from the compute type, and reductions in a fixed order.
#pragma once

#include <limits>
#include <type_traits>

#include "cpu_context.h"

namespace ds::cpu {

/// Converts n elements to the compute type. f16 is converted by eight, which the compiler cannot
/// do.
template <class T>
inline void widen(const T* in, compute_t<T>* out, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, f16>) {
    for (; i + 8 <= n; i += 8) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
    }
  }
#elif defined(__aarch64__)
  if constexpr (std::is_same_v<T, f16>) {
    for (; i + 8 <= n; i += 8) {
      const float16x8_t half = vld1q_f16(reinterpret_cast<const float16_t*>(in + i));
      vst1q_f32(out + i, vcvt_f32_f16(vget_low_f16(half)));
      vst1q_f32(out + i + 4, vcvt_high_f32_f16(half));
    }
  }
#endif
  for (; i < n; ++i) out[i] = static_cast<compute_t<T>>(in[i]);
}

/// Rounds n compute values to the storage type. `out` may be `in` if the types are equal.
template <class T>
inline void narrow(const compute_t<T>* in, T* out, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, f16>) {
    for (; i + 8 <= n; i += 8) {
      const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), half);
    }
  }
#elif defined(__aarch64__)
  if constexpr (std::is_same_v<T, f16>) {
    for (; i + 8 <= n; i += 8) {
      const float16x4_t low = vcvt_f16_f32(vld1q_f32(in + i));
      vst1q_f16(reinterpret_cast<float16_t*>(out + i),
                vcvt_high_f16_f32(low, vld1q_f32(in + i + 4)));
    }
  }
#endif
  for (; i < n; ++i) out[i] = static_cast<T>(in[i]);
}

constexpr int kLanes = 32;

/// Returns the sum of term(0) to term(n - 1). It adds them in kLanes partial sums, then halves the
/// number of sums until one is left. The order depends on n only.
template <class C, class F>
inline C sum_of(int64_t n, F term) {
  C lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) lanes[j] += term(i + j);
  for (int j = 0; i + j < n; ++j) lanes[j] += term(i + j);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

/// Returns the largest of x[0] to x[n - 1], or -infinity if n is 0. Ignores NaN, because the
/// computation that uses the maximum propagates it.
template <class C>
inline C max_of(const C* x, int64_t n) {
  C lanes[kLanes];
  for (C& lane : lanes) lane = -std::numeric_limits<C>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  for (int j = 0; i + j < n; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j)
      lanes[j] = lanes[j + width] > lanes[j] ? lanes[j + width] : lanes[j];
  return lanes[0];
}

}  // namespace ds::cpu
