// Sums over rows of logits, for the entropy and mean in metrics of language models.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Computes expected[n] = sum of p x and total[n] = sum of x, over the columns x of row n, with p =
/// exp(x - lse[n]). A column with p = 0 adds nothing to `expected`. If target[n] is ignore_index,
/// both are 0. The entropy of a row is lse[n] - expected[n]. Computed in f32 (f64 for f64). FLOPs:
/// 2 per element of logits.
struct LogitSums {
  View logits;    // [N, V], last stride 1, any row stride; floating
  View target;    // [N] i32 or i64, contiguous
  View lse;       // [N] f32 (f64 for f64): log sum exp of the row, over the columns of all ranks
  View expected;  // [N] f32 (f64 for f64)
  View total;     // [N] f32 (f64 for f64)
  int64_t ignore_index;
};

inline void check(const LogitSums& op) {
  constexpr const char* kOp = "logit_sums";
  const int64_t rows = op.logits.shape[0];
  require_rows(kOp, op.logits, 2, "logits", "[N, V]");
  require_floating(kOp, op.logits);
  require_vector(kOp, op.target, rows, "target");
  require_index(kOp, op.target);
  require_statistic(kOp, op.lse, rows, op.logits, "lse");
  require_statistic(kOp, op.expected, rows, op.logits, "expected");
  require_statistic(kOp, op.total, rows, op.logits, "total");
}

}  // namespace ds
