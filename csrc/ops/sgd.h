// Stochastic gradient descent over a flat range of parameters, with momentum and L2 weight decay.
// Source: Sutskever et al. 2013 in the form of torch.optim.SGD.
#pragma once

#include "flat_update.h"

namespace ds {

/// An element-wise update, see UpdateRule. With g = grad * control[0] + weight_decay * p (f32):
///   without momentum: d = g; otherwise
///   buffer = g at the first update, then momentum * buffer + (1 - dampening) * g;
///   d = nesterov ? g + momentum * buffer : buffer;
/// p -= lr * d; weight = p rounded to its dtype. Denormals are flushed to zero on every back end.
struct Sgd {
  View master;           // [n] f32, updated
  OptionalView momentum_buffer;  // [n] f32, updated; absent: no momentum
  View grad;             // [n] f32, f16 or bf16
  OptionalView weight;           // [n] f32, f16 or bf16: the copy that the model computes with
  View control;          // [4] f32, see GradientControl
  double lr;
  double weight_decay;
  double momentum;   // read with momentum_buffer
  double dampening;  // read with momentum_buffer
  bool nesterov;     // read with momentum_buffer
  bool first;        // the buffer is written and not read
};

inline void check(const Sgd& op) {
  check_update("sgd", op, {});
  if (op.momentum_buffer) check_states("sgd", op.master, {&op.momentum_buffer});
}

}  // namespace ds
