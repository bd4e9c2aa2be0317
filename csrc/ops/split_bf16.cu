// SplitBf16 on the GPU: a thread per element, for small matrices.
#include "split_bf16.h"

#include "../cuda/cuda_context.h"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256;

/// Arguments of the kernel. Strides are those of rows.
struct Split {
  const float* in;
  __nv_bfloat16 *high, *again, *low;
  int64_t in_stride, high_stride, again_stride, low_stride;
  int64_t count;
  uint32_t columns;
};

/// Splits an element per thread and step. Infinity and NaN have a lower part of 0.
__global__ void __launch_bounds__(kThreads) split_kernel(Split s) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < s.count; i += step) {
    const int64_t row = i / s.columns, column = i - row * s.columns;
    const float x = s.in[row * s.in_stride + column];
    const __nv_bfloat16 high = __float2bfloat16_rn(x);
    const float rounded = __bfloat162float(high);
    const float rest = isfinite(rounded) ? x - rounded : 0.0f;
    s.high[row * s.high_stride + column] = high;
    if (s.again) s.again[row * s.again_stride + column] = high;
    s.low[row * s.low_stride + column] = __float2bfloat16_rn(rest);
  }
}

}  // namespace

void run(const SplitBf16& op, CudaContext& ctx) {
  const int64_t count = op.in.numel();
  if (count == 0) return;
  const Split split = {.in = op.in.as<float>(),
                       .high = op.high.as<__nv_bfloat16>(),
                       .again = op.again ? op.again.as<__nv_bfloat16>() : nullptr,
                       .low = op.low.as<__nv_bfloat16>(),
                       .in_stride = op.in.strides[0],
                       .high_stride = op.high.strides[0],
                       .again_stride = op.again ? op.again.strides[0] : 0,
                       .low_stride = op.low.strides[0],
                       .count = count,
                       .columns = static_cast<uint32_t>(op.in.shape[1])};
  const int64_t blocks =
      std::min<int64_t>((count + kThreads - 1) / kThreads, int64_t{ctx.sm_count} * 16);
  split_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, ctx.stream>>>(split);
  DS_CUDA_LAUNCHED("split_bf16");
}

}  // namespace ds::cuda
