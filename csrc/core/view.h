// A borrowed, strided view of a tensor's memory: the operand of every op.
#pragma once

#include <string>

#include "dtype.h"

namespace ds {

constexpr int kMaxDims = 6;

/// Borrowed: the caller keeps the memory alive until the op's stream has passed it.
/// A View with ndim -1 is absent: only an OptionalView of an op's struct may be.
struct View {
  void* data = nullptr;  // first element, on the op's device
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

/// An operand that may be absent. The boundary rejects an op if another operand is absent.
struct OptionalView : View {
  OptionalView() = default;
  OptionalView(const View& view) : View(view) {}
};

}  // namespace ds
