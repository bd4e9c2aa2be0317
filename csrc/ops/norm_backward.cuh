// Backward of LayerNorm and RMSNorm on the GPU. Blocks are persistent and threads own columns, so
// that weight gradients stay in registers over all rows. Rows arrive through shared memory.
#pragma once

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/column_sum.cuh"
#include "../cuda/mma.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {

/// Arguments of the backward; absent ones are null. With w' = dout * weight and x' = (s - mean) *
/// rstd,
///     dx = dsum + rstd * (w' - mean(w') - x' * mean(w' x')),
///     dweight = sum dout x', dbias = sum dout.
template <class T>
struct NormBackward {
  const T *s, *weight, *dout, *dsum;
  T* dx;
  const float *mean, *rstd;
  float* partials;  // [blocks, parts, C], or null without weight gradients
  int64_t n, c;
};

/// Number of weight gradients: of the weight, and of LayerNorm's bias.
template <bool kCentered>
constexpr int kParts = kCentered ? 2 : 1;

/// Waits for the threads of a group of warps. `id` is 1 to 15.
__device__ __forceinline__ void group_barrier(int id, int threads) {
  if (threads == kWarp) __syncwarp();
  else asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Returns two sums over a warp in six steps: lanes 0 to 15 receive the sum of x, the others that
/// of y.
__device__ __forceinline__ float warp_sum_pair(float x, float y) {
  const bool upper = threadIdx.x % kWarp >= kWarp / 2;
  float sum = upper ? y : x;
  sum += __shfl_xor_sync(0xffffffffu, upper ? x : y, kWarp / 2);
#pragma unroll
  for (int offset = kWarp / 4; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}

/// Converts a packet to f32. 16-bit elements are converted in pairs, by one instruction each.
template <class T, int N>
__device__ __forceinline__ void widen_packet(const Vector<T, N>& x, float (&out)[N]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const auto* words = reinterpret_cast<const uint32_t*>(&x);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      out[2 * i] = __uint_as_float(words[i] << 16);
      out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = to_float(x.v[i]);
  }
}

template <class T, int N>
__device__ __forceinline__ Vector<T, N> narrow_packet(const float (&x)[N]) {
  Vector<T, N> out;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    auto* pairs = reinterpret_cast<__nv_bfloat162*>(&out);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) pairs[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = from_float<T>(x[i]);
  }
  return out;
}

/// A thread's packets of s, dout and dsum for kStages rows, in shared memory. Each thread copies
/// only its own packets, so that no barrier is needed.
template <class T, int kStages, int kPackets>
struct PacketRing {
  static constexpr int N = kPacket<T>, kOperands = 3;
  static constexpr int kBytes = kStages * kOperands * kPackets * 16;  // per thread

  Vector<T, N>* mine;
  int threads;  // threads of the block

  __device__ __forceinline__ Vector<T, N>* slot(int stage, int operand, int packet) const {
    return mine + ((stage * kOperands + operand) * kPackets + packet) * threads;
  }
  __device__ __forceinline__ void fetch(const NormBackward<T>& b, int64_t at, int stage,
                                        int packet) const {
    cp_async_16(slot(stage, 0, packet), b.s + at, true);
    cp_async_16(slot(stage, 1, packet), b.dout + at, true);
    if (b.dsum) cp_async_16(slot(stage, 2, packet), b.dsum + at, true);
  }
};

extern __shared__ __align__(16) unsigned char norm_shared[];

/// Adds the weight gradients of the groups, in order, to the block's partials. All threads must
/// call it. Afterwards the rings may be reused. Packets of a thread are `apart` columns apart.
template <int kRows, int N, int kPackets, class T>
__device__ __forceinline__ void write_partials(const NormBackward<T>& b, int64_t column, int apart,
                                               const float (&dweight)[kPackets][N],
                                               const float (&dbias)[kPackets][N]) {
  float* const columns = reinterpret_cast<float*>(norm_shared);  // [groups, kRows, C]
  const int group = threadIdx.y, groups = blockDim.y;
  const int64_t width = kRows * b.c;
  float* const out = b.partials + blockIdx.x * width;
  float* const own = groups > 1 ? columns + group * width : out;
  __syncthreads();
#pragma unroll
  for (int p = 0; p < kPackets; ++p) {
    const int64_t first = column + p * apart;
    if (first >= b.c) break;
    Vector<float, N> sums;
#pragma unroll
    for (int i = 0; i < N; ++i) sums.v[i] = dweight[p][i];
    store_vector(own + first, sums);
    if constexpr (kRows > 1) {
#pragma unroll
      for (int i = 0; i < N; ++i) sums.v[i] = dbias[p][i];
      store_vector(own + b.c + first, sums);
    }
  }
  if (groups == 1) return;
  __syncthreads();
  const int threads = blockDim.x * groups;
  for (int64_t i = group * blockDim.x + threadIdx.x; i < width; i += threads) {
    float sum = columns[i];
    for (int g = 1; g < groups; ++g) sum += columns[g * width + i];
    out[i] = sum;
  }
}

