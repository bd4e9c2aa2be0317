// Two Adam steps in one pass: commits the previous step and computes speculative weights of the
// next.
#pragma once

#include "flat_update.h"

namespace ds {

/// Hyperparameters of a group at one step, as in AdamW.
struct AdamWScalars {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double correction1;  // 1 - beta1^t, or 1 without bias correction
  double correction2;  // 1 - beta2^t, or 1
  bool decoupled;
};

/// If `previous` is present, commits its step: AdamW with previous_control and previous_rule
/// updates master, m and v. If `next` is present, AdamW with next_control and next_rule then runs
/// on the committed values and stores only `weight`. Without `next`, weight is the committed
/// master. `weight` is rounded to its dtype and may be `previous`: a thread reads the gradient
/// before it writes the weight. The bits equal those of two AdamW calls, with denormals flushed. If
/// control[1] of a step is 0, the step is skipped as in AdamW.
struct AdamWSpeculate {
  View master;                    // [n] f32, updated by the commit
  View m;                         // [n] f32 or bf16, updated by the commit
  View v;                         // [n], dtype of m, updated by the commit
  OptionalView previous;          // [n] f32, f16 or bf16: gradient of the step to commit
  OptionalView previous_control;  // [4] f32, see GradientControl; present with previous
  OptionalView next;              // [n], dtype of previous: gradient of the speculative step
  OptionalView next_control;      // [4] f32; present with next
  OptionalView weight;            // [n] f32, f16 or bf16; present with next
  AdamWScalars previous_rule;     // read with previous
  AdamWScalars next_rule;         // read with next
};

inline void check(const AdamWSpeculate& op) {
  constexpr const char* kOp = "adamw_speculate";
  check_states(kOp, op.master, {&op.master});
  check_moments(kOp, op.master, op.m, op.v);
  const auto check_gradient = [&](const View& grad, const View& control) {
    check_elements(kOp, op.master, grad, "gradient");
    DS_CHECK_SHAPE(control, kOp, "control [4] f32 with its gradient", "a gradient without control");
    check_control(kOp, control);
  };
  if (op.previous) check_gradient(op.previous, op.previous_control);
  if (op.next) check_gradient(op.next, op.next_control);
  if (op.previous && op.next) require_same_dtype(kOp, op.previous, op.next);
  DS_CHECK_SHAPE(op.weight || !op.next, kOp, "a weight together with next",
                 "next without a weight");
  if (op.weight) check_elements(kOp, op.master, op.weight, "weight");
}

}  // namespace ds
