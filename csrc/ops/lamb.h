// LAMB over a flat range of parameters: Adam's direction, scaled by a trust ratio per parameter.
// Sources: You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2; FusedLamb of
// DeepSpeed.
#pragma once

#include "flat_update.h"

namespace ds {

/// Hyperparameters of a group at one step.
struct LambScalars {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double correction1;  // 1 - beta1^t, or 1 without bias correction
  double correction2;  // 1 - beta2^t, or 1
  bool eps_inside_sqrt;
};

/// First half of an update. For each element, with g = grad * control[0] in f32:
///     m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
///     u = (m / correction1) / (sqrt(v / correction2) + eps) + weight_decay * p.
/// If eps_inside_sqrt is set, eps is added before the square root. 0 / 0 counts as 0. For each
/// parameter, sums = (sum of p^2, sum of u^2) in f64. All back ends use the order of
/// core/segments.h and flush denormals to zero, so they give the same bits. The master is
/// unchanged. If control[1] is 0, the moments are unchanged and the sums are 0. Parameter i is
/// [starts[i], starts[i + 1]), with the gap after it, where master, gradient and moments must be 0.
/// starts[0] is 0 and starts[parameters] is n; the GPU does not check it. A parameter may be a part
/// of one: the sums of its parts add up to those of the whole.
struct LambMoments {
  View master;   // [n] f32, read
  View m;        // [n] f32, updated
  View v;        // [n] f32, updated
  View grad;     // [n] f32, f16 or bf16
  View starts;   // [parameters + 1] i64
  View sums;     // [parameters, 2] f64, overwritten
  View control;  // [4] f32, see GradientControl
  LambScalars rule;
};

inline void check(const LambMoments& op) {
  constexpr const char* kOp = "lamb_moments";
  check_states(kOp, op.master, {&op.master, &op.m, &op.v});
  check_elements(kOp, op.master, op.grad, "grad");
  check_segments(kOp, op.starts, op.master.numel());
  require_list(kOp, op.sums, 2 * (op.starts.numel() - 1), DType::f64, "sums");
  check_control(kOp, op.control);
}

/// Computes, between LambMoments and LambApply, the trust ratio of each parameter from the sums
/// over the whole parameter: coefficient = clamp(||p|| / ||u||, min_coefficient, max_coefficient).
/// It is 1 if either norm is 0. If control[1] is 0, nothing changes.
struct LambCoefficients {
  View sums;          // [parameters, 2] f64
  View coefficients;  // [parameters] f32
  View control;       // [4] f32
  double min_coefficient;
  double max_coefficient;
};

inline void check(const LambCoefficients& op) {
  constexpr const char* kOp = "lamb_coefficients";
  const int64_t parameters = op.coefficients.numel();
  require_list(kOp, op.sums, 2 * parameters, DType::f64, "sums");
  require_list(kOp, op.coefficients, parameters, DType::f32, "coefficients");
  check_control(kOp, op.control);
}

/// Second half of an update: p -= lr * coefficient * u, with the u of LambMoments recomputed from
/// m, v and p. weight = p rounded to its dtype. If control[1] is 0, only `weight` is written, from
/// the unchanged master.
struct LambApply {
  View master;          // [n] f32, updated
  View m;               // [n] f32, read
  View v;               // [n] f32, read
  OptionalView weight;  // [n] f32, f16 or bf16: the copy that the model computes with
  View starts;          // [parameters + 1] i64
  View coefficients;    // [parameters] f32
  View control;         // [4] f32
  LambScalars rule;
};

inline void check(const LambApply& op) {
  constexpr const char* kOp = "lamb_apply";
  check_states(kOp, op.master, {&op.master, &op.m, &op.v});
  if (op.weight) check_elements(kOp, op.master, op.weight, "weight");
  check_segments(kOp, op.starts, op.master.numel());
  require_list(kOp, op.coefficients, op.starts.numel() - 1, DType::f32, "coefficients");
  check_control(kOp, op.control);
}

}  // namespace ds
