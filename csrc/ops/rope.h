// Rotary position embedding, in the rotate-half form of GPT-NeoX and Llama. Source: Su et al. 2021.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// With the halves x1 and x2 of the last dim: out = (x1 cos - x2 sin, x2 cos + x1 sin). `inverse`
/// negates sin, which gives the gradient. Token t uses row t of the table, or row positions[b, t].
/// A row outside of the table throws DS_INDEX on the CPU and gives NaN on the GPU, so that the
/// mistake is visible. FLOPs: 3 per element of out.
struct Rope {
  View in;                 // [B, T, H, D], D even, last stride 1
  View cos;                // [R, D / 2] f32 (f64 for f64), contiguous; R is T without positions
  View sin;                // [R, D / 2]
  View out;                // [B, T, H, D], in's dtype, last stride 1; may be in itself
  OptionalView positions;  // [B, T] i32, contiguous
  bool inverse;
};

inline void check(const Rope& op) {
  constexpr const char* kOp = "rope";
  require_like(kOp, op.in, op.out);
  require_floating(kOp, op.in);
  DS_CHECK_SHAPE(op.in.ndim == 4 && op.in.shape[3] % 2 == 0, kOp, "in [B, T, H, D] with even D",
                 op.in.describe());
  const int64_t half = op.in.shape[3] / 2, t = op.in.shape[1];
  if (const View& positions = op.positions) {
    require_dtype(kOp, positions, DType::i32, "positions");
    const bool fits = positions.ndim == 2 && positions.shape[0] == op.in.shape[0];
    DS_CHECK_SHAPE(fits && positions.shape[1] == t, kOp,
                   text("positions [", op.in.shape[0], ", ", t, "]"), positions.describe());
    require_contiguous(kOp, positions, "positions");
  }
  const int64_t rows = op.positions && op.cos.ndim == 2 ? op.cos.shape[0] : t;
  for (const View* v : {&op.cos, &op.sin}) {
    DS_CHECK_SHAPE(v->ndim == 2 && v->shape[0] == rows && v->shape[1] == half, kOp,
                   text("cos and sin [", rows, ", ", half, "]"), v->describe());
    require_dtype(kOp, *v, statistic_of(op.in.dtype), "cos and sin");
    require_contiguous(kOp, *v, "cos and sin");
  }
  for (const View* v : {&op.in, &op.out}) {
    DS_CHECK_SHAPE(v->numel() == 0 || v->strides[3] == 1, kOp, "in and out with last stride 1",
                   describe_strides(*v));
  }
}

}  // namespace ds
