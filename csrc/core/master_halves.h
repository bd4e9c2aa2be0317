// Splits an f32 master weight into its bf16 weight, 16 lower bits and a tie bit, without loss.
#pragma once

#include <cstdint>

#include "philox.h"

namespace ds {

/// A split master weight. `high` is the f32 weight rounded to nearest even. `low` is the f32 bits
/// minus those of `high`, modulo 2^16. Up to 65537 floats round to one bf16 number, one more than
/// 16 bits distinguish. `tie` marks the extra float: its difference is +2^15 (halfway, rounded
/// down) instead of -2^15. All NaNs share one `high`. Then `low` is the upper half of the float as
/// a quiet NaN, which keeps its sign and bf16 payload. Any other float is restored bit for bit.
struct MasterHalves {
  uint16_t high;  // the bf16 weight
  uint16_t low;
  bool tie;
};

/// The `high` bits of every NaN. No other float has them.
constexpr uint32_t kHighNan = 0x7fffu;

DS_HOST_DEVICE bool is_nan_bits(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

/// Returns the bits of the bf16 weight: rounded to nearest even, or kHighNan.
DS_HOST_DEVICE uint32_t high_of_master(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return is_nan_bits(bits) ? kHighNan : rounded;
}

/// Returns `low` in its lower 16 bits. The upper 16 bits are undefined.
DS_HOST_DEVICE uint32_t low_of_master(uint32_t bits) {
  return is_nan_bits(bits) ? (bits >> 16) | 0x40u : bits;
}

/// Returns `tie`. The result for a NaN is undefined, and join_master() ignores it.
DS_HOST_DEVICE bool is_master_tie(uint32_t bits) { return (bits & 0x1ffffu) == 0x8000u; }

/// Splits the bits of a master weight.
DS_HOST_DEVICE MasterHalves split_master(uint32_t bits) {
  return {static_cast<uint16_t>(high_of_master(bits)), static_cast<uint16_t>(low_of_master(bits)),
          is_master_tie(bits)};
}

/// Returns the f32 bits of a master weight, for `tie` = false.
DS_HOST_DEVICE uint32_t join_master(uint16_t high, uint16_t low) {
  const uint32_t difference =
      static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(low)));
  const uint32_t joined = (uint32_t{high} << 16) + difference;
  return high == kHighNan ? uint32_t{low} << 16 : joined;
}

/// The value that a set `tie` adds to the f32 bits (not for NaN).
constexpr uint32_t kTieStep = 0x10000u;

/// Returns the bits of a master weight.
DS_HOST_DEVICE uint32_t join_master(const MasterHalves& x) {
  const uint32_t joined = join_master(x.high, x.low);
  return x.tie && x.high != kHighNan ? joined + kTieStep : joined;
}

}  // namespace ds
