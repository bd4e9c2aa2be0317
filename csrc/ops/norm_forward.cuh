// Forward of LayerNorm and RMSNorm on the GPU. Warps keep rows in registers and prefetch the next
// row.
#pragma once

#include <algorithm>

#include "../cuda/block_reduce.cuh"
#include "../cuda/dependent_launch.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {

/// Arguments of the forward; absent ones are null. RMSNorm has no mean.
template <class T>
struct NormForward {
  const T *x, *residual, *weight, *bias;
  T *sum, *out;
  float *mean, *rstd;
  int64_t n, c;
  float eps;
  bool settled;  // weight may be read before the previous kernel has ended
};

/// Returns x + residual, rounded to T.
template <class T, int N>
__device__ __forceinline__ Vector<T, N> sum_of(const Vector<T, N>& x,
                                               const Vector<T, N>& residual) {
  Vector<T, N> s;
#pragma unroll
  for (int i = 0; i < N; ++i) s.v[i] = from_float<T>(to_float(x.v[i]) + to_float(residual.v[i]));
  return s;
}

/// Returns s of a packet: x, plus the residual if present.
template <int N, class T>
__device__ __forceinline__ Vector<T, N> add_residual(const NormForward<T>& f, int64_t at) {
  const Vector<T, N> x = load_streaming<N>(f.x + at);
  return f.residual ? sum_of(x, load_streaming<N>(f.residual + at)) : x;
}

/// Statistics of a row.
struct Statistics {
  float mean, rstd;
};

/// Writes a packet of out; `w` is the weight of its columns. Multiply-adds call fmaf explicitly,
/// here and in the statistics: otherwise the compiler would fuse them in one kernel but not in
/// another.
template <int N, class T>
__device__ __forceinline__ void write_normalized(const NormForward<T>& f, int64_t row,
                                                 int64_t column, const Vector<T, N>& s,
                                                 const Statistics& of, const Vector<T, N>& w) {
  Vector<T, N> b = {}, y;
  if (f.bias) b = load_vector<N>(f.bias + column);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float normalized = (to_float(s.v[i]) - of.mean) * of.rstd;
    y.v[i] = from_float<T>(fmaf(normalized, to_float(w.v[i]), f.bias ? to_float(b.v[i]) : 0.0f));
  }
  store_vector(f.out + row * f.c + column, y);
}

/// Returns the statistics from the sums of the deviations from a rounded mean and of their squares
/// (see norm.h).
template <bool kCentered>
__device__ __forceinline__ Statistics statistics_of(float mean, float error, float squares, float c,
                                                    float eps) {
  error /= c;
  const float variance = kCentered ? fmaxf(fmaf(-error, error, squares / c), 0.0f) : squares / c;
  return {kCentered ? mean + error : 0.0f, 1.0f / sqrtf(variance + eps)};
}

/// 16 bytes in packed registers. Separate elements, or floats that the compiler converts once for
/// all passes, would take a register each.
using Packed = Vector<uint32_t, 4>;

/// Unpacks the elements of a packet.
template <class T>
__device__ __forceinline__ Vector<T, kPacket<T>> elements_of(Packed x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(x.v[i]));
  return reinterpret_cast<const Vector<T, kPacket<T>>&>(x);
}
template <class T>
__device__ __forceinline__ Packed packed(const Vector<T, kPacket<T>>& x) {
  return reinterpret_cast<const Packed&>(x);
}
template <class T>
__device__ __forceinline__ Packed load_packed(const T* p) {
  return load_streaming<4>(reinterpret_cast<const uint32_t*>(p));
}

/// A warp's row of at most kPackets * 32 packets, in registers. The warp prefetches its next row.
template <class T, int kPackets>
struct PacketRow {
  Packed x[kPackets], residual[kPackets];

  __device__ __forceinline__ Packed sum(const NormForward<T>& f, int k) const {
    return f.residual ? packed<T>(sum_of(elements_of<T>(x[k]), elements_of<T>(residual[k]))) : x[k];
  }
  __device__ __forceinline__ void load(const NormForward<T>& f, int64_t row, int lane,
                                       int packets) {
    constexpr int N = kPacket<T>;
    const int64_t base = row * f.c + lane * N;
#pragma unroll
    for (int k = 0; k < kPackets; ++k)
      if (k * kWarp + lane < packets) x[k] = load_packed(f.x + base + k * kWarp * N);
    if (!f.residual) return;
#pragma unroll
    for (int k = 0; k < kPackets; ++k)
      if (k * kWarp + lane < packets) residual[k] = load_packed(f.residual + base + k * kWarp * N);
  }
};

constexpr int kForwardThreads = 128;
/// Blocks per SM that fit the registers of three rows and their computation.
template <int kPackets>
constexpr int kForwardBlocks = kPackets <= 4    ? 6
                               : kPackets <= 8  ? 4
                               : kPackets <= 10 ? 3
                                                : 2;

