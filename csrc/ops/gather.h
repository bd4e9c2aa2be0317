// Gather along one dim with an index tensor, and its gradient.
#pragma once

#include "../core/view.h"

namespace ds {

/// out[.., j, ..] = in[.., index[.., j, ..], ..] along `dim` (torch.gather). Bad indices as in Embedding.
struct Gather {
  View in;     // any dtype, any strides
  View index;  // out's shape, i32 or i64; every dim but `dim` equals in's
  View out;    // in's dtype
  int64_t dim;
};

/// dx[.., index[.., j, ..], ..] += dout[.., j, ..] in ascending j; without `accumulate` dx starts from 0.
struct GatherBackward {
  View dout;   // floating
  View index;  // dout's shape
  View dx;     // dout's dtype
  int64_t dim;
  bool accumulate;
};

}  // namespace ds
