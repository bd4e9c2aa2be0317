// Sums over rows of logits on the GPU. A block per row reads the logits once.
#include "logit_sums.h"

#include "../cuda/block_reduce.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 512;

/// Arguments of the kernel.
template <class T, class I>
struct Rows {
  const T* logits;
  const I* target;
  const float* lse;
  float *expected, *total;
  int64_t columns, row_stride, ignore_index;
};

/// Writes both sums of a row. A block per row.
template <class T, class I>
__global__ void __launch_bounds__(kThreads) logit_sums_kernel(Rows<T, I> op) {
  constexpr int N = kPacket<T>;
  const int64_t n = blockIdx.x;
  if (op.target[n] == op.ignore_index) {
    if (threadIdx.x == 0) op.expected[n] = op.total[n] = 0;
    return;
  }
  const T* row = op.logits + n * op.row_stride;
  const float lse = op.lse[n];
  float expected = 0, total = 0;
  const auto add = [&](float x) {
    const float p = __expf(x - lse);
    if (p != 0) expected = fmaf(p, x, expected);
    total += x;
  };
  const bool is_aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
  const int64_t packets = is_aligned ? op.columns / N : 0;
  for (int64_t i = threadIdx.x; i < packets; i += kThreads) {
    const Vector<T, N> x = load_vector<N>(row + i * N);
#pragma unroll
    for (int j = 0; j < N; ++j) add(to_float(x.v[j]));
  }
  for (int64_t i = packets * N + threadIdx.x; i < op.columns; i += kThreads) add(to_float(row[i]));
  expected = block_sum(expected);
  total = block_sum(total);
  if (threadIdx.x != 0) return;
  op.expected[n] = expected;
  op.total[n] = total;
}

}  // namespace

void run(const LogitSums& op, CudaContext& ctx) {
  constexpr const char* kOp = "logit_sums";
  const int64_t rows = op.logits.shape[0];
  if (rows == 0) return;
  for_floating(kOp, op.logits.dtype, [&](auto tag) {
    dispatch_index(kOp, op.target.dtype, [&](auto index) {
      using T = typename decltype(tag)::type;
      using I = typename decltype(index)::type;
      const Rows<T, I> sums = {op.logits.as<T>(),       op.target.as<I>(),    op.lse.as<float>(),
                               op.expected.as<float>(), op.total.as<float>(), op.logits.shape[1],
                               op.logits.strides[0],    op.ignore_index};
      logit_sums_kernel<<<static_cast<unsigned>(rows), kThreads, 0, ctx.stream>>>(sums);
      DS_CUDA_LAUNCHED(kOp);
    });
  });
}

}  // namespace ds::cuda
