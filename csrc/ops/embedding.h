// Row lookup in a table, and its gradient, summed per row in order of appearance.
#pragma once

#include "../core/view.h"

namespace ds {

/// out[n] = weight[index[n]]. An index outside [0, V) is DS_INDEX on the CPU; on the GPU it reads row 0
/// and the result is NaN (floating) so that the mistake shows.
struct Embedding {
  View weight;  // [V, C], last stride 1
  View index;   // [N] i32 or i64, contiguous
  View out;     // [N, C] contiguous, weight's dtype
};

/// dweight[v] (+)= sum of dout[n] over n with index[n] == v, in ascending n, f32 accumulation, one rounding
/// at the end. Rows without an index become 0 unless accumulate is true (then they are untouched).
/// Deterministic: no atomics.
struct EmbeddingBackward {
  View dout;     // [N, C] contiguous
  View index;    // [N] i32 or i64, contiguous
  View dweight;  // [V, C] contiguous, dout's dtype
  bool accumulate;
};

}  // namespace ds
