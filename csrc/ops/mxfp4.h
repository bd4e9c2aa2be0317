// Experts with MXFP4 weights: 4-bit codes (e2m1), with a power of two for each 32 inputs. Source:
// OCP Microscaling Formats (MX) 1.0.
//
// A byte has the codes of two consecutive inputs, the first in its low half. Codes 0 to 7 have the
// values 0, 0.5, 1, 1.5, 2, 3, 4 and 6; bit 3 is the sign. A weight is the value of its code times
// 2^(scale - 127). A scale of 255, which MX reserves for NaN, means 2^128.
#pragma once

#include "../core/preconditions.h"
#include "route.h"

namespace ds {

/// Inputs that share a scale, and the bytes of their codes.
constexpr int64_t kMxfp4Block = 32, kMxfp4Bytes = 16;

/// Writes the weights, rounded once to out's dtype. Finite weights are exact in f32 and bf16.
struct Mxfp4Dequantize {
  View codes;   // n / 2 u8, contiguous
  View scales;  // n / 32 u8, contiguous
  View out;     // n f32, f16 or bf16, contiguous; n a multiple of 32
};

inline void check(const Mxfp4Dequantize& op) {
  constexpr const char* kOp = "mxfp4_dequantize";
  require_narrow(kOp, op.out, "out");
  require_contiguous(kOp, op.out, "out");
  const int64_t n = op.out.numel();
  DS_CHECK_SHAPE(n % kMxfp4Block == 0, kOp, "a multiple of 32 weights", text(n));
  require_list(kOp, op.codes, n / 2, DType::u8, "codes");
  require_list(kOp, op.scales, n / kMxfp4Block, DType::u8, "scales");
}

/// Computes the feed-forward blocks of the chosen experts, for a few tokens:
///
///     hidden[t, j] = gate(x[t] up[ids[t, j]]^T + up_bias), rounded to x's dtype
///     out[t]       = sum over j of weights[t, j] (hidden[t, j] down[ids[t, j]]^T + down_bias)
///
/// Products and sums are f32, with one rounding each. In bf16, a GPU may round x and hidden to
/// 2^-14 of the largest of the 32 inputs that share a scale, and treat scales below 2 as 0. The
/// gate is silu(g) u. With a limit above 0, it is (u + 1) g sigmoid(1.702 g), with g limited from
/// above and u on both sides. If g and u alternate, they are the rows 2 i and 2 i + 1 of `up`, else
/// the rows i and hidden + i. An id that is not an expert throws DS_INDEX on the CPU and adds
/// nothing on the GPU. Source: OpenAI's gpt-oss.
struct Mxfp4Experts {
  View x;                  // [T, C] f32, f16 or bf16, contiguous
  View ids;                // [T, k] i32, contiguous
  View weights;            // [T, k] f32, contiguous
  View up_codes;           // [experts, 2 hidden, C / 32, 16] u8, contiguous
  View up_scales;          // [experts, 2 hidden, C / 32] u8, contiguous
  OptionalView up_bias;    // [experts, 2 hidden], x's dtype, contiguous
  View down_codes;         // [experts, C, hidden / 32, 16] u8, contiguous
  View down_scales;        // [experts, C, hidden / 32] u8, contiguous
  OptionalView down_bias;  // [experts, C], x's dtype, contiguous
  View out;                // [T, C], x's dtype, contiguous
  double limit;            // 0: none
  bool alternate;
};

inline void check_mxfp4(const char* op, const View& codes, const View& scales,
                        const OptionalView& bias, const View& x, int64_t experts, int64_t outputs,
                        int64_t inputs, const char* name) {
  const int64_t blocks = inputs / kMxfp4Block;
  DS_CHECK_SHAPE(inputs % kMxfp4Block == 0, op, text("a multiple of 32 inputs of ", name),
                 text(inputs));
  require_list(op, codes, experts * outputs * blocks * kMxfp4Bytes, DType::u8, name);
  require_list(op, scales, experts * outputs * blocks, DType::u8, name);
  if (!bias) return;
  require_list(op, bias, experts * outputs, x.dtype, name);
}

inline void check(const Mxfp4Experts& op) {
  constexpr const char* kOp = "mxfp4_experts";
  DS_CHECK_SHAPE(op.x.ndim == 2, kOp, "x [tokens, channels]", op.x.describe());
  require_narrow(kOp, op.x, "x");
  require_like(kOp, op.x, op.out);
  require_contiguous(kOp, op.x, "x");
  require_contiguous(kOp, op.out, "out");
  DS_CHECK_SHAPE(op.ids.ndim == 2 && op.ids.shape[0] == op.x.shape[0] && op.ids.shape[1] > 0, kOp,
                 text("ids [", op.x.shape[0], ", k]"), op.ids.describe());
  require_dtype(kOp, op.ids, DType::i32, "ids");
  require_contiguous(kOp, op.ids, "ids");
  require_list(kOp, op.weights, op.ids.numel(), DType::f32, "weights");
  const View& up = op.up_codes;
  DS_CHECK_SHAPE(up.ndim == 4 && up.shape[0] > 0 && up.shape[1] % 2 == 0, kOp,
                 "up_codes [experts, 2 hidden, channels / 32, 16]", up.describe());
  const int64_t channels = op.x.shape[1], hidden = up.shape[1] / 2;
  check_mxfp4(kOp, up, op.up_scales, op.up_bias, op.x, up.shape[0], 2 * hidden, channels, "up");
  check_mxfp4(kOp, op.down_codes, op.down_scales, op.down_bias, op.x, up.shape[0], channels, hidden,
              "down");
  if (!(op.limit >= 0)) throw Error("DS_ARGUMENT", kOp, "a limit of 0 or more", text(op.limit));
}

}  // namespace ds
