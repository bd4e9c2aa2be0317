// Rounds AdamW's moments to bf16 with integer operations, so that all back ends compute the same
// bits.
#pragma once

#include "exact_math.h"

namespace ds {

/// Converts bf16 bits to f32, which is exact.
DS_HOST_DEVICE float float_of_bf16(uint16_t bits) {
  return float_of_bits(static_cast<uint32_t>(bits) << 16);
}

/// Returns the upper 16 bits of `rounded`, which is `bits` plus the rounding increment. Returns a
/// NaN if `bits` is a NaN.
DS_HOST_DEVICE uint16_t upper_bf16(uint32_t bits, uint32_t rounded) {
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? 0x7fffu : rounded >> 16);
}

/// Rounds the first moment to nearest even. Rounding cannot freeze it: m averages over 1 / (1 -
/// beta1) steps, so a step usually changes it by more than half a bf16 unit.
DS_HOST_DEVICE uint16_t round_m(float m) {
  const uint32_t bits = bits_of(m);
  return upper_bf16(bits, bits + 0x7fffu + (bits >> 16 & 1u));
}

/// Rounds the second moment stochastically, so that its expectation is exact. Rounding to nearest
/// would freeze v: with beta2 = 0.999 it shrinks by 0.1 % per step, but half a bf16 unit is 0.2 %
/// to 0.4 %. The random bits are a hash of the updated p and m, which change at each step. They
/// need no counter and do not depend on the element's index, the rank, or a recomputation of the
/// step. Source: Gupta et al. 2015, arXiv:1502.02551.
DS_HOST_DEVICE uint16_t round_v(float v, float p, float m) {
  uint32_t random = bits_of(p) * 0x9e3779b1u ^ bits_of(m) * 0x85ebca77u;
  random = (random ^ random >> 15) * 0xc2b2ae3du;
  const uint32_t bits = bits_of(v);
  return upper_bf16(bits, bits + (random >> 16));
}

}  // namespace ds
