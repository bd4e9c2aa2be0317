// AdamWSpeculate on the GPU: a thread handles one parameter at a time, by plain loads and stores.
#include "adamw_speculate.h"

#include <algorithm>

#include "../cuda/cuda_context.h"
#include "adamw_rule.h"
#include "moments.cuh"

namespace ds::cuda {
namespace {

constexpr const char* kOp = "adamw_speculate";
constexpr int kThreads = 256, kBlocksPerSm = 8;

/// One step's update of a parameter. `grad` is null if the gradient is absent.
template <class G>
struct Step {
  const G* grad;
  const float* control;
  AdamWRule rule;
};

template <class G>
Step<G> step_of(const View& grad, const View& control, const AdamWScalars& scalars) {
  if (!grad) return {};
  return {grad.as<G>(), control.as<float>(), AdamWRule::of(scalars)};
}

/// The moments, f32 or (if `narrow`) bf16. All threads take the same branch.
struct Moments {
  void *m, *v;
  bool narrow;

  static Moments of(const AdamWSpeculate& op) {
    if (op.m.dtype == DType::bf16) return {op.m.as<uint16_t>(), op.v.as<uint16_t>(), true};
    return {op.m.as<float>(), op.v.as<float>(), false};
  }

  __device__ __forceinline__ void load(int64_t i, float& to_m, float& to_v) const {
    to_m = narrow ? float_of_bf16(static_cast<uint16_t*>(m)[i]) : static_cast<float*>(m)[i];
    to_v = narrow ? float_of_bf16(static_cast<uint16_t*>(v)[i]) : static_cast<float*>(v)[i];
  }

  /// Stores the moments after an update of the master `p`, then reads them back as rounded.
  __device__ __forceinline__ void store(int64_t i, float p, float& new_m, float& new_v) const {
    if (!narrow) {
      static_cast<float*>(m)[i] = new_m;
      static_cast<float*>(v)[i] = new_v;
      return;
    }
    const RoundedMoments<1> kept({p}, {new_m}, {new_v});
    static_cast<uint16_t*>(m)[i] = kept.m.v[0];
    static_cast<uint16_t*>(v)[i] = kept.v.v[0];
    new_m = float_of_bf16(kept.m.v[0]);
    new_v = float_of_bf16(kept.v.v[0]);
  }
};

/// `weight` may be `previous.grad`, because each thread reads an element before it writes it.
template <class G, class W>
__global__ void __launch_bounds__(kThreads)
    speculate_kernel(float* master, Moments moments, Step<G> previous, Step<G> next, W* weight,
                     int64_t n) {
  const bool commit = previous.grad && previous.control[1] != 0;
  const bool speculate = next.grad && next.control[1] != 0;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < n; i += int64_t{gridDim.x} * kThreads) {
    float p = master[i], m, v;
    moments.load(i, m, v);
    if (commit) {
      previous.rule.update(previous.control[0], to_float(previous.grad[i]), p, m, v);
      master[i] = p;
      moments.store(i, p, m, v);
    }
    if (speculate) next.rule.update(next.control[0], to_float(next.grad[i]), p, m, v);
    if (weight) weight[i] = from_float<W>(p);
  }
}

template <class G, class W>
void launch(const AdamWSpeculate& op, CudaContext& ctx) {
  const int64_t n = op.master.numel();
  const int64_t blocks =
      std::min<int64_t>((n + kThreads - 1) / kThreads, int64_t{ctx.sm_count} * kBlocksPerSm);
  speculate_kernel<G, W><<<static_cast<unsigned>(blocks), kThreads, 0, ctx.stream>>>(
      op.master.as<float>(), Moments::of(op),
      step_of<G>(op.previous, op.previous_control, op.previous_rule),
      step_of<G>(op.next, op.next_control, op.next_rule), op.weight ? op.weight.as<W>() : nullptr,
      n);
  DS_CUDA_LAUNCHED(kOp);
}

}  // namespace

void run(const AdamWSpeculate& op, CudaContext& ctx) {
  if (op.master.numel() == 0) return;
  const DType grad_dtype = op.previous ? op.previous.dtype : op.next ? op.next.dtype : DType::f32;
  for_floating(kOp, grad_dtype, [&](auto grad) {
    for_floating(kOp, op.weight ? op.weight.dtype : DType::f32, [&](auto weight) {
      launch<typename decltype(grad)::type, typename decltype(weight)::type>(op, ctx);
    });
  });
}

}  // namespace ds::cuda
