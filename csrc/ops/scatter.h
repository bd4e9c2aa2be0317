// Stores or adds elements at the positions of an index tensor along a dim.
#pragma once

#include "gather.h"

namespace ds {

/// Writes out[.., index[.., j, ..], ..] = src[.., j, ..] along `dim` (torch.scatter). Elements
/// without an index are unchanged. If several j have the same index, the last j wins. An invalid
/// index throws DS_INDEX on the CPU; the GPU skips it.
struct Scatter {
  View src;    // any dtype, any strides
  View index;  // src's shape, i32 or i64; every dim but `dim` equals out's
  View out;    // src's dtype, any strides without overlap; read and written
  int64_t dim;
};

inline void check(const Scatter& op) { check_places("scatter", op.out, op.index, op.src, op.dim); }

/// Computes out[.., index[.., j, ..], ..] += src[.., j, ..] (torch.scatter_add, and the gradient of
/// Gather). The order of a sum depends only on the shapes; sums in f32, rounded once. Without
/// `accumulate`, out starts at 0. Invalid indices as in Scatter. FLOPs: 1 per element of src.
struct ScatterAdd {
  View src;    // any dtype but bool
  View index;  // src's shape, i32 or i64; every dim but `dim` equals out's
  View out;    // src's dtype
  int64_t dim;
  bool accumulate;
};

inline void check(const ScatterAdd& op) {
  check_places("scatter_add", op.out, op.index, op.src, op.dim);
  if (op.out.dtype == DType::boolean)
    unsupported("scatter_add", op.out.dtype, "any dtype but bool");
}

}  // namespace ds
