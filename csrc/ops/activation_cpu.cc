// Activations with a parameter on the CPU.
#include "activation.h"

#include "../cpu/map.h"

namespace ds::cpu {
namespace {

template <class C, class Op>
ActivationCurve<C> curve_of(const Op& op) {
  return {op.op, static_cast<C>(op.alpha), static_cast<C>(op.threshold)};
}

}  // namespace

void run(const Activation& op, CpuContext& ctx) {
  for_floating("activation", op.out.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const ActivationCurve<C> curve = curve_of<C>(op);
    const auto value = [curve](C x) { return curve.value(x); };
    map<T, T>(ctx, false, value, op.out, op.in);
  });
}

void run(const ActivationBackward& op, CpuContext& ctx) {
  for_floating("activation_backward", op.dx.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const ActivationCurve<C> curve = curve_of<C>(op);
    const auto gradient = [curve](C x, C dout) { return dout * curve.slope(x); };
    map<T, T>(ctx, op.accumulate, gradient, op.dx, op.in, op.dout);
  });
}

}  // namespace ds::cpu
