// 1-bit Adam's element-wise ops on the CPU, with denormals flushed to zero.
#include "onebit.h"

#include <algorithm>

#include "update_range_cpu.h"

namespace ds::cpu {
namespace {

// These functions must not be inlined, so that their arithmetic stays inside the scope of
// FlushDenormals.

__attribute__((noinline)) void moment_block(float beta1, float one_minus_beta1, float factor,
                                            const float* __restrict grad, const float* __restrict m,
                                            float* __restrict payload, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    payload[i] = moment_payload(beta1, one_minus_beta1, factor, grad[i], m[i]);
}

__attribute__((noinline)) void gradient_block(float factor, const float* __restrict grad,
                                              float* __restrict payload, int64_t n) {
  for (int64_t i = 0; i < n; ++i) payload[i] = mul_rn(grad[i], factor);
}

__attribute__((noinline)) void drift_block(float eps, const float* __restrict p,
                                           const float* __restrict anchor,
                                           const float* __restrict v, float* __restrict payload,
                                           int64_t n) {
  for (int64_t i = 0; i < n; ++i) payload[i] = drift_payload(eps, p[i], anchor[i], v[i]);
}

}  // namespace

void run(const MomentPayload& op, CpuContext& ctx) {
  const float* const control = op.control.as<float>();
  const float beta1 = static_cast<float>(op.beta1);
  const float one_minus_beta1 = static_cast<float>(1.0 - op.beta1);
  float* const payload = op.payload.as<float>();
  for_floating("moment_payload", op.grad.dtype, [&]<class G>(TypeTag<G>) {
    if constexpr (!std::is_same_v<G, double>) {
      ctx.pool.parallel_for(op.payload.numel(), kUpdateGrain, [&](int64_t begin, int64_t end) {
        const FlushDenormals flush;
        alignas(64) float grad[kUpdateBlock];
        for (int64_t i = begin; i < end; i += kUpdateBlock) {
          const int64_t count = std::min(kUpdateBlock, end - i);
          widen(op.grad.as<G>() + i, grad, count);
          if (control[1] == 0.0f) std::fill_n(payload + i, count, 0.0f);
          else if (!op.m) gradient_block(control[0], grad, payload + i, count);
          else
            moment_block(beta1, one_minus_beta1, control[0], grad, op.m.as<float>() + i,
                         payload + i, count);
        }
      });
    }
  });
}

void run(const DriftPayload& op, CpuContext& ctx) {
  const bool apply = op.control.as<float>()[1] != 0.0f;
  float* const payload = op.payload.as<float>();
  ctx.pool.parallel_for(op.payload.numel(), kUpdateGrain, [&](int64_t begin, int64_t end) {
    const FlushDenormals flush;
    if (apply)
      drift_block(static_cast<float>(op.eps), op.master.as<float>() + begin,
                  op.anchor.as<float>() + begin, op.v.as<float>() + begin, payload + begin,
                  end - begin);
    else std::fill(payload + begin, payload + end, 0.0f);
  });
}

void run(const FrozenAdam& op, CpuContext& ctx) {
  update_range(FrozenAdamRule::of(op), op, {op.m, op.v}, ctx);
}

void run(const AnchorAdam& op, CpuContext& ctx) {
  update_range(AnchorAdamRule::of(op), op, {op.m, op.v, op.anchor}, ctx);
}

}  // namespace ds::cpu
