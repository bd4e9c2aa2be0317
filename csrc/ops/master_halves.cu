// JoinMaster and SplitMaster on the GPU: eight weights and their byte of tie bits per thread.
#include "master_halves.h"

#include <algorithm>

#include "../cuda/master_halves.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerSm = 8;

/// Joins eight masters per thread and step. With `vectors`, all pointers allow wide accesses.
__global__ void __launch_bounds__(kThreads)
    join_kernel(Halves from, float* out, int64_t n, bool vectors) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEight;
  for (int64_t at = first; at < n; at += int64_t{gridDim.x} * kThreads * kEight) {
    const bool whole = vectors && n - at >= kEight;
    store_eight(out + at, join_eight(from, at, whole, n - at), whole, n - at);
  }
}

/// Splits eight masters per thread and step. With `vectors`, all pointers allow wide accesses.
__global__ void __launch_bounds__(kThreads)
    split_kernel(const float* in, Halves to, int64_t n, bool vectors) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kEight;
  for (int64_t at = first; at < n; at += int64_t{gridDim.x} * kThreads * kEight) {
    const bool whole = vectors && n - at >= kEight;
    split_eight(to, load_eight(in + at, whole, n - at), at, whole, n - at);
  }
}

unsigned blocks_for(int64_t n, const CudaContext& ctx) {
  constexpr int64_t kStep = int64_t{kThreads} * kEight;
  return static_cast<unsigned>(
      std::min<int64_t>((n + kStep - 1) / kStep, int64_t{ctx.sm_count} * kBlocksPerSm));
}

}  // namespace

void run(const JoinMaster& op, CudaContext& ctx) {
  const int64_t n = op.out.numel();
  if (n == 0) return;
  const Halves halves = Halves::of(op);
  float* const out = op.out.as<float>();
  const bool vectors = aligned_for_eight(halves) && aligned_for<kEight>(out);
  join_kernel<<<blocks_for(n, ctx), kThreads, 0, ctx.stream>>>(halves, out, n, vectors);
  DS_CUDA_LAUNCHED("join_master");
}

void run(const SplitMaster& op, CudaContext& ctx) {
  const int64_t n = op.in.numel();
  if (n == 0) return;
  const Halves halves = Halves::of(op);
  const float* const in = op.in.as<float>();
  const bool vectors = aligned_for_eight(halves) && aligned_for<kEight>(in);
  split_kernel<<<blocks_for(n, ctx), kThreads, 0, ctx.stream>>>(in, halves, n, vectors);
  DS_CUDA_LAUNCHED("split_master");
}

}  // namespace ds::cuda
