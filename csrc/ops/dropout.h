// Dropout whose mask is a function of (seed, offset, element), so that it replays identically.
#pragma once

#include "../core/view.h"

namespace ds {

/// out = unit_float(word of element i) >= p ? in / (1 - p) : 0. The backward is the same op on the gradient.
struct Dropout {
  View in;   // contiguous, floating
  View out;  // same shape and dtype; may be in itself
  double p;  // [0, 1)
  int64_t seed;
  int64_t offset;
  bool accumulate;
};

}  // namespace ds
