// Kernels of low-rank updates on tensor cores, for 16-bit types. A thread block computes a tile of
// rows, which have the same adapter. Sums are in an order that depends on the sizes of the layer
// only, so a row has the same bits in every batch.
//
// In a recorded step the lists and factors are inputs: the kernels read them before the previous
// kernel has ended.
#pragma once

#include "../cuda/block_reduce.cuh"
#include "../cuda/cluster.cuh"
#include "../cuda/dependent_launch.cuh"
#include "../cuda/mma.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {

constexpr int kAdapterRows = 16;  // of a tile
constexpr int kAdapterLayers = 3;
constexpr int kMostParts = 8;  // blocks of a cluster

/// The lists of both ops.
struct AdapterLists {
  const int *rows, *tiles;
  int entries, count, adapters;  // count: rows of x or out
};

template <class T>
struct ShrinkArguments {
  AdapterLists lists;
  const T* x;
  const T* a[kAdapterLayers];
  const int* ranks[kAdapterLayers];
  T* h;
  int64_t k;
  int most;
  int parts;     // blocks of a cluster; each sums a part of k
  bool settled;  // lists and factors may be read before the previous kernel has ended
};

template <class T>
struct ExpandArguments {
  AdapterLists lists;
  const T* h;
  const T* b[kAdapterLayers];
  const int* ranks[kAdapterLayers];
  T* out[kAdapterLayers];
  int64_t stride[kAdapterLayers], m[kAdapterLayers];
  int blocks[kAdapterLayers];  // thread blocks along the columns
  int tiles, most, layers;
  bool packets;  // 8 elements of out may be read and written at once
  bool settled;
};

/// A tile; count is 0 if it is empty or invalid.
struct AdapterTile {
  int adapter, first, count;

  __device__ AdapterTile(const AdapterLists& lists, int index) {
    const int* const p = lists.tiles + index * 3;
    adapter = p[0];
    first = p[1];
    count = p[2];
    const bool valid = adapter >= 0 && adapter < lists.adapters && first >= 0 && count > 0 &&
                       count <= kAdapterRows && first <= lists.entries - count;
    if (!valid) count = 0;
  }
  /// Returns the row of entry `i`, or -1.
  __device__ int row(const AdapterLists& lists, int i) const {
    if (i >= count) return -1;
    const int row = lists.rows[first + i];
    return row >= 0 && row < lists.count ? row : -1;
  }
};

__device__ __forceinline__ int valid_rank(int rank, int most) {
  return rank < 0 || rank > most ? 0 : rank;
}

/// Ends a block without work. The first block waits for the previous kernel, so that a later kernel
/// cannot pass it.
__device__ __forceinline__ void end_without_work() {
  if (blockIdx.x + blockIdx.y + blockIdx.z == 0) await_previous();
}

