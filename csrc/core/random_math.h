// Converts Philox words to uniform and normal floats, with the same bits on CPU and GPU.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtype.h"
#include "exact_math.h"

namespace ds {

/// The range [low, high). `most` is the largest number of a dtype in it.
struct UniformRange {
  float low, high, most;
};

/// Returns the largest number at most x that has `significand` bits and an exponent >= `least`.
inline float floor_to(float x, int significand, int least) {
  const int exponent = x == 0.0f ? least : std::max(std::ilogb(x), least);
  const float unit = std::ldexp(1.0f, exponent - (significand - 1));
  return std::floor(x / unit) * unit;
}

/// Returns the range [from, to) for `dtype`. `most` keeps values just below `high` from being
/// rounded up to `high`. If no number of `dtype` lies in the range, `most` is `low`.
inline UniformRange uniform_range(double from, double to, DType dtype) {
  const float low = static_cast<float>(from), high = static_cast<float>(to);
  if (!(low < high)) return {low, high, high};
  float most = std::nextafter(high, -std::numeric_limits<float>::infinity());
  if (dtype == DType::bf16) most = floor_to(most, 8, -126);
  if (dtype == DType::f16) most = std::min(floor_to(most, 11, -14), 65504.0f);
  return {low, high, std::max(most, low)};
}

/// Returns low + u (high - low) with u = unit_float(word), limited to range.most.
DS_HOST_DEVICE float uniform_between(uint32_t word, const UniformRange& range) {
  const float x = fma_rn(unit_float(word), sub_rn(range.high, range.low), range.low);
  return x > range.most ? range.most : x;
}

/// Returns the natural logarithm of a positive normal float within 2 ulp. Source: the polynomial of
/// Cephes logf, for a mantissa in [sqrt(1/2), sqrt(2)).
DS_HOST_DEVICE float exact_log(float x) {
  constexpr uint32_t kRootHalf = 0x3f3504f3u;  // bits of sqrt(1/2)
  const uint32_t offset = bits_of(x) - kRootHalf;
  const float exponent = static_cast<float>(static_cast<int32_t>(offset) >> 23);
  const float f = sub_rn(float_of_bits((offset & 0x007fffffu) + kRootHalf), 1.0f);
  const float z = mul_rn(f, f);
  float p = 7.0376836292e-2f;
  p = fma_rn(p, f, -1.1514610310e-1f);
  p = fma_rn(p, f, 1.1676998740e-1f);
  p = fma_rn(p, f, -1.2420140846e-1f);
  p = fma_rn(p, f, 1.4249322787e-1f);
  p = fma_rn(p, f, -1.6668057665e-1f);
  p = fma_rn(p, f, 2.0000714765e-1f);
  p = fma_rn(p, f, -2.4999993993e-1f);
  p = fma_rn(p, f, 3.3333331174e-1f);
  // ln(2) is split into two parts, so that the upper part times the exponent is exact.
  float tail = mul_rn(mul_rn(p, f), z);
  tail = fma_rn(exponent, -2.12194440e-4f, tail);
  tail = fma_rn(-0.5f, z, tail);
  return fma_rn(exponent, 0.693359375f, add_rn(f, tail));
}

struct SinCos {
  float sin, cos;
};

/// Returns sin(2 pi u) and cos(2 pi u) for u in [0, 1), within 2 ulp of the larger one. The
/// reduction to [-pi/4, pi/4] is exact, because u counts turns. Source: the polynomials of Cephes
/// sinf and cosf.
DS_HOST_DEVICE SinCos exact_sincos_turns(float u) {
  const float quarters = mul_rn(u, 4.0f);
  const int32_t quadrant = static_cast<int32_t>(add_rn(quarters, 0.5f));
  const float x = mul_rn(sub_rn(quarters, static_cast<float>(quadrant)), 1.57079632679f);
  const float z = mul_rn(x, x);
  float s = -1.9515295891e-4f;
  s = fma_rn(s, z, 8.3321608736e-3f);
  s = fma_rn(s, z, -1.6666654611e-1f);
  s = fma_rn(mul_rn(s, z), x, x);
  float c = 2.443315711809948e-5f;
  c = fma_rn(c, z, -1.388731625493765e-3f);
  c = fma_rn(c, z, 4.166664568298827e-2f);
  c = fma_rn(mul_rn(c, z), z, fma_rn(-0.5f, z, 1.0f));
  const float sine = quadrant & 1 ? c : s, cosine = quadrant & 1 ? s : c;
  return {quadrant & 2 ? -sine : sine, (quadrant + 1) & 2 ? -cosine : cosine};
}

struct NormalPair {
  float first, second;
};

/// Returns two independent N(0, 1) values from two words (Box and Muller 1958). The logarithm gets
/// 1 - u in [2^-24, 1], so the values are finite and at most 5.77 in magnitude.
DS_HOST_DEVICE NormalPair box_muller(uint32_t word0, uint32_t word1) {
  const float radius = sqrt_rn(mul_rn(-2.0f, exact_log(sub_rn(1.0f, unit_float(word0)))));
  const SinCos turn = exact_sincos_turns(unit_float(word1));
  return {mul_rn(radius, turn.cos), mul_rn(radius, turn.sin)};
}

/// Converts an N(0, 1) value to N(mean, stddev^2).
DS_HOST_DEVICE float normal_with(float standard, float mean, float stddev) {
  return fma_rn(standard, stddev, mean);
}

}  // namespace ds
