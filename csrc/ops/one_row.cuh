// The product of one row with a matrix of 16-bit weights, at memory bandwidth, for decoding a
// single sequence. cuBLASLt is 6 to 20 % slower at the sizes of Llama 8B.
#pragma once

#include "../cuda/block_reduce.cuh"
#include "../cuda/dependent_launch.cuh"
#include "../cuda/vector.cuh"
#include "unary_math.h"

namespace ds::cuda {

/// Returns silu(gate) * up, with both rounded to T first.
template <class T>
__device__ __forceinline__ T gated(float gate, float up) {
  const float x = to_float(from_float<T>(gate));
  return from_float<T>(unary_value<UnaryOp::silu>(x) * to_float(from_float<T>(up)));
}

/// Computes out [outputs] = weights [outputs, inputs] x [inputs] + bias. With gates, out is
/// [outputs / 2]: the lower half of the outputs gates the upper half.
template <class T>
struct OneRow {
  const T *weights, *x, *bias;  // bias may be null
  T* out;
  int64_t outputs, stride;  // stride: between rows of weights, a multiple of 8
  int inputs;               // a multiple of 8
  bool settled;             // weights may be read before the previous kernel has ended
};

constexpr int kOneRowWarps = 8, kOneRowOutputs = 4;

/// Loads 16 bytes that are read once. It does not put them into the L1 cache, which stays free for
/// shared data.
__device__ __forceinline__ uint4 load_once_16(const void* p) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p));
  return x;
}

/// Returns output r of the `each` outputs of a unit of work, or an index beyond the end. With
/// gates, the lower half comes first.
template <bool kGated>
__device__ __forceinline__ int64_t one_row_output(int64_t outputs, int64_t unit, int r, int each) {
  if constexpr (!kGated) return unit * each + r;
  const int64_t half = outputs / 2, pair = unit * (each / 2) + r % (each / 2);
  return pair < half ? pair + r / (each / 2) * half : outputs;
}

/// The packets of a block's outputs that a thread multiplies at once.
template <bool kGated, class T>
struct OneRowPackets {
  static constexpr int kN = kPacket<T>, kEach = kOneRowWarps * kWarp * kN;
  uint4 packets[kOneRowOutputs];

  __device__ __forceinline__ void load(const OneRow<T>& a, int k) {
#pragma unroll
    for (int r = 0; r < kOneRowOutputs; ++r) {
      const int64_t n = one_row_output<kGated>(a.outputs, blockIdx.x, r, kOneRowOutputs);
      packets[r] = uint4{0, 0, 0, 0};
      if (k < a.inputs && n < a.outputs) packets[r] = load_once_16(a.weights + n * a.stride + k);
    }
  }
  __device__ __forceinline__ void add_to(float (&sums)[kOneRowOutputs], const OneRow<T>& a,
                                         int k) const {
    if (k >= a.inputs) return;
    const Vector<T, kN> x = load_vector<kN>(a.x + k);
#pragma unroll
    for (int r = 0; r < kOneRowOutputs; ++r) {
      const auto& w = reinterpret_cast<const Vector<T, kN>&>(packets[r]);
#pragma unroll
      for (int i = 0; i < kN; ++i) sums[r] = fmaf(to_float(w.v[i]), to_float(x.v[i]), sums[r]);
    }
  }
};

/// Computes kOneRowOutputs outputs per block. Its threads share the inputs. The next kernel must
/// not start early, because its waiting blocks would take the place of blocks of this kernel: a
/// layer of Llama 8B takes 118 us, with let_next_begin() 120 us.
template <bool kGated, class T>
__global__ void __launch_bounds__(kOneRowWarps* kWarp, 3)
    one_row_kernel(const __grid_constant__ OneRow<T> a) {
  using Packets = OneRowPackets<kGated, T>;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int own = static_cast<int>(threadIdx.x) * Packets::kN;
  Packets here;
  if (a.settled) here.load(a, own);
  await_previous();
  if (!a.settled) here.load(a, own);
  float sums[kOneRowOutputs] = {};
  for (int k = own; k - own < a.inputs; k += Packets::kEach) {
    if (k != own) here.load(a, k);
    here.add_to(sums, a, k);
  }
  __shared__ float partial[kOneRowOutputs][kOneRowWarps];
#pragma unroll
  for (int r = 0; r < kOneRowOutputs; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane == 0) partial[r][warp] = sum;
  }
  __syncthreads();
  const int r = threadIdx.x;
  if (r >= (kGated ? kOneRowOutputs / 2 : kOneRowOutputs)) return;
  const int64_t n = one_row_output<kGated>(a.outputs, blockIdx.x, r, kOneRowOutputs);
  if (n >= a.outputs) return;
  const auto total = [&](int row, int64_t output) {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kOneRowWarps; ++w) sum += partial[row][w];
    return a.bias ? sum + to_float(a.bias[output]) : sum;
  };
  if constexpr (kGated)
    a.out[n] = gated<T>(total(r, n), total(r + kOneRowOutputs / 2, n + a.outputs / 2));
  else a.out[n] = from_float<T>(total(r, n));
}

