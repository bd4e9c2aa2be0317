// Accumulates tensors of any floating dtype into an f32 sum.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Adds `in` to `out`: one f32 addition and rounding per element, with the same bits on all back
/// ends.
struct Accumulate {
  View in;   // same shape as out, f32, f16 or bf16; any strides
  View out;  // f32, updated; any strides without overlap
};

inline void check(const Accumulate& op) {
  require_same_shape("accumulate", op.in, op.out);
  require_dtype("accumulate", op.out, DType::f32, "out");
  require_narrow("accumulate", op.in, "in");
}

}  // namespace ds
