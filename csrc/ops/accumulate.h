// A running sum that is wider than what it adds up.
#pragma once

#include "../core/view.h"

namespace ds {

/// out += in: one f32 addition and rounding per element, the same bits on every back end.
struct Accumulate {
  View in;   // same shape as out, f32, f16 or bf16; any strides
  View out;  // f32, updated; any strides without overlap
};

}  // namespace ds
