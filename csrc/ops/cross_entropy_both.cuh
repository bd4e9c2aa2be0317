// Losses and gradients of logits in one pass: a thread block holds a row at a time.
#pragma once

#include <utility>

#include "../cuda/block_reduce.cuh"
#include "../cuda/mma.cuh"
#include "cross_entropy_row.cuh"

namespace ds::cuda {

// Both passes over rows of 16-bit logits that fit a thread block: kHeldGroups groups of kLossUnroll
// packets of each thread in shared memory, kLastGroups in its registers. Threads own the packets
// that they own in cross_entropy_kernel, so that the bits of lse are equal. While a thread writes
// the gradients of a row, it fetches the next row into the places that become free.
constexpr int kHeldGroups = 6, kLastGroups = 2, kAllGroups = kHeldGroups + kLastGroups;
constexpr int kHeldBytes = kHeldGroups * kLossUnroll * kLossThreads * 16;
constexpr int kHeldPackets = kAllGroups * kLossUnroll * kLossThreads;  // of the longest row
extern __shared__ __align__(16) unsigned char cross_entropy_shared[];

/// Keeps a packet of 16 bytes in four registers: converted elements, kept from one pass to the
/// next, would take a register each.
template <class P>
__device__ __forceinline__ void keep_packed(P& packet) {
  auto* const words = reinterpret_cast<uint32_t*>(&packet);
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(words[i]));
}

/// A thread's packets of the current row. Only this thread uses its places in shared memory.
template <class T>
struct HeldRow {
  static constexpr int N = kPacket<T>;
  using Packet = Vector<T, N>;
  int packets;  // of a row
  Packet last[kLastGroups][kLossUnroll];

  static __device__ __forceinline__ Packet* place(int group, int u) {
    auto* const places = reinterpret_cast<Packet*>(cross_entropy_shared);
    return places + number(group, u);
  }
  /// Returns the number of packet u of a group.
  static __device__ __forceinline__ int number(int group, int u) {
    return (group * kLossUnroll + u) * kLossThreads + static_cast<int>(threadIdx.x);
  }
  /// Starts to fetch a group of a row; null: of no row.
  template <int kGroup>
  __device__ __forceinline__ void fetch(const T* row) {
#pragma unroll
    for (int u = 0; u < kLossUnroll; ++u) {
      const int p = number(kGroup, u);
      const bool valid = row && p < packets;
      if constexpr (kGroup < kHeldGroups) {
        if (valid) cp_async_16(place(kGroup, u), row + p * N, true);
      } else if (valid) last[kGroup - kHeldGroups][u] = load_streaming<N>(row + p * N);
    }
    if constexpr (kGroup < kHeldGroups) cp_async_commit();
  }
  template <int kGroup>
  __device__ __forceinline__ Packet at(int u) const {
    if constexpr (kGroup < kHeldGroups) return *place(kGroup, u);
    else return last[kGroup - kHeldGroups][u];
  }
};

/// Calls f(0) to f(kCount - 1) with constants.
template <int kCount, class F>
__device__ __forceinline__ void for_groups(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }
  (std::make_integer_sequence<int, kCount>{});
}

template <class T, class I>
__global__ void __launch_bounds__(kLossThreads, 1)
    cross_entropy_both_kernel(Loss<T, I> op, Gradient<T, I> g, int64_t rows) {
  constexpr int N = kPacket<T>;
  const int packets = static_cast<int>(op.columns / N);
  HeldRow<T> held;
  held.packets = packets;
  const auto row_of = [&](int64_t n) { return n >= 0 ? op.logits + n * op.row_stride : nullptr; };
  int64_t n = rows - 1 - blockIdx.x;
  for_groups<kAllGroups>([&](auto group) { held.template fetch<group()>(row_of(n)); });
  for (; n >= 0; n -= gridDim.x) {
    const int64_t label = op.target[n];
    const bool ignored = label == op.ignore_index;
    OnlineSum online;
    for_groups<kAllGroups>([&](auto group) {
      constexpr int kGroup = group();
      cp_async_wait<(kGroup < kHeldGroups ? kHeldGroups - 1 - kGroup : 0)>();
      Vector<T, N> x[kLossUnroll];
      float local = -INFINITY;
#pragma unroll
      for (int u = 0; u < kLossUnroll; ++u) {
        if (held.number(kGroup, u) >= packets) continue;
        x[u] = held.template at<kGroup>(u);
        keep_packed(x[u]);
#pragma unroll
        for (int i = 0; i < N; ++i) local = fmaxf(local, to_float(x[u].v[i]));
      }
      online.raise(local);
      const float shift = online.shift();
#pragma unroll
      for (int u = 0; u < kLossUnroll; ++u) {
        if (held.number(kGroup, u) >= packets) continue;
        keep_packed(x[u]);
#pragma unroll
        for (int i = 0; i < N; ++i) online.add(to_float(x[u].v[i]), shift);
      }
    });
    const float max = block_reduce(online.max, Max{});
    online.raise(max);
    const float lse = ignored ? 0.0f : max + log2f(block_sum(online.sum)) * kLn2;
    const bool bad = !ignored && !op.is_class(label);
    if (threadIdx.x == 0) {
      op.lse[n] = lse;
      const bool is_here = op.is_here(label);
      const T* const row = op.logits + n * op.row_stride;
      const float own = is_here ? to_float(row[label - op.first]) : 0.0f;
      op.losses[n] = ignored ? 0.0f : bad ? NAN : lse - own;
    }
    __syncthreads();  // dlogits may be logits
    const float scale = ignored ? 0.0f : bad ? NAN : g.scale[0], shift = -lse * kLog2e;
    const int own_column = op.is_here(label) ? static_cast<int>(label - op.first) : -N;
    const T* const next = row_of(n - static_cast<int64_t>(gridDim.x));
    T* const out = g.out + n * g.out_stride;
    for_groups<kAllGroups>([&](auto group) {
      constexpr int kGroup = group();
#pragma unroll
      for (int u = 0; u < kLossUnroll; ++u) {
        const int p = held.number(kGroup, u);
        if (p >= packets) continue;
        Vector<T, N> x = held.template at<kGroup>(u);
        const int own = own_column - p * N;  // in this packet if 0 to N - 1
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float probability = power_of_two(fmaf(to_float(x.v[i]), kLog2e, shift));
          x.v[i] =
              from_float<T>(ignored ? 0.0f : (probability - (own == i ? g.own : g.even)) * scale);
        }
        store_vector(out + p * N, x);
      }
      held.template fetch<kGroup>(next);
    });
  }
  cp_async_wait<0>();
}

}  // namespace ds::cuda
