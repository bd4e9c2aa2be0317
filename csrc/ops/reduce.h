// Reductions over any set of dims, in a fixed order.
#pragma once

#include "../core/preconditions.h"

namespace ds {

enum class ReduceOp : int32_t { sum, mean, max, min };

/// out = op over the dims where out has size 1 and in does not. f32 accumulators for f16, bf16 and
/// f32 (f64 for f64; i64 for integers, where mean is refused). An empty sum is 0, an empty mean is
/// NaN, an empty max or min is refused. The column sum of a [N, C] matrix (a bias gradient) is the
/// hot case on the GPU.
struct Reduce {
  View in;   // any strides; not bool
  View out;  // same ndim as in, same dtype
  ReduceOp op;
  bool accumulate;
};

/// Index of the first maximum of the last dim; NaN counts as the maximum.
struct ArgMax {
  View in;   // [..., C], C > 0, not bool
  View out;  // [...], i64, contiguous
};

}  // namespace ds
