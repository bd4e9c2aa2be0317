// MXFP4 weights on the GPU: dequantization, the plain kernels of experts, and the choice of kernel.
#include "mxfp4.h"

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/vector.cuh"
#include "mxfp4_experts.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
/// Number of weights in a word. A thread dequantizes one word.
constexpr int kCodes = 8;

/// With kVectors, a thread reads codes by words and writes `out` in packets of eight.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const uint8_t* codes, const uint8_t* scales, T* out, int64_t words) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= words) return;
  uint32_t word = 0;
  if constexpr (kVectors) word = reinterpret_cast<const uint32_t*>(codes)[i];
  else
    for (int j = 0; j < 4; ++j) word |= uint32_t{codes[i * 4 + j]} << (8 * j);
  const uint32_t scale = scales[i * kCodes / kMxfp4Block];
  Vector<T, kCodes> values;
#pragma unroll
  for (int j = 0; j < kCodes; ++j)
    values.v[j] = from_float<T>(mxfp4_weight(word >> (4 * j) & 15u, scale));
  if constexpr (kVectors) {
    store_vector(out + i * kCodes, values);
  } else {
#pragma unroll
    for (int j = 0; j < kCodes; ++j) out[i * kCodes + j] = values.v[j];
  }
}

/// Arguments of the plain kernel, for any dtype.
template <class T>
struct PlainRows {
  const uint8_t *codes, *scales;
  const T *bias, *x;
  const int32_t* ids;
  const float* weights;
  T* out;
  int64_t experts, outputs, inputs, choices, items;
  float limit;
  bool alternate;
};

/// Returns x [inputs] times row `row` of all matrices, plus the row's bias, in all lanes of the
/// warp. The lanes split the inputs.
template <class T>
__device__ float plain_product(const PlainRows<T>& a, int64_t row, const T* x) {
  const uint8_t* const codes = a.codes + row * a.inputs / 2;
  const uint8_t* const scales = a.scales + row * a.inputs / kMxfp4Block;
  float sum = 0.f;
  for (int64_t i = threadIdx.x % kWarp; i < a.inputs / 2; i += kWarp) {
    const uint32_t pair = codes[i], scale = scales[2 * i / kMxfp4Block];
    sum = fmaf(mxfp4_weight(pair & 15u, scale), to_float(x[2 * i]), sum);
    sum = fmaf(mxfp4_weight(pair >> 4, scale), to_float(x[2 * i + 1]), sum);
  }
  sum = warp_sum(sum);
  return a.bias ? sum + to_float(a.bias[row]) : sum;
}

/// Computes an output of the gated up or the down projections per warp. An invalid expert gives 0.
template <class T, bool kDown>
__global__ void __launch_bounds__(kThreads) plain_kernel(PlainRows<T> a) {
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (item >= a.items) return;
  float result = 0.f;
  if constexpr (kDown) {
    const int64_t token = item / a.outputs, n = item % a.outputs;
    for (int64_t j = token * a.choices; j < (token + 1) * a.choices; ++j) {
      const int32_t expert = a.ids[j];
      if (expert < 0 || expert >= a.experts) continue;
      result += a.weights[j] * plain_product(a, expert * a.outputs + n, a.x + j * a.inputs);
    }
  } else {
    const int64_t hidden = a.outputs / 2, choice = item / hidden, n = item % hidden;
    const int32_t expert = a.ids[choice];
    if (expert >= 0 && expert < a.experts) {
      const T* const x = a.x + choice / a.choices * a.inputs;
      const int64_t row = expert * a.outputs;
      const float gate = plain_product(a, row + (a.alternate ? 2 * n : n), x);
      const float up = plain_product(a, row + (a.alternate ? 2 * n + 1 : hidden + n), x);
      result = expert_gate(gate, up, a.limit);
    }
  }
  if (threadIdx.x % kWarp == 0) a.out[item] = from_float<T>(result);
}

template <class T, bool kDown>
void launch_plain(const char* name, const PlainRows<T>& a, CudaContext& ctx) {
  const auto blocks = static_cast<unsigned>((a.items + kWarps - 1) / kWarps);
  plain_kernel<T, kDown><<<blocks, kThreads, 0, ctx.stream>>>(a);
  DS_CUDA_LAUNCHED(name);
}

