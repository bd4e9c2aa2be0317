// Sums over segments on the GPU, one block per chunk, in the order of core/segments.h.
#pragma once

#include "../core/segments.h"
#include "block_reduce.cuh"
#include "vector.cuh"

namespace ds::cuda {

constexpr int kSegmentThreads = kSegmentLanes;
constexpr int kSegmentRounds = kSegmentChunk / (kSegmentLanes * kSegmentWidth);
static_assert(kSegmentWidth == 4 && kSegmentWarp == kWarp);

template <class T>
using SegmentPacket = Vector<T, kSegmentWidth>;

/// Returns true if packets at `p` are aligned, so that wide loads and stores are allowed.
template <class T>
__device__ __forceinline__ bool packets_at(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % alignof(SegmentPacket<T>) == 0;
}

/// Loads up to 4 elements from `p`. Elements from `valid` on are 0. `whole` allows wide loads.
template <class T>
__device__ __forceinline__ SegmentPacket<T> load_segment(const T* p, int64_t valid, bool whole) {
  if (whole && valid >= kSegmentWidth) return load_vector<kSegmentWidth>(p);
  SegmentPacket<T> out;
#pragma unroll
  for (int i = 0; i < kSegmentWidth; ++i) out.v[i] = i < valid ? p[i] : from_float<T>(0.0f);
  return out;
}

/// Stores up to 4 elements at `p`: those before `valid`. `whole` allows a wide store.
template <class T>
__device__ __forceinline__ void store_segment(T* p, const SegmentPacket<T>& x, int64_t valid,
                                              bool whole) {
  if (whole && valid >= kSegmentWidth) {
    store_vector(p, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < kSegmentWidth; ++i)
    if (i < valid) p[i] = x.v[i];
}

/// Calls body(at, valid) for each of this thread's packets of a chunk, in order.
template <class Body>
__device__ __forceinline__ void for_packets(const SegmentChunk& chunk, Body body) {
#pragma unroll 1
  for (int round = 0; round < kSegmentRounds; ++round) {
    const int64_t at =
        chunk.begin +
        int64_t{round * kSegmentThreads + static_cast<int>(threadIdx.x)} * kSegmentWidth;
    if (at < chunk.end) body(at, chunk.end - at);
  }
}

/// This thread's sum of squares, with one accumulator per element of a packet.
struct SquareSum {
  double a[kSegmentWidth] = {};

  __device__ __forceinline__ void add(int i, float x) {
    a[i] += static_cast<double>(x) * static_cast<double>(x);
  }

  /// Returns the sum over the block. All threads must call it.
  __device__ __forceinline__ double of_block() const {
    return block_sum((a[0] + a[1]) + (a[2] + a[3]));
  }
};

/// Returns the sum of a segment, by one block. See cpu::segment_sum.
__device__ __forceinline__ double segment_sum(const double* partials, int stride,
                                              const int64_t* starts, int64_t segment) {
  const double* const first = partials + first_slot(starts, segment) * stride;
  const int64_t chunks = chunk_count(starts, segment);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < chunks; i += kSegmentThreads) sum += first[i * stride];
  return block_sum(sum);
}

}  // namespace ds::cuda
