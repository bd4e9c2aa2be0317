// Sums and maxima over a warp or a block in a fixed order; every thread receives the result.
#pragma once

#include <cuda_runtime.h>

namespace ds::cuda {

constexpr int kWarp = 32;

struct Add {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

/// NaN wins, so that it stays visible.
struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
/// The same by one instruction, with 0 above -0.
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

struct Min {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};

/// All lanes of the warp must take part. The butterfly gives every lane the same bits, since IEEE
/// addition commutes.
template <class T, class Combine>
__device__ __forceinline__ T warp_reduce(T x, Combine combine) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x = combine(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

template <class T>
__device__ __forceinline__ T warp_sum(T x) {
  return warp_reduce(x, Add{});
}

/// All threads of a one-dimensional block of whole warps (at most 1024 threads) must take part. May
/// be called again at once: the scratch is protected on both sides.
template <class T, class Combine>
__device__ __forceinline__ T block_reduce(T x, Combine combine) {
  __shared__ T partial[kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  x = warp_reduce(x, combine);
  __syncthreads();
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  T total = partial[0];
  for (int w = 1; w < warps; ++w) total = combine(total, partial[w]);
  return total;
}

template <class T>
__device__ __forceinline__ T block_sum(T x) {
  return block_reduce(x, Add{});
}

}  // namespace ds::cuda
