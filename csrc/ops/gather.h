// Gather along one dim with an index tensor, and its gradient.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// out[.., j, ..] = in[.., index[.., j, ..], ..] along `dim` (torch.gather). Bad indices as in Embedding.
struct Gather {
  View in;     // any dtype, any strides
  View index;  // out's shape, i32 or i64; every dim but `dim` equals in's
  View out;    // in's dtype
  int64_t dim;
};

inline void check_gather(const char* name, const View& in, const View& index, const View& out,
                         int64_t dim) {
  require_same_shape(name, out, index);
  require_same_dtype(name, in, out);
  require_index(name, index);
  DS_CHECK_SHAPE(in.ndim == out.ndim && dim >= 0 && dim < in.ndim, name,
                 text("dim ", dim, " of ", in.describe()), out.describe());
  for (int d = 0; d < in.ndim; ++d)
    DS_CHECK_SHAPE(d == dim || in.shape[d] == out.shape[d], name, in.describe(), out.describe());
}

inline void check(const Gather& op) { check_gather("gather", op.in, op.index, op.out, op.dim); }

/// dx[.., index[.., j, ..], ..] += dout[.., j, ..] in ascending j; without `accumulate` dx starts from 0.
struct GatherBackward {
  View dout;   // floating
  View index;  // dout's shape
  View dx;     // dout's dtype
  int64_t dim;
  bool accumulate;
};

inline void check(const GatherBackward& op) {
  check_gather("gather_backward", op.dx, op.index, op.dout, op.dim);
  require_floating("gather_backward", op.dx);
}

}  // namespace ds
