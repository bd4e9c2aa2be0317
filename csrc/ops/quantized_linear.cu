// 8- and 4-bit weights on the GPU. For up to 32 rows of x, codes are converted to weights in
// registers, on tensor cores if x has 16 bits. For more rows, weights are dequantized once.
#include "quantized_linear.h"

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/skinny.cuh"
#include "matmul.h"
#include "one_coded_row.cuh"
#include "quantized_codes.cuh"

namespace ds::cuda {

void run(const Matmul& op, CudaContext& ctx);

namespace {

constexpr const char* kOp = "quantized_linear";
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
/// With more rows of x, weights are dequantized once instead of in each block.
constexpr int kFewRows = kSkinnyRows;
constexpr unsigned kMostColumnBlocks = 1024;

unsigned blocks_for(int64_t items, int64_t each) {
  return static_cast<unsigned>((items + each - 1) / each);
}

/// Computes the scale of a group per warp. Then each lane packs a word.
template <class T, class S>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const T* in, uint32_t* packed, S* scale, int64_t outputs, int64_t inputs,
                    int64_t words, int64_t groups, int64_t group, int bits) {
  const int64_t at = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (at >= outputs * groups) return;
  const int64_t row = at / groups, from = at % groups * group;
  const int64_t count = inputs - from < group ? inputs - from : group;
  const T* const x = in + row * inputs + from;
  const int lane = threadIdx.x % kWarp, codes = 32 / bits;
  float most = 0.0f;
  for (int64_t i = lane; i < count; i += kWarp) most = larger_magnitude(most, to_float(x[i]));
  most = warp_reduce(most, Max{});
  const float wanted = div_rn(most, half_range(bits));
  const S rounded = from_float<S>(wanted);
  const S chosen = step_at_least(rounded, to_float(rounded), wanted);
  if (lane == 0) scale[at] = chosen;
  const float step = to_float(chosen);
  uint32_t* const out = packed + row * words + from / codes;
  for (int64_t w = lane; w * codes < count; w += kWarp) {
    uint32_t word = 0;
    for (int j = 0; j < codes && w * codes + j < count; ++j)
      word |= code_of_value(to_float(x[w * codes + j]), step, bits) << (j * bits);
    out[w] = word;
  }
}

/// Dequantizes a row of weights per row of blocks, a word per thread. With kVectors, rows of out
/// consist of aligned packets, one per word.
template <class T, int kBits, bool kVectors>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(CodeMatrix w, T* out) {
  constexpr int kCodes = 32 / kBits;
  const int64_t row = blockIdx.x;
  for (int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x; i < w.words;
       i += int64_t{gridDim.y} * kThreads) {
    const int64_t k = i * kCodes, at = w.at(row, k);
    const uint32_t word = w.packed[row * w.words + i];
    const float step = w.scale_at(at), zero = w.zero_at<kBits>(at);
    Vector<T, kCodes> values;
#pragma unroll
    for (int j = 0; j < kCodes; ++j)
      values.v[j] =
          from_float<T>(value_of_code(word >> (j * kBits) & ((1u << kBits) - 1), zero, step));
    T* const place = out + row * w.inputs + k;
    if constexpr (kVectors) {
      store_vector(place, values);
    } else {
#pragma unroll
      for (int j = 0; j < kCodes; ++j)
        if (k + j < w.inputs) place[j] = values.v[j];
    }
  }
}

template <class T>
void dequantize(const CodeMatrix& w, int64_t bits, T* out, CudaContext& ctx) {
  if (w.outputs * w.words == 0) return;
  const bool four = bits == 4;
  const bool vectors =
      w.inputs % (32 / bits) == 0 && (four ? aligned_for<8>(out) : aligned_for<4>(out));
  const auto kernel =
      four ? (vectors ? dequantize_kernel<T, 4, true> : dequantize_kernel<T, 4, false>)
           : (vectors ? dequantize_kernel<T, 8, true> : dequantize_kernel<T, 8, false>);
  const dim3 grid(static_cast<unsigned>(w.outputs),
                  std::min(blocks_for(w.words, kThreads), kMostColumnBlocks));
  kernel<<<grid, kThreads, 0, ctx.stream>>>(w, out);
  DS_CUDA_LAUNCHED("dequantize_weights");
}

/// Rows of x that a warp of plain_kernel multiplies by the weights in its registers.
constexpr int kTogether = 8;

/// The kernel for any shape and dtype: a warp per output, a word per lane.
template <class T, int kBits>
__global__ void __launch_bounds__(kThreads)
    plain_kernel(CodeMatrix w, const T* x, const T* bias, T* out, int64_t rows) {
  constexpr int kCodes = 32 / kBits;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= w.outputs) return;
  const int lane = threadIdx.x % kWarp;
  for (int64_t first = 0; first < rows; first += kTogether) {
    float sums[kTogether] = {};
    for (int64_t i = lane; i < w.words; i += kWarp) {
      const int64_t k = i * kCodes, at = w.at(row, k);
      const uint32_t word = w.packed[row * w.words + i];
      const float step = w.scale_at(at), zero = w.zero_at<kBits>(at);
#pragma unroll
      for (int j = 0; j < kCodes; ++j) {
        if (k + j >= w.inputs) break;
        const float value = value_of_code(word >> (j * kBits) & ((1u << kBits) - 1), zero, step);
#pragma unroll
        for (int m = 0; m < kTogether; ++m)
          if (first + m < rows) sums[m] += value * to_float(x[(first + m) * w.inputs + k + j]);
      }
    }
#pragma unroll
    for (int m = 0; m < kTogether; ++m) {
      const float sum = warp_sum(sums[m]);
      if (lane != 0 || first + m >= rows) continue;
      out[(first + m) * w.outputs + row] = from_float<T>(bias ? sum + to_float(bias[row]) : sum);
    }
  }
}

