// Products of groups of rows of different sizes, each with its own matrix: the linear layers of
// experts.
#pragma once

#include "../core/preconditions.h"
#include "expert_rows.h"

namespace ds {

/// Row r of out belongs to the group g with offsets[g] <= r < offsets[g + 1] and becomes x[rows[r]]
/// w[g]^T, or x[rows[r]] w[g] if `plain`. Sums in f32 (f64 for f64), rounded once. A row index of
/// -1 means a row of zeros. Rows after the last group are 0. The sizes of groups stay on the
/// device. The CPU throws DS_INDEX if offsets do not ascend from 0 to at most R, or if a row is
/// outside of x. The GPU never reads out of bounds. Source: Gale et al. 2022 (MegaBlocks).
struct GroupedMatmul {
  View x;             // [X, K], floating, contiguous; X = R without rows
  OptionalView rows;  // [R] i32, contiguous; absent: row r of x
  View weight;        // [groups, N, K], or [groups, K, N] if `plain`; x's dtype, contiguous
  View offsets;       // [groups + 1] i32, contiguous
  View out;           // [R, N], x's dtype, contiguous
  bool plain;
};

inline void check_grouped(const char* op, const View& x, const OptionalView& rows,
                          const View& offsets, const View& out, const char* name) {
  DS_CHECK_SHAPE(x.ndim == 2, op, "x [rows, K]", x.describe());
  DS_CHECK_SHAPE(out.ndim == 2 && (rows || out.shape[0] == x.shape[0]), op,
                 text(name, " [", rows ? text("rows") : text(x.shape[0]), ", N]"), out.describe());
  DS_CHECK_SHAPE(out.shape[0] < int64_t{1} << 31, op, "fewer than 2^31 rows", out.describe());
  require_floating(op, x);
  require_same_dtype(op, x, out);
  require_contiguous(op, x, "x");
  require_contiguous(op, out, name);
  if (rows) require_list(op, rows, out.shape[0], DType::i32, "rows");
  check_offsets(op, offsets);
}

inline void check_group_weight(const char* op, const View& like, const View& weight,
                               const View& offsets, int64_t n, int64_t k) {
  const int64_t groups = offsets.shape[0] - 1;
  DS_CHECK_SHAPE(
      weight.ndim == 3 && weight.shape[0] == groups && weight.shape[1] == n && weight.shape[2] == k,
      op, text("a weight [", groups, ", ", n, ", ", k, "]"), weight.describe());
  require_same_dtype(op, like, weight);
  require_contiguous(op, weight, "weight");
}

inline void check(const GroupedMatmul& op) {
  constexpr const char* kOp = "grouped_matmul";
  check_grouped(kOp, op.x, op.rows, op.offsets, op.out, "out");
  const int64_t n = op.out.shape[1], k = op.x.shape[1];
  check_group_weight(kOp, op.x, op.weight, op.offsets, op.plain ? k : n, op.plain ? n : k);
}

/// Computes dweight[g] (+)= the sum over the group's rows r of dout[r]^T x[rows[r]]. The gradient
/// of an empty group is 0. Invalid indices as in GroupedMatmul.
struct GroupedWeightGradient {
  View dout;          // [R, N], floating, contiguous
  View x;             // [X, K], dout's dtype, contiguous
  OptionalView rows;  // the forward's
  View offsets;       // the forward's
  View dweight;       // [groups, N, K], dout's dtype, contiguous
  bool accumulate;
};

inline void check(const GroupedWeightGradient& op) {
  constexpr const char* kOp = "grouped_weight_gradient";
  check_grouped(kOp, op.x, op.rows, op.offsets, op.dout, "dout");
  check_group_weight(kOp, op.x, op.dweight, op.offsets, op.dout.shape[1], op.x.shape[1]);
}

}  // namespace ds
