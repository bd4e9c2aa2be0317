// Shared by the kernels of paged attention: addresses of keys, the query rows of a thread block,
// and the reduction of partial softmax rows.
#pragma once

#include "../cuda/cluster.cuh"
#include "../cuda/dependent_launch.cuh"
#include "../cuda/vector.cuh"
#include "key_codes.cuh"
#include "score_cap.cuh"

namespace ds::cuda {

/// Addresses of the keys and values of sequences, with elements P. An invalid block has no row.
template <class P>
struct PagedRows {
  const P* pool;
  const int* tables;
  int64_t table_stride, blocks;
  int key_heads, block, shift, most, d;  // shift: log2 of block, or -1

  /// Returns the key of `token` in a head. Its value is `value_offset()` elements behind it.
  __device__ __forceinline__ const P* key(int sequence, int head, int token) const {
    const int place = shift >= 0 ? token >> shift : token / block;
    const int64_t b = tables[sequence * table_stride + place];
    if (b < 0 || b >= blocks) return nullptr;
    return pool + ((b * 2 * key_heads + head) * block + (token - place * block)) * d;
  }
  __device__ __forceinline__ int64_t value_offset() const { return int64_t{key_heads} * block * d; }
};

/// Returns the base-2 logarithm of a power of 2, and -1 for other numbers.
inline int log2_of(int64_t n) {
  int shift = 0;
  while ((int64_t{1} << shift) < n) ++shift;
  return (int64_t{1} << shift) == n ? shift : -1;
}

/// Returns the addresses of a pool [blocks, 2, Hk, block, D] by tables [S, most].
template <class P>
PagedRows<P> paged_rows_of(const View& pool, const View& tables) {
  const auto size = [&](int d) { return static_cast<int>(pool.shape[d]); };
  return {pool.as<P>(), tables.as<int>(), tables.strides[0],      pool.shape[0],
          size(2),      size(3),          log2_of(pool.shape[3]), static_cast<int>(tables.shape[1]),
          size(4)};
}

/// Arguments of the kernels of paged attention.
template <class T, class P = T>
struct PagedArguments {
  PagedRows<P> rows;
  const T* q;
  T* out;
  const int *starts, *lengths;
  int64_t q_token, q_head, out_token, out_head;
  int tokens, sequences, heads, group, d, window, splits;
  float scale_log2;
  ScoreCap cap;
  bool vectors;      // rows of the pool may be read by 16 bytes
  bool row_vectors;  // rows of q and out may be accessed by 16 bytes
  bool clustered;    // a cluster of blocks has the splits of a tile and reduces them
  bool invariant;    // see PagedAttention
  bool settled;      // lists and older keys may be read before the previous kernel has ended
  int64_t total;     // query rows: tokens times heads
  float* sums;       // [splits, total, D] with several splits
  float* lse;        // [tokens, heads], or null
  const T* sinks;    // [heads], or null
  float2* marks;  // [splits, total]: the largest score in powers of 2, the sum of weights relative
                  // to it
};

/// Returns the weight of a head's sink relative to a score of `base`, in powers of 2.
template <class T, class P>
__device__ __forceinline__ float sink_weight(const PagedArguments<T, P>& a, int64_t head,
                                             float base) {
  return a.sinks ? exp2f(to_float(a.sinks[head]) * 1.4426950408889634f - base) : 0.f;
}

/// The query rows of a thread block, all of one sequence and key head. Row i is query i / group in
/// head i % group of the group. Blocks of the last rows, which see the most keys, come first.
struct QueryTile {
  int sequence, head, split, first_token, first_row, rows, group, length, count;

