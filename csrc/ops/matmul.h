// Matrix product with optional bias, GELU epilogue and accumulation.
#pragma once

#include "../core/preconditions.h"

namespace ds {

enum class MatmulEpilogue : int32_t {
  none,
  gelu,       // aux = z, out = gelu_tanh(z), where z = a b + bias
  gelu_grad,  // out = (a b) * gelu_tanh'(aux)
};

/// Computes out = op(a) op(b) (+ bias) in f32 (f64 for f64), rounded once. op transposes the last
/// two dims if trans_a or trans_b is set. With `accumulate`, adds to out (epilogue must be none).
/// M, N, K and the batch may be 0. On the GPU, cuBLASLt runs with an algorithm that is timed once
/// per shape; a single 16-bit row times b^T has a kernel of its own. On the CPU, OpenBLAS runs,
/// with f16 and bf16 converted to f32.
struct Matmul {
  View a;  // [M, K] or [batch, M, K] (before transposition [K, M]); last stride 1, any row stride
  View b;  // [K, N] or [batch, K, N] (before transposition [N, K]); batch stride may be 0
  OptionalView bias;  // [N], out's dtype
  OptionalView aux;   // out's shape and strides and dtype; written by gelu, read by gelu_grad
  View out;  // [M, N] or [batch, M, N]; last stride 1, any row stride; dtype of a and b, or f32
  bool trans_a;
  bool trans_b;
  MatmulEpilogue epilogue;
  bool accumulate;
};

inline void check(const Matmul& op) {
  constexpr const char* kOp = "matmul";
  const int32_t ndim = op.out.ndim;
  DS_CHECK_SHAPE(ndim == 2 || ndim == 3, kOp, "out [M, N] or [batch, M, N]", op.out.describe());
  const auto check_matrix = [&](const View& v, const char* name) {
    require_rows(kOp, v, ndim, name, ndim == 2 ? "[rows, columns]" : "[batch, rows, columns]");
  };
  check_matrix(op.a, "a");
  check_matrix(op.b, "b");
  check_matrix(op.out, "out");
  const int64_t m = op.out.size(-2), n = op.out.size(-1), k = op.a.size(op.trans_a ? -2 : -1);
  const auto is = [&](const View& v, int64_t rows, int64_t columns) {
    return v.size(-2) == rows && v.size(-1) == columns &&
           (ndim == 2 || v.shape[0] == op.out.shape[0]);
  };
  DS_CHECK_SHAPE(op.trans_a ? is(op.a, k, m) : is(op.a, m, k), kOp,
                 text("a for the product ", op.out.describe()), op.a.describe());
  DS_CHECK_SHAPE(op.trans_b ? is(op.b, n, k) : is(op.b, k, n), kOp,
                 text("b for the product ", op.out.describe(), " with a ", op.a.describe()),
                 op.b.describe());
  DS_CHECK_SHAPE(m <= 1 || n == 0 || op.out.strides[ndim - 2] >= n, kOp,
                 "rows of out that do not overlap", text("row stride ", op.out.strides[ndim - 2]));
  require_floating(kOp, op.a);
  require_same_dtype(kOp, op.a, op.b);
  if (op.out.dtype != DType::f32 || op.a.dtype == DType::f64) {
    require_same_dtype(kOp, op.a, op.out);
  }
  if (op.bias) {
    require_vector(kOp, op.bias, n, "bias");
    require_same_dtype(kOp, op.out, op.bias);
  }
  if (op.aux) {
    require_like(kOp, op.out, op.aux);
    for (int d = 0; d < ndim; ++d) {
      DS_CHECK_SHAPE(op.out.shape[d] <= 1 || op.aux.strides[d] == op.out.strides[d], kOp,
                     text("aux with out's strides, ", op.out.strides[d], " in dim ", d),
                     text(op.aux.strides[d]));
    }
  }
  DS_CHECK_SHAPE(op.epilogue != MatmulEpilogue::gelu_grad || (op.aux && !op.bias), kOp,
                 "aux and no bias for gelu_grad",
                 text("aux ", op.aux.describe(), ", bias ", op.bias.describe()));
  if (op.accumulate && op.epilogue != MatmulEpilogue::none) {
    throw Error("DS_ARGUMENT", kOp, "no epilogue together with accumulate", "both");
  }
}

}  // namespace ds
