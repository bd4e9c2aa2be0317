// Routing on the GPU: a warp per token, with its logits in registers.
#include "route.h"

#include "../cuda/block_reduce.cuh"
#include "../cuda/dependent_launch.cuh"
#include "../cuda/mma.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp, kMostPerLane = kMostExperts / kWarp;

unsigned blocks_for_tokens(int64_t tokens) {
  return static_cast<unsigned>((tokens + kWarps - 1) / kWarps);
}

/// Loads logits. Value i of a lane belongs to expert i * 32 + lane. Values beyond the last expert
/// are -infinity.
template <class T, int kPerLane>
__device__ __forceinline__ void load_logits(float (&x)[kPerLane], const T* logits, int experts) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = i * kWarp + threadIdx.x % kWarp;
    x[i] = expert < experts ? to_float(logits[expert]) : -INFINITY;
  }
}

/// Replaces x by e^(x - max) and returns the sum. NaN propagates.
template <int kPerLane>
__device__ __forceinline__ float exponentials(float (&x)[kPerLane], int experts) {
  float max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) max = fmaxf(max, x[i]);  // fmaxf ignores NaN
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

/// Returns the value of an expert to all lanes. The index of a register must be a compile-time
/// constant.
template <int kPerLane>
__device__ __forceinline__ float value_of(const float (&x)[kPerLane], int expert) {
  float mine = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (i == expert / kWarp) mine = x[i];
  return __shfl_sync(0xffffffffu, mine, expert % kWarp);
}

/// Chooses the experts of a token, by a warp. A lane has kPerLane logits: few in models with few
/// experts, whose decoding steps wait for them.
template <class T, int kPerLane>
__device__ __forceinline__ void choose_experts(const T* logits, int32_t* ids, float* weights,
                                               int experts, int k, bool normalize) {
  const int lane = threadIdx.x % kWarp;
  float key[kPerLane], e[kPerLane];
  load_logits(key, logits, experts);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) e[i] = key[i];
  const float sum = exponentials(e, experts);
  uint32_t left = 0;  // bit i: value i of the lane exists and is not chosen yet
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
      ids[j] = which;
      weights[j] = normalize ? value : value / sum;
    }
  }
  if (!normalize || lane != 0) return;
  for (int j = 0; j < k; ++j) weights[j] /= among;
}

/// Like choose_experts(), for at most one logit per lane.
template <class T>
__device__ __forceinline__ void choose_of_lanes(const T* logits, int32_t* ids, float* weights,
                                                int experts, int k, bool normalize) {
  const int lane = threadIdx.x % kWarp;
  float x[1], e[1];
  load_logits(x, logits, experts);
  e[0] = x[0];
  const float sum = exponentials(e, experts);
  // A key that ascends with the logit and is never 0. -0 becomes 0.
  const uint32_t bits = __float_as_uint(x[0] != x[0] ? INFINITY : x[0] + 0.0f);
  const uint32_t key = bits >> 31 ? ~bits : bits | 0x80000000u;
  bool left = lane < experts;
  float among = 0.0f, own = 0.0f;
  int which = 0;
  for (int j = 0; j < k; ++j) {
    const uint32_t best = __reduce_max_sync(0xffffffffu, left ? key : 0u);
    const int chosen = __ffs(__ballot_sync(0xffffffffu, left && key == best)) - 1;
    const float value = __shfl_sync(0xffffffffu, e[0], chosen);
    among += value;
    if (lane == chosen) left = false;
    if (lane == j) own = value, which = chosen;
  }
  if (lane >= k) return;
  ids[lane] = which;
  weights[lane] = own / (normalize ? among : sum);
}

/// Routes a token per warp.
template <class T, int kPerLane>
__global__ void __launch_bounds__(kThreads)
    route_kernel(const T* logits, int32_t* ids, float* weights, int64_t tokens, int experts, int k,
                 bool normalize) {
  let_next_begin();
  await_previous();
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (token >= tokens) return;
  choose_experts<T, kPerLane>(logits + token * experts, ids + token * k, weights + token * k,
                              experts, k, normalize);
}