constexpr int kWarpRowBlocks = 4;  // blocks of warp_row_kernel per SM

/// Computes an output per warp. A lane has kAhead packets in flight. This suits lengths such as
/// 2,880: most threads of one_row_kernel would be idle in its last round.
template <class T, int kAhead>
__global__ void __launch_bounds__(kOneRowWarps* kWarp, kWarpRowBlocks)
    warp_row_kernel(const __grid_constant__ OneRow<T> a) {
  extern __shared__ uint4 warp_row_inputs[];
  constexpr int kN = kPacket<T>, kThreads = kOneRowWarps * kWarp;
  const int lane = threadIdx.x % kWarp, packets = a.inputs / kN;
  const int64_t n = int64_t{blockIdx.x} * kOneRowWarps + threadIdx.x / kWarp;
  uint4 weights[kAhead];
  const auto load = [&](int u, int at) {
    weights[u] = uint4{0, 0, 0, 0};
    if (at < packets && n < a.outputs)
      weights[u] = load_once_16(a.weights + n * a.stride + at * kN);
  };
  if (!a.settled) await_previous();
#pragma unroll
  for (int u = 0; u < kAhead; ++u) load(u, u * kWarp + lane);
  if (a.settled) await_previous();
  for (int at = threadIdx.x; at < packets; at += kThreads)
    warp_row_inputs[at] = reinterpret_cast<const uint4*>(a.x)[at];
  __syncthreads();
  float sum = 0.f;
  for (int from = 0; from < packets; from += kWarp * kAhead)
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int at = from + u * kWarp + lane;
      const uint4 packet = at < packets ? warp_row_inputs[at] : uint4{0, 0, 0, 0};
      const auto& x = reinterpret_cast<const Vector<T, kN>&>(packet);
      const auto& w = reinterpret_cast<const Vector<T, kN>&>(weights[u]);
#pragma unroll
      for (int i = 0; i < kN; ++i) sum = fmaf(to_float(w.v[i]), to_float(x.v[i]), sum);
      load(u, at + kWarp * kAhead);
    }
  sum = warp_sum(sum);
  if (lane == 0 && n < a.outputs)
    a.out[n] = from_float<T>(a.bias ? sum + to_float(a.bias[n]) : sum);
}

/// Returns false, without a launch, if one_row_kernel is as fast. If one_row_kernel needs two
/// rounds and all warps run at a time, warp_row_kernel is faster: by 0.8 us in a layer of
/// gpt-oss-20B on an H200.
template <class T>
bool launch_warp_row(const char* op, const OneRow<T>& a, CudaContext& ctx) {
  constexpr int kEach = OneRowPackets<false, T>::kEach, kMost = 16 * 1024;
  const int rounds = (a.inputs + kEach - 1) / kEach;
  const auto blocks = static_cast<unsigned>((a.outputs + kOneRowWarps - 1) / kOneRowWarps);
  const bool idles = a.inputs <= kMost && 6 * a.inputs <= 5 * rounds * kEach;
  const bool waits = rounds == 2 && blocks <= static_cast<unsigned>(kWarpRowBlocks * ctx.sm_count);
  if (!idles && !waits) return false;
  launch_behind(ctx,
                {op, dim3(blocks), dim3(kOneRowWarps * kWarp), ctx.stream, sizeof(T) * a.inputs},
                idles ? warp_row_kernel<T, 6> : warp_row_kernel<T, 4>, a);
  return true;
}

/// Launches the kernel. weights, x and each row of weights must be 16-byte aligned.
template <bool kGated, class T>
void launch_one_row(const char* op, const OneRow<T>& a, CudaContext& ctx) {
  const auto blocks = static_cast<unsigned>((a.outputs + kOneRowOutputs - 1) / kOneRowOutputs);
  launch_behind(ctx, {op, dim3(blocks), dim3(kOneRowWarps * kWarp), ctx.stream},
                one_row_kernel<kGated, T>, a);
}

}  // namespace ds::cuda
