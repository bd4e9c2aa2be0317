// Activations with a parameter on the GPU: functors for cuda/map.cuh. All threads take the same
// branch on the function.
#include "activation.h"

#include "../cuda/map.cuh"

namespace ds::cuda {
namespace {

template <class T>
struct Value {
  static constexpr bool accumulate = false;
  ActivationCurve<float> curve;
  template <int N>
  __device__ void operator()(Vector<T, N>& out, const Vector<T, N>& in) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = from_float<T>(curve.value(to_float(in.v[i])));
  }
};

template <class T>
struct Gradient {
  bool accumulate;
  ActivationCurve<float> curve;
  template <int N>
  __device__ void operator()(Vector<T, N>& dx, const Vector<T, N>& in,
                             const Vector<T, N>& dout) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float old = accumulate ? to_float(dx.v[i]) : 0.0f;
      dx.v[i] = from_float<T>(old + to_float(dout.v[i]) * curve.slope(to_float(in.v[i])));
    }
  }
};

template <class Op>
ActivationCurve<float> curve_of(const Op& op) {
  return {op.op, static_cast<float>(op.alpha), static_cast<float>(op.threshold)};
}

}  // namespace

void run(const Activation& op, CudaContext& ctx) {
  for_floating("activation", op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    map<kPacket<T>, T, T>("activation", ctx.stream, Value<T>{curve_of(op)}, op.out, op.in);
  });
}

void run(const ActivationBackward& op, CudaContext& ctx) {
  for_floating("activation_backward", op.dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    map<kPacket<T>, T, T, T>("activation_backward", ctx.stream,
                             Gradient<T>{op.accumulate, curve_of(op)}, op.dx, op.in, op.dout);
  });
}

}  // namespace ds::cuda
