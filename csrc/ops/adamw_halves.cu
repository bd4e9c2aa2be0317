// AdamWHalves on the GPU: eight parameters, and their byte of ties, per thread and step.
#include "adamw_halves.h"

#include <algorithm>

#include "../cuda/master_halves.cuh"
#include "adamw_rule.h"

namespace ds::cuda {
namespace {

constexpr const char* kOp = "adamw_halves";
constexpr int kThreads = 256, kBlocksPerSm = 4;

template <class G>
struct Range {
  AdamWRule rule;
  Halves master;
  float *m, *v;
  const G* grad;
  const float* control;
  int64_t n;
  bool vectors;
};

template <class G>
__global__ void __launch_bounds__(kThreads) update_kernel(Range<G> r) {
  if (r.control[1] == 0) return;
  const float factor = r.control[0];
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEight;
  for (int64_t at = first; at < r.n; at += int64_t{gridDim.x} * kThreads * kEight) {
    const int64_t valid = r.n - at;
    const bool whole = r.vectors && valid >= kEight;
    const auto grad = load_eight(r.grad + at, whole, valid);
    auto m = load_eight(r.m + at, whole, valid), v = load_eight(r.v + at, whole, valid);
    auto p = join_eight(r.master, at, whole, valid);
#pragma unroll
    for (int i = 0; i < kEight; ++i)
      r.rule.update(factor, to_float(grad.v[i]), p.v[i], m.v[i], v.v[i]);
    store_eight(r.m + at, m, whole, valid);
    store_eight(r.v + at, v, whole, valid);
    split_eight(r.master, p, at, whole, valid);
  }
}

}  // namespace

void run(const AdamWHalves& op, CudaContext& ctx) {
  const int64_t n = op.m.numel();
  if (n == 0) return;
  constexpr int64_t kStep = int64_t{kThreads} * kEight;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>((n + kStep - 1) / kStep, int64_t{ctx.sm_count} * kBlocksPerSm));
  for_floating(kOp, op.grad.dtype, [&](auto grad) {
    using G = typename decltype(grad)::type;
    Range<G> r = {AdamWRule::of(op),
                  Halves::of(op),
                  op.m.as<float>(),
                  op.v.as<float>(),
                  op.grad.as<G>(),
                  op.control.as<float>(),
                  n,
                  false};
    r.vectors = aligned_for_eight(r.master) && aligned_for<kEight>(r.m) &&
                aligned_for<kEight>(r.v) && aligned_for<kEight>(r.grad);
    update_kernel<G><<<blocks, kThreads, 0, ctx.stream>>>(r);
    DS_CUDA_LAUNCHED(kOp);
  });
}

}  // namespace ds::cuda
