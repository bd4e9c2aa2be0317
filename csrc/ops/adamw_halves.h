// Adam and AdamW over split master weights (core/master_halves.h). The upper half of a master is
// the bf16 weight, so no copy of the weight is written.
#pragma once

#include "flat_update.h"
#include "master_halves.h"

namespace ds {

/// Joins high, low and ties to f32 masters (JoinMaster), updates them as AdamW does, and splits the
/// result (SplitMaster). `high` is bit for bit the weight that AdamW would round the master to. If
/// control[1] is 0, nothing is written.
struct AdamWHalves {
  View high;     // [n] bf16, updated: the weights that the model computes with
  View low;      // [n] bf16 as storage, updated: the lower 16 bits of each master
  View ties;     // [ceil(n / 8)] u8, updated: one bit per master, lowest first
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