  template <class T, class P>
  __device__ QueryTile(const PagedArguments<T, P>& a, int tile_rows) {
    unsigned index = blockIdx.x;
    split = static_cast<int>(index % a.splits);
    index /= a.splits;
    head = static_cast<int>(index % a.rows.key_heads);
    index /= a.rows.key_heads;
    sequence = static_cast<int>(index % a.sequences);
    const unsigned each = static_cast<unsigned>(a.splits) * a.rows.key_heads * a.sequences;
    const int tiles = static_cast<int>(gridDim.x / each);
    first_row = (tiles - 1 - static_cast<int>(index / a.sequences)) * tile_rows;
    first_token = a.starts[sequence] - a.starts[0];
    count = a.starts[sequence + 1] - a.starts[sequence];
    group = a.group;
    rows = first_token < 0 || first_token + count > a.tokens ? 0 : count * group;
    length = min(a.lengths[sequence], a.rows.most * a.rows.block);
  }
  /// Returns row `r` of the tile, or the last row if r is beyond it.
  __device__ int row(int r) const { return min(first_row + r, rows - 1); }
  __device__ int token(int r) const { return first_token + row(r) / group; }
  __device__ int query_head(int r) const { return head * group + row(r) % group; }
  /// Returns the end of the tokens that row r sees.
  __device__ int end(int r) const { return length == 0 ? 0 : length - count + row(r) / group + 1; }
  __device__ int begin(int r, int window) const { return window > 0 ? max(0, end(r) - window) : 0; }
};

constexpr int kMostClustered = 8;

/// Reduces the splits of a cluster and writes the rows. Each block reads `sums` [rows, width] and
/// the largest scores `marks` [rows] of all blocks from their shared memory, and writes its part of
/// the elements. After the last cluster barrier, the caller may reuse this memory.
template <int kRows, int kThreads, class T, class P>
__device__ __forceinline__ void write_clustered(const PagedArguments<T, P>& a,
                                                const QueryTile& tile, const float* sums, int width,
                                                const float2* marks) {
  cluster_barrier();
  const int first = tile.split * kThreads + static_cast<int>(threadIdx.x);
  const int rows = min(kRows, tile.rows - tile.first_row);
  for (int i = first; i < rows * width; i += a.splits * kThreads) {
    const int r = i / width, c = i % width;
    if (c >= a.d) continue;
    float tops[kMostClustered], totals[kMostClustered], parts[kMostClustered];
#pragma unroll
    for (int z = 0; z < kMostClustered; ++z) {
      tops[z] = z < a.splits ? load_of_block(&marks[r].x, z) : -INFINITY;
      totals[z] = z < a.splits ? load_of_block(&marks[r].y, z) : 0.f;
      parts[z] = z < a.splits ? load_of_block(sums + i, z) : 0.f;
    }
    float top = tops[0], total = 0.f, sum = 0.f;
#pragma unroll
    for (int z = 1; z < kMostClustered; ++z) top = fmaxf(top, tops[z]);
    const float base = top == -INFINITY ? 0.f : top;
#pragma unroll
    for (int z = 0; z < kMostClustered; ++z) {
      const float factor = exp2f(tops[z] - base);
      total = fmaf(totals[z], factor, total);
      sum = fmaf(parts[z], factor, sum);
    }
    if (total != 0.f) total += sink_weight(a, tile.query_head(r), base);
    a.out[tile.token(r) * a.out_token + tile.query_head(r) * a.out_head + c] =
        from_float<T>(total == 0.f ? 0.f : sum / total);
  }
  cluster_barrier();
}

/// Returns the log-sum-exp from the largest score in powers of 2 and the sum of weights relative to
/// it.
__device__ __forceinline__ float log_sum_exp_of(float top, float total) {
  return total == 0.f ? -INFINITY : (top + log2f(total)) * 0.6931471805599453f;
}

/// Reduces the kParts partial results of a thread block in shared memory. `sums` [kParts, kRows,
/// width] is relative to the largest scores in `marks` [kParts + 1, kRows]. The last row is
/// scratch. Then writes the rows. With several splits, it stores them for paged_combine_kernel or,
/// in a cluster, calls write_clustered().
template <int kParts, int kRows, int kThreads, bool kClusters, class T, class P>
__device__ __forceinline__ void write_merged(const PagedArguments<T, P>& a, const QueryTile& tile,
                                             float* sums, int width, float2* marks) {
  const int rows = min(kRows, tile.rows - tile.first_row);
  for (int i = threadIdx.x; i < rows * width; i += kThreads) {
    const int r = i / width, c = i % width;
    if (c >= a.d) continue;
    float top = -INFINITY, total = 0.f, sum = 0.f;
#pragma unroll
    for (int g = 0; g < kParts; ++g) top = fmaxf(top, marks[g * kRows + r].x);
    const float base = top == -INFINITY ? 0.f : top;
#pragma unroll
    for (int g = 0; g < kParts; ++g) {
      const float2 mark = marks[g * kRows + r];
      const float factor = exp2f(mark.x - base);
      total = fmaf(mark.y, factor, total);
      sum = fmaf(sums[(g * kRows + r) * width + c], factor, sum);
    }
    if (kClusters && a.clustered) {  // no other thread reads this element of the first part
      sums[i] = sum;
      if (c == 0) marks[kParts * kRows + r] = make_float2(top, total);
      continue;
    }
    const int64_t token = tile.token(r), head = tile.query_head(r);
    if (a.splits == 1) {
      const float all = total + sink_weight(a, head, base);
      a.out[token * a.out_token + head * a.out_head + c] =
          from_float<T>(total == 0.f ? 0.f : sum / all);
      if (a.lse && c == 0) a.lse[token * a.heads + head] = log_sum_exp_of(top, total);
      continue;
    }
    const int64_t row = tile.split * a.total + token * a.heads + head;
    a.sums[row * a.d + c] = sum;
    if (c == 0) a.marks[row] = make_float2(top, total);
  }
  if constexpr (kClusters)
    if (a.clustered) write_clustered<kRows, kThreads>(a, tile, sums, width, marks + kParts * kRows);
}

constexpr int kCombineThreads = 128;

/// Reduces the splits of a row, scaled to their largest score, by one warp per row. A split without
/// a key has no sums.
template <class T, class P>
__global__ void __launch_bounds__(kCombineThreads)
    paged_combine_kernel(const __grid_constant__ PagedArguments<T, P> a) {
  let_next_begin();
  await_previous();
  const int64_t row = int64_t{blockIdx.x} * (kCombineThreads / 32) + threadIdx.x / 32;
  if (row >= a.total) return;
  const int lane = threadIdx.x % 32;
  float top = -INFINITY;
  for (int z = lane; z < a.splits; z += 32) top = fmaxf(top, a.marks[z * a.total + row].x);
  for (int other = 16; other > 0; other /= 2)
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, other));
  const float base = top == -INFINITY ? 0.f : top;
  float total = 0.f, sums[8] = {};
  for (int z = 0; z < a.splits; ++z) {
    const float2 mark = a.marks[z * a.total + row];
    if (mark.y == 0.f) continue;
    const float factor = exp2f(mark.x - base);
    total = fmaf(mark.y, factor, total);
    const float* from = a.sums + (z * a.total + row) * a.d;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (lane + 32 * i < a.d) sums[i] = fmaf(from[lane + 32 * i], factor, sums[i]);
  }
  if (total != 0.f) total += sink_weight(a, row % a.heads, base);
  T* out = a.out + row / a.heads * a.out_token + row % a.heads * a.out_head;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (lane + 32 * i < a.d)
      out[lane + 32 * i] = from_float<T>(total == 0.f ? 0.f : sums[i] / total);
}

}  // namespace ds::cuda
