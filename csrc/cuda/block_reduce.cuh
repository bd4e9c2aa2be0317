// Sums and maxima over a warp or a block, in a fixed order. All threads receive the result.
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

/// Returns the larger value, or NaN if either is NaN.
struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
/// Like Max, by one instruction that treats 0 as larger than -0.
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

/// Reduces x over a warp. All lanes must call it. All receive the same bits, because IEEE addition
/// commutes and the exchange is a butterfly.
template <class T, class Combine>
__device__ __forceinline__ T warp_reduce(T x, Combine combine) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x = combine(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

/// Returns the sum of x over a warp: see warp_reduce.
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
  return warp_reduce(x, Add{});
}

/// Reduces x over a block. All threads of a one-dimensional block of whole warps (at most 1024
/// threads) must call it. It may be called again at once, because barriers before and after protect
/// the scratch memory.
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

/// Returns the sum of x over a block: see block_reduce.
template <class T>
__device__ __forceinline__ T block_sum(T x) {
  return block_reduce(x, Add{});
}

}  // namespace ds::cuda