/// Runs the plain kernels, for any dtype, number of choices and alignment.
template <class T>
void run_plain(const Mxfp4Experts& op, CudaContext& ctx) {
  constexpr const char* kOp = "mxfp4_experts";
  const int64_t tokens = op.x.shape[0], channels = op.x.shape[1], k = op.ids.shape[1];
  const int64_t experts = op.up_codes.shape[0], hidden = op.up_codes.shape[1] / 2;
  T* const inner = ctx.scratch_of<T>(static_cast<size_t>(tokens * k * hidden));
  const auto ids = op.ids.as<int32_t>();
  const auto weights = op.weights.as<float>();
  const auto limit = static_cast<float>(op.limit);
  const PlainRows<T> up{op.up_codes.as<uint8_t>(),
                        op.up_scales.as<uint8_t>(),
                        op.up_bias.as<T>(),
                        op.x.as<T>(),
                        ids,
                        weights,
                        inner,
                        experts,
                        2 * hidden,
                        channels,
                        k,
                        tokens * k * hidden,
                        limit,
                        op.alternate};
  if (up.items > 0) launch_plain<T, false>(kOp, up, ctx);
  const PlainRows<T> down{op.down_codes.as<uint8_t>(),
                          op.down_scales.as<uint8_t>(),
                          op.down_bias.as<T>(),
                          inner,
                          ids,
                          weights,
                          op.out.as<T>(),
                          experts,
                          channels,
                          hidden,
                          k,
                          tokens * channels,
                          limit,
                          op.alternate};
  launch_plain<T, true>(kOp, down, ctx);
}

constexpr int64_t kMostChoices = 8, kMostTokens = 65535;

bool takes_digits(const Mxfp4Experts& op, const CudaContext& ctx) {
  const int64_t hidden = op.up_codes.shape[1] / 2, channels = op.x.shape[1];
  const int64_t k = op.ids.shape[1];
  return op.x.dtype == DType::bf16 && hidden > 0 && k <= kMostChoices &&
         std::max(channels, hidden) <= kMostMxInputs && op.x.shape[0] <= kMostTokens &&
         has_mx_shape(static_cast<int>(channels), static_cast<int>(hidden), static_cast<int>(k),
                      ctx) &&
         aligned_for<16>(op.up_codes.as<uint8_t>()) &&
         aligned_for<16>(op.down_codes.as<uint8_t>()) &&
         aligned_for<8>(op.up_scales.as<uint8_t>()) &&
         aligned_for<8>(op.down_scales.as<uint8_t>()) && aligned_for<8>(op.x.as<__nv_bfloat16>());
}

void run_digits(const Mxfp4Experts& op, CudaContext& ctx) {
  using T = MxExperts::T;
  const int tokens = static_cast<int>(op.x.shape[0]), channels = static_cast<int>(op.x.shape[1]);
  const int k = static_cast<int>(op.ids.shape[1]);
  const int hidden = static_cast<int>(op.up_codes.shape[1] / 2);
  const size_t each = MxInputs::bytes(mx_runs(hidden));
  MxExperts a{};
  a.ids = op.ids.as<int32_t>();
  a.weights = op.weights.as<float>();
  a.inner = ctx.scratch_of<uint8_t>(static_cast<size_t>(tokens) * k * each);
  a.experts = static_cast<int>(op.up_codes.shape[0]);
  a.choices = k;
  a.limit = static_cast<float>(op.limit);
  a.alternate = op.alternate;
  MxExperts up = a, down = a;
  up.codes = op.up_codes.as<uint8_t>(), up.scales = op.up_scales.as<uint8_t>();
  up.bias = op.up_bias.as<T>(), up.x = op.x.as<T>();
  up.outputs = 2 * hidden, up.inputs = channels;
  down.codes = op.down_codes.as<uint8_t>(), down.scales = op.down_scales.as<uint8_t>();
  down.bias = op.down_bias.as<T>(), down.out = op.out.as<T>();
  down.outputs = channels, down.inputs = hidden;
  launch_mx_up(up, tokens, ctx);
  launch_mx_down(down, tokens, ctx);
}

}  // namespace

void run(const Mxfp4Dequantize& op, CudaContext& ctx) {
  constexpr const char* kOp = "mxfp4_dequantize";
  const int64_t words = op.out.numel() / kCodes;
  if (words == 0) return;
  for_floating(kOp, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const out = op.out.as<T>();
    const auto codes = op.codes.as<uint8_t>();
    const auto kernel = aligned_for<kCodes>(out) && aligned_for<4>(codes)
                            ? dequantize_kernel<T, true>
                            : dequantize_kernel<T, false>;
    const auto blocks = static_cast<unsigned>((words + kThreads - 1) / kThreads);
    kernel<<<blocks, kThreads, 0, ctx.stream>>>(codes, op.scales.as<uint8_t>(), out, words);
    DS_CUDA_LAUNCHED(kOp);
  });
}

void run(const Mxfp4Experts& op, CudaContext& ctx) {
  if (op.out.numel() == 0) return;
  if (takes_digits(op, ctx)) return run_digits(op, ctx);
  for_floating("mxfp4_experts", op.x.dtype,
               [&](auto tag) { run_plain<typename decltype(tag)::type>(op, ctx); });
}

}  // namespace ds::cuda
