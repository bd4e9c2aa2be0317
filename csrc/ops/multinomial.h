// Draws categories by their probabilities, with the same results on all devices.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Draws K categories of each row of `in`, with probabilities proportional to the row's values in
/// f32. A row is invalid if a value is negative, infinite or NaN, if no value is positive, or
/// (without replacement) if fewer than K values are positive. An invalid row throws DS_ARGUMENT on
/// the CPU; on the GPU its failed draws are -1.
///
/// With replacement, values become proportional integers: 2^38 for the largest, at least 1 for any
/// positive value. Draw k of row r scales words 0 and 1 of block r K + k to the sum of these
/// integers, and takes the category at that position of the running sum. Without replacement, the
/// categories with the largest value / e win, where e is exponential, from word i % 4 of block i /
/// 4 for element i. Source: Efraimidis and Spirakis 2006, "Weighted random sampling with a
/// reservoir".
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
