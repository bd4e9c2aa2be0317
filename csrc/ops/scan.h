// Running sums and products along a dim, and the gradient of a running product.
#pragma once

#include "../core/preconditions.h"

namespace ds {

enum class ScanOp : int32_t { sum, prod };

inline void check_scan(const char* name, const View& in, const View& out, int64_t dim) {
  require_like(name, in, out);
  DS_CHECK_SHAPE(dim >= 0 && dim < in.ndim, name, text("a dim of ", in.describe()),
                 text("dim ", dim));
  if (!is_floating(in.dtype) && in.dtype != DType::i64) {
    unsupported(name, in.dtype, "f32, f16, bf16, f64 or i64");
  }
}

/// Computes out[.., i, ..] = op of in[.., 0 .. i, ..] along `dim`, or of in[.., i .. n - 1, ..]
/// with `reverse`. f32, f16 and bf16 are computed in f32 (f64 in f64), rounded once; i64 wraps
/// around.
/// FLOPs: 1 per element of out.
struct Scan {
  View in;   // f32, f16, bf16, f64 or i64; any strides
  View out;  // same shape and dtype
  int64_t dim;
  ScanOp op;
  bool reverse;
  bool accumulate;
};

inline void check(const Scan& op) { check_scan("scan", op.in, op.out, op.dim); }

/// Computes dx[i] = sum over j >= i of dout[j] times the product of in[0 .. j] without in[i], along
/// `dim`. It does not divide, so it is exact if elements are 0: dx[i] = P[i] S[i], where P[i] is
/// the product of in[0 .. i - 1] and S[i] = dout[i] + in[i + 1] S[i + 1]. FLOPs: 3 per element of
/// dx.
struct CumprodBackward {
  View in;    // floating, any strides
  View dout;  // same shape and dtype
  View dx;    // same shape and dtype
  int64_t dim;
  bool accumulate;
};

inline void check(const CumprodBackward& op) {
  require_floating("cumprod_backward", op.in);
  require_like("cumprod_backward", op.in, op.dout);
  check_scan("cumprod_backward", op.in, op.dx, op.dim);
}

}  // namespace ds