/// Adds the bias and rounds once.
template <class T>
struct FinishLinear {
  const T* bias;  // [outputs] or null
  T* out;         // [rows, outputs]
  int64_t outputs;

  __device__ void operator()(int64_t row, int64_t output, float sum) const {
    if (bias) sum += to_float(bias[output]);
    out[row * outputs + output] = from_float<T>(sum);
  }
};

template <class T, int kBits, ScaleTime kTime>
void on_tensor_cores(const QuantizedLinear& op, const CodeMatrix& w, CudaContext& ctx) {
  using Coded = CodedWeights<T, kBits, kTime>;
  const SkinnyArguments<T, Coded, FinishLinear<T>> a{Coded{w},
                                                     op.x.as<T>(),
                                                     w.inputs,
                                                     static_cast<int>(op.x.shape[0]),
                                                     static_cast<int>(w.inputs),
                                                     w.outputs,
                                                     {op.bias.as<T>(), op.out.as<T>(), w.outputs},
                                                     codes_are_settled(op, ctx)};
  launch_skinny(kOp, a, ctx);
}

template <class T, int kBits>
void few_rows(const QuantizedLinear& op, const CodeMatrix& w, CudaContext& ctx) {
  if constexpr (!std::is_same_v<T, float>) {
    if (is_one_coded_row<kBits, T>(op, w))
      return launch_one_coded_row<kBits, false, T>(kOp, op, w, ctx);
    if (takes_packets<T>(op, w)) {
      if (!scales_late<kBits>(w)) return on_tensor_cores<T, kBits, ScaleTime::weight>(op, w, ctx);
      return on_tensor_cores<T, kBits, kLateTime<kBits>>(op, w, ctx);
    }
  }
  plain_kernel<T, kBits><<<blocks_for(w.outputs, kWarps), kThreads, 0, ctx.stream>>>(
      w, op.x.as<T>(), op.bias.as<T>(), op.out.as<T>(), op.x.shape[0]);
  DS_CUDA_LAUNCHED(kOp);
}