/// Slots for the sums of the warps of a block. A group has a multiple of four slots, which its
/// threads read in pairs. Slots without a warp stay 0.
constexpr int kQuad = 4, kSumSlots = 128;

/// Each group of blockDim.x threads (whole warps) processes rows. Thread t owns packets t, t +
/// blockDim.x, ... of each row. blockDim.y groups share a block, which limits the number of partial
/// weight gradients. With kReread, a thread reads a row's packets again after the sums instead of
/// keeping them in registers, so that more groups fit.
template <class T, bool kCentered, int kStages, int kPackets, int kMaxThreads, bool kReread>
__global__ void __launch_bounds__(kMaxThreads, 1) norm_backward_rows(NormBackward<T> b) {
  constexpr int N = kPacket<T>;
  __shared__ alignas(16) float2 reduced[2][kSumSlots];  // two alternating buffers
  let_next_begin();
  const int group = threadIdx.y, groups = blockDim.y, warps = blockDim.x / kWarp;
  const int threads = blockDim.x * groups, thread = group * blockDim.x + threadIdx.x;
  const int quads = (warps + kQuad - 1) / kQuad, lane = threadIdx.x % kWarp;
  const int slot0 = group * quads * kQuad, slot = slot0 + threadIdx.x / kWarp;
  const int64_t column = int64_t{threadIdx.x} * N, step = int64_t{gridDim.x} * groups;
  const int apart = blockDim.x * N;  // columns between a thread's packets
  const float inverse_c = 1.0f / static_cast<float>(b.c);
  const PacketRing<T, kStages, kPackets> ring = {
      reinterpret_cast<Vector<T, N>*>(norm_shared) + thread, threads};
  for (int i = thread; i < 2 * kSumSlots; i += threads) (&reduced[0][0])[i] = {0, 0};
  await_previous();
  bool active[kPackets];
  float w[kPackets][N] = {}, dweight[kPackets][N] = {}, dbias[kPackets][N] = {};
#pragma unroll
  for (int p = 0; p < kPackets; ++p) active[p] = column + p * apart < b.c;
  __syncthreads();
  // The last rows, fewer than groups, are distributed over all blocks.
  int64_t row = int64_t{group} * gridDim.x + blockIdx.x;
  const auto fetch = [&](int64_t r, int stage) {
#pragma unroll
    for (int p = 0; p < kPackets; ++p)
      if (active[p] && r < b.n) ring.fetch(b, r * b.c + column + p * apart, stage, p);
    cp_async_commit();
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(row + stage * step, stage);
#pragma unroll
  for (int p = 0; p < kPackets; ++p)
    if (active[p]) widen_packet(load_vector<N>(b.weight + column + p * apart), w[p]);
  float mean = 0, rstd = 0;
  const auto read_statistics = [&](int64_t r) {
    if (kCentered) mean = b.mean[r];
    rstd = b.rstd[r];
  };
  if (row < b.n) read_statistics(row);
  int stage = 0, buffer = 0;
  for (; row < b.n; row += step) {
    fetch(row + (kStages - 1) * step, stage == 0 ? kStages - 1 : stage - 1);
    const float shift = mean, scale = rstd;
    if (row + step < b.n) read_statistics(row + step);
    cp_async_wait<kStages - 1>();
    constexpr int kHeld = kReread ? 1 : kPackets;
    float normalized[kHeld][N] = {}, weighted[kHeld][N] = {};
    float weighted_sum = 0, product_sum = 0;
    const auto load = [&](int p, float(&dout)[N]) {
      float s[N];
      widen_packet(*ring.slot(stage, 0, p), s);
      widen_packet(*ring.slot(stage, 1, p), dout);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        normalized[p % kHeld][i] = (s[i] - shift) * scale;
        weighted[p % kHeld][i] = dout[i] * w[p][i];
      }
    };
#pragma unroll
    for (int p = 0; p < kPackets; ++p) {
      if (!active[p]) continue;
      float dout[N];
      load(p, dout);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x = normalized[p % kHeld][i], g = weighted[p % kHeld][i];
        if (kCentered) weighted_sum += g, dbias[p][i] += dout[i];
        product_sum += g * x;
        dweight[p][i] += dout[i] * x;
      }
    }
    const float sum = warp_sum_pair(weighted_sum, product_sum);
    if (lane % (kWarp / 2) == 0)
      reinterpret_cast<float*>(&reduced[buffer][slot])[lane / (kWarp / 2)] = sum;
    group_barrier(1 + group, blockDim.x);
    if (b.dx) {
      float2 means = {0, 0};
      const auto* pairs = reinterpret_cast<const float4*>(&reduced[buffer][slot0]);
      for (int k = 0; k < quads; ++k) {
        const float4 first = pairs[2 * k], second = pairs[2 * k + 1];
        means.x = means.x + first.x + first.z + second.x + second.z;
        means.y = means.y + first.y + first.w + second.y + second.w;
      }
      means.x *= inverse_c;
      means.y *= inverse_c;
#pragma unroll
      for (int p = 0; p < kPackets; ++p) {
        if (!active[p]) continue;
        float dsum[N] = {}, dx[N], dout[N];
        if constexpr (kReread) load(p, dout);
        if (b.dsum) widen_packet(*ring.slot(stage, 2, p), dsum);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float through =
              weighted[p % kHeld][i] - means.x - normalized[p % kHeld][i] * means.y;
          dx[i] = dsum[i] + through * scale;
        }
        store_vector(b.dx + row * b.c + column + p * apart, narrow_packet<T>(dx));
      }
    }
    buffer ^= 1;
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  if (b.partials) write_partials<kParts<kCentered>>(b, column, apart, dweight, dbias);
}

