// Paged attention without tensor cores, for f32, wide heads and unaligned tensors. A group of lanes
// reads a key once for several query rows.
#pragma once

#include "paged_rows.cuh"

namespace ds::cuda {

constexpr int kPlainThreads = 128;
constexpr int kPart = 8;  // elements of a head per lane

template <class T, class P>
__device__ Vector<T, kPart> load_part(const P* row, int at, int d, bool vectors) {
  Vector<T, kPart> x;
#pragma unroll
  for (int e = 0; e < kPart; ++e) x.v[e] = from_float<T>(0.f);
  if (row == nullptr || at >= d) return x;
  if (vectors) return load_from_pool<T>(row + at);
#pragma unroll
  for (int e = 0; e < kPart; ++e)
    if (at + e < d) x.v[e] = from_pool<T>(row[at + e]);
  return x;
}

/// Partial results of a group of lanes for each row. Each lane has kPart channels.
template <int kRows>
struct PartialRows {
  float sum[kRows][kPart], largest[kRows], total[kRows];

  __device__ PartialRows() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = -INFINITY;
      total[r] = 0.f;
#pragma unroll
      for (int e = 0; e < kPart; ++e) sum[r][e] = 0.f;
    }
  }

  /// Adds kKeys keys with these scores. A score of -infinity hides its key.
  template <int kKeys, class T>
  __device__ void add(const float (&scores)[kKeys][kRows],
                      const Vector<T, kPart> (&values)[kKeys]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float top = largest[r];
#pragma unroll
      for (int u = 0; u < kKeys; ++u) top = fmaxf(top, scores[u][r]);
      const float base = top == -INFINITY ? 0.f : top, factor = exp2f(largest[r] - base);
      largest[r] = top;
      total[r] *= factor;
#pragma unroll
      for (int e = 0; e < kPart; ++e) sum[r][e] *= factor;
#pragma unroll
      for (int u = 0; u < kKeys; ++u) {
        const float weight = exp2f(scores[u][r] - base);
        total[r] += weight;
#pragma unroll
        for (int e = 0; e < kPart; ++e)
          sum[r][e] = fmaf(weight, to_float(values[u].v[e]), sum[r][e]);
      }
    }
  }
};

/// Processes the keys from `begin` to `stop`, kKeys at a time per group of lanes.
template <int kLanes, int kRows, int kKeys, class T, class P>
__device__ void read_keys(const PagedArguments<T, P>& a, const QueryTile& tile, int begin, int stop,
                          PartialRows<kRows>& partial) {
  constexpr int kGroups = kPlainThreads / kLanes;
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes, at = lane * kPart;
  float q[kRows][kPart];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const T* row = a.q + tile.token(r) * a.q_token + tile.query_head(r) * a.q_head;
    const Vector<T, kPart> x = load_part<T>(row, at, a.d, false);
#pragma unroll
    for (int e = 0; e < kPart; ++e) q[r][e] = to_float(x.v[e]) * a.scale_log2;
  }
  for (int base = begin; base < stop; base += kGroups * kKeys) {
    float scores[kKeys][kRows];
    Vector<T, kPart> values[kKeys];
    Vector<T, kPart> keys[kKeys];
    bool missing[kKeys];
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const int token = base + u * kGroups + group;
      const P* key = token < stop ? a.rows.key(tile.sequence, tile.head, token) : nullptr;
      missing[u] = key == nullptr;
      keys[u] = load_part<T>(key, at, a.d, a.vectors);
      values[u] = load_part<T>(key ? key + a.rows.value_offset() : nullptr, at, a.d, a.vectors);
    }
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const int token = base + u * kGroups + group;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float dot = 0.f;
#pragma unroll
        for (int e = 0; e < kPart; ++e) dot = fmaf(q[r][e], to_float(keys[u].v[e]), dot);
#pragma unroll
        for (int other = kLanes / 2; other > 0; other /= 2)
          dot += __shfl_xor_sync(0xffffffffu, dot, other, kLanes);
        if (a.cap.is_set()) dot = ScoreCap::bounded(dot, a.cap.powers);
        const bool seen = token < tile.end(r) && token >= tile.begin(r, a.window) && token < stop;
        scores[u][r] = !seen ? -INFINITY : missing[u] ? NAN : dot;
      }
    }
    partial.template add<kKeys>(scores, values);
  }
}

/// Writes the rows of the groups of lanes by write_merged().
template <int kLanes, int kRows, class T, class P>
__device__ void write_rows(const PagedArguments<T, P>& a, const QueryTile& tile,
                           const PartialRows<kRows>& partial) {
  constexpr int kGroups = kPlainThreads / kLanes, kWidth = kLanes * kPart;
  __shared__ float sums[kGroups][kRows][kWidth];
  __shared__ float2 marks[kGroups][kRows];
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int e = 0; e < kPart; ++e) sums[group][r][lane * kPart + e] = partial.sum[r][e];
    if (lane == 0) marks[group][r] = make_float2(partial.largest[r], partial.total[r]);
  }
  __syncthreads();
  write_merged<kGroups, kRows, kPlainThreads, false>(a, tile, &sums[0][0][0], kWidth, &marks[0][0]);
}

/// Attends to the keys of a split for kRows rows of a query tile, kLanes threads per key, with FMA.
template <int kLanes, int kRows, class T, class P>
__global__ void __launch_bounds__(kPlainThreads)
    paged_plain_kernel(const __grid_constant__ PagedArguments<T, P> a) {
  let_next_begin();
  await_previous();
  const QueryTile tile(a, kRows);
  if (tile.first_row >= tile.rows) return;
  constexpr int kKeys = kRows > 4 ? 2 : 4, kAtOnce = kPlainThreads / kLanes * kKeys;
  // Starts at a multiple of the keys processed at once, so that a key's group of lanes depends only
  // on its position.
  const int begun = tile.begin(0, a.window), first = begun - (a.invariant ? begun % kAtOnce : 0);
  const int span = max(0, tile.end(kRows - 1) - first);
  const int each = (span + a.splits - 1) / a.splits;
  const int begin = first + min(span, tile.split * each), stop = min(first + span, begin + each);
  PartialRows<kRows> partial;
  read_keys<kLanes, kRows, kKeys>(a, tile, begin, stop, partial);
  write_rows<kLanes, kRows>(a, tile, partial);
}

}  // namespace ds::cuda