/// Arguments of RouteTopK with x.
template <class T>
struct TokenRoutes {
  const T *x, *weight, *bias;  // bias may be null
  T* logits;
  int32_t* ids;
  float* weights;
  int experts, k;
  int64_t channels;
  bool normalize, vectors;
  bool settled;  // weight may be read before the previous kernel has ended
};

/// Packets that a lane has in flight.
constexpr int kRoutePackets = 12;

/// Packets of an expert's weights, and their product with x.
template <class T>
struct RoutePackets {
  static constexpr int kN = kPacket<T>, kEach = kRoutePackets * kWarp * kN;  // channels of a round
  uint4 packets[kRoutePackets];

  __device__ __forceinline__ void load(const TokenRoutes<T>& a, int expert, int64_t from, int end) {
#pragma unroll
    for (int i = 0; i < kRoutePackets; ++i) {
      const int64_t at = from + (i * kWarp + threadIdx.x % kWarp) * kN;
      packets[i] = uint4{0, 0, 0, 0};
      if (expert < end && at < a.channels)
        packets[i] = *reinterpret_cast<const uint4*>(a.weight + expert * a.channels + at);
    }
  }
  __device__ __forceinline__ float times(const T* x, int64_t from, int64_t channels) const {
    Vector<T, kN> right[kRoutePackets];  // all in flight at once
#pragma unroll
    for (int i = 0; i < kRoutePackets; ++i) {
      const int64_t at = from + (i * kWarp + threadIdx.x % kWarp) * kN;
      right[i] = Vector<T, kN>{};
      if (at < channels) right[i] = load_vector<kN>(x + at);
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kRoutePackets; ++i) {
      const auto& left = reinterpret_cast<const Vector<T, kN>&>(packets[i]);
#pragma unroll
      for (int j = 0; j < kN; ++j) sum = fmaf(to_float(left.v[j]), to_float(right[i].v[j]), sum);
    }
    return sum;
  }
};

/// Writes a value to the shared memory of the first block of the cluster.
template <class T>
__device__ __forceinline__ void store_in_first_block(T* shared, T value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t place;
  asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(place) : "r"(shared_address(shared)));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(place), "f"(to_float(value)) : "memory");
#endif
}

/// The two halves of a barrier for all threads of a cluster.
template <int kCluster>
__device__ __forceinline__ void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}
template <int kCluster>
__device__ __forceinline__ void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/// Routes a token per cluster of kCluster blocks. Each block has a part of the experts. The first
/// block chooses.
template <class T, int kCluster, int kPerLane>
__global__ void __launch_bounds__(kThreads)
    route_tokens_kernel(const __grid_constant__ TokenRoutes<T> a) {
  __shared__ float logits[kMostExperts];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  const int64_t token = blockIdx.x / kCluster;
  const int each = (a.experts + kCluster - 1) / kCluster;
  const int first = rank * each, end = min(a.experts, first + each);
  const T* const x = a.x + token * a.channels;
  using Packets = RoutePackets<T>;
  Packets packets;
  cluster_arrive<kCluster>();
  float bias = 0.0f;  // bias of the warp's next expert
  const auto load = [&] {
    if (a.vectors) packets.load(a, first + warp, 0, end);
    if (a.bias && first + warp < end) bias = to_float(a.bias[first + warp]);
  };
  if (a.settled) load();
  await_previous();
  let_next_begin();
  if (!a.settled) load();
  cluster_wait<kCluster>();  // until all blocks of the cluster have started
  for (int expert = first + warp; expert < end; expert += kWarps) {
    float sum = 0.0f;
    if (a.vectors) {
      for (int64_t from = 0; from < a.channels; from += Packets::kEach) {
        sum += packets.times(x, from, a.channels);
        const bool last = from + Packets::kEach >= a.channels;
        packets.load(a, last ? expert + kWarps : expert, last ? 0 : from + Packets::kEach, end);
      }
    } else {
      for (int64_t c = lane; c < a.channels; c += kWarp)
        sum = fmaf(to_float(a.weight[expert * a.channels + c]), to_float(x[c]), sum);
    }
    sum = warp_sum(sum);
    sum += bias;
    if (a.bias && expert + kWarps < end) bias = to_float(a.bias[expert + kWarps]);
    if (lane != 0) continue;
    const T rounded = from_float<T>(sum);
    a.logits[token * a.experts + expert] = rounded;
    const float logit = to_float(rounded);
    if constexpr (kCluster > 1) store_in_first_block(logits + expert, logit);
    else logits[expert] = logit;
  }
  if constexpr (kCluster > 1) {
    cluster_arrive<kCluster>();
    cluster_wait<kCluster>();
  } else {
    __syncthreads();
  }
  if (rank != 0 || warp != 0) return;
  int32_t* const ids = a.ids + token * a.k;
  float* const weights = a.weights + token * a.k;
  if constexpr (kPerLane == 1) choose_of_lanes(logits, ids, weights, a.experts, a.k, a.normalize);
  else choose_experts<float, kPerLane>(logits, ids, weights, a.experts, a.k, a.normalize);
}

