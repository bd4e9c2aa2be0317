// Gradient norm, clipping and overflow check on the device, so that the host does not wait.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Computes out[0] = sum of squares of x, in f64 in a fixed order, rounded to f32. Inf and NaN
/// propagate.
struct SumOfSquares {
  View x;    // [n] contiguous, floating
  View out;  // [1] f32
};

inline void check(const SumOfSquares& op) {
  require_contiguous("sum_of_squares", op.x, "x");
  require_floating("sum_of_squares", op.x);
  require_list("sum_of_squares", op.out, 1, DType::f32, "out");
}

/// Computes the factors of an update from sums of squares of gradients, which are scaled by
/// loss_scale:
///     norm = sqrt(sum(partials)) / loss_scale;
///     clip = max_norm > 0 ? max(1, (norm + 1e-6) / max_norm) : 1;
///     control = { 1 / (loss_scale * clip), apply, norm, finite }.
/// finite is 1 if the sum is finite, else 0. apply is 0 if `skip_nonfinite` is set and finite is 0,
/// else 1. Source: DeepSpeed's clipping formula.
struct GradientControl {
  View partials;  // [k] f32, or [r, k] with any row stride: summed row by row
  View control;   // [4] f32
  double loss_scale;
  double max_norm;
  bool skip_nonfinite;
};

/// Memory layout of the partial sums.
struct PartialRows {
  int64_t count, width, apart;
};

inline PartialRows partial_rows(const View& v) {
  const bool flat = v.ndim == 1 || v.size(0) == 1;
  return {flat ? 1 : v.size(0), v.size(-1), flat ? 0 : v.strides[0]};
}

inline void check(const GradientControl& op) {
  constexpr const char* kOp = "gradient_control";
  const View& v = op.partials;
  require_dtype(kOp, v, DType::f32, "partials");
  DS_CHECK_SHAPE((v.ndim == 1 || v.ndim == 2) && has_contiguous_rows(v), kOp,
                 "partials [k] or [r, k] with last stride 1", describe_strides(v));
  require_list(kOp, op.control, 4, DType::f32, "control");
}

}  // namespace ds