/// Computes dx of a row per block, for rows that the persistent kernel does not support (odd,
/// unaligned or very long).
template <class T, bool kCentered>
__global__ void __launch_bounds__(256) norm_backward_any(NormBackward<T> b) {
  const int64_t row = blockIdx.x, base = row * b.c;
  const float mean = kCentered ? b.mean[row] : 0.0f, rstd = b.rstd[row];
  float weighted_sum = 0, product_sum = 0;
  for (int64_t c = threadIdx.x; c < b.c; c += blockDim.x) {
    const float weighted = to_float(b.dout[base + c]) * to_float(b.weight[c]);
    if (kCentered) weighted_sum += weighted;
    product_sum += weighted * ((to_float(b.s[base + c]) - mean) * rstd);
  }
  const float weighted_mean = kCentered ? block_sum(weighted_sum) / static_cast<float>(b.c) : 0.0f;
  const float product_mean = block_sum(product_sum) / static_cast<float>(b.c);
  for (int64_t c = threadIdx.x; c < b.c; c += blockDim.x) {
    const float weighted = to_float(b.dout[base + c]) * to_float(b.weight[c]);
    const float normalized = (to_float(b.s[base + c]) - mean) * rstd;
    const float through = (weighted - weighted_mean - normalized * product_mean) * rstd;
    b.dx[base + c] = from_float<T>(b.dsum ? to_float(b.dsum[base + c]) + through : through);
  }
}

/// Computes weight gradients for such rows: a thread per column, a range of rows per blockIdx.y.
template <class T, bool kCentered>
__global__ void __launch_bounds__(256) norm_backward_any_weight(NormBackward<T> b) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= b.c) return;
  const int64_t rows = (b.n + gridDim.y - 1) / gridDim.y, first = blockIdx.y * rows;
  const int64_t last = first + rows < b.n ? first + rows : b.n;
  float dweight = 0, dbias = 0;
  for (int64_t row = first; row < last; ++row) {
    const float g = to_float(b.dout[row * b.c + column]);
    const float mean = kCentered ? b.mean[row] : 0.0f;
    dweight += g * ((to_float(b.s[row * b.c + column]) - mean) * b.rstd[row]);
    dbias += g;
  }
  float* out = b.partials + int64_t{blockIdx.y} * kParts<kCentered> * b.c;
  out[column] = dweight;
  if (kCentered) out[b.c + column] = dbias;
}

/// Returns the dynamic shared memory that a block may use: the limit minus the static memory of the
/// kernels.
inline int64_t most_shared_memory(const char* op) {
  int device = 0, bytes = 0;
  DS_CUDA(cudaGetDevice(&device), op);
  DS_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), op);
  return bytes - 2048 - 1024;
}

