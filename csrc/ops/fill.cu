// Fill and Arange on the GPU.
#include "fill.h"

#include <bit>

#include "../cuda/map.cuh"

namespace ds::cuda {
namespace {

template <class T>
struct Constant {
  static constexpr bool accumulate = false;
  T value;
  template <int N>
  __device__ void operator()(Vector<T, N>& out) const {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = value;
  }
};

template <class T>
T host_value(double x) {
  if constexpr (std::is_same_v<T, bool>) return x != 0;
  else if constexpr (is_integer<T>) return static_cast<T>(static_cast<int64_t>(x));
  else return T(static_cast<float>(x));
}

/// Writes start + i * step, computed in f64 without fma, as on the CPU.
template <class T>
__global__ void __launch_bounds__(256) arange_kernel(T* out, int64_t n, double start, double step) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) out[i] = narrow<T>(__dadd_rn(start, __dmul_rn(static_cast<double>(i), step)));
}

}  // namespace

void run(const Fill& op, CudaContext& ctx) {
  if (op.out.dtype == DType::f64) {  // f64 is only stored here; GPU ops do not compute with it
    View bits = op.out;
    bits.dtype = DType::i64;
    const Constant<int64_t> value{std::bit_cast<int64_t>(op.value)};
    return map<kPacket<int64_t>, int64_t>("fill", ctx.stream, value, bits);
  }
  for_all("fill", op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    map<kPacket<T>, T>("fill", ctx.stream, Constant<T>{host_value<T>(op.value)}, op.out);
  });
}

void run(const Arange& op, CudaContext& ctx) {
  const int64_t n = op.out.numel();
  if (n == 0) return;
  for_all("arange", op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    arange_kernel<<<static_cast<unsigned>((n + 255) / 256), 256, 0, ctx.stream>>>(
        op.out.as<T>(), n, op.start, op.step);
    DS_CUDA_LAUNCHED("arange");
  });
}

}  // namespace ds::cuda
