// Kernels of low-rank updates (AdapterShrink, AdapterExpand) on tensor cores, for 16-bit dtypes. A
// thread block takes a tile of rows with the same adapter. The order of a sum depends only on the
// sizes of the layer, so a row has the same bits in every batch.
//
// `settled`: in a recorded step, lists and factors do not change, so the kernels read them before
// the previous kernel has ended.
#pragma once

#include "../cuda/block_reduce.cuh"
#include "../cuda/cluster.cuh"
#include "../cuda/dependent_launch.cuh"
#include "../cuda/mma.cuh"
#include "../cuda/vector.cuh"

namespace ds::cuda {

constexpr int kAdapterRows = 16;  // rows of a tile
constexpr int kAdapterLayers = 3;
constexpr int kMostParts = 8;  // largest number of blocks of a cluster

/// The lists of AdapterShrink and AdapterExpand.
struct AdapterLists {
  const int *rows, *tiles;
  int entries, count, adapters;  // count: rows of x or out
};

/// Arguments of AdapterShrink for up to kAdapterLayers layers.
template <class T>
struct ShrinkArguments {
  AdapterLists lists;
  const T* x;
  const T* a[kAdapterLayers];
  const int* ranks[kAdapterLayers];
  T* h;
  int64_t k;     // inputs: columns of x
  int most;      // R, the largest rank
  int parts;     // blocks of a cluster; each sums a part of k
  bool settled;  // lists and factors may be read before the previous kernel has ended
};

/// Arguments of AdapterExpand.
template <class T>
struct ExpandArguments {
  AdapterLists lists;
  const T* h;
  const T* b[kAdapterLayers];
  const int* ranks[kAdapterLayers];
  T* out[kAdapterLayers];
  int64_t stride[kAdapterLayers];        // elements between rows of out
  int64_t m[kAdapterLayers];             // columns of out
  int turns[kAdapterLayers], all_turns;  // turns along the columns, per layer and in all
  int most, layers;                      // R, the largest rank, and the number of layers
  bool packets;                          // 8 elements of out may be read and written at once
  bool settled;
};

/// A tile. `count` is 0 if it is empty or invalid. `least` is the smallest valid adapter.
struct AdapterTile {
  int adapter, first, count;

