// The first elements of each row in sorted order, with their positions: sort, argsort and topk.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Writes the first K elements of each row in ascending or descending order, and their positions.
/// Equal elements keep their order. NaN counts as the largest and -0 as 0.
struct Sort {
  View in;              // [.., C], any dtype, any strides
  OptionalView values;  // [.., K] contiguous with K <= C, in's dtype
  View index;           // [.., K] i64, contiguous
  bool descending;
};

inline void check(const Sort& op) {
  constexpr const char* kOp = "sort";
  DS_CHECK_SHAPE(op.in.ndim >= 1 && op.index.ndim == op.in.ndim, kOp,
                 "in with at least one dim, and an index with as many",
                 text(op.in.describe(), " and ", op.index.describe()));
  const int last = op.in.ndim - 1;
  DS_CHECK_SHAPE(op.in.shape[last] < int64_t{1} << 31, kOp, "rows of fewer than 2^31 elements",
                 op.in.describe());
  DS_CHECK_SHAPE(op.index.shape[last] <= op.in.shape[last], kOp,
                 text("at most ", op.in.shape[last], " indices in a row"), op.index.describe());
  for (int d = 0; d < last; ++d)
    DS_CHECK_SHAPE(op.index.shape[d] == op.in.shape[d], kOp,
                   text("an index with the rows of ", op.in.describe()), op.index.describe());
  require_dtype(kOp, op.index, DType::i64, "index");
  require_contiguous(kOp, op.index, "index");
  if (!op.values) return;
  require_same_shape(kOp, op.index, op.values);
  require_same_dtype(kOp, op.in, op.values);
  require_contiguous(kOp, op.values, "values");
}

}  // namespace ds
