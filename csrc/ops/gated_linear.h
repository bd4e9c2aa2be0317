// The first half of Llama's feed-forward block: gate and up projections with SwiGLU. Source:
// Shazeer 2020.
#pragma once

#include "quantized_linear.h"

namespace ds {

/// Computes out = silu(gate) * up, where gate is the first half of the columns of x W^T (+ bias)
/// and up the second. The bits equal Matmul followed by Swiglu: both halves are rounded to out's
/// dtype. On the GPU, a single row of a 16-bit dtype takes one kernel.
struct GatedLinear {
  View x;             // [rows, inputs] floating, contiguous
  View weight;        // [2 hidden, inputs], x's dtype, contiguous
  OptionalView bias;  // [2 hidden], x's dtype
  View out;           // [rows, hidden], x's dtype, contiguous
};

/// Preconditions of both ops.
template <class Op>
void check_gated(const char* name, const Op& op) {
  DS_CHECK_SHAPE(op.x.ndim == 2, name, "x [rows, inputs]", op.x.describe());
  DS_CHECK_SHAPE(op.out.ndim == 2 && op.out.shape[0] == op.x.shape[0], name,
                 text("out [", op.x.shape[0], ", hidden]"), op.out.describe());
  require_same_dtype(name, op.x, op.out);
  require_contiguous(name, op.x, "x");
  require_contiguous(name, op.out, "out");
  if (!op.bias) return;
  require_vector(name, op.bias, 2 * op.out.shape[1], "bias");
  require_same_dtype(name, op.out, op.bias);
}

inline void check(const GatedLinear& op) {
  constexpr const char* kOp = "gated_linear";
  require_floating(kOp, op.x);
  check_gated(kOp, op);
  const int64_t rows = 2 * op.out.shape[1], columns = op.x.shape[1];
  DS_CHECK_SHAPE(op.weight.ndim == 2 && op.weight.shape[0] == rows && op.weight.shape[1] == columns,
                 kOp, text("weight [", rows, ", ", columns, "]"), op.weight.describe());
  require_same_dtype(kOp, op.x, op.weight);
  require_contiguous(kOp, op.weight, "weight");
}

/// Like GatedLinear, with the weights of QuantizedLinear. On the GPU, a single row of a 16-bit
/// dtype takes one kernel if the codes are symmetric and the scales have x's dtype. A scale covers
/// a row or 2^n inputs, at least 32 (64 with 8 bits).
struct QuantizedGatedLinear {
  View x;             // [rows, inputs] f32, f16 or bf16, contiguous
  View packed;        // [2 hidden, ceil(inputs / (32 / bits))] i32, contiguous
  View scale;         // [2 hidden, ceil(inputs / group)] f32, f16 or bf16, contiguous
  OptionalView zero;  // as scale, u8; below 2^bits
  OptionalView bias;  // [2 hidden], x's dtype
  View out;           // [rows, hidden], x's dtype, contiguous
  int64_t bits;
  int64_t group;
};

inline void check(const QuantizedGatedLinear& op) {
  constexpr const char* kOp = "quantized_gated_linear";
  require_narrow(kOp, op.x, "x");
  check_gated(kOp, op);
  check_weights(kOp, op.packed, op.scale, op.zero, op.bits, op.group, 2 * op.out.shape[1],
                op.x.shape[1]);
}

/// The columns [rows, 2 hidden] of `out` at `data`, and their halves, which Swiglu reads.
struct GatedColumns {
  View both, gate, up;

  GatedColumns(const View& out, void* data) : both(out), gate(out), up(out) {
    const int64_t hidden = out.shape[1];
    both.shape[1] = 2 * hidden;
    for (View* v : {&both, &gate, &up}) {
      v->data = data;
      v->strides[0] = 2 * hidden;
      v->strides[1] = 1;
    }
    up.data = static_cast<char*>(data) + static_cast<size_t>(hidden) * size_of(out.dtype);
  }
};

}  // namespace ds
