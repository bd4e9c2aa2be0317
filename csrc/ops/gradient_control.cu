// Gradient norm and clipping on the GPU: a sum of squares in two kernels, then one thread computes
// the control values.
#include "gradient_control.h"

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/dependent_launch.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 512, kBlocksPerSm = 4, kUnroll = 4;

/// Returns the squares of a packet, added pairwise in f32. So one f64 addition per packet keeps up
/// with memory.
template <int N, class T>
__device__ __forceinline__ float packet_squares(const Vector<T, N>& x) {
  float y[N];
#pragma unroll
  for (int i = 0; i < N; ++i) y[i] = to_float(x.v[i]) * to_float(x.v[i]);
#pragma unroll
  for (int width = N / 2; width > 0; width /= 2)
#pragma unroll
    for (int i = 0; i < width; ++i) y[i] += y[i + width];
  return y[0];
}

/// Writes partials[block], the sum of x^2 in f64 over the packets of the block.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    square_sum_kernel(const T* x, int64_t n, double* partials) {
  let_next_begin();
  await_previous();
  const int64_t packets = n / N, step = int64_t{gridDim.x} * kThreads;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  double sum = 0;
  for (int64_t first = thread; first < packets; first += step * kUnroll) {
    Vector<T, N> loaded[kUnroll] = {};
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (first + u * step < packets) loaded[u] = load_vector<N>(x + (first + u * step) * N);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum += packet_squares(loaded[u]);
  }
  if (thread < n - packets * N) {
    const float odd = to_float(x[packets * N + thread]);
    sum += static_cast<double>(odd) * odd;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// Adds the partials in a fixed order. One block.
__global__ void __launch_bounds__(kThreads)
    total_kernel(const double* partials, int count, float* out) {
  let_next_begin();
  await_previous();
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[0] = static_cast<float>(sum);
}

/// Decides on the step, see GradientControl. One thread, because it adds few partials and in order.
__global__ void control_kernel(const float* partials, PartialRows rows, float* control,
                               double loss_scale, double max_norm, bool skip_nonfinite) {
  double sum = 0;
  for (int64_t row = 0; row < rows.count; ++row)
    for (int64_t i = 0; i < rows.width; ++i) sum += partials[row * rows.apart + i];
  const bool finite = isfinite(sum);
  const double norm = sqrt(sum) / loss_scale;
  const double ratio = max_norm > 0 ? (norm + 1e-6) / max_norm : 1;
  const double clip = ratio > 1 ? ratio : 1;
  control[0] = static_cast<float>(1 / (loss_scale * clip));
  control[1] = finite || !skip_nonfinite ? 1.0f : 0.0f;
  control[2] = static_cast<float>(norm);
  control[3] = finite ? 1.0f : 0.0f;
}

}  // namespace

void run(const SumOfSquares& op, CudaContext& ctx) {
  constexpr const char* kOp = "sum_of_squares";
  const int64_t n = op.x.numel();
  for_floating(kOp, op.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int N = kPacket<T>;
    const T* x = op.x.as<T>();
    const int64_t wanted = n / (int64_t{N} * kThreads * kUnroll) + 1;
    const int blocks =
        static_cast<int>(std::min<int64_t>(wanted, int64_t{ctx.sm_count} * kBlocksPerSm));
    double* partials = ctx.scratch_of<double>(blocks);
    const auto kernel = aligned_for<N>(x) ? square_sum_kernel<N, T> : square_sum_kernel<1, T>;
    launch_behind(ctx, {kOp, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), ctx.stream},
                  kernel, x, n, partials);
    launch_behind(ctx, {kOp, dim3(1), dim3(kThreads), ctx.stream}, total_kernel, partials, blocks,
                  op.out.as<float>());
  });
}

void run(const GradientControl& op, CudaContext& ctx) {
  constexpr const char* kOp = "gradient_control";
  const PartialRows rows = partial_rows(op.partials);
  control_kernel<<<1, 1, 0, ctx.stream>>>(op.partials.as<float>(), rows, op.control.as<float>(),
                                          op.loss_scale, op.max_norm, op.skip_nonfinite);
  DS_CUDA_LAUNCHED(kOp);
}

}  // namespace ds::cuda
