// Linear layers with weights in 8- or 4-bit codes and a scale per row or per group of inputs.
//
// A word of `packed` has the codes of 32 / bits consecutive inputs, the first in its lowest bits.
// Bits beyond the last input of a row are ignored. A weight is (code - zero) * scale, where `zero`
// is the zero point of the group or, if absent, 2^(bits - 1). This is the layout of
// compressed-tensors. RepackCodes and a transposition convert files of GPTQ and AWQ to it.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Returns the groups of a row. The last may be smaller. If a group is larger than a row, a row has
/// one scale.
inline int64_t groups_of(int64_t inputs, int64_t group) { return (inputs + group - 1) / group; }

inline int64_t words_of(int64_t inputs, int64_t bits) {
  const int64_t codes = 32 / bits;
  return (inputs + codes - 1) / codes;
}

inline void check_codes(const char* op, int64_t bits, int64_t group, int64_t inputs) {
  if (bits != 4 && bits != 8) throw Error("DS_ARGUMENT", op, "bits 4 or 8", text(bits));
  if (group > 0 && (group % 8 == 0 || group >= inputs)) return;
  throw Error("DS_ARGUMENT", op, "a group size that is a multiple of 8, or all inputs",
              text(group));
}

inline void check_weights(const char* op, const View& packed, const View& scale,
                          const OptionalView& zero, int64_t bits, int64_t group, int64_t outputs,
                          int64_t inputs) {
  check_codes(op, bits, group, inputs);
  const auto require_matrix = [&](const View& v, int64_t columns, const char* name) {
    DS_CHECK_SHAPE(v.ndim == 2 && v.shape[0] == outputs && v.shape[1] == columns, op,
                   text(name, " [", outputs, ", ", columns, "]"), v.describe());
    require_contiguous(op, v, name);
  };
  require_matrix(packed, words_of(inputs, bits), "packed");
  require_dtype(op, packed, DType::i32, "packed");
  require_matrix(scale, groups_of(inputs, group), "scale");
  require_narrow(op, scale, "scale");
  if (!zero) return;
  require_matrix(zero, groups_of(inputs, group), "zero");
  require_dtype(op, zero, DType::u8, "zero");
}

/// Writes symmetric codes of `in`. The scale of a group is its largest magnitude over (2^bits - 1)
/// / 2. A 16-bit scale is rounded up, so that codes differ from weights by at most half a step.
/// Source: the symmetric scheme of compressed-tensors.
struct QuantizeWeights {
  View in;      // [outputs, inputs] f32, f16 or bf16, contiguous
  View packed;  // [outputs, ceil(inputs / (32 / bits))] i32, contiguous
  View scale;   // [outputs, ceil(inputs / group)] f32, f16 or bf16, contiguous
  int64_t bits;
  int64_t group;
};

inline void check(const QuantizeWeights& op) {
  constexpr const char* kOp = "quantize_weights";
  DS_CHECK_SHAPE(op.in.ndim == 2, kOp, "in [outputs, inputs]", op.in.describe());
  require_narrow(kOp, op.in, "in");
  require_contiguous(kOp, op.in, "in");
  check_weights(kOp, op.packed, op.scale, {}, op.bits, op.group, op.in.shape[0], op.in.shape[1]);
}

/// Computes out = (code - zero) * scale, rounded to f32 and then to out's dtype. With 16-bit scales
/// it is rounded once.
struct DequantizeWeights {
  View packed;        // [outputs, ceil(inputs / (32 / bits))] i32, contiguous
  View scale;         // [outputs, ceil(inputs / group)] f32, f16 or bf16, contiguous
  OptionalView zero;  // as scale, u8; below 2^bits
  View out;           // [outputs, inputs] f32, f16 or bf16, contiguous
  int64_t bits;
  int64_t group;
};

inline void check(const DequantizeWeights& op) {
  constexpr const char* kOp = "dequantize_weights";
  DS_CHECK_SHAPE(op.out.ndim == 2, kOp, "out [outputs, inputs]", op.out.describe());
  require_narrow(kOp, op.out, "out");
  require_contiguous(kOp, op.out, "out");
  check_weights(kOp, op.packed, op.scale, op.zero, op.bits, op.group, op.out.shape[0],
                op.out.shape[1]);
}

