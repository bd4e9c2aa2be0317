// Softmax and log-softmax on the GPU: a warp per short row, a block per long row.
#include "softmax.h"

#include "../cuda/block_reduce.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256, kShortRow = 1024;

/// Reduces over the kGroup threads of a row: a warp or the whole block.
template <int kGroup, class Combine>
__device__ __forceinline__ float group_reduce(float x, Combine combine) {
  if constexpr (kGroup == kWarp) return warp_reduce(x, combine);
  else return block_reduce(x, combine);
}

/// Computes a row per group of kGroup threads.
template <class T, int kGroup>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(const T* in, T* out, int64_t rows, int64_t columns, bool log) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kGroup) + threadIdx.x / kGroup;
  const int first = threadIdx.x % kGroup;
  if (row >= rows) return;
  in += row * columns;
  out += row * columns;
  float max = -INFINITY;
  for (int64_t c = first; c < columns; c += kGroup) max = Max{}(max, to_float(in[c]));
  max = group_reduce<kGroup>(max, Max{});
  float sum = 0;
  for (int64_t c = first; c < columns; c += kGroup) sum += __expf(to_float(in[c]) - max);
  sum = group_reduce<kGroup>(sum, Add{});
  const float inverse = 1.0f / sum, log_sum = logf(sum);
  for (int64_t c = first; c < columns; c += kGroup) {
    const float shifted = to_float(in[c]) - max;
    out[c] = from_float<T>(log ? shifted - log_sum : __expf(shifted) * inverse);
  }
}

/// Computes the gradient of a row per group of kGroup threads.
template <class T, int kGroup>
__global__ void __launch_bounds__(kThreads)
    softmax_backward_kernel(const T* y, const T* dout, T* dx, int64_t rows, int64_t columns,
                            bool log, bool accumulate) {
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kGroup) + threadIdx.x / kGroup;
  const int first = threadIdx.x % kGroup;
  if (row >= rows) return;
  y += row * columns;
  dout += row * columns;
  dx += row * columns;
  float sum = 0;
  for (int64_t c = first; c < columns; c += kGroup)
    sum += log ? to_float(dout[c]) : to_float(dout[c]) * to_float(y[c]);
  sum = group_reduce<kGroup>(sum, Add{});
  for (int64_t c = first; c < columns; c += kGroup) {
    const float g = to_float(dout[c]), value = to_float(y[c]);
    const float result = log ? g - __expf(value) * sum : value * (g - sum);
    dx[c] = from_float<T>(accumulate ? to_float(dx[c]) + result : result);
  }
}

/// [..., C] as rows of C elements.
struct Rows {
  int64_t rows, columns;
  explicit Rows(const View& v) : columns(v.ndim > 0 ? v.size(-1) : 1) {
    rows = columns == 0 ? 0 : v.numel() / columns;
  }
  bool narrow() const { return columns <= kShortRow; }
  unsigned blocks() const {
    const int64_t per_block = narrow() ? kThreads / kWarp : 1;
    return static_cast<unsigned>((rows + per_block - 1) / per_block);
  }
};

}  // namespace

void run(const Softmax& op, CudaContext& ctx) {
  const Rows r(op.in);
  for_floating("softmax", op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (r.rows == 0) return;
    const auto kernel = r.narrow() ? softmax_kernel<T, kWarp> : softmax_kernel<T, kThreads>;
    kernel<<<r.blocks(), kThreads, 0, ctx.stream>>>(op.in.as<T>(), op.out.as<T>(), r.rows,
                                                    r.columns, op.log);
    DS_CUDA_LAUNCHED("softmax");
  });
}

void run(const SoftmaxBackward& op, CudaContext& ctx) {
  constexpr const char* kOp = "softmax_backward";
  const Rows r(op.out);
  for_floating(kOp, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (r.rows == 0) return;
    const auto kernel =
        r.narrow() ? softmax_backward_kernel<T, kWarp> : softmax_backward_kernel<T, kThreads>;
    kernel<<<r.blocks(), kThreads, 0, ctx.stream>>>(op.out.as<T>(), op.dout.as<T>(), op.dx.as<T>(),
                                                    r.rows, r.columns, op.log, op.accumulate);
    DS_CUDA_LAUNCHED(kOp);
  });
}

}  // namespace ds::cuda
