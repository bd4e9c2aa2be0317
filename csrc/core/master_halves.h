// An f32 master weight as two 16-bit halves and a tie bit. The upper half is the bf16 weight.
#pragma once

#include <cstdint>

#include "philox.h"

namespace ds {

/// Rounding to nearest even maps 65537 floats to a bf16 number with an even mantissa, so 16 more
/// bits cannot distinguish all of them. The lower half is the difference of the bits, modulo 2^16.
/// `tie` is set if the difference is +2^15, not -2^15: halfway to the next number, rounded down.
/// All NaNs round to one number. The lower half of a NaN is the upper half of the float, made
/// quiet: a NaN keeps its sign and its bf16 payload. Every other float returns bit by bit.
struct MasterHalves {
  uint16_t high;  // the bf16 weight
  uint16_t low;
  bool tie;
};

/// The bf16 bits of every NaN; no other float has them.
constexpr uint32_t kHighNan = 0x7fffu;

DS_HOST_DEVICE bool is_nan_bits(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

DS_HOST_DEVICE uint32_t high_of_master(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return is_nan_bits(bits) ? kHighNan : rounded;
}

/// Its lower 16 bits count.
DS_HOST_DEVICE uint32_t low_of_master(uint32_t bits) {
  return is_nan_bits(bits) ? (bits >> 16) | 0x40u : bits;
}

/// Undefined and unused for NaN.
DS_HOST_DEVICE bool is_master_tie(uint32_t bits) { return (bits & 0x1ffffu) == 0x8000u; }

DS_HOST_DEVICE MasterHalves split_master(uint32_t bits) {
  return {static_cast<uint16_t>(high_of_master(bits)), static_cast<uint16_t>(low_of_master(bits)),
          is_master_tie(bits)};
}

/// Returns the bits of a master weight without `tie`.
DS_HOST_DEVICE uint32_t join_master(uint16_t high, uint16_t low) {
  const uint32_t difference =
      static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(low)));
  const uint32_t joined = (uint32_t{high} << 16) + difference;
  return high == kHighNan ? uint32_t{low} << 16 : joined;
}

/// Added to the bits of a float (not NaN) with `tie`.
constexpr uint32_t kTieStep = 0x10000u;

DS_HOST_DEVICE uint32_t join_master(const MasterHalves& x) {
  const uint32_t joined = join_master(x.high, x.low);
  return x.tie && x.high != kHighNan ? joined + kTieStep : joined;
}

}  // namespace ds
