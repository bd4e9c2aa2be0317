// Weights and keys of random draws, with the same bits on CPU and GPU.
#pragma once

#include "../core/random_math.h"

namespace ds {

/// Returns true if p is finite and not negative. Then it may be a probability before division by
/// the sum.
DS_HOST_DEVICE bool is_probability(float p) { return p >= 0.0f && p < __builtin_inff(); }

/// Returns an integer proportional to p: 2^38 for p = max, 0 for p = 0, otherwise at least 1.
DS_HOST_DEVICE int64_t weight_of(float p, float max) {
  if (p <= 0.0f) return 0;
  const int64_t weight = static_cast<int64_t>(mul_rn(div_rn(p, max), 0x1p38f));
  return weight < 1 ? 1 : weight;
}

/// Returns an integer in [0, total) from two words. `total` is below 2^63.
DS_HOST_DEVICE int64_t below(int64_t total, uint32_t high, uint32_t low) {
  const uint64_t word = uint64_t{high} << 32 | low;
#ifdef __CUDA_ARCH__
  return static_cast<int64_t>(__umul64hi(word, static_cast<uint64_t>(total)));
#else
  return static_cast<int64_t>(static_cast<unsigned __int128>(word) * static_cast<uint64_t>(total) >>
                              64);
#endif
}

/// Returns an exponential number from a word: -log(1 - u) for u in (0, 1). For small u it uses the
/// series, so that small results have full precision.
DS_HOST_DEVICE float exponential_of(uint32_t word) {
  const float wide = fma_rn(static_cast<float>(word), 0x1p-32f, 0x1p-33f);
  const float u = wide < 0x1.fffffep-1f ? wide : 0x1.fffffep-1f;
  if (u >= 0x1p-7f) return -exact_log(sub_rn(1.0f, u));
  float series = fma_rn(u, 0.25f, 0.333333343f);
  series = fma_rn(series, u, 0.5f);
  series = fma_rn(series, u, 1.0f);
  return mul_rn(series, u);
}

/// Returns p divided by an exponential number. The elements of a row with the largest keys are a
/// sample without replacement. The result is finite, and 0 for p below the smallest normal float.
DS_HOST_DEVICE float race_key(float p, uint32_t word) {
  constexpr float kLeast = 0x1p-126f, kMost = 0x1.fffffep127f;
  if (p < kLeast) return 0.0f;
  const float key = div_rn(p, exponential_of(word));
  return key < kLeast ? kLeast : key > kMost ? kMost : key;
}

}  // namespace ds