/// Returns the sum of a packet. A lane adds the sums of its packets in order, so that the bits of a
/// row do not depend on the kernel.
template <class T>
__device__ __forceinline__ float total_of(const Packed& packet) {
  const Vector<T, kPacket<T>> x = elements_of<T>(packet);
  float total = 0;
#pragma unroll
  for (int i = 0; i < kPacket<T>; ++i) total += to_float(x.v[i]);
  return total;
}
/// Returns the sums of the deviations from `rounded` and of their squares.
template <class T>
__device__ __forceinline__ float2 deviations_of(const Packed& packet, float rounded) {
  const Vector<T, kPacket<T>> x = elements_of<T>(packet);
  float2 sums = {0, 0};
#pragma unroll
  for (int i = 0; i < kPacket<T>; ++i) {
    const float d = to_float(x.v[i]) - rounded;
    sums.x += d;
    sums.y = fmaf(d, d, sums.y);
  }
  return sums;
}

/// A warp computes every (warps of the grid)-th row.
template <class T, int kPackets, bool kCentered>
__global__ void __launch_bounds__(kForwardThreads, kForwardBlocks<kPackets>)
    norm_forward_warp(NormForward<T> f) {
  let_next_begin();
  await_previous();
  constexpr int N = kPacket<T>, kWarps = kForwardThreads / kWarp;
  const int lane = threadIdx.x % kWarp, packets = static_cast<int>(f.c) / N;
  const int64_t step = int64_t{gridDim.x} * kWarps;
  int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  PacketRow<T, kPackets> next;
  if (row < f.n) next.load(f, row, lane, packets);
  for (; row < f.n; row += step) {
    Packed s[kPackets];
#pragma unroll
    for (int k = 0; k < kPackets; ++k) s[k] = next.sum(f, k);
    if (row + step < f.n) next.load(f, row + step, lane, packets);
    float total = 0;
#pragma unroll
    for (int k = 0; k < kPackets; ++k) {
      if (k * kWarp + lane >= packets) continue;
      if (f.sum) store_streaming(f.sum + row * f.c + (k * kWarp + lane) * N, elements_of<T>(s[k]));
      if (kCentered) total += total_of<T>(s[k]);
    }
    const float width = static_cast<float>(f.c);
    const float rounded = kCentered ? warp_sum(total) / width : 0.0f;
    float error = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < kPackets; ++k) {
      if (k * kWarp + lane >= packets) continue;
      const float2 sums = deviations_of<T>(s[k], rounded);
      error += sums.x;
      squares += sums.y;
    }
    if (kCentered) error = warp_sum(error);
    const Statistics found =
        statistics_of<kCentered>(rounded, error, warp_sum(squares), width, f.eps);
#pragma unroll
    for (int k = 0; k < kPackets; ++k)
      if (k * kWarp + lane < packets)
        write_normalized<N>(f, row, (k * kWarp + lane) * N, elements_of<T>(s[k]), found,
                            load_vector<N>(f.weight + (k * kWarp + lane) * N));
    if (lane == 0) {
      if (kCentered) f.mean[row] = found.mean;
      f.rstd[row] = found.rstd;
    }
  }
}

constexpr int kRowWarps = 8;

/// Computes a row per block, for few rows. Its warps share the packets, then each warp adds the
/// sums of all packets in the order of norm_forward_warp.
template <class T, int kPackets, bool kCentered>
__global__ void __launch_bounds__(kRowWarps* kWarp) norm_forward_shared(NormForward<T> f) {
  let_next_begin();
  constexpr int N = kPacket<T>, kEach = (kPackets + kRowWarps - 1) / kRowWarps;
  constexpr int kAll = kEach * kRowWarps * kWarp;
  __shared__ float totals[kCentered ? kAll : 1];
  __shared__ float2 deviations[kAll];
  const int lane = threadIdx.x % kWarp, packets = static_cast<int>(f.c) / N;
  const int64_t row = blockIdx.x, base = row * f.c;
  const auto place = [](int u) { return u * kRowWarps * kWarp + static_cast<int>(threadIdx.x); };
  Packed own[kEach];
  Vector<T, N> weight[kEach];
  if (!f.settled) await_previous();
#pragma unroll
  for (int u = 0; u < kEach; ++u)
    if (place(u) < packets) weight[u] = load_vector<N>(f.weight + place(u) * N);
  if (f.settled) await_previous();
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int at = place(u);
    if (at >= packets) continue;
    own[u] = load_packed(f.x + base + at * N);
    if (f.residual)
      own[u] = packed<T>(
          sum_of(elements_of<T>(own[u]), elements_of<T>(load_packed(f.residual + base + at * N))));
    if constexpr (kCentered) totals[at] = total_of<T>(own[u]);
  }
  const float width = static_cast<float>(f.c);
  float rounded = 0;
  if constexpr (kCentered) {
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int k = 0; k < kPackets; ++k)
      if (k * kWarp + lane < packets) total += totals[k * kWarp + lane];
    rounded = warp_sum(total) / width;
  }
