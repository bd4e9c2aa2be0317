// Cross-entropy over logits and its gradient. Probabilities are never stored.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// losses[n] = lse[n] - (1 - s) logits[n, target[n]] - s mean(logits[n]). lse is log sum exp of the
/// row. s is the smoothing: all classes get an equal share of it (Szegedy et al. 2016). Loss and
/// lse are 0 where target[n] == ignore_index. f32 inside (f64 for f64). A target that is neither a
/// class nor ignore_index throws DS_INDEX on the CPU and gives NaN on the GPU.
///
/// Vocabulary parallel: the V columns may be the classes from `first` on of `classes`. Then lse
/// covers these columns only. losses[n] is lse[n] without this rank's share of (1 - s) logits[n,
/// target[n]] + s sum(logits[n]) / classes. The first term is 0 if another rank has the target.
/// correct[n] is 0. FLOPs: 1 per element of logits.
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

/// `logits` is [N, V] and `target` [N].
inline void check_logits(const char* name, const View& logits, const View& target) {
  DS_CHECK_SHAPE(logits.ndim == 2 && (logits.shape[1] <= 1 || logits.strides[1] == 1), name,
                 "[N, V] with last stride 1", logits.describe());
  require_floating(name, logits);
  require_vector(name, target, logits.shape[0], "target");
  require_index(name, target);
}

/// `smoothing` is a share of the target.
inline void require_share(const char* name, double smoothing) {
  if (smoothing >= 0 && smoothing <= 1) return;
  throw Error("DS_ARGUMENT", name, "smoothing in [0, 1]", text(smoothing));
}

/// Returns the number of classes over all ranks.
template <class Op>
int64_t all_classes(const Op& op) {
  return op.classes ? op.classes : op.logits.shape[1];
}

/// The columns are some of the classes.
template <class Op>
void check_classes(const char* name, const Op& op) {
  const int64_t all = all_classes(op), columns = op.logits.shape[1];
  if (op.first >= 0 && op.first + columns <= all) return;
  throw Error("DS_ARGUMENT", name,
              text("a first class with ", columns, " classes from it on, of ", all),
              text(op.first));
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
  require_share(kOp, op.smoothing);
  check_classes(kOp, op);
}

/// dlogits = (exp(logits - lse) - (1 - s) onehot(target) - s / classes) * scale[0], where s is the
/// smoothing. Rows with ignore_index become 0. If the columns are a part of the classes, lse must
/// cover all classes. FLOPs: 2 per element of dlogits.
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
  require_share(kOp, op.smoothing);
  check_classes(kOp, op);
}

}  // namespace ds
