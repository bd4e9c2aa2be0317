// A borrowed, strided view of a tensor's memory: what every op receives.
#pragma once

#include <string>

#include "dtype.h"

namespace ds {

constexpr int kMaxDims = 6;

/// Borrowed: the caller keeps the memory alive until the op's stream has passed it.
/// An absent optional operand is a View whose data is null and ndim is -1.
struct View {
  void* data = nullptr;          // first element, on the op's device
  DType dtype = DType::f32;
  int32_t ndim = -1;
  int64_t shape[kMaxDims] = {};
  int64_t strides[kMaxDims] = {};  // in elements; 0 where a dim is broadcast

  explicit operator bool() const { return ndim >= 0; }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  int64_t numel() const {
    int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= shape[d];
    return n;
  }

  /// Size of dim d; negative counts from the end.
  int64_t size(int d) const { return shape[d < 0 ? ndim + d : d]; }

  bool contiguous() const {
    int64_t expected = 1;
    for (int d = ndim - 1; d >= 0; --d) {
      if (shape[d] != 1 && strides[d] != expected) return false;
      expected *= shape[d];
    }
    return true;
  }

  bool same_shape(const View& other) const {
    if (ndim != other.ndim) return false;
    for (int d = 0; d < ndim; ++d)
      if (shape[d] != other.shape[d]) return false;
    return true;
  }

  /// "[2, 3] bf16", for messages.
  std::string describe() const {
    if (!*this) return "nothing";
    std::string out = "[";
    for (int d = 0; d < ndim; ++d) out += (d ? ", " : "") + std::to_string(shape[d]);
    return out + "] " + name_of(dtype);
  }
};

/// Preconditions that most ops share; each throws DS_SHAPE or DS_DTYPE naming the op.
inline void require_contiguous(const char* op, const View& v, const char* name) {
  DS_CHECK_SHAPE(v.contiguous(), op, text(name, " contiguous"), text(v.describe(), " with strides"));
}
inline void require_same_shape(const char* op, const View& a, const View& b) {
  DS_CHECK_SHAPE(a.same_shape(b), op, a.describe(), b.describe());
}
inline void require_same_dtype(const char* op, const View& a, const View& b) {
  if (a.dtype != b.dtype) throw Error("DS_DTYPE", op, name_of(a.dtype), name_of(b.dtype));
}

}  // namespace ds
