// 1-bit Adam's element-wise ops on the GPU, each in one pass over the range.
#include "onebit.h"

#include <algorithm>

#include "update_range.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 8;

/// Writes the payload of each element, see MomentPayload. `m` is null without a moment.
template <class G>
__global__ void __launch_bounds__(kThreads)
    moment_kernel(const float* m, const G* grad, float* payload, const float* control, float beta1,
                  float one_minus_beta1, int64_t n) {
  const float factor = control[0];
  const bool apply = control[1] != 0;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < n; i += int64_t{gridDim.x} * kThreads) {
    float x = 0;
    if (apply) {
      const float g = to_float(grad[i]);
      x = m ? moment_payload(beta1, one_minus_beta1, factor, g, m[i]) : mul_rn(g, factor);
    }
    payload[i] = x;
  }
}

/// Writes how far each element has moved from its anchor, see DriftPayload.
__global__ void __launch_bounds__(kThreads)
    drift_kernel(const float* p, const float* anchor, const float* v, float* payload,
                 const float* control, float eps, int64_t n) {
  const bool apply = control[1] != 0;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < n; i += int64_t{gridDim.x} * kThreads)
    payload[i] = apply ? drift_payload(eps, p[i], anchor[i], v[i]) : 0.0f;
}

unsigned blocks_for(int64_t n, const CudaContext& ctx) {
  const int64_t most = int64_t{ctx.sm_count} * kBlocksPerSm;
  return static_cast<unsigned>(std::min<int64_t>((n + kThreads - 1) / kThreads, most));
}

}  // namespace

void run(const MomentPayload& op, CudaContext& ctx) {
  constexpr const char* kOp = "moment_payload";
  const int64_t n = op.payload.numel();
  if (n == 0) return;
  for_floating(kOp, op.grad.dtype, [&](auto tag) {
    using G = typename decltype(tag)::type;
    moment_kernel<<<blocks_for(n, ctx), kThreads, 0, ctx.stream>>>(
        op.m ? op.m.as<float>() : nullptr, op.grad.as<G>(), op.payload.as<float>(),
        op.control.as<float>(), static_cast<float>(op.beta1), static_cast<float>(1.0 - op.beta1),
        n);
    DS_CUDA_LAUNCHED(kOp);
  });
}

void run(const DriftPayload& op, CudaContext& ctx) {
  const int64_t n = op.payload.numel();
  if (n == 0) return;
  drift_kernel<<<blocks_for(n, ctx), kThreads, 0, ctx.stream>>>(
      op.master.as<float>(), op.anchor.as<float>(), op.v.as<float>(), op.payload.as<float>(),
      op.control.as<float>(), static_cast<float>(op.eps), n);
  DS_CUDA_LAUNCHED("drift_payload");
}

void run(const FrozenAdam& op, CudaContext& ctx) {
  update_range(FrozenAdamRule::of(op), op, {op.m, op.v}, ctx);
}

void run(const AnchorAdam& op, CudaContext& ctx) {
  update_range(AnchorAdamRule::of(op), op, {op.m, op.v, op.anchor}, ctx);
}

}  // namespace ds::cuda
