// Routing on the GPU: a warp per token keeps its logits in registers.
#include "route.h"

#include "../cuda/block_reduce.cuh"
#include "../cuda/cuda_context.h"

namespace ds::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp, kPerLane = kMostExperts / kWarp;

unsigned blocks_for_tokens(int64_t tokens) {
  return static_cast<unsigned>((tokens + kWarps - 1) / kWarps);
}

/// Expert i * 32 + lane is value i of a lane. Values past the last expert are -infinity.
template <class T>
__device__ __forceinline__ void load_logits(float (&x)[kPerLane], const T* logits, int experts) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = i * kWarp + threadIdx.x % kWarp;
    x[i] = expert < experts ? to_float(logits[expert]) : -INFINITY;
  }
}

/// Replaces x by e^(x - max); returns the sum. NaN propagates.
__device__ __forceinline__ float exponentials(float (&x)[kPerLane], int experts) {
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) max = fmaxf(max, x[i]);  // fmaxf leaves NaN out
  max = warp_reduce(max, Max{});
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const bool real = i * kWarp + threadIdx.x % kWarp < experts;
    x[i] = real ? expf(x[i] - max) : 0.0f;
    sum += x[i];
  }
  return warp_sum(sum);
}

/// Returns, to all lanes, the value of an expert. The index of a register must be a compile-time
/// constant.
__device__ __forceinline__ float value_of(const float (&x)[kPerLane], int expert) {
  float mine = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (i == expert / kWarp) mine = x[i];
  return __shfl_sync(0xffffffffu, mine, expert % kWarp);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    route_kernel(const T* logits, int32_t* ids, float* weights, int64_t tokens, int experts, int k,
                 bool normalize) {
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (token >= tokens) return;
  const int lane = threadIdx.x % kWarp;
  float key[kPerLane], e[kPerLane];
  load_logits(key, logits + token * experts, experts);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) e[i] = key[i];
  const float sum = exponentials(e, experts);
  uint32_t left = 0;  // bit i: the lane's value i exists and is not chosen yet
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (i * kWarp + lane < experts) left |= 1u << i;
    if (key[i] != key[i]) key[i] = INFINITY;
  }
  float among = 0.0f;
  for (int j = 0; j < k; ++j) {
    float best = -INFINITY;
    int which = 1 << 30;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const bool better = (left >> i & 1u) && (which == 1 << 30 || key[i] > best);
      if (better) {
        best = key[i];
        which = i * kWarp + lane;
      }
    }
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, offset);
      const int place = __shfl_xor_sync(0xffffffffu, which, offset);
      const bool there = place != 1 << 30;
      if (there && (which == 1 << 30 || other > best || (other == best && place < which))) {
        best = other;
        which = place;
      }
    }
    if (which % kWarp == lane) left &= ~(1u << (which / kWarp));
    const float value = value_of(e, which);
    among += value;
    if (lane == 0) {
      ids[token * k + j] = which;
      weights[token * k + j] = normalize ? value : value / sum;
    }
  }
  if (!normalize || lane != 0) return;
  for (int j = 0; j < k; ++j) weights[token * k + j] /= among;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    route_backward_kernel(const T* logits, const int32_t* ids, const float* dweights, T* dlogits,
                          int64_t tokens, int experts, int k, bool normalize, bool accumulate) {
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (token >= tokens) return;
  const int lane = threadIdx.x % kWarp;
  float e[kPerLane];
  load_logits(e, logits + token * experts, experts);
  float whole = exponentials(e, experts);
  ids += token * k;
  dweights += token * k;
  const auto known = [&](int j) { return ids[j] >= 0 && ids[j] < experts; };
  if (normalize) {
    whole = 0.0f;
    for (int j = 0; j < k; ++j)
      if (known(j)) whole += value_of(e, ids[j]);
  }
  float inner = 0.0f;
  for (int j = 0; j < k; ++j)
    if (known(j)) inner += dweights[j] * (value_of(e, ids[j]) / whole);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = i * kWarp + lane;
    if (expert >= experts) continue;
    float slope = normalize ? 0.0f : -inner;
    for (int j = 0; j < k; ++j)
      if (ids[j] == expert) slope += normalize ? dweights[j] - inner : dweights[j];
    T& out = dlogits[token * experts + expert];
    const float result = e[i] / whole * slope;
    out = from_float<T>(accumulate ? to_float(out) + result : result);
  }
}

}  // namespace

void run(const RouteTopK& op, CudaContext& ctx) {
  constexpr const char* kOp = "route_top_k";
  const int64_t tokens = op.logits.shape[0];
  if (tokens == 0) return;
  for_floating(kOp, op.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    route_kernel<T><<<blocks_for_tokens(tokens), kThreads, 0, ctx.stream>>>(
        op.logits.as<T>(), op.ids.as<int32_t>(), op.weights.as<float>(), tokens,
        static_cast<int>(op.logits.shape[1]), static_cast<int>(op.ids.shape[1]), op.normalize);
    DS_CUDA_LAUNCHED(kOp);
  });
}

void run(const RouteTopKBackward& op, CudaContext& ctx) {
  constexpr const char* kOp = "route_top_k_backward";
  const int64_t tokens = op.logits.shape[0];
  if (tokens == 0) return;
  for_floating(kOp, op.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    route_backward_kernel<T><<<blocks_for_tokens(tokens), kThreads, 0, ctx.stream>>>(
        op.logits.as<T>(), op.ids.as<int32_t>(), op.dweights.as<float>(), op.dlogits.as<T>(),
        tokens, static_cast<int>(op.logits.shape[1]), static_cast<int>(op.ids.shape[1]),
        op.normalize, op.accumulate);
    DS_CUDA_LAUNCHED(kOp);
  });
}

}  // namespace ds::cuda
