// Adam and AdamW over a flat range of parameters: one fixed sequence of IEEE operations on every
// back end (adamw_rule.h), so that moving a state between devices never changes a bit. Source:
// Kingma & Ba 2015; Loshchilov & Hutter 2019; DeepSpeed's FusedAdam / DeepSpeedCPUAdam formula.
#pragma once

#include "flat_update.h"

namespace ds {

/// When control[1] is 0 the state stays as it is and only `weight` is written, from the unchanged
/// master. Otherwise, with g = grad * control[0] (f32):
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
///   decoupled: p -= lr * weight_decay * p first; else g += weight_decay * p first;
///   p -= (lr / correction1) * m / (sqrt(v) / sqrt(correction2) + eps);
/// weight = p rounded to its dtype; it may be grad itself, which is read before it is written.
/// Denormals are flushed to zero on every back end. Moments of bf16 are widened, updated in f32,
/// used for p, and rounded after it: m to nearest, ties to even, v stochastically
/// (core/bf16_moments.h).
struct AdamW {
  View master;          // [n] f32, updated
  View m;               // [n] f32 or bf16, updated
  View v;               // [n], dtype of m, updated
  View grad;            // [n] f32, f16 or bf16
  OptionalView weight;  // [n] f32, f16 or bf16: the copy that the model computes with
  View control;         // [4] f32, see GradientControl
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double correction1;  // 1 - beta1^t, or 1 without bias correction
  double correction2;  // 1 - beta2^t, or 1
  bool decoupled;
};

inline void check(const AdamW& op) {
  check_update("adamw", op, {});
  check_moments("adamw", op.master, op.m, op.v);
}

}  // namespace ds
