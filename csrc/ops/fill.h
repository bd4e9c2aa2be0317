// Creation ops: constants and ranges.
#pragma once

#include "../core/view.h"

namespace ds {

/// out = value, converted to out's dtype.
struct Fill {
  View out;  // any shape and strides, any dtype
  double value;
};

/// out[i] = start + i * step, computed in f64 and converted once.
struct Arange {
  View out;  // [n] contiguous, any dtype but bool
  double start;
  double step;
};

}  // namespace ds