  __device__ AdapterTile(const AdapterLists& lists, int index, int least = 0) {
    const int* const p = lists.tiles + index * 3;
    adapter = p[0];
    first = p[1];
    count = p[2];
    const bool valid = adapter >= least && adapter < lists.adapters && first >= 0 && count > 0 &&
                       count <= kAdapterRows && first <= lists.entries - count;
    if (!valid) count = 0;
  }
  /// Returns the row of entry `i`, or -1 if the entry or its row is out of range.
  __device__ int row(const AdapterLists& lists, int i) const {
    if (i >= count) return -1;
    const int row = lists.rows[first + i];
    return row >= 0 && row < lists.count ? row : -1;
  }
};

/// Returns `rank`, or 0 if it is invalid.
__device__ __forceinline__ int valid_rank(int rank, int most) {
  return rank < 0 || rank > most ? 0 : rank;
}

/// Ends a block without work. The first block still waits for the previous kernel, so that a later
/// kernel cannot overtake that one.
__device__ __forceinline__ void end_without_work() {
  if (blockIdx.x + blockIdx.y + blockIdx.z == 0) await_previous();
}

/// Prefetches the cache line at `p` to L2.
__device__ __forceinline__ void prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/// Prefetches `bytes` at `p` to L2, both multiples of 16 (in code for compute capability 9.0 or
/// newer).
__device__ __forceinline__ void prefetch_range(const void* p, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#endif
}

/// Computes h of 16 entries and 8 kColumns ranks of a layer. The warps of a cluster split k in
/// steps of 32. Each block adds its warps' sums; the first block adds the totals. A lane loads 8
/// consecutive k at once, so mma sees k in another order, the same for x and a.
template <class T, int kColumns, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp)
    shrink_kernel(const __grid_constant__ ShrinkArguments<T> args) {
  constexpr int kSums = kColumns * 4 * kWarp;
  __shared__ float sums[kWarps][kSums], total[kSums];
  let_next_begin();
  if (!args.settled) await_previous();
  const int part = static_cast<int>(blockIdx.x) % args.parts;
  const AdapterTile tile(args.lists, static_cast<int>(blockIdx.x) / args.parts);
  if (tile.count == 0) return end_without_work();
  const int layer = static_cast<int>(blockIdx.z),
            column = static_cast<int>(blockIdx.y) * 8 * kColumns;
  const int rank = valid_rank(args.ranks[layer][tile.adapter], args.most);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / 4, quad = lane % 4;
  const int64_t step = int64_t{args.parts} * kWarps * 32;
  const int64_t begin = int64_t{part * kWarps + warp} * 32 + quad * 8;
  const T* const a = args.a[layer] + (int64_t{tile.adapter} * args.most + column + group) * args.k;
  const int upper = tile.row(args.lists, group), lower = tile.row(args.lists, group + 8);
  if (args.settled) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
      if (quad == 0 && column + n * 8 + group < rank)
        for (int64_t k = begin; k < args.k; k += step) prefetch(a + int64_t{n} * 8 * args.k + k);
    await_previous();
  }
  float acc[kColumns][4] = {};
  if (column < rank) {
    const T* const top = args.x + int64_t{upper < 0 ? 0 : upper} * args.k;
    const T* const bottom = args.x + int64_t{lower < 0 ? 0 : lower} * args.k;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const int64_t end = args.k + quad * 8;
#pragma unroll 4
    for (int64_t k = begin; k < end; k += step) {
      const bool here = k < args.k;
      const uint4 u = here && upper >= 0 ? *reinterpret_cast<const uint4*>(top + k) : zero;
      const uint4 v = here && lower >= 0 ? *reinterpret_cast<const uint4*>(bottom + k) : zero;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const bool inside = here && column + n * 8 + group < rank;
        const uint4 w =
            inside ? *reinterpret_cast<const uint4*>(a + int64_t{n} * 8 * args.k + k) : zero;
        const uint32_t first[4] = {u.x, v.x, u.y, v.y}, second[4] = {u.z, v.z, u.w, v.w};
        mma_16x8x16<T>(acc[n], first, w.x, w.y);
        mma_16x8x16<T>(acc[n], second, w.z, w.w);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kColumns; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[warp][(n * 4 + i) * kWarp + lane] = acc[n][i];
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < kSums; at += kWarps * kWarp) {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][at];
    total[at] = sum;
  }
  if (args.parts > 1) cluster_barrier();
  // Element i of a lane belongs to column 2 quad + i % 2 and row group + 8 (i / 2).
  for (int at = static_cast<int>(threadIdx.x); part == 0 && at < kSums; at += kWarps * kWarp) {
    const int n = at / (4 * kWarp), i = at / kWarp % 4, l = at % kWarp;
    const int entry = l / 4 + 8 * (i / 2), j = column + n * 8 + l % 4 * 2 + i % 2;
    if (entry >= tile.count || j >= args.most) continue;
    // Issues all loads before the first addition.
    float others[kMostParts];
#pragma unroll
    for (int p = 1; p < kMostParts; ++p)
      if (p < args.parts) others[p] = load_of_block(&total[at], p);
    float sum = total[at];
#pragma unroll
    for (int p = 1; p < kMostParts; ++p)
      if (p < args.parts) sum += others[p];
    args.h[(int64_t{layer} * args.lists.entries + tile.first + entry) * args.most + j] =
        from_float<T>(j < rank ? sum : 0.f);
  }
  if (args.parts > 1) cluster_barrier();  // until the first block has read all totals
}

/// Columns of a unit. A lane reads and writes 8 consecutive columns of out. Its column 2 n + e is
/// column 2 quad + e of the n-th product of 8 columns.
constexpr int kExpandUnit = 32;

/// The columns of a layer in a warp's turn, and their factors.
template <class T>
struct ExpandPlace {
  int layer, rank, left;  // left: columns from the lane's first one to the end
  int64_t column;
  const T* b;
};

