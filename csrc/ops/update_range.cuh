// Runs an element-wise optimizer rule on the GPU, in one pass over the range at memory bandwidth.
#pragma once

#include <algorithm>
#include <utility>

#include "../cuda/vector.cuh"
#include "update_rule.h"

namespace ds::cuda {

constexpr int kUpdateThreads = 256, kUpdateWidth = 4;

/// Blocks per SM: fewer if a thread has more operands in flight.
template <class Rule>
constexpr int kUpdateBlocks = std::min(8, 12 / (1 + Rule::kStates));

/// Arguments of the kernel. `values` are the master weights and the rule's states. `weight` is null
/// if the model computes with the f32 master.
template <class Rule, class G, class W>
struct UpdateRange {
  Rule rule;
  float* values[1 + Rule::kStates];
  const G* grad;
  W* weight;
  const float* control;
  int64_t n;
};

/// Updates N consecutive parameters. All operands are loaded before the first is used.
template <int N, class Rule, class G, class W, size_t... I>
__device__ __forceinline__ void update_vector(const UpdateRange<Rule, G, W>& r, float factor,
                                              int64_t at, std::index_sequence<I...>) {
  const Vector<G, N> grad = load_streaming<N>(r.grad + at);
  Vector<float, N> values[] = {load_streaming<N>(r.values[I] + at)...};
  Vector<W, N> weight;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    r.rule.update(factor, to_float(grad.v[i]), values[I].v[i]...);
    weight.v[i] = from_float<W>(values[0].v[i]);
  }
  (store_streaming(r.values[I] + at, values[I]), ...);
  if (r.weight) store_streaming(r.weight + at, weight);
}

/// Writes the weights of a skipped step: the rounded masters.
template <int N, class Rule, class G, class W>
__device__ __forceinline__ void round_vector(const UpdateRange<Rule, G, W>& r, int64_t at) {
  const Vector<float, N> p = load_streaming<N>(r.values[0] + at);
  Vector<W, N> weight;
#pragma unroll
  for (int i = 0; i < N; ++i) weight.v[i] = from_float<W>(p.v[i]);
  store_streaming(r.weight + at, weight);
}

/// Updates elements by the rule, N at a time. The first threads of the grid update the rest one by
/// one. A skipped step only rounds the master to `weight`.
template <int N, class Rule, class G, class W>
__global__ void __launch_bounds__(kUpdateThreads) update_kernel(UpdateRange<Rule, G, W> r) {
  constexpr auto kValues = std::make_index_sequence<1 + Rule::kStates>();
  const float factor = r.control[0];
  const bool apply = r.control[1] != 0;
  if (!apply && !r.weight) return;
  const int64_t packets = r.n / N, step = int64_t{gridDim.x} * kUpdateThreads;
  const int64_t first = int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x;
  const int64_t tail = packets * N + first;
  if (apply) {
    for (int64_t i = first; i < packets; i += step) update_vector<N>(r, factor, i * N, kValues);
    if (tail < r.n) update_vector<1>(r, factor, tail, kValues);
  } else {
    for (int64_t i = first; i < packets; i += step) round_vector<N>(r, i * N);
    if (tail < r.n) round_vector<1>(r, tail);
  }
}

template <class G, class W, class Rule, class Op, size_t... I>
void launch_update(const Rule& rule, const Op& op, const UpdateStates<Rule>& states,
                   CudaContext& ctx, std::index_sequence<I...>) {
  const UpdateRange<Rule, G, W> r = {
      rule,
      {op.master.template as<float>(), states[I].template as<float>()...},
      op.grad.template as<G>(),
      op.weight ? op.weight.template as<W>() : nullptr,
      op.control.template as<float>(),
      op.master.numel()};
  bool vectors = aligned_for<kUpdateWidth>(r.grad) && aligned_for<kUpdateWidth>(r.weight);
  for (const float* values : r.values) vectors = vectors && aligned_for<kUpdateWidth>(values);
  const int64_t items = vectors ? (r.n + kUpdateWidth - 1) / kUpdateWidth : r.n;
  const int64_t blocks = std::min<int64_t>((items + kUpdateThreads - 1) / kUpdateThreads,
                                           int64_t{ctx.sm_count} * kUpdateBlocks<Rule>);
  const auto kernel =
      vectors ? update_kernel<kUpdateWidth, Rule, G, W> : update_kernel<1, Rule, G, W>;
  kernel<<<static_cast<unsigned>(blocks), kUpdateThreads, 0, ctx.stream>>>(r);
  DS_CUDA_LAUNCHED(Rule::kName);
}

/// Runs `rule` over the range of `op`, see UpdateRule. The calling file is compiled with -ftz=true.
template <UpdateRule Rule, class Op>
void update_range(const Rule& rule, const Op& op, const UpdateStates<Rule>& states,
                  CudaContext& ctx) {
  if (op.master.numel() == 0) return;
  for_floating(Rule::kName, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    for_floating(Rule::kName, op.weight ? op.weight.dtype : DType::f32, [&]<class W>(TypeTag<W>) {
      launch_update<G, W>(rule, op, states, ctx, std::make_index_sequence<Rule::kStates>());
    });
  });
}

}  // namespace ds::cuda
