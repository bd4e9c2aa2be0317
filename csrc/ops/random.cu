// Uniform and normal random tensors on the GPU, a thread per four elements, with the CPU's bits.
#include "random.h"

#include "../core/random_math.h"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kWords = 4, kThreads = 256;

struct Uniform {
  UniformRange range;
  __device__ __forceinline__ void operator()(const Philox4& words, float (&x)[kWords]) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) x[i] = uniform_between(words.v[i], range);
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

/// With kBlocks, the four elements of a thread come from one Philox block.
template <bool kBlocks, class T, class Distribution>
__global__ void __launch_bounds__(kThreads)
    random_kernel(T* out, int64_t n, Part part, Distribution distribution, uint64_t seed,
                  uint64_t offset) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kWords;
  if (first >= n) return;
  float x[kWords];
  if (kBlocks) distribution(philox(seed, offset, part.place(first) / kWords), x);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if (first + i >= n) return;
    if (kBlocks) {
      out[first + i] = from_float<T>(x[i]);
      continue;
    }
    const int64_t place = part.place(first + i);
    distribution(philox(seed, offset, static_cast<uint64_t>(place / kWords)), x);
    const int word = place % kWords;
    out[first + i] = from_float<T>(word < 2 ? x[word == 1] : x[2 + (word == 3)]);
  }
}

template <class Op, class Distribution>
void launch(const char* name, const Op& op, Distribution distribution, CudaContext& ctx) {
  const int64_t n = op.out.numel(), per_block = kWords * kThreads;
  for_floating(name, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (n == 0) return;
    const Part part = part_of(op);
    const auto kernel = part.keeps_fours() ? random_kernel<true, T, Distribution>
                                           : random_kernel<false, T, Distribution>;
    kernel<<<static_cast<unsigned>((n + per_block - 1) / per_block), kThreads, 0, ctx.stream>>>(
        op.out.template as<T>(), n, part, distribution, static_cast<uint64_t>(op.seed),
        static_cast<uint64_t>(op.offset));
    DS_CUDA_LAUNCHED(name);
  });
}

}  // namespace

void run(const RandomUniform& op, CudaContext& ctx) {
  launch("random_uniform", op, Uniform{uniform_range(op.low, op.high, op.out.dtype)}, ctx);
}

void run(const RandomNormal& op, CudaContext& ctx) {
  launch("random_normal", op, Normal{static_cast<float>(op.mean), static_cast<float>(op.stddev)},
         ctx);
}

}  // namespace ds::cuda