/// Adds the updates of 16 entries to out. The blocks of a tile take turns of kWarps * kUnits *
/// kExpandUnit columns of a layer. A block loads the factors and outputs of its next turn before it
/// stores this one, so that loads overlap with stores.
template <class T, int kUnits, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp)
    expand_kernel(const __grid_constant__ ExpandArguments<T> args) {
  let_next_begin();
  if (!args.settled) await_previous();
  const AdapterTile tile(args.lists, static_cast<int>(blockIdx.x));
  if (tile.count == 0) return end_without_work();
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / 4, quad = lane % 4;
  const int upper = tile.row(args.lists, group), lower = tile.row(args.lists, group + 8);
  const uint2 zero = make_uint2(0, 0);
  const auto place_of = [&](int turn) {
    ExpandPlace<T> p;
    p.layer = 0;
    while (p.layer + 1 < args.layers && turn >= args.turns[p.layer]) turn -= args.turns[p.layer++];
    p.rank = valid_rank(args.ranks[p.layer][tile.adapter], args.most);
    const int64_t m = args.m[p.layer];
    p.column = (int64_t{turn} * kWarps + warp) * kUnits * kExpandUnit;
    const int64_t own = p.column + group / 2 * 8 + group % 2;
    p.b = args.b[p.layer] + (int64_t{tile.adapter} * m + own) * args.most + quad * 4;
    p.left = static_cast<int>(m - own);
    return p;
  };
  const auto load_factor = [&](const ExpandPlace<T>& p, uint2(&w)[kUnits][4], int j) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int c = u * kExpandUnit + n * 2;
        w[u][n] = c < p.left ? *reinterpret_cast<const uint2*>(p.b + c * args.most + j) : zero;
      }
  };
  const auto out_of = [&](const ExpandPlace<T>& p, int half, int64_t c) {
    const int row = half == 0 ? upper : lower;
    return args.out[p.layer] + row * args.stride[p.layer] + c;
  };
  const auto is_whole = [&](const ExpandPlace<T>& p, int half, int64_t c) {
    return (half == 0 ? upper : lower) >= 0 && args.packets && c + 8 <= args.m[p.layer];
  };
  const auto load_out = [&](const ExpandPlace<T>& p, Vector<T, 8>(&old)[kUnits][2]) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t c = p.column + u * kExpandUnit + quad * 8;
        if (is_whole(p, half, c)) old[u][half] = load_vector<8>(out_of(p, half, c));
      }
  };
  const auto load_inner = [&](const T* h, int entry, int j) {
    return entry < tile.count ? *reinterpret_cast<const uint2*>(h + int64_t{entry} * args.most + j)
                              : zero;
  };
  int turn = static_cast<int>(blockIdx.y);
  ExpandPlace<T> now = place_of(turn);
  uint2 w[kUnits][4];
  load_factor(now, w, 0);
  if (args.settled) await_previous();
  Vector<T, 8> old[kUnits][2];
  load_out(now, old);
  for (;;) {
    const T* const h =
        args.h + (int64_t{now.layer} * args.lists.entries + tile.first) * args.most + quad * 4;
    float acc[kUnits][4][4] = {};
    for (int j = 0; j < now.rank; j += 16) {
      if (j > 0) load_factor(now, w, j);
      const uint2 top = load_inner(h, group, j), bottom = load_inner(h, group + 8, j);
      const uint32_t inner[4] = {top.x, bottom.x, top.y, bottom.y};
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_16x8x16<T>(acc[u][n], inner, w[u][n].x, w[u][n].y);
    }
    turn += static_cast<int>(gridDim.y);
    const bool more = turn < args.all_turns;
    ExpandPlace<T> next = now;
    Vector<T, 8> after[kUnits][2];
    if (more) {
      next = place_of(turn);
      load_factor(next, w, 0);
      load_out(next, after);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t c = now.column + u * kExpandUnit + quad * 8, m = args.m[now.layer];
        if (now.rank == 0 || (half == 0 ? upper : lower) < 0 || c >= m) continue;
        T* const out = out_of(now, half, c);
        const auto added = [&](T before, int e) {
          return from_float<T>(to_float(before) + acc[u][e / 2][half * 2 + e % 2]);
        };
        if (is_whole(now, half, c)) {
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
    if (!more) return;
    now = next;
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int half = 0; half < 2; ++half) old[u][half] = after[u][half];
  }
}

}  // namespace ds::cuda
