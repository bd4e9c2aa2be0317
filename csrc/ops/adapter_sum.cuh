// Kernel of AdapterSum on tensor cores, for 16-bit dtypes: adds low-rank updates to the outputs of
// joined layers. It uses the tiles and lists of adapter_rows.cuh.
#pragma once

#include "adapter_rows.cuh"
#include "unary_math.h"

namespace ds::cuda {

constexpr int kSumBlocks = 4;  // blocks of sum_kernel per SM

/// Arguments of the kernels of AdapterSum.
template <class T>
struct SumArguments {
  AdapterLists lists;
  const T* wide;
  const T* b[kAdapterLayers];
  const int* ranks[kAdapterLayers];
  T* out;
  int64_t wide_stride, out_stride;
  int inner;                                     // first column of h
  int first[kAdapterLayers], m[kAdapterLayers];  // first output column and width of each layer
  int turns[kAdapterLayers], all_turns;          // turns along the columns, per layer and in all
  int most, layers;
  bool in_place;  // out is a part of wide
  bool settled;
  const char* next;  // rows of next_stride bytes; next_bytes of each are prefetched
  int64_t next_stride;
  int next_rows, next_bytes;

  /// Returns h of an adapter and a layer, in row 0.
  __device__ const T* inner_of(int layer, int adapter) const {
    return wide + inner + (int64_t{layer} * lists.adapters + adapter) * most;
  }
};

/// Prefetches this block's part of the next product's weight, while memory is almost idle.
template <class T>
__device__ __forceinline__ void prefetch_next(const SumArguments<T>& args) {
  const int block = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
  const int step = static_cast<int>(gridDim.x * gridDim.y * blockDim.x);
  for (int row = block * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
       row < args.next_rows; row += step)
    prefetch_range(args.next + row * args.next_stride, args.next_bytes);
}

/// Columns of a unit. A lane has 8 consecutive columns of it, or half of them.
constexpr int kSumUnit = 64;
/// With at most this many rows in a tile, half of the 8 columns of an mma would be empty. So two
/// lanes share the 8 output columns of one lane.
constexpr int kFewRows = 4;

/// A unit of a layer in a warp's turn.
struct SumUnit {
  int layer, rank, column;
};

/// Computes AdapterSum for a tile by mma: out^T += b h^T. The left operand has factors [16 columns,
/// 16 ranks], the right operand 8 rows of h, so 16 rows take two passes. A warp's turn has two
/// units: consecutive units of a layer, or the same columns of gate and up. With kFew, the tile has
/// at most kFewRows rows: each row occurs twice in an mma, and a lane stores half of its columns.
/// The next turn's factors load before this turn is stored.
template <class T, bool kGated, bool kFew, int kWarps>
__device__ __forceinline__ void sum_tile(const SumArguments<T>& args, const AdapterTile& tile) {
  constexpr int kUnits = 2, kTurn = kGated ? kSumUnit : kUnits * kSumUnit;
  constexpr int kWidth = kFew ? 4 : 8;  // columns of a lane
  const bool none = tile.adapter < 0;
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / 4, quad = lane % 4;
  const int own = group * 8, shift = kFew ? quad / 2 * 4 : 0;
  const int passes = !kFew && tile.count > 8 ? 2 : 1;
  int inner_rows[2], rows[2][2], ranks[kAdapterLayers];
#pragma unroll
  for (int pass = 0; pass < 2; ++pass) {
    if (kFew && pass > 0) continue;
    inner_rows[pass] = tile.row(args.lists, kFew ? group % kFewRows : pass * 8 + group);
#pragma unroll
    for (int e = 0; e < 2; ++e)
      rows[pass][e] = tile.row(args.lists, pass * 8 + (kFew ? quad % 2 : quad) * 2 + e);
  }
#pragma unroll
  for (int p = 0; p < kAdapterLayers; ++p)
    ranks[p] = none || p >= args.layers ? 0 : valid_rank(args.ranks[p][tile.adapter], args.most);
  const uint2 zero = make_uint2(0, 0);
  const auto unit_of = [&](int turn, int u) {
    SumUnit p;
    p.layer = kGated ? u : 0;
    while (!kGated && p.layer + 1 < args.layers && turn >= args.turns[p.layer])
      turn -= args.turns[p.layer++];
    p.rank = p.layer == 0 ? ranks[0] : p.layer == 1 ? ranks[1] : ranks[2];
    p.column = (turn * kWarps + warp) * kTurn + (kGated ? 0 : u * kSumUnit);
    return p;
  };
  // Returns true if the lane has columns of the unit. m is a multiple of 8.
  const auto has_columns = [&](const SumUnit& p) { return p.column + own < args.m[p.layer]; };
  const auto row_of = [&](int pass, int e) { return kFew || pass == 0 ? rows[0][e] : rows[1][e]; };
  const auto load_factor = [&](const SumUnit& p, uint2(&w)[8], int j) {
    // The first load ignores the rank: beyond the rank, b is finite and h is 0.
    const bool here = has_columns(p) && !none && (j == 0 || j < p.rank);
    const int64_t column = int64_t{tile.adapter} * args.m[p.layer] + p.column + own;
    const T* const b = args.b[p.layer] + column * args.most + quad * 4 + j;
#pragma unroll
    for (int c = 0; c < 8; ++c)
      w[c] = here ? *reinterpret_cast<const uint2*>(b + c * args.most) : zero;
  };
  const auto load_inner = [&](const SumUnit& p, uint2& h, int pass, int j) {
    const int row = kFew || pass == 0 ? inner_rows[0] : inner_rows[1];
    h = row >= 0 && j < p.rank
            ? *reinterpret_cast<const uint2*>(args.inner_of(p.layer, tile.adapter) +
                                              row * args.wide_stride + quad * 4 + j)
            : zero;
  };
  const auto load_old = [&](const SumUnit& p, Vector<T, kWidth>(&old)[2], int pass) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (const int row = row_of(pass, e); row >= 0 && has_columns(p))
        old[e] = load_vector<kWidth>(args.wide + row * args.wide_stride + args.first[p.layer] +
                                     p.column + own + shift);
  };
  int turn = static_cast<int>(blockIdx.y), pass = 0;
  const int step = static_cast<int>(gridDim.y);
  SumUnit now[kUnits];
  uint2 w[kUnits][8], h[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    now[u] = unit_of(turn, u);
    load_factor(now[u], w[u], 0);
  }
  if (const int later = turn + (lane + 1) * step; args.settled && later < args.all_turns) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const SumUnit p = unit_of(later, u);
      const int m = args.m[p.layer], left = m - p.column;
      const int columns = left < kSumUnit ? left : kSumUnit;
      const T* const b = args.b[p.layer] + (int64_t{tile.adapter} * m + p.column) * args.most;
      if (p.rank > 0 && columns > 0)
        prefetch_range(b, columns * args.most * static_cast<int>(sizeof(T)));
    }
  }
  if (args.settled) await_previous();
  Vector<T, kWidth> old[kUnits][2];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    load_inner(now[u], h[u], 0, 0);
    if (kFew) load_old(now[u], old[u], 0);
  }
  for (;;) {
    float acc[kUnits][4][4] = {};
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      if (!kFew) load_old(now[u], old[u], pass);
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      for (int j = 0; j < now[u].rank; j += 16) {
        if (j > 0) {
          load_factor(now[u], w[u], j);
          load_inner(now[u], h[u], pass, j);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const uint2 low = w[u][2 * n], high = w[u][2 * n + 1];
          const uint32_t factor[4] = {low.x, high.x, low.y, high.y};
          mma_16x8x16<T>(acc[u][n], factor, h[u].x, h[u].y);
        }
      }
    const bool again = pass + 1 < passes, deep = now[0].rank > 16 || now[1].rank > 16;
    const int before = pass;
    if (again) ++pass;
    else {
      pass = 0;
      turn += step;
    }
    const bool more = turn < args.all_turns;
    if (!more) prefetch_next(args);
    SumUnit next[kUnits];
    Vector<T, kWidth> after[kUnits][2];  // no registers for more rows
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      next[u] = now[u];
      if (!more) continue;
      if (!again) next[u] = unit_of(turn, u);
      if (!again || deep) load_factor(next[u], w[u], 0);
      if (deep || passes > 1 || next[u].layer != now[u].layer) load_inner(next[u], h[u], pass, 0);
      if (kFew) load_old(next[u], after[u], pass);
    }
    // Returns the updated output of the lane's column c in row e.
    const auto update = [&](int u, int e, int c) {
      const float(&low)[4] = acc[u][c / 2];
      const int i = c % 2 * 2 + e;
      if constexpr (!kFew) return low[i];
      else return quad < 2 ? low[i] : acc[u][c / 2 + 2][i];
    };
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = row_of(before, e);
      if (row < 0) continue;
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
        if (now[u].rank > 0)
