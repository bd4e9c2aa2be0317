// Values of MXFP4 weights and the gates of their experts, by the same formulas on CPU and GPU.
#pragma once

#include "unary_math.h"

namespace ds {

/// Returns a weight in f32. The code's exponent becomes the lowest bits of a float's exponent, its
/// mantissa bit the highest bit of the mantissa. That float is the code's value times 2^-126, also
/// for subnormal codes.
DS_HOST_DEVICE float mxfp4_weight(uint32_t code, uint32_t scale) {
  const float small = float_of_bits((code & 7u) << 22 | (code & 8u) << 28);
  // 2^(scale - 128), which is finite for every scale.
  const float half = float_of_bits(scale < 2 ? 0x00200000u << scale : (scale - 1) << 23);
  return mul_rn(mul_rn(small, 0x1p127f), half);
}

/// Returns the gate of Mxfp4Experts.
DS_HOST_DEVICE float expert_gate(float gate, float up, float limit) {
  if (limit == 0.0f) return unary_value<UnaryOp::silu>(gate) * up;
  const float g = gate > limit ? limit : gate;
  const float u = up > limit ? limit : up < -limit ? -limit : up;
  return (u + 1.0f) * g * sigmoid_of(1.702f * g);
}

}  // namespace ds
