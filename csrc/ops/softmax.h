// Softmax and log-softmax over the last dim, in two numerically stable passes.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Computes out = exp(in - max) / sum, or in - max - log(sum) if `log`.
/// FLOPs: 1 per element of out.
struct Softmax {
  View in;   // [..., C] contiguous, floating
  View out;  // same
  bool log;
};

/// Checks that `v`, an operand with rows, has the shape and dtype of `model`.
inline void check_rows(const char* name, const View& model, const View& v) {
  require_like(name, model, v);
  require_floating(name, v);
  require_contiguous(name, v, "every operand");
  DS_CHECK_SHAPE(v.ndim >= 1, name, "at least one dim", v.describe());
}

inline void check(const Softmax& op) {
  for (const View* v : {&op.in, &op.out}) check_rows("softmax", op.in, *v);
}

/// Computes dx = y (dout - sum(dout y)) from the forward's output y, or dx = dout - exp(y)
/// sum(dout) if `log`.
/// FLOPs: 2 per element of dx.
struct SoftmaxBackward {
  View out;   // y
  View dout;  // same shape and dtype
  View dx;    // same shape and dtype
  bool log;
  bool accumulate;
};

inline void check(const SoftmaxBackward& op) {
  for (const View* v : {&op.out, &op.dout, &op.dx}) check_rows("softmax_backward", op.out, *v);
}

}  // namespace ds
