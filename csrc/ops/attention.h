// Fused scaled-dot-product attention that never stores the T x S score matrix. Source: Dao et al. 2022,
// 2023 (FlashAttention 1 and 2).
#pragma once

#include "../core/view.h"

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

}  // namespace ds
