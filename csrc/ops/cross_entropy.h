// Cross-entropy over logits and its gradient. Probabilities are never stored.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Computes losses[n] = lse[n] - (1 - s) logits[n, target[n]] - s mean(logits[n]), where lse[n] is
/// the log-sum-exp of row n, and the smoothing s is spread over all classes (Szegedy et al. 2016).
/// If target[n] is ignore_index, loss and lse are 0. Computed in f32 (f64 for f64). A target that
/// is neither a class nor ignore_index throws DS_INDEX on the CPU and gives NaN on the GPU.
///
/// Vocabulary parallel: the V columns may be classes `first` to `first` + V of `classes`. Then
/// lse[n] covers these columns only, losses[n] is lse[n] minus this rank's part of (1 - s)
/// logits[n, target[n]] + s sum(logits[n]) / classes, and correct[n] is 0. If another rank has the
/// target, its term is 0 here. FLOPs: 1 per element of logits.
struct CrossEntropy {
  View logits;  // [N, V], last stride 1, any row stride; floating
  View target;  // [N] i32 or i64, contiguous
  View losses;  // [N] f32 (f64 for f64)
  View lse;     // [N] f32 (f64 for f64)
  OptionalView
      correct;  // [N] i64: 1 if the target is the row's first maximum, else 0; 0 for rows with NaN
  double smoothing;
  int64_t ignore_index;
  int64_t first;    // class of the first column
  int64_t classes;  // number of all classes; 0: the number of columns
};

/// Checks that `logits` is [N, V] and `target` is [N].
inline void check_logits(const char* name, const View& logits, const View& target) {
  require_rows(name, logits, 2, "logits", "[N, V]");
  require_floating(name, logits);
  require_vector(name, target, logits.shape[0], "target");
  require_index(name, target);
}

/// Checks that `smoothing` is in [0, 1].
inline void require_smoothing(const char* name, double smoothing) {
  if (smoothing >= 0 && smoothing <= 1) return;
  throw Error("DS_ARGUMENT", name, "smoothing in [0, 1]", text(smoothing));
}

/// Returns the number of classes over all ranks.
template <class Op>
int64_t all_classes(const Op& op) {
  return op.classes ? op.classes : op.logits.shape[1];
}

/// Checks that the columns are some of the classes.
template <class Op>
void check_classes(const char* name, const Op& op) {
  const int64_t all = all_classes(op), columns = op.logits.shape[1];
  if (op.first >= 0 && op.first + columns <= all) return;
  throw Error("DS_ARGUMENT", name,
              text("first with ", columns, " classes from it on, of ", all, " in all"),
              text("first ", op.first));
}

inline void check(const CrossEntropy& op) {
  constexpr const char* kOp = "cross_entropy";
  check_logits(kOp, op.logits, op.target);
  require_statistic(kOp, op.losses, op.logits.shape[0], op.logits, "losses");
  require_statistic(kOp, op.lse, op.logits.shape[0], op.logits, "lse");
  if (op.correct) {
    require_vector(kOp, op.correct, op.logits.shape[0], "correct");
    require_dtype(kOp, op.correct, DType::i64, "correct");
  }
  require_smoothing(kOp, op.smoothing);
  check_classes(kOp, op);
}

/// Computes dlogits = (exp(logits - lse) - (1 - s) onehot(target) - s / classes) * scale[0] with
/// the smoothing s. Rows with ignore_index become 0. If the columns are a part of the classes, lse
/// must cover all classes. FLOPs: 2 per element of dlogits.
struct CrossEntropyBackward {
  View logits;   // [N, V]
  View target;   // [N]
  View lse;      // [N]
  View scale;    // [1] f32 (f64 for f64): gradient of each row's loss, on the op's device
  View dlogits;  // [N, V], logits' dtype; may be logits itself
  double smoothing;
  int64_t ignore_index;
  int64_t first;    // class of the first column
  int64_t classes;  // number of all classes; 0: the number of columns
};

inline void check(const CrossEntropyBackward& op) {
  constexpr const char* kOp = "cross_entropy_backward";
  check_logits(kOp, op.logits, op.target);
  check_logits(kOp, op.dlogits, op.target);
  require_like(kOp, op.logits, op.dlogits);
  require_statistic(kOp, op.lse, op.logits.shape[0], op.logits, "lse");
  require_statistic(kOp, op.scale, 1, op.logits, "scale");
  require_smoothing(kOp, op.smoothing);
  check_classes(kOp, op);
}

}  // namespace ds
