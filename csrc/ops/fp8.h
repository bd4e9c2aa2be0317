// Linear layers in 8-bit floating point: quantization to codes with scales, and products of codes.
//
// A code is one byte: e4m3 (3 bits of mantissa, largest 448) or e5m2 (2 bits, largest 57344). A
// value is its code times its scale. Source: Micikevicius et al. 2022, "FP8 Formats for Deep
// Learning".
#pragma once

#include "../core/exact_math.h"
#include "../core/preconditions.h"

namespace ds {

enum class Fp8Format : int32_t { e4m3, e5m2 };

/// Which elements of a matrix share a scale.
enum class Fp8Scaling : int32_t {
  tensor,  // all elements: scale [1]
  row,     // a row; scales are powers of two: scale [rows]
  group,   // 128 elements of a row: scale [ceil(columns / 128), rows padded to 4]
  square,  // 128 x 128: scale [ceil(rows / 128), ceil(columns / 128) padded to 4]
};

constexpr const char* name_of(Fp8Scaling scaling) {
  switch (scaling) {
    case Fp8Scaling::tensor: return "tensor";
    case Fp8Scaling::row: return "row";
    case Fp8Scaling::group: return "group";
    case Fp8Scaling::square: return "square";
  }
  return "unknown";
}

/// Elements of a group, and side of a square.
constexpr int64_t kFp8Group = 128;

inline int64_t fp8_groups(int64_t n) { return (n + kFp8Group - 1) / kFp8Group; }
/// Returns the padded length of a row of codes, because tensor cores read 16 bytes at a time.
inline int64_t fp8_padded(int64_t n) { return (n + 15) / 16 * 16; }
inline int64_t fp8_scale_row(int64_t n) { return (n + 3) / 4 * 4; }

inline void check_fp8_scale(const char* op, const View& v, Fp8Scaling scaling, int64_t rows,
                            int64_t columns, const char* name) {
  require_dtype(op, v, DType::f32, name);
  if (scaling == Fp8Scaling::tensor) return require_vector(op, v, 1, name);
  if (scaling == Fp8Scaling::row) return require_vector(op, v, rows, name);
  const bool square = scaling == Fp8Scaling::square;
  const int64_t outer = fp8_groups(square ? rows : columns);
  const int64_t inner = fp8_scale_row(square ? fp8_groups(columns) : rows);
  DS_CHECK_SHAPE(v.ndim == 2 && v.shape[0] == outer && v.shape[1] == inner, op,
                 text(name, " [", outer, ", ", inner, "]"), v.describe());
  require_contiguous(op, v, name);
}

inline void check_fp8_codes(const char* op, const View& v, int64_t rows, int64_t columns,
                            const char* name) {
  require_dtype(op, v, DType::u8, name);
  DS_CHECK_SHAPE(v.ndim == 2 && v.shape[0] == rows && v.shape[1] == fp8_padded(columns), op,
                 text(name, " [", rows, ", ", fp8_padded(columns), "]"), v.describe());
  require_contiguous(op, v, name);
  if (const uintptr_t excess = reinterpret_cast<uintptr_t>(v.data) % 16; excess != 0) {
    throw Error("DS_ARGUMENT", op, text(name, " at an address that is a multiple of 16 bytes"),
                text("an address ", excess, " bytes above one"),
                "Keep the codes in a tensor of their own, not in a slice.");
  }
}

/// Writes the codes of `in`, of its transpose, or of both. The multiplier of a group is the largest
/// value of `format` over the group's largest magnitude (at least 1e-12), computed in f64 and
/// rounded to f32. A code is in * multiplier, rounded to nearest even, and the scale is 1 /
/// multiplier. If a magnitude is not finite, all codes and the scale of its group are NaN. The
/// transpose has groups of its own rows. Source: float8 training of torchao.
struct Fp8Quantize {
  View in;                  // [rows, columns] f32, f16 or bf16; last stride 1, any row stride
  OptionalView out;         // [rows, columns padded to 16] u8, contiguous; pads are codes of 0
  OptionalView transposed;  // [columns, rows padded to 16] u8, contiguous; pads are codes of 0
  OptionalView scale;       // of out, and with Fp8Scaling::tensor of both; f32, contiguous
  OptionalView transposed_scale;  // of transposed, except with Fp8Scaling::tensor
  Fp8Format format;
  Fp8Scaling scaling;
};

inline void check(const Fp8Quantize& op) {
  constexpr const char* kOp = "fp8_quantize";
  require_rows(kOp, op.in, 2, "in", "[rows, columns]");
  require_narrow(kOp, op.in, "in");
  const int64_t rows = op.in.shape[0], columns = op.in.shape[1];
  const bool one = op.scaling == Fp8Scaling::tensor;
  const bool given = op.out || op.transposed;
  const bool scales = static_cast<bool>(op.scale) == (one || op.out);
  const bool others = static_cast<bool>(op.transposed_scale) == (!one && op.transposed);
  if (!given || !scales || !others) {
    throw Error(
        "DS_ARGUMENT", kOp, "codes, and scales for each of them",
        text("out ", op.out.describe(), " with scale ", op.scale.describe(), ", transposed ",
             op.transposed.describe(), " with transposed_scale ", op.transposed_scale.describe()));
  }
  if (op.out) check_fp8_codes(kOp, op.out, rows, columns, "out");
  if (op.transposed) check_fp8_codes(kOp, op.transposed, columns, rows, "transposed");
  if (op.scale) check_fp8_scale(kOp, op.scale, op.scaling, rows, columns, "scale");
  if (op.transposed_scale) {
    check_fp8_scale(kOp, op.transposed_scale, op.scaling, columns, rows, "transposed_scale");
  }
}

/// Computes out (+)= a b^T (+ bias) in f32, rounded once. The CPU multiplies each code by its scale
/// before the sum. The GPU sums codes on tensor cores, with at least 14 bits of a sum (cuBLASLt,
/// from compute capability 8.9; rows, groups and squares from 9.0). If the library has no
/// algorithm, a plain kernel computes the product.
struct Fp8Matmul {
  View a;             // [M, K] u8 codes, contiguous; K a multiple of 16
  View b;             // [N, K] u8 codes, contiguous
  View a_scale;       // as a's scaling requires; f32, contiguous
  View b_scale;       // like a_scale
  OptionalView bias;  // [N], out's dtype
  View out;           // [M, N] f32, f16 or bf16; last stride 1, any row stride
  Fp8Format a_format;
  Fp8Format b_format;
  Fp8Scaling a_scaling;
  Fp8Scaling b_scaling;
  bool fast;  // allows the GPU's tensor cores to keep sums in fewer bits
  bool accumulate;
};

inline void check(const Fp8Matmul& op) {
  constexpr const char* kOp = "fp8_matmul";
  require_rows(kOp, op.out, 2, "out", "[M, N]");
  require_narrow(kOp, op.out, "out");
  const int64_t m = op.out.shape[0], n = op.out.shape[1];
  DS_CHECK_SHAPE(op.a.ndim == 2, kOp, text("a [", m, ", K]"), op.a.describe());
  const int64_t k = op.a.shape[1];
  DS_CHECK_SHAPE(k % 16 == 0, kOp, "an inner size K that is a multiple of 16", text(k));
  check_fp8_codes(kOp, op.a, m, k, "a");
  check_fp8_codes(kOp, op.b, n, k, "b");
  check_fp8_scale(kOp, op.a_scale, op.a_scaling, m, k, "a_scale");
  check_fp8_scale(kOp, op.b_scale, op.b_scaling, n, k, "b_scale");
  DS_CHECK_SHAPE(m <= 1 || n == 0 || op.out.strides[0] >= n, kOp, "rows of out that do not overlap",
                 text("row stride ", op.out.strides[0]));
  const bool blocks = op.a_scaling >= Fp8Scaling::group;
  const bool pairs = op.b_scaling >= Fp8Scaling::group;
  if (blocks != pairs || (!blocks && op.a_scaling != op.b_scaling)) {
    throw Error("DS_ARGUMENT", kOp, "one scaling of both operands, or groups and squares",
                text(name_of(op.a_scaling), " for a, ", name_of(op.b_scaling), " for b"));
  }
  if (!op.bias) return;
  require_vector(kOp, op.bias, n, "bias");
  require_same_dtype(kOp, op.out, op.bias);
  if (op.accumulate) throw Error("DS_ARGUMENT", kOp, "no bias together with accumulate", "both");
}

/// Returns bits that are ordered like magnitudes, with NaN above infinity.
DS_HOST_DEVICE uint32_t fp8_magnitude(float x) { return bits_of(x) & 0x7fffffffu; }

/// Returns the multiplier of a group with the largest magnitude `bits`.
DS_HOST_DEVICE float fp8_multiplier(uint32_t bits, Fp8Format format, Fp8Scaling scaling) {
  if (bits >= 0x7f800000u) return float_of_bits(0x7fc00000u);
  const float amax = float_of_bits(bits);
  constexpr double least = 1e-12;  // gradients of a mean loss are about 1e-7
  const float largest = format == Fp8Format::e4m3 ? 448.0f : 57344.0f;
  // The f64 quotient of two floats, rounded to f32, equals their f32 quotient.
  const bool small = static_cast<double>(amax) <= least;
  const float exact =
      small ? static_cast<float>(static_cast<double>(largest) / least) : div_rn(largest, amax);
  return scaling == Fp8Scaling::row ? float_of_bits(bits_of(exact) & 0xff800000u) : exact;
}

DS_HOST_DEVICE float fp8_scale_of(float multiplier) { return div_rn(1.0f, multiplier); }

/// Returns the code nearest to x, ties to even. Larger values saturate; NaN gives 0x7f.
template <Fp8Format kFormat>
DS_HOST_DEVICE uint8_t fp8_code(float x) {
  constexpr bool e4m3 = kFormat == Fp8Format::e4m3;
  constexpr int kMantissa = e4m3 ? 3 : 2, kBias = e4m3 ? 7 : 15, kShift = 23 - kMantissa;
  constexpr uint32_t kLargest = e4m3 ? 0x43e00000u : 0x47600000u, kLargestCode = e4m3 ? 0x7e : 0x7b;
  constexpr uint32_t kNormal = static_cast<uint32_t>(128 - kBias) << 23;
  const uint32_t sign = bits_of(x) >> 24 & 0x80u, bits = fp8_magnitude(x);
  if (bits > 0x7f800000u) return 0x7f;
  if (bits >= kLargest) return static_cast<uint8_t>(sign | kLargestCode);
  if (bits < kNormal) {
    // Adding a power of two rounds to a multiple of the smallest code.
    const float step = float_of_bits(static_cast<uint32_t>(128 - kBias - kMantissa + 23) << 23);
    return static_cast<uint8_t>(sign |
                                (bits_of(add_rn(float_of_bits(bits), step)) - bits_of(step)));
  }
  const uint32_t rounded = bits + ((1u << (kShift - 1)) - 1) + (bits >> kShift & 1u);
  return static_cast<uint8_t>(
      sign | ((rounded >> kShift) - (static_cast<uint32_t>(127 - kBias) << kMantissa)));
}

/// Returns the value of a code without its scale.
DS_HOST_DEVICE float fp8_value(uint8_t code, Fp8Format format) {
  const bool e4m3 = format == Fp8Format::e4m3;
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24, rest = code & 0x7fu;
  if (e4m3 ? rest == 0x7f : rest > 0x7c) return float_of_bits(0x7fc00000u);
  if (!e4m3 && rest == 0x7c) return float_of_bits(sign | 0x7f800000u);
  const uint32_t exponent = rest >> mantissa_bits;
  const int shift = 23 - mantissa_bits;
  if (exponent == 0) {
    const float step = float_of_bits(static_cast<uint32_t>(128 - bias - mantissa_bits) << 23);
    return float_of_bits(sign | bits_of(mul_rn(static_cast<float>(rest), step)));
  }
  return float_of_bits(sign | ((rest << shift) + (static_cast<uint32_t>(127 - bias) << 23)));
}

}  // namespace ds
