// An f32 master weight as two halves of 16 bits and one bit more: the first half is the bf16
// weight.
#pragma once

#include <cstdint>

#include "philox.h"

namespace ds {

/// Rounding to nearest, ties to even, takes 65537 floats to a bf16 number that is even, so that 16
/// bits beside it cannot tell all of them apart. The lower half is the difference of the bits,
/// modulo 2^16; `tie` is set where it is +2^15, not -2^15: halfway to the next number, rounded
/// down. All NaNs round to one number; of these the lower half is the upper half of the float,
/// quiet: a NaN keeps its sign and what bf16 has of its payload. Every other float comes back bit
/// by bit.
struct MasterHalves {
  uint16_t high;  // the bf16 weight
  uint16_t low;
  bool tie;
};

/// What every NaN is in bf16, and nothing else.
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

/// Of a NaN it says nothing, and is not read.
DS_HOST_DEVICE bool is_master_tie(uint32_t bits) { return (bits & 0x1ffffu) == 0x8000u; }

DS_HOST_DEVICE MasterHalves split_master(uint32_t bits) {
  return {static_cast<uint16_t>(high_of_master(bits)), static_cast<uint16_t>(low_of_master(bits)),
          is_master_tie(bits)};
}

/// The bits of a master weight whose `tie` is not set.
DS_HOST_DEVICE uint32_t join_master(uint16_t high, uint16_t low) {
  const uint32_t difference =
      static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(low)));
  const uint32_t joined = (uint32_t{high} << 16) + difference;
  return high == kHighNan ? uint32_t{low} << 16 : joined;
}

/// What is added to the bits of a float, no NaN, whose `tie` is set.
constexpr uint32_t kTieStep = 0x10000u;

DS_HOST_DEVICE uint32_t join_master(const MasterHalves& x) {
  const uint32_t joined = join_master(x.high, x.low);
  return x.tie && x.high != kHighNan ? joined + kTieStep : joined;
}

}  // namespace ds
