// Normalizes and rotates queries and keys, and stores keys and values in a pool, in one pass.
// Sources: see Rope, RmsNorm and PagedStore.
#pragma once

#include "paged_attention.h"

namespace ds {

/// Writes the queries to `out`: normalized over each head if `q_norm` is present (RmsNorm with
/// `eps`), then rotated by row positions[n] of the table (Rope). The keys are processed in the same
/// way with `k_norm`. Keys and unchanged values go to the slot of their token (PagedStore). Each
/// step rounds to q's dtype, as those ops do. On the CPU, a position outside of the table or a slot
/// outside of the pool throws DS_INDEX before anything is written. On the GPU, it gives NaN or
/// skips the token.
struct RotaryStore {
  View q;               // [N, H, D], D even, last stride 1
  View k;               // [N, Hk, D], D even, last stride 1
  View v;               // like k, with its own strides
  View out;             // like q, any strides; may be q itself
  View cos;             // [R, D / 2] f32 (f64 for f64), contiguous
  View sin;             // like cos
  View positions;       // [N] i32, contiguous
  OptionalView q_norm;  // [D] of q's dtype
  OptionalView k_norm;  // [D]; both or neither
  View slots;           // [N] i32, contiguous: see PagedStore
  View pool;            // [blocks, 2, Hk, block, D] of q's dtype or u8 (codes), contiguous
  double eps;
};

inline void check(const RotaryStore& op) {
  constexpr const char* kOp = "rotary_store";
  check_ragged(kOp, op.q, "q");
  check_ragged(kOp, op.out, "out");
  check_ragged(kOp, op.k, "k");
  check_ragged(kOp, op.v, "v");
  require_like(kOp, op.q, op.out);
  require_like(kOp, op.k, op.v);
  check_pool(kOp, op.pool, op.k);
  require_same_dtype(kOp, op.q, op.k);
  const int64_t tokens = op.q.shape[0], d = op.q.shape[2];
  DS_CHECK_SHAPE(op.k.shape[0] == tokens && op.k.shape[2] == d && d % 2 == 0, kOp,
                 text("keys [", tokens, ", Hk, ", d, "] with even D"), op.k.describe());
  DS_CHECK_SHAPE(op.pool.shape[2] == op.k.shape[1], kOp,
                 text("a pool of ", op.k.shape[1], " heads"), op.pool.describe());
  require_list(kOp, op.slots, tokens, DType::i32, "slots");
  require_list(kOp, op.positions, tokens, DType::i32, "positions");
  for (const View* table : {&op.cos, &op.sin}) {
    DS_CHECK_SHAPE(
        table->ndim == 2 && table->shape[1] == d / 2 && table->shape[0] == op.cos.shape[0], kOp,
        text("cos and sin [rows, ", d / 2, "] of equal shapes"), table->describe());
    require_dtype(kOp, *table, statistic_of(op.q.dtype), "cos and sin");
    require_contiguous(kOp, *table, "cos and sin");
  }
  DS_CHECK_SHAPE(!op.q_norm == !op.k_norm, kOp, "q_norm and k_norm, or neither",
                 op.q_norm ? "q_norm only" : "k_norm only");
  for (const View* norm : {&op.q_norm, &op.k_norm}) {
    if (!*norm) continue;
    require_vector(kOp, *norm, d, "norm");
    require_dtype(kOp, *norm, op.q.dtype, "norm");
  }
}

}  // namespace ds
