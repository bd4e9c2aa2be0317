// Muon's element-wise passes before and after it orthogonalizes a matrix's momentum. Sources:
// Jordan et al. 2024, kellerjordan.github.io/posts/muon; runtime/zero/muon of DeepSpeed.
#pragma once

#include "flat_update.h"

namespace ds {

/// Updates momentum = beta momentum + (1 - beta) g with g = grad * control[0] in f32. For each
/// parameter, sums = sum of u^2 in f64 with u = nesterov ? beta momentum + (1 - beta) g : momentum.
/// All back ends use the order of core/segments.h and flush denormals to zero, so they give the
/// same bits. If control[1] is 0, momentum is unchanged and the sums are 0. Starts as in
/// LambMoments; the sums of a parameter's parts add up.
struct MuonMomentum {
  View momentum;  // [n] f32, updated
  View grad;      // [n] f32, f16 or bf16
  View starts;    // [parameters + 1] i64
  View sums;      // [parameters] f64, overwritten
  View control;   // [4] f32, see GradientControl
  double beta;
  bool nesterov;
};

inline void check(const MuonMomentum& op) {
  constexpr const char* kOp = "muon_momentum";
  check_states(kOp, op.momentum, {&op.momentum});
  check_elements(kOp, op.momentum, op.grad, "grad");
  check_segments(kOp, op.starts, op.momentum.numel());
  require_list(kOp, op.sums, op.starts.numel() - 1, DType::f64, "sums");
  check_control(kOp, op.control);
}

/// Computes direction = u / (sqrt(squares) + 1e-7) of a parameter or a part of it, from the updated
/// momentum and the same gradient. The root is rounded to f32. If control[1] is 0, writes zeros.
struct MuonDirection {
  View momentum;   // [n] f32, read
  View grad;       // [n] f32, f16 or bf16
  View squares;    // [1] f64, the sum over the whole parameter
  View direction;  // [n] f32, f16 or bf16
  View control;    // [4] f32
  double beta;
  bool nesterov;
};

inline void check(const MuonDirection& op) {
  constexpr const char* kOp = "muon_direction";
  check_states(kOp, op.momentum, {&op.momentum});
  check_elements(kOp, op.momentum, op.grad, "grad");
  check_elements(kOp, op.momentum, op.direction, "direction");
  require_list(kOp, op.squares, 1, DType::f64, "squares");
  check_control(kOp, op.control);
}

/// Updates p -= lr * weight_decay * p, then p -= lr * scale * direction; weight = p rounded to its
/// dtype. If control[1] is 0, only `weight` is written, from the unchanged master.
struct MuonApply {
  View master;          // [n] f32, updated
  View direction;       // [n] f32, f16 or bf16
  OptionalView weight;  // [n] f32, f16 or bf16: the copy that the model computes with
  View control;         // [4] f32
  double lr;
  double weight_decay;
  double scale;
};

inline void check(const MuonApply& op) {
  constexpr const char* kOp = "muon_apply";
  check_states(kOp, op.master, {&op.master});
  check_elements(kOp, op.master, op.direction, "direction");
  if (op.weight) check_elements(kOp, op.master, op.weight, "weight");
  check_control(kOp, op.control);
}

}  // namespace ds
