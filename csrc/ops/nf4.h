// NF4 weights: 4-bit codes of a code book, with a scale per block. Scales may be quantized to 8
// bits. Source: Dettmers et al. 2023, "QLoRA"; layout and rounding are those of bitsandbytes.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Entries of the code books.
constexpr int64_t kNf4Codes = 16, kByteCodes = 256;

inline int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }

/// absmax[b] is the largest magnitude of block b. Element i becomes the index of the code nearest
/// to in[i] * (1 / absmax), the lower one at a tie. A byte holds two codes, the first in its high
/// half. If the count is odd, the last half byte is the code of 0. Computed in f32.
struct Nf4Quantize {
  View in;      // n floating, contiguous
  View code;    // [16] f32, ascending, contiguous
  View packed;  // ceil(n / 2) u8, contiguous
  View absmax;  // ceil(n / block) f32, contiguous
  int64_t block;
};

inline void check(const Nf4Quantize& op) {
  constexpr const char* kOp = "nf4_quantize";
  require_narrow(kOp, op.in, "in");
  require_contiguous(kOp, op.in, "in");
  DS_CHECK_SHAPE(op.block > 0 && op.block % 2 == 0, kOp, "a positive, even block", text(op.block));
  const int64_t n = op.in.numel();
  require_list(kOp, op.code, kNf4Codes, DType::f32, "code");
  require_list(kOp, op.packed, blocks_of(n, 2), DType::u8, "packed");
  require_list(kOp, op.absmax, blocks_of(n, op.block), DType::f32, "absmax");
}

/// Like Nf4Quantize with 256 codes, one byte per element. At a tie it takes the code that the
/// bisection of `code` compared last.
struct BytesQuantize {
  View in;      // n f32, contiguous
  View code;    // [256] f32, ascending, contiguous
  View out;     // n u8, contiguous
  View absmax;  // ceil(n / block) f32, contiguous
  int64_t block;
};

inline void check(const BytesQuantize& op) {
  constexpr const char* kOp = "bytes_quantize";
  DS_CHECK_SHAPE(op.block > 0, kOp, "a positive block", text(op.block));
  const int64_t n = op.in.numel();
  require_list(kOp, op.in, n, DType::f32, "in");
  require_list(kOp, op.code, kByteCodes, DType::f32, "code");
  require_list(kOp, op.out, n, DType::u8, "out");
  require_list(kOp, op.absmax, blocks_of(n, op.block), DType::f32, "absmax");
}

/// Computes out[i] = code[half of a byte] * scale of its block, rounded once from f32. If absmax is
/// f32, the scale is absmax[b]. If it is u8, the scale is nested_code[absmax[b]] * nested_absmax[b
/// / nested_block] + offset, rounded after the product and after the sum.
struct Nf4Dequantize {
  View packed;                 // ceil(n / 2) u8, contiguous
  View code;                   // [16] f32, contiguous
  View absmax;                 // ceil(n / block) f32 or u8, contiguous
  OptionalView nested_code;    // [256] f32, contiguous; with absmax in u8
  OptionalView nested_absmax;  // ceil(blocks / nested_block) f32, contiguous; with absmax in u8
  OptionalView offset;         // 1 f32; with absmax in u8
  View out;                    // n floating, contiguous
  int64_t block;
  int64_t nested_block;
};

inline void check(const Nf4Dequantize& op) {
  constexpr const char* kOp = "nf4_dequantize";
  require_narrow(kOp, op.out, "out");
  require_contiguous(kOp, op.out, "out");
  DS_CHECK_SHAPE(op.block > 0 && op.block % 2 == 0 && op.nested_block > 0, kOp,
                 "a positive, even block and a positive nested_block",
                 text(op.block, " and ", op.nested_block));
  const int64_t n = op.out.numel(), blocks = blocks_of(n, op.block);
  require_list(kOp, op.packed, blocks_of(n, 2), DType::u8, "packed");
  require_list(kOp, op.code, kNf4Codes, DType::f32, "code");
  const bool nested = op.absmax.dtype == DType::u8;
  require_list(kOp, op.absmax, blocks, nested ? DType::u8 : DType::f32, "absmax");
  const bool given = op.nested_code && op.nested_absmax && op.offset;
  const bool none = !op.nested_code && !op.nested_absmax && !op.offset;
  if (!(nested ? given : none)) {
    throw Error("DS_ARGUMENT", kOp, "nested_code, nested_absmax and offset exactly if absmax is u8",
                text("absmax in ", name_of(op.absmax.dtype), " with nested_code ",
                     op.nested_code.describe(), ", nested_absmax ", op.nested_absmax.describe(),
                     ", offset ", op.offset.describe()));
  }
  if (!nested) return;
  require_list(kOp, op.nested_code, kByteCodes, DType::f32, "nested_code");
  require_list(kOp, op.nested_absmax, blocks_of(blocks, op.nested_block), DType::f32,
               "nested_absmax");
  require_list(kOp, op.offset, 1, DType::f32, "offset");
}

}  // namespace ds
