// AdamWHalves on the GPU: eight parameters and their byte of tie bits per thread and step.
#include "adamw_halves.h"

#include <algorithm>

#include "../cuda/master_halves.cuh"
#include "adamw_rule.h"
#include "moments.cuh"

namespace ds::cuda {
namespace {

constexpr const char* kOp = "adamw_halves";
constexpr int kThreads = 256, kBlocksPerSm = 4;

/// `M` is the storage type of the moments: float, or the bits of bf16.
template <class G, class M>
struct Range {
  AdamWRule rule;
  Halves master;
  M *m, *v;
  const G* grad;
  const float* control;
  int64_t n;
  bool vectors;
};

template <class G, class M>
__global__ void __launch_bounds__(kThreads) update_kernel(Range<G, M> r) {
  if (r.control[1] == 0) return;
  const float factor = r.control[0];
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEight;
  for (int64_t at = first; at < r.n; at += int64_t{gridDim.x} * kThreads * kEight) {
    const int64_t valid = r.n - at;
    const bool whole = r.vectors && valid >= kEight;
    const auto grad = load_eight(r.grad + at, whole, valid);
    auto m = widen_moment(load_eight(r.m + at, whole, valid));
    auto v = widen_moment(load_eight(r.v + at, whole, valid));
    auto p = join_eight(r.master, at, whole, valid);
#pragma unroll
    for (int i = 0; i < kEight; ++i)
      r.rule.update(factor, to_float(grad.v[i]), p.v[i], m.v[i], v.v[i]);
    if constexpr (std::is_same_v<M, float>) {
      store_eight(r.m + at, m, whole, valid);
      store_eight(r.v + at, v, whole, valid);
    } else {
      const RoundedMoments<kEight> kept(p, m, v);
      store_eight(r.m + at, kept.m, whole, valid);
      store_eight(r.v + at, kept.v, whole, valid);
    }
    split_eight(r.master, p, at, whole, valid);
  }
}

template <class G, class M>
void launch(const AdamWHalves& op, CudaContext& ctx) {
  const int64_t n = op.m.numel();
  constexpr int64_t kStep = int64_t{kThreads} * kEight;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>((n + kStep - 1) / kStep, int64_t{ctx.sm_count} * kBlocksPerSm));
  Range<G, M> r = {AdamWRule::of(op),
                   Halves::of(op),
                   op.m.as<M>(),
                   op.v.as<M>(),
                   op.grad.as<G>(),
                   op.control.as<float>(),
                   n,
                   false};
  r.vectors = aligned_for_eight(r.master) && aligned_for<kEight>(r.m) && aligned_for<kEight>(r.v) &&
              aligned_for<kEight>(r.grad);
  update_kernel<G, M><<<blocks, kThreads, 0, ctx.stream>>>(r);
  DS_CUDA_LAUNCHED(kOp);
}

}  // namespace

void run(const AdamWHalves& op, CudaContext& ctx) {
  if (op.m.numel() == 0) return;
  for_floating(kOp, op.grad.dtype, [&](auto grad) {
    using G = typename decltype(grad)::type;
    if (op.m.dtype == DType::bf16) launch<G, uint16_t>(op, ctx);
    else launch<G, float>(op, ctx);
  });
}

}  // namespace ds::cuda
