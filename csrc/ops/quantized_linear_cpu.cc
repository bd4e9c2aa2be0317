// 8- and 4-bit weights on the CPU. For a few rows, weights are converted to f32 in registers. For
// more rows, OpenBLAS multiplies tiles of converted weights.
#include "quantized_linear.h"

#include <algorithm>
#include <vector>

#include "../cpu/blas.h"
#include "../cpu/few_rows.h"
#include "../cpu/index_check.h"
#include "../cpu/map.h"
#include "quantized_math.h"

namespace ds::cpu {
namespace {

/// Outputs and inputs of a tile that is converted to f32: 64 KiB.
constexpr int64_t kTile = 32, kDepth = 512;

/// The weights [outputs, inputs] of an op.
struct Weights {
  const View& packed;
  const View& scale;
  const OptionalView& zero;
  int64_t inputs, bits, group;

  int64_t at(int64_t row, int64_t k) const { return row * scale.shape[1] + k / group; }

  float scale_at(int64_t at) const {
    switch (scale.dtype) {
      case DType::f16: return scale.as<f16>()[at];
      case DType::bf16: return scale.as<bf16>()[at];
      default: return scale.as<float>()[at];
    }
  }

  float zero_at(int64_t at) const { return zero ? zero.as<uint8_t>()[at] : middle_code(bits); }

  /// Writes weights [from, from + count) of a row. `from` is a multiple of 8.
  void values(int64_t row, int64_t from, int64_t count, float* out) const {
    const int64_t row_bytes = packed.shape[1] * 4;
    const uint8_t* const codes = packed.as<uint8_t>() + row * row_bytes;
    for (int64_t k = from, end = from + count; k < end;) {
      const int64_t stop = std::min(end, (k / group + 1) * group), place = at(row, k);
      const float step = scale_at(place), zero = zero_at(place);
      float* const part = out + (k - from);
      const int64_t n = stop - k;
      if (bits == 8) {
        for (int64_t i = 0; i < n; ++i) part[i] = value_of_code(codes[k + i], zero, step);
      } else {
        for (int64_t i = 0; i < n / 2; ++i) {
          const uint32_t pair = codes[k / 2 + i];
          part[2 * i] = value_of_code(pair & 15, zero, step);
          part[2 * i + 1] = value_of_code(pair >> 4, zero, step);
        }
        if (n % 2) part[n - 1] = value_of_code(codes[(k + n - 1) / 2] & 15, zero, step);
      }
      k = stop;
    }
  }
};

/// The weights for FewRows. `run` inputs share a scale and a zero point.
template <int kBits>
struct CodedRows {
  const Weights& weights;
  int64_t run;

  using Codes = int32_t __attribute__((vector_size(32)));  // one instruction converts them to f32

  struct Row {
    const uint8_t* codes;
    Floats zero, step;

    Floats at(int64_t k) const {
      Words words;
      if constexpr (kBits == 8) words = load_bytes(codes + k);
      else words = load_vector<uint32_t>(codes + k / 2) >> Words{0, 4, 8, 12, 16, 20, 24, 28} & 15u;
      return (__builtin_convertvector((Codes)words, Floats) - zero) * step;
    }

    /// A word has eight 4-bit codes, but only four 8-bit codes.
    Floats tail(int64_t k, int64_t count) const {
      uint8_t left[kFloats] = {};
      std::memcpy(left, codes + k * kBits / 8, static_cast<size_t>((count * kBits + 7) / 8));
      return Row{left, zero, step}.at(0);
    }
  };

  Row row(int64_t output, int64_t from) const {
    const int64_t place = weights.at(output, from), row_bytes = weights.packed.shape[1] * 4;
    const float zero = weights.zero_at(place), step = weights.scale_at(place);
    return {weights.packed.as<uint8_t>() + output * row_bytes, Floats{} + zero, Floats{} + step};
  }
};

/// Returns code i of words with `bits` bits per code.
uint32_t code_at(const uint32_t* words, int64_t i, int64_t bits) {
  const int64_t codes = 32 / bits;
  return words[i / codes] >> (i % codes * bits) & ((1u << bits) - 1);
}

template <class T, class S>
void quantize_group(const T* x, int64_t count, const QuantizeWeights& op, S& scale,
                    uint32_t* words) {
  float largest = 0.0f;
  for (int64_t i = 0; i < count; ++i) largest = larger_magnitude(largest, static_cast<float>(x[i]));
  const float wanted = div_rn(largest, half_range(op.bits));
  const S rounded = static_cast<S>(wanted);
  scale = step_at_least(rounded, static_cast<float>(rounded), wanted);
  const float step = static_cast<float>(scale);
  const int64_t codes = 32 / op.bits;
  for (int64_t i = 0; i < count; i += codes) {
    uint32_t word = 0;
    for (int64_t j = 0; j < std::min(codes, count - i); ++j)
      word |= code_of_value(static_cast<float>(x[i + j]), step, op.bits) << (j * op.bits);
    words[i / codes] = word;
  }
}

/// Adds the bias to the sums of some outputs, with rows kTile apart, and rounds once.
template <class T>
void finish(const QuantizedLinear& op, int64_t first, int64_t columns, float* sums) {
  float bias[kTile] = {};
  if (op.bias) widen(op.bias.as<T>() + first, bias, columns);
  for (int64_t m = 0; m < op.out.shape[0]; ++m) {
    float* const line = sums + m * kTile;
    for (int64_t n = 0; n < columns; ++n) line[n] += bias[n];
    narrow(line, op.out.as<T>() + m * op.out.shape[1] + first, columns);
  }
}

template <class T>
void linear_of_few(const QuantizedLinear& op, ThreadPool& pool) {
  const int64_t rows = op.x.shape[0], inputs = op.x.shape[1], outputs = op.out.shape[1];
  const Weights weights{op.packed, op.scale, op.zero, inputs, op.bits, op.group};
  const FewRows product(op.x.as<T>(), inputs, rows, inputs);
  static_assert(kTile == kFewRowsOutputs);
  pool.parallel_for(outputs, kTile, [&](int64_t first, int64_t end) {
    float sums[kFewRows * kTile];
    const int64_t columns = end - first;
    if (op.bits == 8) product.multiply(CodedRows<8>{weights, op.group}, first, columns, sums);
    else product.multiply(CodedRows<4>{weights, op.group}, first, columns, sums);
    finish<T>(op, first, columns, sums);
  });
}

template <class T>
void linear(const QuantizedLinear& op, ThreadPool& pool) {
  if (op.x.shape[0] <= kFewRows) return linear_of_few<T>(op, pool);
  const int64_t rows = op.x.shape[0], inputs = op.x.shape[1], outputs = op.out.shape[1];
  const Weights weights{op.packed, op.scale, op.zero, inputs, op.bits, op.group};
  std::vector<float> wide;
  const float* x = op.x.as<float>();
  if constexpr (!std::is_same_v<T, float>) {
    wide.resize(static_cast<size_t>(rows * inputs));
    widen(op.x.as<T>(), wide.data(), rows * inputs);
    x = wide.data();
  }
  pool.parallel_for((outputs + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> values(kTile * kDepth), sums(static_cast<size_t>(rows * kTile));
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kTile, columns = std::min(kTile, outputs - first);
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int64_t k = 0; k < inputs; k += kDepth) {
        const int64_t depth = std::min(kDepth, inputs - k);
        for (int64_t n = 0; n < columns; ++n)
          weights.values(first + n, k, depth, values.data() + n * depth);
        gemm<float>(rows, columns, depth, 1.0f, {x + k, inputs}, {values.data(), depth, true}, 1.0f,
                    sums.data(), kTile);
      }
      finish<T>(op, first, columns, sums.data());
    }
  });
}

}  // namespace