__device__ __forceinline__ void prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/// h of 16 entries and 8 kColumns ranks of each layer. The blocks of a cluster divide k, then their
/// warps, in steps of 32. Each thread loads 8 elements of its rows at once. The order of k within a
/// step differs from memory, equally for x and a.
template <class T, int kLayers, int kColumns, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, 3)
    shrink_kernel(const __grid_constant__ ShrinkArguments<T> args) {
  constexpr int kSums = kLayers * kColumns * 4 * kWarp;
  __shared__ float sums[kWarps][kSums], total[kSums];
  let_next_begin();
  if (!args.settled) await_previous();
  const int part = static_cast<int>(blockIdx.x) % args.parts;
  const AdapterTile tile(args.lists, static_cast<int>(blockIdx.x) / args.parts);
  if (tile.count == 0) return end_without_work();
  const int column = static_cast<int>(blockIdx.y) * 8 * kColumns;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / 4, quad = lane % 4;
  const int64_t step = int64_t{args.parts} * kWarps * 32;
  const int64_t begin = int64_t{part * kWarps + warp} * 32 + quad * 8;
  const int upper = tile.row(args.lists, group), lower = tile.row(args.lists, group + 8);
  const int64_t own = (int64_t{tile.adapter} * args.most + column + group) * args.k;
  int rank[kLayers];
#pragma unroll
  for (int l = 0; l < kLayers; ++l)
    rank[l] = valid_rank(args.ranks[l][tile.adapter], args.most) - column - group;
  if (args.settled) {
#pragma unroll
    for (int l = 0; l < kLayers; ++l)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
        if (quad == 0 && n * 8 < rank[l])
          for (int64_t k = begin; k < args.k; k += step)
            prefetch(args.a[l] + own + int64_t{n} * 8 * args.k + k);
    await_previous();
  }
  float acc[kLayers][kColumns][4] = {};
  const T* const top = args.x + int64_t{upper < 0 ? 0 : upper} * args.k;
  const T* const bottom = args.x + int64_t{lower < 0 ? 0 : lower} * args.k;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  const int64_t end = args.k + quad * 8;
#pragma unroll 2
  for (int64_t k = begin; k < end; k += step) {
    const bool here = k < args.k;
    const uint4 u = here && upper >= 0 ? *reinterpret_cast<const uint4*>(top + k) : zero;
    const uint4 v = here && lower >= 0 ? *reinterpret_cast<const uint4*>(bottom + k) : zero;
    const uint32_t first[4] = {u.x, v.x, u.y, v.y}, second[4] = {u.z, v.z, u.w, v.w};
#pragma unroll
    for (int l = 0; l < kLayers; ++l)
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const T* const a = args.a[l] + own + int64_t{n} * 8 * args.k + k;
        const uint4 w = here && n * 8 < rank[l] ? *reinterpret_cast<const uint4*>(a) : zero;
        mma_16x8x16<T>(acc[l][n], first, w.x, w.y);
        mma_16x8x16<T>(acc[l][n], second, w.z, w.w);
      }
  }
#pragma unroll
  for (int l = 0; l < kLayers; ++l)
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[warp][((l * kColumns + n) * 4 + i) * kWarp + lane] = acc[l][n][i];
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < kSums; at += kWarps * kWarp) {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][at];
    total[at] = sum;
  }
  if (args.parts > 1) cluster_barrier();
  // Element i of a lane is column 2 quad + i % 2 of row group + 8 (i / 2).
  for (int at = static_cast<int>(threadIdx.x); part == 0 && at < kSums; at += kWarps * kWarp) {
    const int l = at / (kColumns * 4 * kWarp), n = at / (4 * kWarp) % kColumns;
    const int i = at / kWarp % 4, thread = at % kWarp;
    const int entry = thread / 4 + 8 * (i / 2), j = column + n * 8 + thread % 4 * 2 + i % 2;
    if (entry >= tile.count || j >= args.most) continue;
    float parts[kMostParts];
#pragma unroll
    for (int p = 0; p < kMostParts; ++p)
      parts[p] = p > 0 && p < args.parts ? load_of_block(&total[at], p) : 0.f;
    float sum = total[at];
#pragma unroll
    for (int p = 1; p < kMostParts; ++p)
      if (p < args.parts) sum += parts[p];
    const bool inside = j < valid_rank(args.ranks[l][tile.adapter], args.most);
    args.h[(int64_t{l} * args.lists.entries + tile.first + entry) * args.most + j] =
        from_float<T>(inside ? sum : 0.f);
  }
  if (args.parts > 1) cluster_barrier();  // The first block has read all totals.
}

/// Columns of a unit. Element 2 n + e of a lane's 8 columns is column 2 quad + e of the n-th
/// product of 8 columns, so that a lane reads and writes 8 neighbouring elements of out.
constexpr int kExpandUnit = 32;

/// A tile, and the first factors of a lane's columns.
template <class T, int kUnits>
struct ExpandTile {
  AdapterTile tile;
  int rank, upper, lower;
  const T* b;
  uint2 w[kUnits][4];

