// Joins and splits rows of master weights (core/master_halves.h). The loops have no branches. Ties,
// one in 2^17 floats, are handled separately.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "../core/master_halves.h"
#include "processor.h"

namespace ds::cpu {

/// Join and split loops for two instruction sets. They only move bits. `split` returns 0 if the row
/// has no ties. The caller handles the ties.
struct HalvesLoops {
  void (*join)(const uint16_t* high, const uint16_t* low, float* out, int64_t n);
  uint32_t (*split)(const float* in, uint16_t* high, uint16_t* low, int64_t n);

#define DS_HALVES_LOOPS(suffix)                                                                  \
  static void join_##suffix(const uint16_t* __restrict high, const uint16_t* __restrict low,     \
                            float* __restrict out, int64_t n) {                                  \
    for (int64_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(join_master(high[i], low[i])); \
  }
#define DS_SPLIT_LOOPS(suffix)                                                          \
  static uint32_t split_##suffix(const float* __restrict in, uint16_t* __restrict high, \
                                 uint16_t* __restrict low, int64_t n) {                 \
    uint32_t any = 0;                                                                   \
    for (int64_t i = 0; i < n; ++i) {                                                   \
      const uint32_t bits = std::bit_cast<uint32_t>(in[i]);                             \
      high[i] = static_cast<uint16_t>(high_of_master(bits));                            \
      low[i] = static_cast<uint16_t>(low_of_master(bits));                              \
      any |= static_cast<uint32_t>(is_master_tie(bits));                                \
    }                                                                                   \
    return any;                                                                         \
  }
  __attribute__((noinline)) DS_HALVES_LOOPS(baseline) __attribute__((noinline))
  DS_SPLIT_LOOPS(baseline)
#if defined(__x86_64__)
      __attribute__((noinline, target("arch=x86-64-v4"))) DS_HALVES_LOOPS(avx512)
          __attribute__((noinline, target("arch=x86-64-v4"))) DS_SPLIT_LOOPS(avx512)
#endif
#undef DS_HALVES_LOOPS
#undef DS_SPLIT_LOOPS

      /// Returns the loops of the widest instruction set that this processor has.
      static HalvesLoops choose() {
#if defined(__x86_64__)
    if (runs_avx512()) return {join_avx512, split_avx512};
#endif
    return {join_baseline, split_baseline};
  }

  static const HalvesLoops& chosen() {
    static const HalvesLoops loops = choose();
    return loops;
  }
};

/// Joins n floats. The tie bit of float i is bit i % 8 of ties[i / 8].
inline void join_masters(const uint16_t* high, const uint16_t* low, const uint8_t* ties, float* out,
                         int64_t n) {
  HalvesLoops::chosen().join(high, low, out, n);
  const auto correct = [&](uint64_t word, int64_t first) {
    for (; word != 0; word &= word - 1) {
      const int64_t i = first + std::countr_zero(word);
      if (i < n && high[i] != kHighNan)
        out[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(out[i]) + kTieStep);
    }
  };
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t word;
    std::memcpy(&word, ties + i / 8, sizeof(word));
    if (word != 0) [[unlikely]]
      correct(word, i);
  }
  for (; i < n; i += 8) correct(ties[i / 8], i);
}

/// Number of floats tested for ties at once. One in 512 such rows has a tie.
constexpr int64_t kTieRow = 256;

/// Returns true if any of n masters has a tie.
inline bool has_ties(const uint8_t* ties, int64_t n) {
  const uint8_t* const end = ties + (n + 7) / 8;
  return std::any_of(ties, end, [](uint8_t byte) { return byte != 0; });
}

/// Writes the tie bits of n floats. Bits beyond n in the last byte become 0.
inline void mark_ties(const float* in, uint8_t* ties, int64_t n) {
  std::fill_n(ties, (n + 7) / 8, uint8_t{0});
  for (int64_t i = 0; i < n; ++i)
    if (is_master_tie(std::bit_cast<uint32_t>(in[i])))
      ties[i / 8] = static_cast<uint8_t>(ties[i / 8] | 1u << i % 8);
}

/// Splits n floats. The inverse of join_masters().
inline void split_masters(const float* in, uint16_t* high, uint16_t* low, uint8_t* ties,
                          int64_t n) {
  for (int64_t i = 0; i < n; i += kTieRow) {
    const int64_t count = std::min(kTieRow, n - i);
    const uint32_t any = HalvesLoops::chosen().split(in + i, high + i, low + i, count);
    if (any != 0) mark_ties(in + i, ties + i / 8, count);
    else std::fill_n(ties + i / 8, (count + 7) / 8, uint8_t{0});
  }
}

}  // namespace ds::cpu
