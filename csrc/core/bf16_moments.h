// How AdamW's moments are rounded where they are kept in bf16: integer operations, the same bits on
// every back end.
#pragma once

#include "exact_math.h"

namespace ds {

/// The float of these 16 bits.
DS_HOST_DEVICE float float_of_bf16(uint16_t bits) {
  return float_of_bits(static_cast<uint32_t>(bits) << 16);
}

/// `rounded` is the sum of a float's bits and what carries into their upper half; a NaN stays one.
DS_HOST_DEVICE uint16_t upper_bf16(uint32_t bits, uint32_t rounded) {
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? 0x7fffu : rounded >> 16);
}

/// m to nearest, ties to even: an average over 1 / (1 - beta1) steps moves by more than half a unit
/// of its 8 bits at each.
DS_HOST_DEVICE uint16_t round_m(float m) {
  const uint32_t bits = bits_of(m);
  return upper_bf16(bits, bits + 0x7fffu + (bits >> 16 & 1u));
}

/// v up or down, by chances that make the expectation exact. To the nearest a v would stay where it
/// is for good: with beta2 = 0.999 it shrinks by a thousandth per step, and half a unit is 2 to 4
/// thousandths. Source: Gupta et al. 2015, arXiv:1502.02551. The chance is drawn from the bits of
/// the updated p and m, which are other ones at each step: no counter is kept, and the bits do not
/// depend on where an element lies, on which rank, or how often a step is computed.
DS_HOST_DEVICE uint16_t round_v(float v, float p, float m) {
  uint32_t random = bits_of(p) * 0x9e3779b1u ^ bits_of(m) * 0x85ebca77u;
  random = (random ^ random >> 15) * 0xc2b2ae3du;
  const uint32_t bits = bits_of(v);
  return upper_bf16(bits, bits + (random >> 16));
}

}  // namespace ds
