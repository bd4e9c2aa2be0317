// A strided view of a tensor's memory, the operand of every op.
#pragma once

#include <string>

#include "dtype.h"

namespace ds {

constexpr int kMaxDims = 6;

/// A view that does not own memory: the caller keeps it alive until the op's stream has passed the
/// op. If `ndim` is -1, the view is absent, which only an OptionalView may be.
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

  /// Returns the size of dim d; -1 is the last dim.
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

  /// Returns shape and dtype for messages: "[2, 3] bf16".
  std::string describe() const {
    if (!*this) return "nothing";
    std::string out = "[";
    for (int d = 0; d < ndim; ++d) out += (d ? ", " : "") + std::to_string(shape[d]);
    return out + "] " + name_of(dtype);
  }
};

/// An operand that may be absent. The addon rejects an op if any other operand is absent.
struct OptionalView : View {
  OptionalView() = default;
  OptionalView(const View& view) : View(view) {}
};

}  // namespace ds
