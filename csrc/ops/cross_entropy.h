// Cross-entropy over logits and its gradient, without ever storing the probabilities.
#pragma once

#include "../core/view.h"

namespace ds {

/// losses[n] = lse[n] - logits[n, target[n]], lse = log sum exp of the row; both 0 where target[n] ==
/// ignore_index. f32 inside (f64 for f64). A target outside [0, V) that is not ignore_index is DS_INDEX on
/// the CPU and NaN on the GPU.
struct CrossEntropy {
  View logits;  // [N, V], last stride 1, any row stride; floating
  View target;  // [N] i32 or i64, contiguous
  View losses;  // [N] f32 (f64 for f64)
  View lse;     // [N] f32 (f64 for f64)
  int64_t ignore_index;
};

/// dlogits = (exp(logits - lse) - onehot(target)) * scale[0]; rows with ignore_index become 0.
struct CrossEntropyBackward {
  View logits;   // [N, V]
  View target;   // [N]
  View lse;      // [N]
  View scale;    // [1] f32 (f64 for f64): gradient of each row's loss, on the op's device
  View dlogits;  // [N, V], logits' dtype; may be logits itself
  int64_t ignore_index;
};

}  // namespace ds
