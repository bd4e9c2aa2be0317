// Softmax and log-softmax over the last dim, in two numerically stable passes.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// out = exp(in - max) / sum, or in - max - log(sum) when `log` is true.
/// FLOPs: 1 per element of out.
struct Softmax {
  View in;   // [..., C] contiguous, floating
  View out;  // same
  bool log;
};

/// `v` is one of the rows' operands, of the shape and dtype of `model`.
inline void check_rows(const char* name, const View& model, const View& v) {
  require_like(name, model, v);
  require_floating(name, v);
  require_contiguous(name, v, "every operand");
  DS_CHECK_SHAPE(v.ndim >= 1, name, "at least one dim", v.describe());
}

inline void check(const Softmax& op) {
  for (const View* v : {&op.in, &op.out}) check_rows("softmax", op.in, *v);
}

/// From the forward's output y: dx = y (dout - sum(dout y)); log form: dx = dout - exp(y)
/// sum(dout).
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