void run(const QuantizeWeights& op, CpuContext& ctx) {
  constexpr const char* kOp = "quantize_weights";
  const int64_t inputs = op.in.shape[1], groups = op.scale.shape[1], words = op.packed.shape[1];
  const int64_t codes = 32 / op.bits;
  for_floating(kOp, op.in.dtype, [&]<class T>(TypeTag<T>) {
    for_floating(kOp, op.scale.dtype, [&]<class S>(TypeTag<S>) {
      ctx.pool.parallel_for(op.in.shape[0], std::max<int64_t>(1, kElementGrain / (inputs + 1)),
                            [&](int64_t begin, int64_t end) {
                              for (int64_t row = begin; row < end; ++row)
                                for (int64_t g = 0; g < groups; ++g) {
                                  const int64_t from = g * op.group;
                                  const int64_t count = std::min(op.group, inputs - from);
                                  quantize_group(
                                      op.in.as<T>() + row * inputs + from, count, op,
                                      op.scale.as<S>()[row * groups + g],
                                      op.packed.as<uint32_t>() + row * words + from / codes);
                                }
                            });
    });
  });
}

void run(const DequantizeWeights& op, CpuContext& ctx) {
  const int64_t inputs = op.out.shape[1];
  const Weights weights{op.packed, op.scale, op.zero, inputs, op.bits, op.group};
  for_floating("dequantize_weights", op.out.dtype, [&]<class T>(TypeTag<T>) {
    ctx.pool.parallel_for(op.out.shape[0], std::max<int64_t>(1, kElementGrain / (inputs + 1)),
                          [&](int64_t begin, int64_t end) {
                            float values[kDepth];
                            for (int64_t row = begin; row < end; ++row)
                              for (int64_t k = 0; k < inputs; k += kDepth) {
                                const int64_t count = std::min(kDepth, inputs - k);
                                weights.values(row, k, count, values);
                                store_block(values, op.out.as<T>() + row * inputs + k, 1, count);
                              }
                          });
  });
}

void run(const QuantizedLinear& op, CpuContext& ctx) {
  if (op.out.numel() == 0) return;
  for_floating("quantized_linear", op.x.dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_same_v<T, double>) linear<T>(op, ctx.pool);
  });
}

void run(const RepackCodes& op, CpuContext& ctx) {
  const int64_t words = op.out.shape[1], codes = 32 / op.bits, width = op.in.shape[1];
  const int32_t* const order = op.order ? op.order.as<int32_t>() : nullptr;
  if (order)
    for (int64_t k = 0; k < op.inputs; ++k)
      require_index("repack_codes", order[k], op.inputs, "the inputs");
  const uint32_t* const in = op.in.as<uint32_t>();
  const auto code = [&](int64_t row, int64_t k) {
    if (op.layout == CodeLayout::rows) return code_at(in + row * width, k, op.bits);
    return in[k * width + row / 8] >> awq_shift(row) & 15u;
  };
  ctx.pool.parallel_for(op.out.shape[0], std::max<int64_t>(1, kElementGrain / (op.inputs + 1)),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t row = begin; row < end; ++row)
                            for (int64_t w = 0; w < words; ++w) {
                              uint32_t word = 0;
                              for (int64_t j = 0; j < std::min(codes, op.inputs - w * codes); ++j) {
                                const int64_t k = w * codes + j;
                                word |= code(row, order ? order[k] : k) << (j * op.bits);
                              }
                              op.out.as<uint32_t>()[row * words + w] = word;
                            }
                        });
}

}  // namespace ds::cpu
