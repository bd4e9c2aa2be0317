// RotaryStore and PagedAttention of single tokens as one op, for decoding steps.
#pragma once

#include "paged_attention.h"
#include "rotary_store.h"

namespace ds {

/// Computes RotaryStore and then PagedAttention with the rotated queries, for sequences with at
/// most one new token. The slot of a token must be the place of its sequence's last key. q is
/// unchanged. On the CPU, invalid indices throw DS_INDEX as those ops do; on the GPU, a token
/// without a slot attends to its own key, too. The bits of `out` may differ from those ops, because
/// the order of sums may differ.
struct RotaryAttention {
  View q;               // [N, H, D], D even, last stride 1
  View k;               // [N, Hk, D], last stride 1
  View v;               // like k, with its own strides
  View cos;             // [R, D / 2] f32 (f64 for f64), contiguous
  View sin;             // like cos
  View positions;       // [N] i32, contiguous
  OptionalView q_norm;  // [D] of q's dtype
  OptionalView k_norm;  // [D]; both or neither
  View slots;           // [N] i32, contiguous: see PagedStore
  View pool;            // [blocks, 2, Hk, block, D] of q's dtype or u8 (codes), contiguous
  View tables;          // [S, most] i32, last stride 1: see PagedAttention
  View starts;          // [S + 1] i32, contiguous
  View lengths;         // [S] i32, contiguous
  View out;             // like q, with its own strides
  OptionalView sinks;   // [H], q's dtype, contiguous
  double eps;
  double scale;
  double cap;      // bound of the scores; 0: none
  int64_t window;  // 0: none
};

/// Returns the first half of the op. It writes the rotated queries to `rotated`, like q.
inline RotaryStore store_of(const RotaryAttention& op, const View& rotated) {
  return {op.q,         op.k,      op.v,      rotated,  op.cos,  op.sin,
          op.positions, op.q_norm, op.k_norm, op.slots, op.pool, op.eps};
}

/// Returns the second half of the op, for `rotated` queries.
inline PagedAttention attention_of(const RotaryAttention& op, const View& rotated) {
  return {rotated,  op.pool,  op.tables, op.starts, op.lengths, op.out, {},
          op.sinks, op.scale, op.cap,    op.window, 1,          false};
}

/// Returns a contiguous view like q at `data`.
inline View rotated_queries(const RotaryAttention& op, void* data) {
  View out = op.q;
  out.data = data;
  out.strides[0] = out.shape[1] * out.shape[2];
  out.strides[1] = out.shape[2];
  out.strides[2] = 1;
  return out;
}

inline void check(const RotaryAttention& op) {
  check(store_of(op, op.q));
  check(attention_of(op, op.q));
}

}  // namespace ds