constexpr int kRouteCluster = 8;

template <class T, int kPerLane>
void launch_route_tokens(const TokenRoutes<T>& a, int64_t tokens, CudaContext& ctx) {
  const bool clusters = ctx.code.architecture >= 90;
  const unsigned cluster = clusters ? kRouteCluster : 1;
  launch_behind(ctx,
                {"route_top_k", dim3(static_cast<unsigned>(tokens) * cluster), dim3(kThreads),
                 ctx.stream, 0, cluster},
                clusters ? route_tokens_kernel<T, kRouteCluster, kPerLane>
                         : route_tokens_kernel<T, 1, kPerLane>,
                a);
}

/// Writes the gradient of the logits of a token. A warp per token, which keeps the exponentials in
/// registers.
template <class T>
__global__ void __launch_bounds__(kThreads)
    route_backward_kernel(const T* logits, const int32_t* ids, const float* dweights, T* dlogits,
                          int64_t tokens, int experts, int k, bool normalize, bool accumulate) {
  const int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (token >= tokens) return;
  const int lane = threadIdx.x % kWarp;
  constexpr int kPerLane = kMostPerLane;
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

template <class T>
void route_tokens(const RouteTopK& op, CudaContext& ctx) {
  const int64_t tokens = op.x.shape[0], channels = op.x.shape[1];
  DS_CHECK_SHAPE(tokens < int64_t{1} << 27, "route_top_k", "fewer than 2^27 tokens", text(tokens));
  const T *const x = op.x.as<T>(), *const weight = op.weight.as<T>();
  constexpr int N = kPacket<T>;
  const auto experts = static_cast<int>(op.weight.shape[0]);
  const TokenRoutes<T> a{x,
                         weight,
                         op.bias.as<T>(),
                         op.logits.as<T>(),
                         op.ids.as<int32_t>(),
                         op.weights.as<float>(),
                         experts,
                         static_cast<int>(op.ids.shape[1]),
                         channels,
                         op.normalize,
                         channels % N == 0 && aligned_for<N>(x) && aligned_for<N>(weight),
                         is_settled(ctx, weight) && is_settled(ctx, op.bias.data)};
  if (experts <= kWarp) launch_route_tokens<T, 1>(a, tokens, ctx);
  else if (experts <= 4 * kWarp) launch_route_tokens<T, 4>(a, tokens, ctx);
  else launch_route_tokens<T, kMostPerLane>(a, tokens, ctx);
}

}  // namespace

void run(const RouteTopK& op, CudaContext& ctx) {
  constexpr const char* kOp = "route_top_k";
  const int64_t tokens = op.logits.shape[0], experts = op.logits.shape[1];
  if (tokens == 0) return;
  for_floating(kOp, op.logits.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (op.x) return route_tokens<T>(op, ctx);
    const auto kernel = experts <= kWarp       ? route_kernel<T, 1>
                        : experts <= 4 * kWarp ? route_kernel<T, 4>
                                               : route_kernel<T, kMostPerLane>;
    launch_behind(ctx, {kOp, dim3(blocks_for_tokens(tokens)), dim3(kThreads), ctx.stream}, kernel,
                  op.logits.as<T>(), op.ids.as<int32_t>(), op.weights.as<float>(), tokens,
                  static_cast<int>(experts), static_cast<int>(op.ids.shape[1]), op.normalize);
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
