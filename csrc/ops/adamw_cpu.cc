// Adam and AdamW on the CPU.
#include "adamw_rule.h"
#include "moments_cpu.h"
#include "update_range_cpu.h"

namespace ds::cpu {
namespace {

/// The dtype of gradients or weights, once per block.
template <class F>
void for_narrow(DType dtype, F&& f) {
  for_floating(AdamWRule::kName, dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_same_v<T, double>) f.template operator()<T>();
  });
}

/// Updates parameters [begin, end) with bf16 moments.
void update_narrow(const AdamW& op, const AdamWRule& rule, int64_t begin, int64_t end) {
  const FlushDenormals flush;
  const float* const control = op.control.as<float>();
  alignas(64) float grad[kUpdateBlock];
  for (int64_t i = begin; i < end; i += kUpdateBlock) {
    const int64_t count = std::min(kUpdateBlock, end - i);
    float* const p = op.master.as<float>() + i;
    if (control[1] != 0.0f) {
      MomentBlock moments(op.m, op.v, i, count);
      for_narrow(op.grad.dtype, [&]<class G> { widen(op.grad.as<G>() + i, grad, count); });
      update_values(rule, control[0], grad, count, p, moments.m(), moments.v());
      moments.store(p);
    }
    if (!op.weight) continue;
    for_narrow(op.weight.dtype, [&]<class W> { narrow(p, op.weight.as<W>() + i, count); });
  }
}

}  // namespace

void run(const AdamW& op, CpuContext& ctx) {
  const AdamWRule rule = AdamWRule::of(op);
  if (op.m.dtype == DType::f32) return update_range(rule, op, {op.m, op.v}, ctx);
  ctx.pool.parallel_for(op.master.numel(), kUpdateGrain,
                        [&](int64_t begin, int64_t end) { update_narrow(op, rule, begin, end); });
}

}  // namespace ds::cpu
