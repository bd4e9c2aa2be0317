// Uniform and normal random tensors on the GPU: a thread per Philox block, the CPU's bits.
#include "random.h"

#include "../core/random_math.h"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kWords = 4, kThreads = 256;

struct Uniform {
  float low, high;
  __device__ __forceinline__ void operator()(const Philox4& words, float (&x)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) x[i] = uniform_between(words.v[i], low, high);
  }
};

struct Normal {
  float mean, stddev;
  __device__ __forceinline__ void operator()(const Philox4& words, float (&x)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {
      const NormalPair pair = box_muller(words.v[i], words.v[i + 1]);
      x[i] = normal_with(pair.first, mean, stddev);
      x[i + 1] = normal_with(pair.second, mean, stddev);
    }
  }
};

template <class T, class Distribution>
__global__ void __launch_bounds__(kThreads)
    random_kernel(T* out, int64_t n, Distribution distribution, uint64_t seed, uint64_t offset) {
  const int64_t block = int64_t{blockIdx.x} * kThreads + threadIdx.x, first = block * kWords;
  if (first >= n) return;
  float x[kWords];
  distribution(philox(seed, offset, static_cast<uint64_t>(block)), x);
#pragma unroll
  for (int i = 0; i < kWords; ++i)
    if (first + i < n) out[first + i] = from_float<T>(x[i]);
}

template <class Op, class Distribution>
void launch(const char* name, const Op& op, Distribution distribution, CudaContext& ctx) {
  const int64_t n = op.out.numel(), per_block = kWords * kThreads;
  for_floating(name, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (n == 0) return;
    random_kernel<<<static_cast<unsigned>((n + per_block - 1) / per_block), kThreads, 0,
                    ctx.stream>>>(op.out.template as<T>(), n, distribution,
                                  static_cast<uint64_t>(op.seed), static_cast<uint64_t>(op.offset));
    DS_CUDA_LAUNCHED(name);
  });
}

}  // namespace

void run(const RandomUniform& op, CudaContext& ctx) {
  launch("random_uniform", op, Uniform{static_cast<float>(op.low), static_cast<float>(op.high)},
         ctx);
}

void run(const RandomNormal& op, CudaContext& ctx) {
  launch("random_normal", op, Normal{static_cast<float>(op.mean), static_cast<float>(op.stddev)},
         ctx);
}

}  // namespace ds::cuda
