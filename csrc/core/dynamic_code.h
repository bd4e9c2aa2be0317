// The code books of 8-bit moments: 256 numbers in [-1, 1] or [0, 1], dense around zero in every
// decade. Source: Dettmers et al. 2021, arXiv:2110.02861, dynamic tree quantization; bitsandbytes'
// create_dynamic_map.
#pragma once

#include "exact_math.h"

namespace ds {

/// Elements that share a scale.
constexpr int64_t kCodeBlock = 256;

/// Ascending values, and the f32 midpoints between neighbours.
struct DynamicCode {
  float value[256];
  float middle[255];
  int zero;  // the code of 0
};

/// For each decade 10^(i - 6), i from 0 to 6, the midpoints of equal parts of [0.1, 1] of it. The
/// number of parts doubles with each decade: 2^i with both signs, 2^(i + 1) without. Also 0 and 1.
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

/// Returns the nearest code of x, the lower one at a tie. A negative x gets a negative code, as in
/// bitsandbytes. Without a sign, an x above 0 gets a code above 0: a second moment of 0 with a
/// first moment above 0 would make the next step m / eps.
DS_HOST_DEVICE int nearest_code(const float* middle, int zero, float x) {
  int code = 0;
#pragma GCC unroll 8
  for (int step = 128; step > 0; step /= 2) code += x > middle[code + step - 1] ? step : 0;
  if (code != zero) return code;
  return zero == 0 ? (x > 0.0f ? 1 : 0) : (x < 0.0f ? zero - 1 : zero);
}

}  // namespace ds
