// The element-wise kernel: out = f(in...) over contiguous, strided or broadcast operands.
#pragma once

#include <cuda/std/tuple>
#include <utility>

#include "strided.cuh"

namespace ds::cuda {

constexpr int kMapThreads = 256, kMapItems = 2;

/// Calls f(out, in...) with Vectors of kWidth elements. f overwrites its argument `out`, which
/// contains the old elements if f.accumulate is true. A thread loads all its items before it stores
/// any.
template <int kWidth, class F, class Out, class... In>
__global__ void __launch_bounds__(kMapThreads)
    map_kernel(Steps<1 + sizeof...(In)> steps, F f, Out* out, const In*... in) {
  ::cuda::std::tuple<Vector<In, kWidth>...> loaded[kMapItems];
  Vector<Out, kWidth> result[kMapItems];
  int32_t at[kMapItems][1 + sizeof...(In)];
  const uint32_t first = blockIdx.x * (kMapThreads * kMapItems) + threadIdx.x;
#pragma unroll
  for (int u = 0; u < kMapItems; ++u) {
    const uint32_t item = first + u * kMapThreads;
    if (item >= steps.count) break;
    steps.offsets(item, at[u]);
    if (f.accumulate) result[u] = load_vector<kWidth>(out + at[u][0]);
    [&]<size_t... I>(std::index_sequence<I...>) {
      ((::cuda::std::get<I>(loaded[u]) =
            load_item<kWidth>(in + at[u][I + 1], steps.uniform >> (I + 1) & 1)),
       ...);
    }
    (std::index_sequence_for<In...>{});
  }
#pragma unroll
  for (int u = 0; u < kMapItems; ++u) {
    if (first + u * kMapThreads >= steps.count) break;
    ::cuda::std::apply([&](const auto&... x) { f(result[u], x...); }, loaded[u]);
    store_vector(out + at[u][0], result[u]);
  }
}

template <int kWidth, class Out, class... In, class F, size_t... I>
void launch_map(const char* op, cudaStream_t stream, const F& f,
                const Steps<1 + sizeof...(In)>& steps, char* const* data,
                std::index_sequence<I...>) {
  constexpr uint32_t per_block = kMapThreads * kMapItems;
  map_kernel<kWidth, F, Out, In...>
      <<<(steps.count + per_block - 1) / per_block, kMapThreads, 0, stream>>>(
          steps, f, reinterpret_cast<Out*>(data[0]), reinterpret_cast<const In*>(data[I + 1])...);
  DS_CUDA_LAUNCHED(op);
}

/// Launches f over operands with the shape of `out`. Strides of inputs may be 0. Out and In are the
/// element types of the views.
template <int kWidth, class Out, class... In, class F, class... Views>
void map(const char* op, cudaStream_t stream, const F& f, const View& out, const Views&... in) {
  constexpr int kOperands = 1 + sizeof...(In);
  static_assert(sizeof...(In) == sizeof...(Views));
  const View* const views[kOperands] = {&out, &in...};
  walk_vectors<kWidth>(plan_walk(views),
                       [&](auto width, const Steps<kOperands>& steps, char* const* data) {
                         launch_map<width.value, Out, In...>(op, stream, f, steps, data,
                                                             std::index_sequence_for<In...>{});
                       });
}

}  // namespace ds::cuda
