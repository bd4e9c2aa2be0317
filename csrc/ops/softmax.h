// Softmax and log-softmax over the last dim, in two numerically stable passes.
#pragma once

#include "../core/view.h"

namespace ds {

/// out = exp(in - max) / sum, or in - max - log(sum) when `log` is true.
struct Softmax {
  View in;   // [..., C] contiguous, floating
  View out;  // same
  bool log;
};

/// From the forward's output y: dx = y (dout - sum(dout y)); log form: dx = dout - exp(y) sum(dout).
struct SoftmaxBackward {
  View out;   // y
  View dout;  // same shape and dtype
  View dx;    // same shape and dtype
  bool log;
  bool accumulate;
};

}  // namespace ds
