// IEEE half and bfloat16 as storage types. The CPU back end computes in float.
#pragma once

#include <bit>
#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ds::cpu {

/// bfloat16, the upper half of a float. Rounds to nearest even; a NaN stays NaN.
struct bf16 {
  uint16_t bits;
  bf16() = default;
  explicit bf16(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(nan ? 0x7fffu : rounded);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

/// IEEE binary16. Rounds to nearest even; overflow gives infinity.
struct f16 {
  uint16_t bits;
  f16() = default;
  explicit f16(float x) : bits(from_float(x)) {}
  operator float() const { return to_float(bits); }

#if defined(__F16C__)
  static uint16_t from_float(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
  static float to_float(uint16_t h) { return _cvtsh_ss(h); }
#elif defined(__aarch64__)
  static uint16_t from_float(float x) { return std::bit_cast<uint16_t>(static_cast<__fp16>(x)); }
  static float to_float(uint16_t h) { return static_cast<float>(std::bit_cast<__fp16>(h)); }
#else
  static uint16_t from_float(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (a >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (a < 0x38800000u) {  // subnormal half: a float addition rounds it
      const float magic = 0.5f;
      const float sum = std::bit_cast<float>(a) + magic;
      return static_cast<uint16_t>(sign |
                                   (std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(magic)));
    }
    return static_cast<uint16_t>(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
  }
  static float to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, e = (h >> 10) & 0x1fu,
                   m = h & 0x3ffu;
    if (e == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (m << 13));
    if (e == 0) {
      const float magnitude = static_cast<float>(m) * 0x1p-24f;
      return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
    }
    return std::bit_cast<float>(sign | ((e + 112) << 23) | (m << 13));
  }
#endif
};

}  // namespace ds::cpu
