// Lion over a flat range of parameters: the sign of an interpolated momentum, with decoupled weight decay.
// Source: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
#pragma once

#include "flat_update.h"

namespace ds {

/// An element-wise update, see UpdateRule. With g = grad * control[0] (f32):
///   p -= lr * weight_decay * p;  p -= lr * sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g;
/// weight = p rounded to its dtype. sign(0) is 0, as in the paper (DeepSpeed's kernels move such a
/// parameter by lr); NaN stays NaN. Denormals are flushed to zero on every back end.
struct Lion {
  View master;   // [n] f32, updated
  View m;        // [n] f32, updated
  View grad;     // [n] f32, f16 or bf16
  OptionalView weight;   // [n] f32, f16 or bf16: the copy that the model computes with
  View control;  // [4] f32, see GradientControl
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
};

inline void check(const Lion& op) { check_update("lion", op, {&op.m}); }

}  // namespace ds
