// Two Adam steps in one pass: commits the last one and tries the next one out on the weights alone.
#pragma once

#include "../core/view.h"

namespace ds {

/// One group's hyperparameters at one step, as in AdamW.
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

/// Commit: where `previous` is present, AdamW with previous_control and previous_rule updates master, m
/// and v. Speculation: where `next` is present, AdamW with next_control and next_rule runs on the
/// values so committed and nothing of it is stored but `weight`, rounded to its dtype. Without `next`
/// weight is the committed master, rounded. The bits are those of AdamW followed by AdamW, denormals
/// flushed; a control whose apply is 0 skips its step, as there.
/// weight may be previous itself, which is read before it is written.
struct AdamWSpeculate {
  View master;            // [n] f32, updated by the commit
  View m;                 // [n] f32, updated by the commit
  View v;                 // [n] f32, updated by the commit
  View previous;          // optional [n] f32, f16 or bf16: gradient of the step to commit
  View previous_control;  // optional [4] f32, see GradientControl; present with previous
  View next;              // optional [n], dtype of previous: gradient of the step to try out
  View next_control;      // optional [4] f32; present with next
  View weight;            // optional [n] f32, f16 or bf16; present with next
  AdamWScalars previous_rule;  // read with previous
  AdamWScalars next_rule;      // read with next
};

}  // namespace ds
