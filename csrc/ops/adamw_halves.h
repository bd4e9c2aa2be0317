// Adam and AdamW over master weights in two halves, the first of which is the bf16 weight: nothing
// is written beside the state.
#pragma once

#include "flat_update.h"
#include "master_halves.h"

namespace ds {

/// AdamW's update of the masters that JoinMaster gives of high, low and ties, split again by
/// SplitMaster: `high` is the weight that AdamW rounds the same master to, bit by bit. When
/// control[1] is 0 nothing is written.
struct AdamWHalves {
  View high;     // [n] bf16, updated: the weights that the model computes with
  View low;      // [n] bf16, updated: 16 bits each, which are no number
  View ties;     // [ceil(n / 8)] u8, updated: a bit each, the lowest first
  View m;        // [n] f32 or bf16, updated
  View v;        // [n], dtype of m, updated
  View grad;     // [n] f32, f16 or bf16
  View control;  // [4] f32, see GradientControl
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double correction1;  // 1 - beta1^t, or 1 without bias correction
  double correction2;  // 1 - beta2^t, or 1
  bool decoupled;
};

inline void check(const AdamWHalves& op) {
  constexpr const char* kOp = "adamw_halves";
  check_moments(kOp, op.m, op.m, op.v);
  check_elements(kOp, op.m, op.grad, "grad");
  check_halves(kOp, op, op.m.numel());
  check_control(kOp, op.control);
}

}  // namespace ds
