// Checks of an op's operands. Each throws DS_SHAPE, DS_DTYPE or DS_ARGUMENT with the op's name.
#pragma once

#include "view.h"

namespace ds {

/// Returns shape, dtype and strides for messages: "[2, 3] bf16 with strides [1, 2]".
inline std::string describe_strides(const View& v) {
  std::string strides;
  for (int d = 0; d < v.ndim; ++d) strides += (d ? ", " : "") + std::to_string(v.strides[d]);
  return text(v.describe(), " with strides [", strides, "]");
}

constexpr const char* kCopyHint = "Copy the tensor first with .contiguous().";

inline void require_contiguous(const char* op, const View& v, const char* name) {
  if (v.contiguous()) return;
  throw Error("DS_SHAPE", op, text(name, " to be contiguous"), describe_strides(v), kCopyHint);
}

/// Returns true if the elements of a row, the last dim, are adjacent in memory.
inline bool has_contiguous_rows(const View& v) {
  return v.ndim > 0 && (v.size(-1) <= 1 || v.strides[v.ndim - 1] == 1);
}

/// Checks that `v` has `dims` dims and contiguous rows. `shape` names the dims: "[rows, D]".
inline void require_rows(const char* op, const View& v, int dims, const char* name,
                         const char* shape) {
  DS_CHECK_SHAPE(v.ndim == dims, op, text(name, " ", shape), v.describe());
  if (has_contiguous_rows(v)) return;
  throw Error("DS_SHAPE", op, text(name, " ", shape, " with last stride 1"), describe_strides(v),
              kCopyHint);
}

inline void require_same_shape(const char* op, const View& a, const View& b) {
  DS_CHECK_SHAPE(a.same_shape(b), op, "tensors of one shape",
                 text(a.describe(), " and ", b.describe()));
}

inline void require_same_dtype(const char* op, const View& a, const View& b) {
  if (a.dtype == b.dtype) return;
  throw Error("DS_DTYPE", op, "tensors of one dtype",
              text(name_of(a.dtype), " and ", name_of(b.dtype)),
              "Cast one of them first, for example with .to('f32').");
}

/// Checks that `v` has the shape and dtype of `model`.
inline void require_like(const char* op, const View& model, const View& v) {
  require_same_shape(op, model, v);
  require_same_dtype(op, model, v);
}

inline void require_dtype(const char* op, const View& v, DType dtype, const char* name) {
  if (v.dtype != dtype) unsupported(op, v.dtype, text(name_of(dtype), " as ", name).c_str());
}

inline void require_floating(const char* op, const View& v) {
  if (!is_floating(v.dtype)) unsupported(op, v.dtype, "f32, f16, bf16 or f64");
}

/// Checks that `v` is f32, f16 or bf16, as gradients and the weights of models must be.
inline void require_narrow(const char* op, const View& v, const char* name) {
  if (!is_floating(v.dtype) || v.dtype == DType::f64) {
    unsupported(op, v.dtype, text("f32, f16 or bf16 as ", name).c_str());
  }
}

inline void require_index(const char* op, const View& v) {
  if (v.dtype != DType::i32 && v.dtype != DType::i64) unsupported(op, v.dtype, "i32 or i64");
}

/// Checks that `v` is [n] and contiguous.
inline void require_vector(const char* op, const View& v, int64_t n, const char* name) {
  DS_CHECK_SHAPE(v.ndim == 1 && v.shape[0] == n, op, text(name, " [", n, "]"), v.describe());
  require_contiguous(op, v, name);
}

/// Returns the dtype of statistics (means, log-sum-exps, losses, angles) of values with dtype `t`.
constexpr DType statistic_of(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

/// Checks that `v` is [n], contiguous, and has the statistics' dtype of `values`.
inline void require_statistic(const char* op, const View& v, int64_t n, const View& values,
                              const char* name) {
  require_vector(op, v, n, name);
  require_dtype(op, v, statistic_of(values.dtype), name);
}

/// Checks that `v` has n contiguous elements of `dtype`, in any shape.
inline void require_list(const char* op, const View& v, int64_t n, DType dtype, const char* name) {
  DS_CHECK_SHAPE(v.numel() == n && v.dtype == dtype, op, text(name, " [", n, "] ", name_of(dtype)),
                 v.describe());
  require_contiguous(op, v, name);
}

}  // namespace ds
