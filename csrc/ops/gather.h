// Gather along one dim with an index tensor.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Computes out[.., j, ..] = in[.., index[.., j, ..], ..] along `dim` (torch.gather). Invalid
/// indices as in Embedding.
struct Gather {
  View in;     // any dtype, any strides
  View index;  // out's shape, i32 or i64; every dim but `dim` equals in's
  View out;    // in's dtype
  int64_t dim;
};

/// Checks an `index` that gives, for each element of `part`, a position along `dim` of `whole`.
inline void check_places(const char* name, const View& whole, const View& index, const View& part,
                         int64_t dim) {
  require_same_shape(name, part, index);
  require_same_dtype(name, whole, part);
  require_index(name, index);
  DS_CHECK_SHAPE(dim >= 0 && dim < whole.ndim, name, text("a dim of ", whole.describe()),
                 text("dim ", dim));
  DS_CHECK_SHAPE(whole.ndim == part.ndim, name, text("an index with ", whole.ndim, " dims"),
                 index.describe());
  for (int d = 0; d < whole.ndim; ++d)
    DS_CHECK_SHAPE(d == dim || whole.shape[d] == part.shape[d], name,
                   text("an index with the sizes of ", whole.describe(), " except in dim ", dim),
                   index.describe());
}

inline void check(const Gather& op) { check_places("gather", op.in, op.index, op.out, op.dim); }

}  // namespace ds