/// Dequantizes W to x's dtype, then runs one product.
template <class T>
void many_rows(const QuantizedLinear& op, const CodeMatrix& w, CudaContext& ctx) {
  T* const values = ctx.scratch_of<T>(static_cast<size_t>(w.outputs * w.inputs));
  dequantize(w, op.bits, values, ctx);
  View matrix = op.x;
  matrix.data = values;
  matrix.shape[0] = w.outputs;
  run(Matmul{op.x, matrix, op.bias, {}, op.out, false, true, MatmulEpilogue::none, false}, ctx);
}

/// Writes a word of codes per thread. A code with an invalid `order` is 0.
__global__ void __launch_bounds__(kThreads)
    repack_kernel(const uint32_t* in, const int32_t* order, uint32_t* out, int64_t outputs,
                  int64_t words, int64_t width, int64_t inputs, int bits, bool awq) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= outputs * words) return;
  const int codes = 32 / bits;
  const int64_t row = i / words, from = i % words * codes;
  const uint32_t mask = (1u << bits) - 1;
  uint32_t word = 0;
  for (int j = 0; j < codes && from + j < inputs; ++j) {
    const int64_t k = order ? order[from + j] : from + j;
    if (k < 0 || k >= inputs) continue;
    const uint32_t code = awq ? in[k * width + row / 8] >> awq_shift(row)
                              : in[row * width + k / codes] >> (k % codes * bits);
    word |= (code & mask) << (j * bits);
  }
  out[i] = word;
}

}  // namespace

void run(const QuantizeWeights& op, CudaContext& ctx) {
  constexpr const char* kName = "quantize_weights";
  const int64_t outputs = op.in.shape[0], groups = op.scale.shape[1];
  if (outputs * groups == 0) return;
  for_floating(kName, op.in.dtype, [&](auto in) {
    for_floating(kName, op.scale.dtype, [&](auto scale) {
      using T = typename decltype(in)::type;
      using S = typename decltype(scale)::type;
      quantize_kernel<T, S><<<blocks_for(outputs * groups, kWarps), kThreads, 0, ctx.stream>>>(
          op.in.as<T>(), op.packed.as<uint32_t>(), op.scale.as<S>(), outputs, op.in.shape[1],
          op.packed.shape[1], groups, op.group, static_cast<int>(op.bits));
      DS_CUDA_LAUNCHED(kName);
    });
  });
}

void run(const DequantizeWeights& op, CudaContext& ctx) {
  const CodeMatrix w = codes_of(op, op.out.shape[0], op.out.shape[1]);
  for_floating("dequantize_weights", op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    dequantize(w, op.bits, op.out.as<T>(), ctx);
  });
}

void run(const QuantizedLinear& op, CudaContext& ctx) {
  if (op.out.numel() == 0) return;
  const CodeMatrix w = codes_of(op, op.out.shape[1], op.x.shape[1]);
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (op.x.shape[0] > kFewRows) return many_rows<T>(op, w, ctx);
    if (op.bits == 4) return few_rows<T, 4>(op, w, ctx);
    few_rows<T, 8>(op, w, ctx);
  });
}

void run(const RepackCodes& op, CudaContext& ctx) {
  const int64_t outputs = op.out.shape[0], words = op.out.shape[1];
  if (outputs * words == 0) return;
  repack_kernel<<<blocks_for(outputs * words, kThreads), kThreads, 0, ctx.stream>>>(
      op.in.as<uint32_t>(), op.order.as<int32_t>(), op.out.as<uint32_t>(), outputs, words,
      op.in.shape[1], op.inputs, static_cast<int>(op.bits), op.layout == CodeLayout::awq);
  DS_CUDA_LAUNCHED("repack_codes");
}

}  // namespace ds::cuda
