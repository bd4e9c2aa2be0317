// Converts between values and 8- or 4-bit codes, with the same bits on CPU and GPU.
#pragma once

#include "../core/exact_math.h"

namespace ds {

/// Returns the code of 0 for rows without zero points.
DS_HOST_DEVICE float middle_code(int64_t bits) { return static_cast<float>(1 << (bits - 1)); }

/// Returns half of the code range in steps, which is the code of the largest magnitude.
DS_HOST_DEVICE float half_range(int64_t bits) { return 0.5f * static_cast<float>((1 << bits) - 1); }

/// Returns the larger magnitude, or NaN if either is NaN.
DS_HOST_DEVICE float larger_magnitude(float most, float x) {
  const float magnitude = x < 0.0f ? -x : x;
  return magnitude > most || magnitude != magnitude ? magnitude : most;
}

/// Returns `rounded`, the 16- or 32-bit scale for `value` (not negative), or the next larger number
/// if it is below `wanted`. An f32 scale is returned unchanged: its error is one rounding.
template <class S>
DS_HOST_DEVICE S step_at_least(S rounded, float value, float wanted) {
  if constexpr (sizeof(S) == 2) {
    if (value < wanted) {
      uint16_t bits;
      __builtin_memcpy(&bits, &rounded, sizeof bits);
      ++bits;
      __builtin_memcpy(&rounded, &bits, sizeof bits);
    }
  }
  return rounded;
}

/// Returns the code nearest to x, ties to even, with steps of `step` around the middle code.
/// Returns the middle code if `step` is 0, and the lowest code for NaN.
DS_HOST_DEVICE uint32_t code_of_value(float x, float step, int64_t bits) {
  const float middle = middle_code(bits), last = 2.0f * middle - 1.0f;
  if (step == 0.0f) return static_cast<uint32_t>(middle);
  const float code = __builtin_rintf(div_rn(x, step)) + middle;
  if (!(code >= 0.0f)) return 0;
  return static_cast<uint32_t>(code > last ? last : code);
}

/// Returns the value of a code. The difference is exact; the product is rounded once.
DS_HOST_DEVICE float value_of_code(uint32_t code, float zero, float step) {
  return mul_rn(static_cast<float>(code) - zero, step);
}

/// Returns the lowest bit of output `row` in its word of an AWQ file: nibbles 0 to 7 of a word hold
/// the outputs 0 2 4 6 1 3 5 7 of eight.
DS_HOST_DEVICE int awq_shift(int64_t row) {
  const int place = static_cast<int>(row % 8);
  return 4 * (place % 2 * 4 + place / 2);
}

}  // namespace ds
