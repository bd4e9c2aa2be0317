// Creates tensors: constants and ranges.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Writes `value`, converted to out's dtype.
struct Fill {
  View out;  // any shape and strides, any dtype
  double value;
};

/// Computes out[i] = start + i * step in f64, converted once.
struct Arange {
  View out;  // [n] contiguous, any dtype but bool
  double start;
  double step;
};

inline void check(const Fill&) {}

inline void check(const Arange& op) {
  require_contiguous("arange", op.out, "out");
  if (op.out.dtype == DType::boolean) unsupported("arange", op.out.dtype, "any dtype but bool");
}

}  // namespace ds
