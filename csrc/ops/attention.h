// Fused scaled-dot-product attention that never stores the T x S score matrix. Source: Dao et al. 2022,
// 2023 (FlashAttention 1 and 2).
#pragma once

#include <algorithm>

#include "../core/preconditions.h"

namespace ds {

/// out = softmax(scale q k^T + mask) v. Grouped heads: H is a multiple of Hk and query head h reads key head
/// h / (H / Hk). `causal`: query t sees keys s <= t + (S - T), S >= T (S > T is a key cache).
/// A query that sees no key gives 0. Scores and sums in f32 (f64 for f64).
struct Attention {
  View q;    // [B, H, T, D], last stride 1, other strides free (a packed QKV needs no copy)
  View k;    // [B, Hk, S, D]
  View v;    // [B, Hk, S, D]
  View out;  // [B, H, T, D], last stride 1
  View lse;  // [B, H, T] f32 (f64 for f64) contiguous: log of the sum of exponentials, for the backward
  double scale;
  bool causal;
};

/// `v` is [B, H, rows, D] with last stride 1, of the dtype of `like`.
inline void check_heads(const char* name, const View& v, const char* what, const View& like) {
  DS_CHECK_SHAPE(v.ndim == 4 && (v.shape[3] <= 1 || v.strides[3] == 1), name,
                 text(what, " [B, H, rows, D] with last stride 1"), v.describe());
  require_same_dtype(name, like, v);
}

/// As check_heads, and of the shape of `like`.
inline void check_heads_like(const char* name, const View& v, const char* what, const View& like) {
  check_heads(name, v, what, like);
  require_same_shape(name, like, v);
}

/// What forward and backward require of the operands that they share.
template <class Op>
void check_attention(const char* name, const Op& op) {
  require_floating(name, op.q);
  check_heads(name, op.q, "q", op.q);
  check_heads(name, op.k, "k", op.q);
  check_heads_like(name, op.v, "v", op.k);
  check_heads_like(name, op.out, "out", op.q);
  const int64_t* const q = op.q.shape;
  const int64_t* const k = op.k.shape;
  DS_CHECK_SHAPE(k[0] == q[0] && k[3] == q[3], name, text("k for q ", op.q.describe()),
                 op.k.describe());
  DS_CHECK_SHAPE(q[1] == 0 || (k[1] > 0 && q[1] % k[1] == 0), name,
                 "query heads a multiple of key heads",
                 text(q[1], " query heads, ", k[1], " key heads"));
  DS_CHECK_SHAPE(!op.causal || k[2] >= q[2], name, "at least as many keys as queries when causal",
                 text(q[2], " queries, ", k[2], " keys"));
  const View& lse = op.lse;
  DS_CHECK_SHAPE(lse.ndim == 3 && std::equal(q, q + 3, lse.shape), name,
                 text("lse [", q[0], ", ", q[1], ", ", q[2], "]"), lse.describe());
  require_dtype(name, lse, statistic_of(op.q.dtype), "lse");
  require_contiguous(name, lse, "lse");
}

inline void check(const Attention& op) { check_attention("attention", op); }

/// dq, dk, dv are overwritten; they may be slices of one packed buffer. D of rows is sum(out * dout).
struct AttentionBackward {
  View q;     // as in the forward
  View k;
  View v;
  View out;   // the forward's result
  View dout;  // [B, H, T, D], last stride 1
  View lse;   // the forward's
  View dq;    // like q
  View dk;    // like k
  View dv;    // like v
  double scale;
  bool causal;
};

inline void check(const AttentionBackward& op) {
  constexpr const char* kOp = "attention_backward";
  check_attention(kOp, op);
  check_heads_like(kOp, op.dout, "dout", op.q);
  check_heads_like(kOp, op.dq, "dq", op.q);
  check_heads_like(kOp, op.dk, "dk", op.k);
  check_heads_like(kOp, op.dv, "dv", op.k);
}

}  // namespace ds
