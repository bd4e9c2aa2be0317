// Strided copy with cast: the op of contiguous, cast, transpose, expand, slice and concat.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// out = in, element by element, converted from in's dtype to out's (round to nearest even; float
/// to integer truncates; anything to bool is != 0).
struct Copy {
  View in;   // same shape as out; strides may be 0 (broadcast)
  View out;  // any strides without overlap
};

inline void check(const Copy& op) { require_same_shape("copy", op.in, op.out); }

}  // namespace ds
