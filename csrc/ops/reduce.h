// Reductions over any set of dims, in a fixed order.
#pragma once

#include "../core/preconditions.h"

namespace ds {

enum class ReduceOp : int32_t { sum, mean, max, min, prod };

/// Reduces over the dims in which out has size 1 and in does not. Accumulates f16, bf16 and f32 in
/// f32, f64 in f64, and integers, which have no mean, in i64. An empty sum is 0, an empty product
/// 1, an empty mean NaN; an empty max or min throws. On the GPU, the column sum of [N, C] (a bias
/// gradient) is the most frequent case. FLOPs: 1 per element of in.
struct Reduce {
  View in;   // any strides; not bool
  View out;  // same ndim as in, same dtype
  ReduceOp op;
  bool accumulate;
};

inline void check(const Reduce& op) {
  constexpr const char* kOp = "reduce";
  require_same_dtype(kOp, op.in, op.out);
  DS_CHECK_SHAPE(op.in.ndim == op.out.ndim, kOp, text("out with the ", op.in.ndim, " dims of in"),
                 op.out.describe());
  for (int d = 0; d < op.in.ndim; ++d) {
    DS_CHECK_SHAPE(op.out.shape[d] == op.in.shape[d] || op.out.shape[d] == 1, kOp,
                   text("out with the sizes of ", op.in.describe(), " or 1"), op.out.describe());
  }
  if (op.in.dtype == DType::boolean) unsupported(kOp, op.in.dtype, "any dtype but bool");
  if (op.op == ReduceOp::mean && !is_floating(op.in.dtype)) {
    unsupported(kOp, op.in.dtype, "a floating dtype for the mean");
  }
  const bool ordered = op.op == ReduceOp::max || op.op == ReduceOp::min;
  DS_CHECK_SHAPE(!ordered || op.in.numel() > 0 || op.out.numel() == 0, kOp,
                 "at least one element for max and min", op.in.describe());
}

/// Returns the index of the first maximum of the last dim. NaN counts as the maximum.
/// FLOPs: 1 per element of in.
struct ArgMax {
  View in;   // [..., C], C > 0, not bool
  View out;  // [...], i64, contiguous
};

inline void check(const ArgMax& op) {
  constexpr const char* kOp = "arg_max";
  DS_CHECK_SHAPE(op.in.ndim >= 1 && op.in.size(-1) > 0, kOp, "in [..., C] with C > 0",
                 op.in.describe());
  View rows = op.in;
  --rows.ndim;
  DS_CHECK_SHAPE(rows.same_shape(op.out), kOp,
                 text("out like ", op.in.describe(), " without its last dim"), op.out.describe());
  require_dtype(kOp, op.out, DType::i64, "out");
  require_contiguous(kOp, op.out, "out");
  if (op.in.dtype == DType::boolean) unsupported(kOp, op.in.dtype, "any dtype but bool");
}

}  // namespace ds
