// 1-bit LAMB: trust ratios for ranks that exchange one bit per element of the moment. Sources: Li
// et al. 2021, arXiv:2104.06069 (1-bit LAMB); OneBitLamb of DeepSpeed.
#pragma once

#include "flat_update.h"

namespace ds {

/// Averages the coefficients during warm-up: frozen = coefficient == 1 ? frozen : beta * frozen +
/// (1 - beta) * coefficient, for each parameter. If control[1] is 0, nothing changes.
struct OneBitLambAverage {
  View coefficients;  // [parameters] f32
  View frozen;        // [parameters] f32, updated
  View control;       // [4] f32, see GradientControl
  double beta;
};

inline void check(const OneBitLambAverage& op) {
  constexpr const char* kOp = "one_bit_lamb_average";
  const int64_t parameters = op.frozen.numel();
  require_list(kOp, op.coefficients, parameters, DType::f32, "coefficients");
  require_list(kOp, op.frozen, parameters, DType::f32, "frozen");
  check_control(kOp, op.control);
}

/// Updates each element after warm-up. v is frozen, and `payload` is the averaged moment of all
/// ranks:
///     g = (payload - beta1 m) / (1 - beta1);  m = payload;  fresh = beta2 fresh + (1 - beta2) g^2;
///     u = m / (sqrt(v) + eps).
/// For each parameter, in f64 and in the same order on all back ends:
///     sums = (sum of u^2, sum of (u + weight_decay * p)^2, largest ratio),
///     ratio = (sqrt(v) + eps) / (sqrt(fresh) + eps).
/// Elements with v = 0 have no moment and add only weight_decay * p. Starts as in LambMoments. If
/// control[1] is 0, the states are unchanged and the sums are 0. Denormals are flushed to zero.
struct OneBitLambMoments {
  View master;   // [n] f32, read
  View m;        // [n] f32, updated
  View v;        // [n] f32, read
  View fresh;    // [n] f32, updated
  View payload;  // [n] f32, read
  View starts;   // [parameters + 1] i64
  View sums;     // [parameters, 3] f64, overwritten
  View control;  // [4] f32
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
};

inline void check(const OneBitLambMoments& op) {
  constexpr const char* kOp = "one_bit_lamb_moments";
  check_states(kOp, op.master, {&op.master, &op.m, &op.v, &op.fresh, &op.payload});
  check_segments(kOp, op.starts, op.master.numel());
  require_list(kOp, op.sums, 3 * (op.starts.numel() - 1), DType::f64, "sums");
  check_control(kOp, op.control);
}

/// Computes, between OneBitLambMoments and LambApply, for each parameter:
/// 1. f = the largest ratio, or 1 without a ratio.
/// 2. With weight decay f = f q + 1 - q, with q = min(1, ||u|| / ||u + weight_decay * p||).
/// 3. f is clamped to [least, most] and then to factor * (1 -+ threshold).
/// 4. factor = f, and coefficient = frozen * f.
///
/// If control[1] is 0, nothing changes.
struct OneBitLambCoefficients {
  View sums;          // [parameters, 3] f64
  View frozen;        // [parameters] f32, read
  View factor;        // [parameters] f32, updated
  View coefficients;  // [parameters] f32
  View control;       // [4] f32
  bool decays;
  double least;
  double most;
  double threshold;
};

inline void check(const OneBitLambCoefficients& op) {
  constexpr const char* kOp = "one_bit_lamb_coefficients";
  const int64_t parameters = op.coefficients.numel();
  require_list(kOp, op.sums, 3 * parameters, DType::f64, "sums");
  require_list(kOp, op.frozen, parameters, DType::f32, "frozen");
  require_list(kOp, op.factor, parameters, DType::f32, "factor");
  require_list(kOp, op.coefficients, parameters, DType::f32, "coefficients");
  check_control(kOp, op.control);
}

}  // namespace ds