/// Launches the persistent kernel with kPackets packets per thread. A block fills an SM, with as
/// many groups of threads as fit. Returns the number of blocks, which is that of partial weight
/// gradients, or 0 if no group fits.
template <bool kCentered, int kStages, int kPackets, int kMaxThreads, bool kReread, class T>
int64_t launch_backward_rows(const char* op, NormBackward<T>& b, bool weights, CudaContext& ctx) {
  constexpr int kColumns = kWarp * kPackets * kPacket<T>;  // columns of a warp
  const int64_t warps = (b.c + kColumns - 1) / kColumns, threads = warps * kWarp;
  const int64_t bytes = threads * PacketRing<T, kStages, kPackets>::kBytes;
  const int64_t quads = (warps + kQuad - 1) / kQuad;
  const int64_t fitting = std::min(
      {kMaxThreads / threads, most_shared_memory(op) / bytes, kSumSlots / (quads * kQuad)});
  if (fitting == 0) return 0;
  const int64_t barriers = threads == kWarp ? kWarp : 15;
  const int64_t rows = (b.n + ctx.sm_count - 1) / ctx.sm_count;  // rows of an SM
  const int64_t groups = std::min({fitting, barriers, rows});
  const int64_t blocks = std::min<int64_t>((b.n + groups - 1) / groups, ctx.sm_count);
  const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(groups));
  if (weights) b.partials = ctx.scratch_of<float>(blocks * kParts<kCentered> * b.c);
  const auto kernel = norm_backward_rows<T, kCentered, kStages, kPackets, kMaxThreads, kReread>;
  DS_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(groups * bytes)),
          op);
  const Launch launch = {op, dim3(static_cast<unsigned>(blocks)), block, ctx.stream,
                         static_cast<size_t>(groups * bytes)};
  launch_behind(ctx, launch, kernel, b);
  return blocks;
}

/// Like launch_backward_rows(), for rows of any length and alignment.
template <bool kCentered, class T>
int64_t launch_backward_any(const char* op, NormBackward<T>& b, bool weights, CudaContext& ctx) {
  if (b.dx) {
    norm_backward_any<T, kCentered><<<static_cast<unsigned>(b.n), 256, 0, ctx.stream>>>(b);
    DS_CUDA_LAUNCHED(op);
  }
  if (!weights) return 0;
  const int64_t splits = std::min<int64_t>(64, (b.n + 31) / 32);
  b.partials = ctx.scratch_of<float>(splits * kParts<kCentered> * b.c);
  const dim3 grid(static_cast<unsigned>((b.c + 255) / 256), static_cast<unsigned>(splits));
  norm_backward_any_weight<T, kCentered><<<grid, 256, 0, ctx.stream>>>(b);
  DS_CUDA_LAUNCHED(op);
  return splits;
}

/// Rows of up to kShortRow packets have one packet per thread. Longer rows have two, so that half
/// as many warps wait for each other at the end of a row. For RMSNorm, if a second group would not
/// fit, threads read packets again. Measured on an H200.
constexpr int64_t kShortRow = 256, kTwoGroups = 512, kTwoPackets = 768;

/// Fills dx and b.partials. Returns the number of partial weight gradients, or 0 without them.
template <bool kCentered, class T>
int64_t launch_backward(const char* op, NormBackward<T>& b, bool weights, CudaContext& ctx) {
  constexpr int N = kPacket<T>;
  const bool vectors = b.c % N == 0 && aligned_for<N>(b.s) && aligned_for<N>(b.weight) &&
                       aligned_for<N>(b.dout) && aligned_for<N>(b.dsum) && aligned_for<N>(b.dx);
  int64_t blocks = 0;
  const int64_t packets = b.c / N;
  if (vectors && packets <= kShortRow)
    blocks = launch_backward_rows<kCentered, 2, 1, 896, false>(op, b, weights, ctx);
  else if (vectors && (kCentered || packets <= kTwoGroups))
    blocks = launch_backward_rows<kCentered, 2, 2, 512, false>(op, b, weights, ctx);
  else if constexpr (!kCentered) {
    if (vectors && packets <= kTwoPackets)
      blocks = launch_backward_rows<kCentered, 2, 2, 768, true>(op, b, weights, ctx);
    else if (vectors)
      blocks = launch_backward_rows<kCentered, 2, 4, 512, true>(op, b, weights, ctx);
  }
  return blocks > 0 ? blocks : launch_backward_any<kCentered>(op, b, weights, ctx);
}

}  // namespace ds::cuda
