// Draws of categories by their probabilities, the same on every device.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// K categories of each row of `in`, drawn with probabilities in proportion to the row's values in
/// f32. A row with a value that is negative, infinite or NaN, without any above 0, or (without
/// replacement) with fewer than K above 0, is DS_ARGUMENT on the CPU; on the GPU what cannot be
/// drawn is -1.
///
/// With replacement: values become integers in proportion to them, 2^38 for the largest and at
/// least 1 for any above 0, and draw k of row r takes the category in whose part of their running
/// sum falls words 0 and 1 of block r K + k, scaled to the sum. Without: the categories with the
/// largest value / e, where e is exponential from word i % 4 of block i / 4 for element i. Source:
/// Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir".
struct Multinomial {
  View in;     // [N, C] contiguous, floating; C < 2^24
  View index;  // [N, K] i64, contiguous; K <= C without replacement
  bool replacement;
  int64_t seed;
  int64_t offset;
};

inline void check(const Multinomial& op) {
  constexpr const char* kOp = "multinomial";
  require_floating(kOp, op.in);
  DS_CHECK_SHAPE(op.in.ndim == 2 && op.index.ndim == 2 && op.in.shape[0] == op.index.shape[0], kOp,
                 "rows [N, C] and draws [N, K]",
                 text(op.in.describe(), " and ", op.index.describe()));
  require_contiguous(kOp, op.in, "in");
  require_contiguous(kOp, op.index, "index");
  require_dtype(kOp, op.index, DType::i64, "index");
  const int64_t categories = op.in.shape[1], draws = op.index.shape[1];
  DS_CHECK_SHAPE(categories < int64_t{1} << 24, kOp, "fewer than 2^24 categories",
                 op.in.describe());
  DS_CHECK_SHAPE(op.index.numel() == 0 || categories > 0, kOp, "at least one category",
                 op.in.describe());
  if (!op.replacement && draws > categories) {
    throw Error("DS_ARGUMENT", kOp, text("at most ", categories, " draws without replacement"),
                text(draws), "Draw with replacement, or fewer.");
  }
}

}  // namespace ds
