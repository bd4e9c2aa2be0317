// Adam and AdamW on the GPU: one pass over p, m, v and the gradient at the speed of memory.
#include "adamw.h"

#include <algorithm>

#include "../cuda/vector.cuh"
#include "adamw_rule.h"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 4, kWidth = 4;

/// Null where the model has no weight of its own.
template <class G, class W>
struct State {
  float *master, *m, *v;
  const G* grad;
  W* weight;
  const float* control;
  int64_t n;
  AdamWConstants constants;
};

/// Four neighbouring parameters per step; every operand is loaded before the first is used.
template <int N, class G, class W>
__device__ __forceinline__ void update(const State<G, W>& s, float factor, int64_t at) {
  const Vector<G, N> grad = load_streaming<N>(s.grad + at);
  Vector<float, N> p = load_streaming<N>(s.master + at);
  Vector<float, N> m = load_streaming<N>(s.m + at);
  Vector<float, N> v = load_streaming<N>(s.v + at);
  Vector<W, N> weight;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    adamw_update(s.constants, factor, to_float(grad.v[i]), p.v[i], m.v[i], v.v[i]);
    weight.v[i] = from_float<W>(p.v[i]);
  }
  store_streaming(s.master + at, p);
  store_streaming(s.m + at, m);
  store_streaming(s.v + at, v);
  if (s.weight) store_streaming(s.weight + at, weight);
}

/// A skipped step: the weights are the master's, rounded.
template <int N, class G, class W>
__device__ __forceinline__ void emit(const State<G, W>& s, int64_t at) {
  const Vector<float, N> p = load_streaming<N>(s.master + at);
  Vector<W, N> weight;
#pragma unroll
  for (int i = 0; i < N; ++i) weight.v[i] = from_float<W>(p.v[i]);
  store_streaming(s.weight + at, weight);
}

template <int N, class G, class W>
__global__ void __launch_bounds__(kThreads) adamw_kernel(State<G, W> s) {
  const float factor = s.control[0];
  const bool apply = s.control[1] != 0;
  if (!apply && !s.weight) return;
  const int64_t packets = s.n / N, step = int64_t{gridDim.x} * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t tail = packets * N + first;
  if (apply) {
    for (int64_t i = first; i < packets; i += step) update<N>(s, factor, i * N);
    if (tail < s.n) update<1>(s, factor, tail);
  } else {
    for (int64_t i = first; i < packets; i += step) emit<N>(s, i * N);
    if (tail < s.n) emit<1>(s, tail);
  }
}

template <class G, class W>
void launch(const AdamW& op, CudaContext& ctx) {
  const State<G, W> s = {op.master.as<float>(),
                         op.m.as<float>(),
                         op.v.as<float>(),
                         op.grad.as<G>(),
                         op.weight ? op.weight.as<W>() : nullptr,
                         op.control.as<float>(),
                         op.master.numel(),
                         adamw_constants(op)};
  const bool vectors = aligned_for<kWidth>(s.master) && aligned_for<kWidth>(s.m) &&
                       aligned_for<kWidth>(s.v) && aligned_for<kWidth>(s.grad) &&
                       aligned_for<kWidth>(s.weight);
  const int64_t items = vectors ? (s.n + kWidth - 1) / kWidth : s.n;
  const int64_t blocks =
      std::min<int64_t>((items + kThreads - 1) / kThreads, int64_t{ctx.sm_count} * kBlocksPerSm);
  const auto kernel = vectors ? adamw_kernel<kWidth, G, W> : adamw_kernel<1, G, W>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, ctx.stream>>>(s);
  DS_CUDA_LAUNCHED("adamw");
}

}  // namespace

void run(const AdamW& op, CudaContext& ctx) {
  constexpr const char* kOp = "adamw";
  for (const View* v : {&op.master, &op.m, &op.v, &op.grad, &op.weight}) {
    if (v == &op.weight && !op.weight) continue;
    require_same_shape(kOp, op.master, *v);
    require_contiguous(kOp, *v, "every operand");
    if (v != &op.grad && v != &op.weight && v->dtype != DType::f32)
      unsupported(kOp, v->dtype, "f32");
  }
  DS_CHECK_SHAPE(op.control.numel() == 4 && op.control.dtype == DType::f32, kOp,
                 "[4] f32 as control", op.control.describe());
  if (op.master.numel() == 0) return;
  for_floating(kOp, op.grad.dtype, [&](auto grad) {
    for_floating(kOp, op.weight ? op.weight.dtype : DType::f32, [&](auto weight) {
      launch<typename decltype(grad)::type, typename decltype(weight)::type>(op, ctx);
    });
  });
}

}  // namespace ds::cuda
