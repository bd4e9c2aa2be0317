// Code books of 8-bit optimizer moments: 256 numbers in [-1, 1] or [0, 1] with equal relative
// spacing over seven decades. Source: Dettmers et al. 2021, arXiv:2110.02861 (dynamic tree
// quantization), and create_dynamic_map of bitsandbytes.
#pragma once

#include "exact_math.h"

namespace ds {

/// Number of consecutive elements that share a scale.
constexpr int64_t kCodeBlock = 256;

/// A code book: values in ascending order, and the f32 midpoints between neighbours.
struct DynamicCode {
  float value[256];
  float middle[255];
  int zero;  // the code of 0
};

/// Builds a code book. It divides [0.1, 1] of each decade 10^(i - 6), i from 0 to 6, into equal
/// parts and takes their midpoints. Decade i has 2^i parts with both signs, or 2^(i + 1) parts
/// without a sign. The values 0 and 1 complete the book.
constexpr DynamicCode dynamic_code(bool has_sign) {
  DynamicCode code = {};
  code.zero = has_sign ? 127 : 0;
  int at = code.zero;
  double decade = 1e-6;
  code.value[at++] = 0.0f;
  for (int i = 0; i < 7; ++i, decade *= 10) {
    const int parts = has_sign ? 1 << i : 2 << i;
    for (int k = 0; k < parts; ++k)
      code.value[at++] = static_cast<float>(decade * (0.1 + 0.9 * (k + 0.5) / parts));
  }
  code.value[at] = 1.0f;
  for (int i = 0; i < code.zero; ++i) code.value[i] = -code.value[2 * code.zero - i];
  for (int i = 0; i < 255; ++i) {
    code.middle[i] = static_cast<float>(
        (static_cast<double>(code.value[i]) + static_cast<double>(code.value[i + 1])) / 2);
  }
  return code;
}

/// Returns the code of the value nearest to x, the lower code at a tie. A negative x gets a
/// negative code, as in bitsandbytes. Without a sign, a positive x never gets the code of 0: with a
/// second moment of 0, a positive first moment would make the next step m / eps.
DS_HOST_DEVICE int nearest_code(const float* middle, int zero, float x) {
  int code = 0;
#pragma GCC unroll 8
  for (int step = 128; step > 0; step /= 2) code += x > middle[code + step - 1] ? step : 0;
  if (code != zero) return code;
  return zero == 0 ? (x > 0.0f ? 1 : 0) : (x < 0.0f ? zero - 1 : zero);
}

}  // namespace ds
