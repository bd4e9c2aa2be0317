// Running sums along one dim.
#pragma once

#include "../core/preconditions.h"

namespace ds {

inline void check_scan(const char* name, const View& in, const View& out, int64_t dim) {
  require_like(name, in, out);
  DS_CHECK_SHAPE(dim >= 0 && dim < in.ndim, name, text("a dim of ", in.describe()), text("dim ", dim));
  if (!is_floating(in.dtype) && in.dtype != DType::i64) {
    unsupported(name, in.dtype, "f32, f16, bf16, f64 or i64");
  }
}

/// out[.., i, ..] = the sum of in[.., 0 .. i, ..] along `dim`, of in[.., i .. n - 1, ..] with `reverse`. f32
/// inside for f32, f16 and bf16 (f64 for f64), one rounding; i64 wraps around.
struct Scan {
  View in;   // f32, f16, bf16, f64 or i64; any strides
  View out;  // same shape and dtype
  int64_t dim;
  bool reverse;
  bool accumulate;
};

inline void check(const Scan& op) { check_scan("scan", op.in, op.out, op.dim); }

}  // namespace ds
