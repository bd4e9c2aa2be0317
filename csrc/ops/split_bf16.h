// Splits an f32 matrix into a sum of two bf16 matrices, so that tensor cores can multiply it.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Computes high = in rounded to bf16, and low = in - high rounded to bf16. high + low differs from
/// `in` by at most 2^-17 of it. If high is not finite, low is 0. The outputs may be parts of one
/// matrix.
struct SplitBf16 {
  View in;             // [rows, columns] f32, last stride 1, any row stride
  View high;           // [rows, columns] bf16, last stride 1, any row stride
  OptionalView again;  // a copy of high, with the same layout
  View low;            // [rows, columns] bf16, last stride 1, any row stride
};

inline void check(const SplitBf16& op) {
  constexpr const char* kOp = "split_bf16";
  DS_CHECK_SHAPE(op.in.ndim == 2, kOp, "in [rows, columns]", op.in.describe());
  require_dtype(kOp, op.in, DType::f32, "in");
  const auto check_part = [&](const View& v, const char* name) {
    require_dtype(kOp, v, DType::bf16, name);
    require_same_shape(kOp, op.in, v);
  };
  check_part(op.high, "high");
  check_part(op.low, "low");
  if (op.again) check_part(op.again, "again");
  const auto check_rows = [&](const View& v) {
    const bool whole = has_contiguous_rows(v);
    const bool apart = v.shape[0] <= 1 || v.strides[0] >= v.shape[1];
    DS_CHECK_SHAPE(whole && apart, kOp, "rows with last stride 1 that do not overlap",
                   describe_strides(v));
  };
  check_rows(op.in);
  check_rows(op.high);
  check_rows(op.low);
  if (op.again) check_rows(op.again);
}

}  // namespace ds
