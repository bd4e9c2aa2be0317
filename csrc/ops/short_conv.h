// A short causal convolution per channel, with SiLU, and its gradients. Source: Dao and Gu 2024
// (Mamba-2), which applies it before the recurrence of a layer.
#pragma once

#include "gated_delta.h"

namespace ds {

/// Computes out[t, c] = silu(bias[c] + sum over j of weight[c, j] x[t - K + 1 + j, c]).
/// K is at most 8. Tokens before the start of the row or of the document count as 0. Computed in
/// f32 (f64 for f64), rounded once. FLOPs: 8 per element of out.
struct ShortConv {
  View x;                  // [B, T, C], last stride 1
  View weight;             // [C, K] of x's dtype, contiguous
  OptionalView bias;       // [C] of x's dtype, contiguous
  View out;                // [B, T, C], contiguous
  OptionalView documents;  // [B, T] i32, contiguous
};

/// Computes the gradients of ShortConv.
/// FLOPs: 24 per element of dout.
struct ShortConvBackward {
  View x;                  // the forward's
  View weight;             // the forward's
  OptionalView bias;       // the forward's
  View dout;               // [B, T, C], last stride 1
  View dx;                 // [B, T, C], contiguous
  View dweight;            // [C, K] f32 (f64 for f64), contiguous
  OptionalView dbias;      // [C] like dweight, if there is a bias
  OptionalView documents;  // the forward's
};

/// ShortConv of the newest tokens of S sequences, packed in [N]. Row slots[s] of the pool holds the
/// last K - 1 inputs of sequence s, oldest first. See GatedDeltaStep.
/// FLOPs: 8 per element of out.
struct ShortConvStep {
  View x;             // [N, C], last stride 1
  View weight;        // [C, K] of x's dtype, contiguous
  OptionalView bias;  // [C] of x's dtype, contiguous
  View starts;        // [S + 1] i32, contiguous
  View lengths;       // [S] i32, contiguous
  View slots;         // [S] i32, contiguous
  View out;           // [N, C], contiguous
  View pool;          // [slots, K - 1, C] of x's dtype, contiguous
};

/// The largest K.
constexpr int64_t kMostTaps = 8;

/// Checks x [.., C] with `dims` dims, weights [C, K], and a bias [C] if there is one.
inline void check_short_conv(const char* op, const View& x, const View& weight, const View& bias,
                             int dims) {
  require_floating(op, x);
  require_rows(op, x, dims, "x", dims == 3 ? "[B, T, C]" : "[N, C]");
  require_same_dtype(op, x, weight);
  const bool fits = weight.ndim == 2 && weight.shape[0] == x.size(-1) && weight.shape[1] > 0 &&
                    weight.shape[1] <= kMostTaps;
  DS_CHECK_SHAPE(fits, op, text("weights [", x.size(-1), ", 1 to ", kMostTaps, "]"),
                 weight.describe());
  require_contiguous(op, weight, "weights");
  if (!bias) return;
  require_vector(op, bias, x.size(-1), "bias");
  require_same_dtype(op, x, bias);
}

inline void check(const ShortConv& op) {
  constexpr const char* kOp = "short_conv";
  check_short_conv(kOp, op.x, op.weight, op.bias, 3);
  require_like(kOp, op.x, op.out);
  require_contiguous(kOp, op.out, "out");
  check_documents(kOp, op.documents, op.x);
}

inline void check(const ShortConvBackward& op) {
  constexpr const char* kOp = "short_conv_backward";
  check_short_conv(kOp, op.x, op.weight, op.bias, 3);
  for (const View* one : {&op.dout, &op.dx}) require_like(kOp, op.x, *one);
  require_rows(kOp, op.dout, 3, "dout", "[B, T, C]");
  require_contiguous(kOp, op.dx, "dx");
  require_same_shape(kOp, op.weight, op.dweight);
  require_dtype(kOp, op.dweight, statistic_of(op.x.dtype), "dweight");
  require_contiguous(kOp, op.dweight, "dweight");
  DS_CHECK_SHAPE(bool(op.bias) == bool(op.dbias), kOp, "dbias with a bias, and only then",
                 op.dbias ? "dbias without a bias" : "a bias without dbias");
  if (op.dbias) {
    require_vector(kOp, op.dbias, op.x.shape[2], "dbias");
    require_dtype(kOp, op.dbias, statistic_of(op.x.dtype), "dbias");
  }
  check_documents(kOp, op.documents, op.x);
}

inline void check(const ShortConvStep& op) {
  constexpr const char* kOp = "short_conv_step";
  check_short_conv(kOp, op.x, op.weight, op.bias, 2);
  require_like(kOp, op.x, op.out);
  require_contiguous(kOp, op.out, "out");
  const int64_t sequences = op.lengths.numel();
  require_list(kOp, op.starts, sequences + 1, DType::i32, "starts");
  require_list(kOp, op.lengths, sequences, DType::i32, "lengths");
  require_list(kOp, op.slots, sequences, DType::i32, "slots");
  const View& pool = op.pool;
  require_same_dtype(kOp, op.x, pool);
  const int64_t held = op.weight.shape[1] - 1, channels = op.x.shape[1];
  const bool fits = pool.ndim == 3 && pool.shape[1] == held && pool.shape[2] == channels;
  DS_CHECK_SHAPE(fits, kOp, text("a pool [slots, ", held, ", ", channels, "]"), pool.describe());
  require_contiguous(kOp, pool, "pool");
}

}  // namespace ds