#pragma unroll
          for (int c = 0; c < kWidth; ++c) {
            T& x = old[u][e].v[c];
            x = from_float<T>(to_float(x) + update(u, e, c));
          }
      if constexpr (kGated) {
        if (!has_columns(now[0])) continue;
        Vector<T, kWidth> gated;
#pragma unroll
        for (int c = 0; c < kWidth; ++c)
          gated.v[c] = from_float<T>(unary_value<UnaryOp::silu>(to_float(old[0][e].v[c])) *
                                     to_float(old[1][e].v[c]));
        store_vector(args.out + row * args.out_stride + now[0].column + own + shift, gated);
      } else {
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
          if (has_columns(now[u]) && !(args.in_place && now[u].rank == 0))
            store_vector(args.out + row * args.out_stride + args.first[now[u].layer] +
                             now[u].column + own + shift,
                         old[u][e]);
      }
    }
    if (!more) return;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      now[u] = next[u];
#pragma unroll
      for (int e = 0; kFew && e < 2; ++e) old[u][e] = after[u][e];
    }
  }
}

/// Computes AdapterSum, one tile per blockIdx.x. If `settled`, a block prefetches the factors of
/// all its turns before the joint product has ended.
template <class T, bool kGated, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, kSumBlocks)
    sum_kernel(const __grid_constant__ SumArguments<T> args) {
  let_next_begin();
  if (!args.settled) await_previous();
  const AdapterTile tile(args.lists, static_cast<int>(blockIdx.x), -1);
  if (tile.count == 0 || (tile.adapter < 0 && args.in_place)) return end_without_work();
  if (tile.count <= kFewRows) sum_tile<T, kGated, true, kWarps>(args, tile);
  else sum_tile<T, kGated, false, kWarps>(args, tile);
}

}  // namespace ds::cuda
