// Strided copy with a cast, which implements contiguous, cast, transpose, expand, slice and concat.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Copies element by element and converts to out's dtype: floats round to nearest even, float to
/// integer truncates, and bool is x != 0.
struct Copy {
  View in;   // same shape as out; strides may be 0 (broadcast)
  View out;  // any strides without overlap
};

inline void check(const Copy& op) { require_same_shape("copy", op.in, op.out); }

}  // namespace ds
