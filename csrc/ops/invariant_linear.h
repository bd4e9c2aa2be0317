// The batch-invariant linear layer: the bits of a row do not depend on other rows.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Computes out = x weight^T + bias in f32 (f64 for f64), rounded once. The order of a sum depends
/// only on K, so a row gives the same bits in every batch, unlike with Matmul. The GPU uses tensor
/// cores for 16-bit dtypes and plain arithmetic for f32, and never splits a sum.
struct InvariantLinear {
  View x;             // [M, K]; last stride 1, any row stride
  View weight;        // [N, K]; last stride 1, any row stride
  OptionalView bias;  // [N]
  View out;           // [M, N]; last stride 1, any row stride
};

inline void check(const InvariantLinear& op) {
  constexpr const char* kOp = "invariant_linear";
  const auto check_matrix = [&](const View& v, const char* name) {
    require_rows(kOp, v, 2, name, "[rows, columns]");
  };
  check_matrix(op.x, "x");
  check_matrix(op.weight, "weight");
  check_matrix(op.out, "out");
  const int64_t m = op.out.shape[0], n = op.out.shape[1], k = op.x.shape[1];
  DS_CHECK_SHAPE(op.x.shape[0] == m, kOp, text("x [", m, ", K]"), op.x.describe());
  DS_CHECK_SHAPE(op.weight.shape[0] == n && op.weight.shape[1] == k, kOp,
                 text("a weight [", n, ", ", k, "]"), op.weight.describe());
  DS_CHECK_SHAPE(m <= 1 || n == 0 || op.out.strides[0] >= n, kOp, "rows of out that do not overlap",
                 text("row stride ", op.out.strides[0]));
  require_floating(kOp, op.x);
  require_same_dtype(kOp, op.x, op.weight);
  require_same_dtype(kOp, op.x, op.out);
  if (!op.bias) return;
  require_vector(kOp, op.bias, n, "bias");
  require_same_dtype(kOp, op.x, op.bias);
}

}  // namespace ds
