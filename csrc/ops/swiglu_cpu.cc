// SwiGLU on the CPU, in blocks that are converted to the compute type and rounded once.
#include "swiglu.h"

#include "../cpu/map.h"
#include "unary_math.h"

namespace ds::cpu {
namespace {

/// Writes or adds n elements of a gradient.
template <class T, class C>
void settle(C* values, T* out, int64_t stride, int64_t n, bool accumulate) {
  if (accumulate) {
    C buffer[kBlock];
    const C* const old = load_block(out, stride, n, buffer);
    for (int64_t i = 0; i < n; ++i) values[i] += old[i];
  }
  store_block(values, out, stride, n);
}

template <class T>
void backward(const SwigluBackward& op, CpuContext& ctx) {
  using C = compute_t<T>;
  const View* const views[] = {&op.dgate, &op.dup, &op.gate, &op.up, &op.dout};
  const Walk<5> walk = plan_walk(views);
  for_each_run(ctx, walk, [&](const int64_t(&offsets)[5], int64_t length) {
    C inputs[3][kBlock], dgate[kBlock], dup[kBlock];
    for (int64_t from = 0; from < length; from += kBlock) {
      const int64_t n = std::min(kBlock, length - from);
      const auto place = [&](int o) {
        return views[o]->template as<T>() + offsets[o] + from * walk.strides[o][0];
      };
      const auto load = [&](int o) {
        return load_block(place(o), walk.strides[o][0], n, inputs[o - 2]);
      };
      const C *const gate = load(2), *const up = load(3), *const dout = load(4);
      for (int64_t i = 0; i < n; ++i) {
        const C x = gate[i], sigmoid = sigmoid_of(x);
        const C slope = sigmoid * (C(1) + x * (C(1) - sigmoid));
        dgate[i] = dout[i] * up[i] * slope;
        dup[i] = dout[i] * (x * sigmoid);
      }
      settle(dgate, place(0), walk.strides[0][0], n, op.accumulate_gate);
      settle(dup, place(1), walk.strides[1][0], n, op.accumulate_up);
    }
  });
}

}  // namespace

void run(const Swiglu& op, CpuContext& ctx) {
  for_floating("swiglu", op.out.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    const auto gated = [](C gate, C up) { return unary_value<UnaryOp::silu>(gate) * up; };
    map<T, T>(ctx, false, gated, op.out, op.gate, op.up);
  });
}

void run(const SwigluBackward& op, CpuContext& ctx) {
  for_floating("swiglu_backward", op.dout.dtype,
               [&]<class T>(TypeTag<T>) { backward<T>(op, ctx); });
}

}  // namespace ds::cpu
