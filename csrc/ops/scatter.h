// Elements to the places that an index tensor names along one dim: stored there, or added.
#pragma once

#include "gather.h"

namespace ds {

/// out[.., index[.., j, ..], ..] = src[.., j, ..] along `dim` (torch.scatter); what no index names
/// stays as it is. Of several with one place the last j wins. Bad indices are DS_INDEX on the CPU;
/// on the GPU they write nothing.
struct Scatter {
  View src;    // any dtype, any strides
  View index;  // src's shape, i32 or i64; every dim but `dim` equals out's
  View out;    // src's dtype, any strides without overlap; read and written
  int64_t dim;
};

inline void check(const Scatter& op) { check_places("scatter", op.out, op.index, op.src, op.dim); }

/// out[.., index[.., j, ..], ..] += src[.., j, ..]: torch.scatter_add, and the gradient of Gather.
/// The order of the sum depends on the shapes alone, f32 inside, one rounding. Without `accumulate`
/// out starts from 0. Bad indices as in Scatter.
/// FLOPs: 1 per element of src.
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
