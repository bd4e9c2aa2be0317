// Parts of recurrences on the GPU: GatedDelta and StateSpace. A block keeps lines of a head's state
// in registers and iterates over tokens.
#pragma once

#include <algorithm>

#include "../core/error.h"
#include "../cuda/vector.cuh"

namespace ds::cuda::recurrence {

constexpr int kThreads = 128;
constexpr int kLanes = 8;                  // threads of a line
constexpr int kLines = kThreads / kLanes;  // lines of a block
constexpr int kMost = 256;                 // largest D and E

/// An operand [.., heads, width] with its strides of rows, heads and batches.
template <class T>
struct Rows {
  T* data;
  int64_t batch, token, head;
  __device__ T* at(int64_t b, int64_t t, int64_t h) const {
    return data + b * batch + t * token + h * head;
  }
};

/// The tokens of a block's sequence.
struct Span {
  int64_t batch, first, count;
  int slot;
  bool keeps;
};

/// Returns the tokens of a sequence of `a`, a row of a batch or packed.
template <class A>
__device__ Span span_of(const A& a, int sequence) {
  if (!a.starts) return {sequence, 0, a.t, -1, false};
  const int64_t first = a.starts[sequence] - a.starts[0];
  int64_t count = a.starts[sequence + 1] - a.starts[sequence];
  if (first < 0 || count < 0 || first + count > a.rows) count = 0;
  const int slot = a.slots[sequence] < a.slot_count ? a.slots[sequence] : -1;
  return {0, first, count, slot, slot >= 0 && a.lengths[sequence] > count};
}

/// Returns the sum over the threads of a line, to all of them.
__device__ __forceinline__ float line_sum(float x) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

/// Returns the position of register r in its line. The threads of a line read consecutive packets
/// of four.
__device__ __forceinline__ int depth_of(int r, int lane) {
  return (r / 4) * (4 * kLanes) + lane * 4 + r % 4;
}

/// Loads N registers of a row in shared memory.
template <int N>
__device__ __forceinline__ void load_row(const float* row, int lane, float (&out)[N]) {
#pragma unroll
  for (int r = 0; r < N; r += 4) {
    const float4 x = *reinterpret_cast<const float4*>(row + depth_of(r, lane));
    out[r] = x.x;
    out[r + 1] = x.y;
    out[r + 2] = x.z;
    out[r + 3] = x.w;
  }
}

/// Sums ddecay over this and later tokens of the document. It is 0 at the first token. A warp
/// handles a row of the batch and a head.
static __global__ void __launch_bounds__(kThreads)
    later_sums_kernel(float* ddecay, const int* documents, int64_t batches, int t, int heads) {
  const int64_t line = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (line >= batches * heads) return;
  const int lane = threadIdx.x % 32, head = static_cast<int>(line % heads);
  const int64_t b = line / heads;
  const int* const own = documents ? documents + b * t : nullptr;
  double carry = 0.0;
  for (int end = t; end > 0; end -= 32) {
    const int at = end - 1 - lane;  // lane 0 has the last token
    const bool inside = at >= 0;
    float* const place = ddecay + (b * t + at) * heads + head;
    double sum = inside ? static_cast<double>(*place) : 0.0;
    const bool is_first = inside && (at == 0 || (own && own[at] != own[at - 1]));
    // A sum ends after the first token of a document, which is at a higher lane.
    int stops = inside && own && at + 1 < t && own[at] != own[at + 1];
    if (lane == 0 && !stops) sum += carry;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const double earlier = __shfl_up_sync(0xffffffffu, sum, step);
      const int stopped = __shfl_up_sync(0xffffffffu, stops, step);
      if (lane < step) continue;
      if (!stops) sum += earlier;
      stops |= stopped;
    }
    carry = __shfl_sync(0xffffffffu, sum, 31);
    if (inside) *place = is_first ? 0.0f : static_cast<float>(sum);
  }
}

/// Returns the operand of a view.
template <class T>
Rows<T> rows_of(const View& x) {
  const int token = x.ndim - 3;
  return {x.as<T>(), token > 0 ? x.strides[0] : 0, x.strides[token], x.strides[token + 1]};
}

/// Throws DS_SHAPE for heads that are too wide.
inline void require_width(const char* op, int64_t d, int64_t e) {
  if (d <= kMost && e <= kMost) return;
  throw Error("DS_SHAPE", op, text("heads of at most ", kMost, " channels on a GPU"),
              text(std::max(d, e)));
}

/// Returns the number of blocks of kThreads.
inline unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace ds::cuda::recurrence