/// Computes out = x W^T (+ bias): products and sums in f32, rounded once. The GPU first rounds
/// weights to x's dtype, with two exceptions:
/// - up to 32 rows of x and one scale per row;
/// - one row of x, symmetric codes, and scales of x's dtype for 2^n inputs, at least 128 (64 with 8
///   bits). Then a row of x that is not finite gives NaN.
struct QuantizedLinear {
  View x;             // [rows, inputs] f32, f16 or bf16, contiguous
  View packed;        // [outputs, ceil(inputs / (32 / bits))] i32, contiguous
  View scale;         // [outputs, ceil(inputs / group)] f32, f16 or bf16, contiguous
  OptionalView zero;  // as scale, u8; below 2^bits
  OptionalView bias;  // [outputs], x's dtype
  View out;           // [rows, outputs], x's dtype, contiguous
  int64_t bits;
  int64_t group;
};

inline void check(const QuantizedLinear& op) {
  constexpr const char* kOp = "quantized_linear";
  DS_CHECK_SHAPE(op.x.ndim == 2, kOp, "x [rows, inputs]", op.x.describe());
  DS_CHECK_SHAPE(op.out.ndim == 2 && op.out.shape[0] == op.x.shape[0], kOp,
                 text("out [", op.x.shape[0], ", outputs]"), op.out.describe());
  require_narrow(kOp, op.x, "x");
  require_same_dtype(kOp, op.x, op.out);
  require_contiguous(kOp, op.x, "x");
  require_contiguous(kOp, op.out, "out");
  const int64_t outputs = op.out.shape[1];
  check_weights(kOp, op.packed, op.scale, op.zero, op.bits, op.group, outputs, op.x.shape[1]);
  if (!op.bias) return;
  require_vector(kOp, op.bias, outputs, "bias");
  require_same_dtype(kOp, op.out, op.bias);
}

enum class CodeLayout : int32_t {
  rows,  // as in the other ops
  awq,   // [inputs, outputs / 8]: a word has the codes of 8 outputs, in the order 0 2 4 6 1 3 5 7
};

/// Input k of a row of out gets the code of input order[k] of in, or of input k without an order.
/// Codes beyond the last input are 0.
struct RepackCodes {
  View in;  // [outputs, ceil(inputs / (32 / bits))], or the shape of `layout`; i32, contiguous
  OptionalView order;  // [inputs] i32, each in [0, inputs), contiguous
  View out;            // [outputs, ceil(inputs / (32 / bits))] i32, contiguous
  int64_t inputs;
  int64_t bits;
  CodeLayout layout;
};

inline void check(const RepackCodes& op) {
  constexpr const char* kOp = "repack_codes";
  check_codes(kOp, op.bits, 8, op.inputs);
  const bool rows = op.layout == CodeLayout::rows;
  if (op.inputs < 0) throw Error("DS_ARGUMENT", kOp, "inputs of 0 or more", text(op.inputs));
  if (!rows && op.bits != 4) throw Error("DS_ARGUMENT", kOp, "bits 4 for AWQ", text(op.bits));
  DS_CHECK_SHAPE(op.out.ndim == 2 && op.out.shape[1] == words_of(op.inputs, op.bits), kOp,
                 text("out [outputs, ", words_of(op.inputs, op.bits), "]"), op.out.describe());
  const int64_t outputs = op.out.shape[0];
  const int64_t height = rows ? outputs : op.inputs;
  const int64_t width = rows ? op.out.shape[1] : outputs / 8;
  DS_CHECK_SHAPE(rows || outputs % 8 == 0, kOp, "a multiple of 8 outputs", text(outputs));
  DS_CHECK_SHAPE(op.in.ndim == 2 && op.in.shape[0] == height && op.in.shape[1] == width, kOp,
                 text("in [", height, ", ", width, "]"), op.in.describe());
  for (const View* v : {&op.in, &op.out}) {
    require_dtype(kOp, *v, DType::i32, "codes");
    require_contiguous(kOp, *v, "codes");
  }
  if (op.order) require_list(kOp, op.order, op.inputs, DType::i32, "order");
}

}  // namespace ds
