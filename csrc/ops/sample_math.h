// Arithmetic from scores to a draw, with the same bits on CPU and GPU.
#pragma once

#include "../core/random_math.h"
#include "multinomial_math.h"
#include "sample.h"

namespace ds {

constexpr int32_t kNotANumber = -1, kNothingLeft = -2;

/// Sampling parameters of a slot.
struct SampleRules {
  float temperature, top_p, min_p, repetition, presence, frequency;
  int32_t position, generated, top_k;
  uint64_t seed;

  /// Reads a slot's rows of settings and numbers.
  DS_HOST_DEVICE static SampleRules of(const float* settings, const int32_t* numbers) {
    const uint64_t low = static_cast<uint32_t>(numbers[kSeedLow]);
    const uint64_t high = static_cast<uint32_t>(numbers[kSeedHigh]);
    return {settings[kTemperature], settings[kTopP],      settings[kMinP],    settings[kRepetition],
            settings[kPresence],    settings[kFrequency], numbers[kPosition], numbers[kGenerated],
            numbers[kTopK],         high << 32 | low};
  }
};

/// Returns a score after its penalties. `count` as in SampleTokens::counts.
DS_HOST_DEVICE float penalized(float x, int32_t count, const SampleRules& rules) {
  if (count == 0) return x;
  x = x < 0.0f ? mul_rn(x, rules.repetition) : div_rn(x, rules.repetition);
  const int32_t sampled = count >> 1;
  if (sampled == 0) return x;
  x = sub_rn(x, mul_rn(rules.frequency, static_cast<float>(sampled)));
  return sub_rn(x, rules.presence);
}

/// Returns true if the tokens before `position` match the banned sequence up to its last token.
DS_HOST_DEVICE bool ban_applies(const int32_t* ban, const int32_t* recent,
                                const SampleRules& rules) {
  const int32_t before = ban[kBanLength] - 1;
  if (rules.generated >= ban[kBanUntil] || before > rules.position) return false;
  for (int32_t i = 0; i < before; ++i)
    if (recent[(rules.position - before + i) % kSampleRecent] != ban[kBanTokens + i]) return false;
  return true;
}

/// Returns a score after its mask. NaN and +infinity are returned unchanged, so that the row is
/// rejected.
DS_HOST_DEVICE float masked(float x, const int32_t* mask, uint32_t column) {
  const bool allowed = static_cast<uint32_t>(mask[column / 32]) >> column % 32 & 1;
  return allowed || !(x < float_of_bits(0x7f800000u)) ? x : float_of_bits(0xff800000u);
}

/// Returns e^y for y <= 0 within 2 ulp: 2^n times a polynomial of the remainder. Below -87 it is 0.
DS_HOST_DEVICE float exact_exp(float y) {
  if (!(y > -87.0f)) return 0.0f;
  constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer, in the low bits
  const float shifted = fma_rn(y, 1.44269504f, kRound);
  const float n = sub_rn(shifted, kRound);
  const float r = fma_rn(-n, -2.12194440e-4f, fma_rn(-n, 0.693359375f, y));
  float p = 1.98412698e-4f;
  p = fma_rn(p, r, 1.38888889e-3f);
  p = fma_rn(p, r, 8.33333333e-3f);
  p = fma_rn(p, r, 4.16666667e-2f);
  p = fma_rn(p, r, 1.66666667e-1f);
  p = fma_rn(p, r, 5.00000000e-1f);
  p = fma_rn(p, r, 1.0f);
  p = fma_rn(p, r, 1.0f);
  const int32_t exponent = static_cast<int32_t>(bits_of(shifted) - bits_of(kRound));
  return mul_rn(p, float_of_bits(static_cast<uint32_t>(exponent + 127) << 23));
}

/// Returns e^y as an integer: 2^38 for y = 0.
DS_HOST_DEVICE uint64_t sample_weight(float y) {
  return static_cast<uint64_t>(mul_rn(exact_exp(y), 0x1p38f));
}

/// Returns the weight, summed from the largest token down, within which a token must begin to be
/// kept. At least 1, so that one token is always kept.
DS_HOST_DEVICE uint64_t kept_weight(uint64_t total, float top_p) {
  const double out = (1.0 - static_cast<double>(top_p)) * static_cast<double>(total);
  const uint64_t dropped = out < 0.0 ? 0 : static_cast<uint64_t>(out);
  return dropped < total ? total - dropped : 1;
}

/// Returns the token's key in the race. The largest key wins.
DS_HOST_DEVICE float draw_key(float y, uint32_t word) {
  return sub_rn(y, exact_log(exponential_of(word)));
}

/// Returns the log-sum-exp of scores with largest score `max` and total weight `total`.
DS_HOST_DEVICE float log_sum_exp(float max, uint64_t total) {
  return add_rn(max, exact_log(mul_rn(static_cast<float>(total), 0x1p-38f)));
}

}  // namespace ds
