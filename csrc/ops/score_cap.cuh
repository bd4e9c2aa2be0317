// The soft cap of attention scores on the GPU. Source: Gemma 2.
#pragma once

#include <cuda_runtime.h>

namespace ds::cuda {

/// Replaces a scaled score s by cap tanh(s / cap). Kernels keep scores in other units: products
/// before the scale, or powers of two. `products` and `powers` are the cap in these units.
struct ScoreCap {
  float products, powers;  // 0: no cap

  __device__ bool is_set() const { return powers > 0.f; }

  /// Returns unit tanh(x / unit). The absolute error is about 1e-7 units.
  static __device__ __forceinline__ float bounded(float x, float unit) {
    constexpr float kTwoLog2e = 2.8853900817779268f;
    return unit * (1.f - __fdividef(2.f, exp2f(x / unit * kTwoLog2e) + 1.f));
  }

  /// Replaces the scores of a thread, which are products.
  template <int kRows, int kColumns>
  __device__ __forceinline__ void apply(float (&scores)[kRows][kColumns][4]) const {
#pragma unroll
    for (int m = 0; m < kRows; ++m) apply(scores[m]);
  }
  template <int kColumns>
  __device__ __forceinline__ void apply(float (&scores)[kColumns][4]) const {
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] = bounded(scores[n][e], products);
  }

  /// Returns the derivative of a bounded score by its product, given the bounded score in powers of
  /// two; 0 for a hidden key.
  __device__ __forceinline__ float slope(float score_log2) const {
    const float t = fmaxf(score_log2 / powers, -1.f);
    return 1.f - t * t;
  }
};

/// Returns the cap for kernels of a scale.
inline ScoreCap score_cap(double cap, double scale) {
  if (cap == 0) return {};
  return {static_cast<float>(cap / scale), static_cast<float>(cap * 1.4426950408889634)};
}

}  // namespace ds::cuda