  /// `own`: the first column of the lane in w; `left`: the columns from there on. Empty past the
  /// last tile.
  __device__ __forceinline__ ExpandTile(const ExpandArguments<T>& args, int index, int layer,
                                        int64_t own, int left)
      : tile(args.lists, min(index, args.tiles - 1)) {
    if (index >= args.tiles) tile.count = 0;
    const int group = static_cast<int>(threadIdx.x) % kWarp / 4;
    const int adapter = tile.count == 0 ? 0 : tile.adapter;
    rank = tile.count == 0 ? 0 : valid_rank(args.ranks[layer][adapter], args.most);
    upper = tile.row(args.lists, group);
    lower = tile.row(args.lists, group + 8);
    b = args.b[layer] + (int64_t{adapter} * args.m[layer] + own) * args.most + threadIdx.x % 4 * 4;
    load(args, 0, tile.count == 0 ? 0 : left);
  }
  /// Loads the factors of ranks from j on. B beyond the rank is finite, and h is 0 there.
  __device__ __forceinline__ void load(const ExpandArguments<T>& args, int j, int left) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int c = u * kExpandUnit + n * 2;
        w[u][n] =
            c < left ? *reinterpret_cast<const uint2*>(b + c * args.most + j) : make_uint2(0, 0);
      }
  }
};

/// Adds the updates of tiles blockIdx.y, blockIdx.y + gridDim.y, ... to kWarps * kUnits *
/// kExpandUnit columns of a layer.
template <class T, int kUnits, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, 512 / (kWarps * kWarp))
    expand_kernel(const __grid_constant__ ExpandArguments<T> args) {
  let_next_begin();
  if (!args.settled) await_previous();
  int block = static_cast<int>(blockIdx.x), layer = 0;
  while (layer + 1 < args.layers && block >= args.blocks[layer]) block -= args.blocks[layer++];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / 4, quad = lane % 4;
  const int64_t m = args.m[layer];
  const int64_t column = (int64_t{block} * kWarps + warp) * kUnits * kExpandUnit;
  const int64_t own = column + group / 2 * 8 + group % 2;
  const int left = static_cast<int>(m - own);
  const int stride = static_cast<int>(gridDim.y);
  ExpandTile<T, kUnits> now(args, static_cast<int>(blockIdx.y), layer, own, left);
  if (now.tile.count == 0 && static_cast<int>(blockIdx.y) + stride >= args.tiles)
    return end_without_work();
  if (args.settled) await_previous();
  for (int t = static_cast<int>(blockIdx.y); t < args.tiles; t += stride) {
    // The factors of the next tile are on their way during this one.
    const ExpandTile<T, kUnits> next(args, t + stride, layer, own, left);
    if (now.rank > 0) {
      Vector<T, 8> old[kUnits][2];
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = half == 0 ? now.upper : now.lower;
          const int64_t c = column + u * kExpandUnit + quad * 8;
          if (args.packets && row >= 0 && c + 8 <= m)
            old[u][half] = load_vector<8>(args.out[layer] + row * args.stride[layer] + c);
        }
      const T* const h =
          args.h + (int64_t{layer} * args.lists.entries + now.tile.first) * args.most + quad * 4;
      const uint2 zero = make_uint2(0, 0);
      float acc[kUnits][4][4] = {};
      for (int j = 0; j < now.rank; j += 16) {
        if (j > 0) now.load(args, j, left);
        const uint2 top = group < now.tile.count
                              ? *reinterpret_cast<const uint2*>(h + int64_t{group} * args.most + j)
                              : zero;
        const uint2 bottom =
            group + 8 < now.tile.count
                ? *reinterpret_cast<const uint2*>(h + int64_t{group + 8} * args.most + j)
                : zero;
        const uint32_t inner[4] = {top.x, bottom.x, top.y, bottom.y};
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
#pragma unroll
          for (int n = 0; n < 4; ++n)
            mma_16x8x16<T>(acc[u][n], inner, now.w[u][n].x, now.w[u][n].y);
      }
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = half == 0 ? now.upper : now.lower;
          const int64_t c = column + u * kExpandUnit + quad * 8;
          if (row < 0 || c >= m) continue;
          T* const out = args.out[layer] + row * args.stride[layer] + c;
          const auto added = [&](T before, int e) {
            return from_float<T>(to_float(before) + acc[u][e / 2][half * 2 + e % 2]);
          };
          if (args.packets && c + 8 <= m) {
            Vector<T, 8>& sum = old[u][half];
#pragma unroll
            for (int e = 0; e < 8; ++e) sum.v[e] = added(sum.v[e], e);
            store_vector(out, sum);
            continue;
          }
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (c + e < m) out[e] = added(out[e], e);
        }
    }
    now = next;
  }
}

}  // namespace ds::cuda
