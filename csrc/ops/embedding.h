// Looks up rows of a table. The gradient is summed per row, in order of appearance.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Copies rows: out[n] = weight[index[n]]. An index outside [0, V) throws DS_INDEX on the CPU. On
/// the GPU it gives NaN (0 for integers), so that the mistake is visible.
struct Embedding {
  View weight;  // [V, C], last stride 1
  View index;   // [N] i32 or i64, contiguous
  View out;     // [N, C] contiguous, weight's dtype
};

/// Checks that `table` is [V, C], `index` [N] and `rows` [N, C].
inline void check_lookup(const char* name, const View& table, const View& index, const View& rows) {
  require_same_dtype(name, table, rows);
  DS_CHECK_SHAPE(table.ndim == 2 && index.ndim == 1 && rows.ndim == 2, name,
                 "a table [V, C], indices [N] and rows [N, C]",
                 text(table.describe(), ", ", index.describe(), " and ", rows.describe()));
  DS_CHECK_SHAPE(rows.shape[0] == index.shape[0] && rows.shape[1] == table.shape[1], name,
                 text("rows [", index.shape[0], ", ", table.shape[1], "]"), rows.describe());
  require_index(name, index);
  require_contiguous(name, index, "index");
  require_contiguous(name, rows, "rows");
}

inline void check(const Embedding& op) {
  check_lookup("embedding", op.weight, op.index, op.out);
  require_rows("embedding", op.weight, 2, "weight", "[V, C]");
}

/// Computes dweight[v] (+)= sum of dout[n] over all n with index[n] == v, in ascending n, in f32
/// with one rounding. Rows without an index become 0, or are unchanged if `accumulate`.
/// Deterministic, without atomics.
/// FLOPs: 1 per element of dout.
struct EmbeddingBackward {
  View dout;     // [N, C] contiguous
  View index;    // [N] i32 or i64, contiguous
  View dweight;  // [V, C] contiguous, dout's dtype
  bool accumulate;
};

inline void check(const EmbeddingBackward& op) {
  check_lookup("embedding_backward", op.dweight, op.index, op.dout);
  require_floating("embedding_backward", op.dweight);
  require_contiguous("embedding_backward", op.dweight, "dweight");
}

}  // namespace ds
