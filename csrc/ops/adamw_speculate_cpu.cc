// AdamWSpeculate on the CPU: commits and speculates on a block while it is in cache.
#include "adamw_speculate.h"

#include <algorithm>

#include "adamw_rule.h"
#include "moments_cpu.h"
#include "update_range_cpu.h"

namespace ds::cpu {
namespace {

constexpr const char* kOp = "adamw_speculate";

/// One step's update. `grad` is null if the gradient is absent or the step is skipped.
template <class G>
struct Step {
  Step(const View& gradient, const View& control, const AdamWScalars& scalars) {
    if (!gradient || control.as<float>()[1] == 0.0f) return;
    grad = gradient.as<G>();
    factor = control.as<float>()[0];
    rule = AdamWRule::of(scalars);
  }

  const G* grad = nullptr;
  float factor = 0;
  AdamWRule rule{};
};

template <class G, class W>
void run_range(const AdamWSpeculate& op, const Step<G>& previous, const Step<G>& next,
               int64_t begin, int64_t end) {
  const FlushDenormals flush;
  alignas(64) float grad[kUpdateBlock], p_tried[kUpdateBlock], m_tried[kUpdateBlock],
      v_tried[kUpdateBlock];
  for (int64_t i = begin; i < end; i += kUpdateBlock) {
    const int64_t count = std::min(kUpdateBlock, end - i);
    float* const p = op.master.as<float>() + i;
    MomentBlock moments(op.m, op.v, i, count);
    float *const m = moments.m(), *const v = moments.v();
    if (previous.grad) {
      widen(previous.grad + i, grad, count);
      update_values(previous.rule, previous.factor, grad, count, p, m, v);
      moments.store(p);
    }
    const float* result = p;
    if (next.grad) {
      std::copy_n(p, count, p_tried);
      std::copy_n(m, count, m_tried);
      std::copy_n(v, count, v_tried);
      widen(next.grad + i, grad, count);
      update_values(next.rule, next.factor, grad, count, p_tried, m_tried, v_tried);
      result = p_tried;
    }
    if (op.weight) narrow(result, op.weight.as<W>() + i, count);
  }
}

}  // namespace

void run(const AdamWSpeculate& op, CpuContext& ctx) {
  const DType grad_dtype = op.previous ? op.previous.dtype : op.next ? op.next.dtype : DType::f32;
  const DType weight_dtype = op.weight ? op.weight.dtype : DType::f32;
  for_floating(kOp, grad_dtype, [&]<class G>(TypeTag<G>) {
    for_floating(kOp, weight_dtype, [&]<class W>(TypeTag<W>) {
      if constexpr (!std::is_same_v<G, double> && !std::is_same_v<W, double>) {
        const Step<G> previous(op.previous, op.previous_control, op.previous_rule);
        const Step<G> next(op.next, op.next_control, op.next_rule);
        ctx.pool.parallel_for(op.master.numel(), kUpdateGrain, [&](int64_t begin, int64_t end) {
          run_range<G, W>(op, previous, next, begin, end);
        });
      }
    });
  });
}

}  // namespace ds::cpu
