// Adam and AdamW over a flat range of parameters. All back ends run the same sequence of IEEE
// operations (adamw_rule.h), so that moving a state between devices changes no bit. Sources: Kingma
// & Ba 2015; Loshchilov & Hutter 2019; the formula of DeepSpeed's FusedAdam and DeepSpeedCPUAdam.
#pragma once

#include "flat_update.h"

namespace ds {

/// Updates each element. If control[1] is 0, the state is unchanged and only `weight` is written,
/// from the unchanged master. Otherwise, with g = grad * control[0] in f32:
///     m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
///     decoupled: p -= lr * weight_decay * p first; else g += weight_decay * p first;
///     p -= (lr / correction1) * m / (sqrt(v) / sqrt(correction2) + eps);
/// weight = p rounded to its dtype. `weight` may be `grad`: a thread reads the gradient before it
/// writes the weight. All back ends flush denormals to zero. Moments in bf16 are converted to f32,
/// updated, used for p, and then rounded: m to nearest even, v stochastically
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
