// AdamW with 8-bit moments on the GPU: one warp per block of 256 elements, in one pass over the
// range.
#include "adamw8bit.h"

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/vector.cuh"
#include "adamw_rule.h"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kBlocksPerSm = 16;
constexpr int kEach = kCodeBlock / kWarp;  // elements of a lane

__device__ const DynamicCode kSigned = dynamic_code(true), kUnsigned = dynamic_code(false);

template <class G, class W>
struct Range {
  AdamWRule rule;
  float* master;
  uint8_t *m, *v;
  float *m_scale, *v_scale;
  const G* grad;
  W* weight;
  const float* control;
  int64_t n;
};

/// Rounds the warp's block to codes and returns its largest magnitude.
__device__ __forceinline__ float round_to_codes(const DynamicCode& code, const float (&x)[kEach],
                                                uint8_t* codes, int64_t valid, int lane) {
  float size = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) size = Max{}(size, fabsf(x[i]));
  const float scale = warp_reduce(size, Max{});
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * kWarp + lane;
    if (at >= valid) continue;
    const int nearest = nearest_code(code.middle, code.zero, div_rn(x[i], scale));
    codes[at] = static_cast<uint8_t>(scale == 0.0f ? code.zero : nearest);
  }
  return scale;
}

template <class G, class W>
__global__ void __launch_bounds__(kThreads) update_kernel(Range<G, W> r) {
  __shared__ DynamicCode code_m, code_v;
  const bool apply = r.control[1] != 0;
  if (!apply && !r.weight) return;
  for (int i = threadIdx.x; i < 256; i += kThreads) {
    code_m.value[i] = kSigned.value[i];
    code_v.value[i] = kUnsigned.value[i];
    if (i < 255) {
      code_m.middle[i] = kSigned.middle[i];
      code_v.middle[i] = kUnsigned.middle[i];
    }
  }
  if (threadIdx.x == 0) {
    code_m.zero = kSigned.zero;
    code_v.zero = kUnsigned.zero;
  }
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  const int64_t blocks = (r.n + kCodeBlock - 1) / kCodeBlock;
  const float factor = r.control[0];
  for (int64_t block = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; block < blocks;
       block += int64_t{gridDim.x} * kWarps) {
    const int64_t start = block * kCodeBlock, valid = r.n - start;
    float p[kEach], m[kEach] = {}, v[kEach] = {};
    const float m_scale = r.m_scale[block], v_scale = r.v_scale[block];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kWarp + lane;
      if (at >= valid) continue;
      p[i] = r.master[start + at];
      if (!apply) continue;
      m[i] = mul_rn(code_m.value[r.m[start + at]], m_scale);
      v[i] = mul_rn(code_v.value[r.v[start + at]], v_scale);
      r.rule.update(factor, to_float(r.grad[start + at]), p[i], m[i], v[i]);
      r.master[start + at] = p[i];
    }
    if (apply) {
      const float new_m = round_to_codes(code_m, m, r.m + start, valid, lane);
      const float new_v = round_to_codes(code_v, v, r.v + start, valid, lane);
      if (lane == 0) {
        r.m_scale[block] = new_m;
        r.v_scale[block] = new_v;
      }
    }
    if (!r.weight) continue;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * kWarp + lane;
      if (at < valid) r.weight[start + at] = from_float<W>(p[i]);
    }
  }
}

}  // namespace

void run(const AdamW8bit& op, CudaContext& ctx) {
  constexpr const char* kOp = "adamw8bit";
  const int64_t n = op.master.numel();
  if (n == 0) return;
  const int64_t blocks = (op.m_scale.numel() + kWarps - 1) / kWarps;
  const auto grid =
      static_cast<unsigned>(std::min<int64_t>(blocks, int64_t{ctx.sm_count} * kBlocksPerSm));
  for_floating(kOp, op.grad.dtype, [&](auto grad) {
    for_floating(kOp, op.weight ? op.weight.dtype : DType::f32, [&](auto weight) {
      using G = typename decltype(grad)::type;
      using W = typename decltype(weight)::type;
      const Range<G, W> range = {AdamWRule::of(op),      op.master.as<float>(),
                                 op.m.as<uint8_t>(),     op.v.as<uint8_t>(),
                                 op.m_scale.as<float>(), op.v_scale.as<float>(),
                                 op.grad.as<G>(),        op.weight ? op.weight.as<W>() : nullptr,
                                 op.control.as<float>(), n};
      update_kernel<<<grid, kThreads, 0, ctx.stream>>>(range);
      DS_CUDA_LAUNCHED(kOp);
    });
  });
}

}  // namespace ds::cuda
