// SwiGLU on the GPU: forward and backward pass over the operands once, for any strides.
#include "swiglu.h"

#include "../cuda/dependent_launch.cuh"
#include "../cuda/strided.cuh"
#include "unary_math.h"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256;

constexpr int kItems = 2;  // items of a thread; both are loaded before either is stored

/// Arguments of the forward.
template <class T>
struct Gated {
  T* out;
  const T *gate, *up;
};

/// Processes items of kWidth elements. In an inference step, matrix products precede and follow it.
template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(Steps<3> steps, Gated<T> s) {
  let_next_begin();
  await_previous();
  const uint32_t first = blockIdx.x * (kThreads * kItems) + threadIdx.x;
  Vector<T, kWidth> gate[kItems], up[kItems];
  int32_t at[kItems][3];
#pragma unroll
  for (int u = 0; u < kItems; ++u) {
    const uint32_t item = first + u * kThreads;
    if (item >= steps.count) break;
    steps.offsets(item, at[u]);
    gate[u] = load_item<kWidth>(s.gate + at[u][1], steps.uniform >> 1 & 1);
    up[u] = load_item<kWidth>(s.up + at[u][2], steps.uniform >> 2 & 1);
  }
#pragma unroll
  for (int u = 0; u < kItems; ++u) {
    if (first + u * kThreads >= steps.count) break;
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      gate[u].v[i] =
          from_float<T>(unary_value<UnaryOp::silu>(to_float(gate[u].v[i])) * to_float(up[u].v[i]));
    store_vector(s.out + at[u][0], gate[u]);
  }
}

/// Arguments of the backward.
template <class T>
struct Slopes {
  T *dgate, *dup;
  const T *gate, *up, *dout;
  bool accumulate_gate, accumulate_up;
};

/// Processes an item of kWidth elements per thread. Three 16-byte packets in flight keep memory
/// busy.
template <int kWidth, class T>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(Steps<5> steps, Slopes<T> s) {
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= steps.count) return;
  int32_t at[5];
  steps.offsets(item, at);
  const Vector<T, kWidth> gate = load_item<kWidth>(s.gate + at[2], steps.uniform >> 2 & 1);
  const Vector<T, kWidth> up = load_item<kWidth>(s.up + at[3], steps.uniform >> 3 & 1);
  const Vector<T, kWidth> dout = load_item<kWidth>(s.dout + at[4], steps.uniform >> 4 & 1);
  Vector<T, kWidth> dgate = {}, dup = {};
  if (s.accumulate_gate) dgate = load_vector<kWidth>(s.dgate + at[0]);
  if (s.accumulate_up) dup = load_vector<kWidth>(s.dup + at[1]);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float x = to_float(gate.v[i]), dy = to_float(dout.v[i]), sigmoid = sigmoid_of(x);
    const float slope = sigmoid * (1.0f + x * (1.0f - sigmoid));
    dgate.v[i] = from_float<T>(to_float(dgate.v[i]) + dy * to_float(up.v[i]) * slope);
    dup.v[i] = from_float<T>(to_float(dup.v[i]) + dy * (x * sigmoid));
  }
  store_vector(s.dgate + at[0], dgate);
  store_vector(s.dup + at[1], dup);
}

}  // namespace

void run(const Swiglu& op, CudaContext& ctx) {
  constexpr const char* kOp = "swiglu";
  for_floating(kOp, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const View* const views[] = {&op.out, &op.gate, &op.up};
    walk_vectors<kPacket<T>>(plan_walk(views), [&](auto width, const Steps<3>& steps,
                                                   char* const* data) {
      const Gated<T> operands{reinterpret_cast<T*>(data[0]), reinterpret_cast<T*>(data[1]),
                              reinterpret_cast<T*>(data[2])};
      constexpr uint32_t kEach = kThreads * kItems;
      const Launch launch{kOp, dim3((steps.count + kEach - 1) / kEach), dim3(kThreads), ctx.stream};
      launch_behind(ctx, launch, swiglu_kernel<width.value, T>, steps, operands);
    });
  });
}

void run(const SwigluBackward& op, CudaContext& ctx) {
  constexpr const char* kOp = "swiglu_backward";
  for_floating(kOp, op.dout.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const View* const views[] = {&op.dgate, &op.dup, &op.gate, &op.up, &op.dout};
    walk_vectors<kPacket<T>>(
        plan_walk(views), [&](auto width, const Steps<5>& steps, char* const* data) {
          const auto place = [&](int o) { return reinterpret_cast<T*>(data[o]); };
          const Slopes<T> slopes = {place(0), place(1),           place(2),        place(3),
                                    place(4), op.accumulate_gate, op.accumulate_up};
          swiglu_backward_kernel<width.value, T>
              <<<(steps.count + kThreads - 1) / kThreads, kThreads, 0, ctx.stream>>>(steps, slopes);
          DS_CUDA_LAUNCHED(kOp);
        });
  });
}

}  // namespace ds::cuda