#pragma unroll
  for (int u = 0; u < kEach; ++u)
    if (place(u) < packets) deviations[place(u)] = deviations_of<T>(own[u], rounded);
  __syncthreads();
  float error = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < kPackets; ++k) {
    if (k * kWarp + lane >= packets) continue;
    const float2 sums = deviations[k * kWarp + lane];
    error += sums.x;
    squares += sums.y;
  }
  if (kCentered) error = warp_sum(error);
  const Statistics found =
      statistics_of<kCentered>(rounded, error, warp_sum(squares), width, f.eps);
#pragma unroll
  for (int u = 0; u < kEach; ++u) {
    const int at = place(u);
    if (at >= packets) continue;
    write_normalized<N>(f, row, int64_t{at} * N, elements_of<T>(own[u]), found, weight[u]);
    if (f.sum) store_streaming(f.sum + base + at * N, elements_of<T>(own[u]));
  }
  if (threadIdx.x != 0) return;
  if (kCentered) f.mean[row] = found.mean;
  f.rstd[row] = found.rstd;
}

/// Computes a row of any length per block. Each of three passes recomputes s.
template <class T, int N, bool kCentered>
__global__ void __launch_bounds__(256) norm_forward_block(NormForward<T> f) {
  let_next_begin();
  await_previous();
  const int64_t row = blockIdx.x, base = row * f.c;
  const int64_t first = int64_t{threadIdx.x} * N, step = int64_t{blockDim.x} * N;
  float total = 0;
  for (int64_t c = first; c < f.c; c += step) {
    const Vector<T, N> s = add_residual<N>(f, base + c);
#pragma unroll
    for (int i = 0; i < N; ++i) total += to_float(s.v[i]);
  }
  const float width = static_cast<float>(f.c);
  const float rounded = kCentered ? block_sum(total) / width : 0.0f;
  float error = 0, squares = 0;
  for (int64_t c = first; c < f.c; c += step) {
    const Vector<T, N> s = add_residual<N>(f, base + c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float d = to_float(s.v[i]) - rounded;
      if (kCentered) error += d;
      squares = fmaf(d, d, squares);
    }
  }
  if (kCentered) error = block_sum(error);
  const Statistics found =
      statistics_of<kCentered>(rounded, error, block_sum(squares), width, f.eps);
  for (int64_t c = first; c < f.c; c += step) {
    const Vector<T, N> s = add_residual<N>(f, base + c);
    if (f.sum) store_streaming(f.sum + base + c, s);
    write_normalized<N>(f, row, c, s, found, load_vector<N>(f.weight + c));
  }
  if (threadIdx.x == 0) {
    if (kCentered) f.mean[row] = found.mean;
    f.rstd[row] = found.rstd;
  }
}

/// Launches as many blocks as run at once.
template <int kPackets, bool kCentered, class T>
void launch_forward_warp(const char* op, const NormForward<T>& f, CudaContext& ctx) {
  constexpr int64_t kWarps = kForwardThreads / kWarp;
  // With few long rows, a warp per row would be slow and leave most SMs idle.
  if constexpr (kPackets > 4) {
    const Launch rows{op, dim3(static_cast<unsigned>(f.n)), dim3(kRowWarps * kWarp), ctx.stream};
    if (f.n <= ctx.sm_count)
      return launch_behind(ctx, rows, norm_forward_shared<T, kPackets, kCentered>, f);
  }
  const int64_t blocks = std::min<int64_t>((f.n + kWarps - 1) / kWarps,
                                           int64_t{ctx.sm_count} * kForwardBlocks<kPackets>);
  launch_behind(ctx, {op, dim3(static_cast<unsigned>(blocks)), dim3(kForwardThreads), ctx.stream},
                norm_forward_warp<T, kPackets, kCentered>, f);
}

template <bool kCentered, class T>
void launch_forward(const char* op, const NormForward<T>& f, CudaContext& ctx) {
  constexpr int N = kPacket<T>;
  const bool vectors = f.c % N == 0 && aligned_for<N>(f.x) && aligned_for<N>(f.residual) &&
                       aligned_for<N>(f.weight) && aligned_for<N>(f.bias) &&
                       aligned_for<N>(f.sum) && aligned_for<N>(f.out);
  const int64_t per_lane = (f.c / N + kWarp - 1) / kWarp;
  const Launch rows{op, dim3(static_cast<unsigned>(f.n)), dim3(256), ctx.stream};
  if (!vectors) launch_behind(ctx, rows, norm_forward_block<T, 1, kCentered>, f);
  else if (per_lane <= 4) launch_forward_warp<4, kCentered>(op, f, ctx);
  else if (per_lane <= 7) launch_forward_warp<7, kCentered>(op, f, ctx);
  else if (!kCentered && per_lane <= 8) launch_forward_warp<8, kCentered>(op, f, ctx);
  else if (per_lane <= 10) launch_forward_warp<10, kCentered>(op, f, ctx);
  else if (per_lane <= 16) launch_forward_warp<16, kCentered>(op, f, ctx);
  else launch_behind(ctx, rows, norm_forward_block<T, N, kCentered>, f);
}

}  // namespace ds::cuda
