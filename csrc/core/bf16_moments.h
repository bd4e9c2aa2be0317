// Rounding of AdamW's moments to bf16 by integer operations, with the same bits on every back end.
#pragma once

#include "exact_math.h"

namespace ds {

/// The float of these 16 bits.
DS_HOST_DEVICE float float_of_bf16(uint16_t bits) {
  return float_of_bits(static_cast<uint32_t>(bits) << 16);
}

/// `rounded` is a float's bits plus the rounding increment; a NaN stays NaN.
DS_HOST_DEVICE uint16_t upper_bf16(uint32_t bits, uint32_t rounded) {
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? 0x7fffu : rounded >> 16);
}

/// Rounds m to nearest even. An average over 1 / (1 - beta1) steps moves by more than half a unit
/// of its 8 bits at each step.
DS_HOST_DEVICE uint16_t round_m(float m) {
  const uint32_t bits = bits_of(m);
  return upper_bf16(bits, bits + 0x7fffu + (bits >> 16 & 1u));
}

/// Rounds v stochastically, so the expectation is exact. Rounding to nearest would freeze v: with
/// beta2 = 0.999 it shrinks by a thousandth per step, and half a unit is 2 to 4 thousandths.
/// Source: Gupta et al. 2015, arXiv:1502.02551. The random bits derive from the updated p and m,
/// which change at each step. So there is no counter, and the bits do not depend on an element's
/// index, on its rank, or on a recomputation of the step.
DS_HOST_DEVICE uint16_t round_v(float v, float p, float m) {
  uint32_t random = bits_of(p) * 0x9e3779b1u ^ bits_of(m) * 0x85ebca77u;
  random = (random ^ random >> 15) * 0xc2b2ae3du;
  const uint32_t bits = bits_of(v);
  return upper_bf16(bits, bits + (random >> 16));
}

}  // namespace ds
