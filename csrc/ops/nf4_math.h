// Converts between values and codes of a code book, with the same bits on CPU and GPU.
#pragma once

#include "../core/exact_math.h"

namespace ds {

/// Returns the index of the nearest of 16 ascending codes, the lower one at a tie. NaN gives 0.
DS_HOST_DEVICE uint8_t nearest_of_16(const float* code, float x) {
  uint8_t nearest = 0;
  for (int i = 0; i < 15; ++i) nearest += x > mul_rn(add_rn(code[i], code[i + 1]), 0.5f);
  return nearest;
}

/// Returns the index of the nearest of 256 codes by bisection, which decides ties. Source:
/// dQuantize of bitsandbytes, without its random rounding.
DS_HOST_DEVICE uint8_t nearest_of_256(const float* code, float x) {
  int at = 127, below = 0, above = 255;
  for (int step = 64; step > 0; step /= 2) {
    if (x > code[at]) {
      below = at;
      at += step;
    } else {
      above = at;
      at -= step;
    }
  }
  if (x > code[at]) return x > mul_rn(add_rn(code[above], code[at]), 0.5f) ? above : at;
  return x < mul_rn(add_rn(code[below], code[at]), 0.5f) ? below : at;
}

/// Returns the factor that values are multiplied by before the search for the nearest code.
DS_HOST_DEVICE float inverse_scale(float absmax) { return div_rn(1.0f, absmax); }

/// Returns the scale of a block that is stored in 8 bits.
DS_HOST_DEVICE float nested_scale(float code, float absmax, float offset) {
  return add_rn(mul_rn(code, absmax), offset);
}

/// Returns code i of packed pairs.
DS_HOST_DEVICE int code_of(const uint8_t* packed, int64_t i) {
  const int pair = packed[i / 2];
  return i % 2 == 0 ? pair >> 4 : pair & 15;
}

}  // namespace ds
