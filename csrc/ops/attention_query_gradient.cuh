// Computes dq on mma.sync: one thread block per (head, query block).
#pragma once

#include "attention_backward.cuh"

namespace ds::cuda {

/// Tile sizes: kQueryRows queries per thread block, kKeyRows keys per stage.
template <int kHeadDim, int kQueryRows, int kKeyRows, int kWarpCount, int kBlocksPerSm,
          int kChunkKeys, bool kInRegisters>
struct QueryGradientShape {
  static constexpr int head_dim = kHeadDim, rows = kQueryRows, keys = kKeyRows, chunk = kChunkKeys;
  static constexpr int warps = kWarpCount, threads = 32 * kWarpCount;
  static constexpr int blocks_per_sm = kBlocksPerSm, tiles = kQueryRows / (16 * kWarpCount);
  static constexpr bool in_registers = kInRegisters;
  static constexpr size_t shared_bytes = 2 * kHeadDim * (2 * kQueryRows + 4 * kKeyRows);
  static_assert(tiles * 16 * kWarpCount == kQueryRows && kKeyRows % kChunkKeys == 0);
  static_assert(kChunkKeys % 16 == 0);
};

/// A warp's queries and douts, and its sum dq before the scale.
template <class T, class Shape, Hiding kHiding>
struct QueryGradient {
  static constexpr int kD = Shape::head_dim, kTiles = Shape::tiles, kChunk = Shape::chunk;
  RowFragments<T, kTiles, kD, Shape::in_registers> queries, douts;
  float lse_log2[kTiles][2], delta[kTiles][2];
  float dq[kTiles][kD / 8][4] = {};

  /// Loads the statistics of the 16 kTiles rows from `row` on.
  __device__ __forceinline__ void read_statistics(const RowStatistics* of_head, int row, int rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = row + m * 16 + half * 8 + lane / 4;
        lse_log2[m][half] = r < rows ? of_head[r].lse_log2 : INFINITY;
        delta[m][half] = r < rows ? of_head[r].delta : 0.f;
      }
  }

  /// Adds kChunk keys from `first_key` on. The warp's first query is `row`.
  __device__ __forceinline__ void add(const T* keys, const T* values,
                                      const Visibility<T, kHiding>& seen, int row, int first_key) {
    float scores[kTiles][kChunk / 8][4] = {}, dp[kTiles][kChunk / 8][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) dp[m][n][e] = -delta[m][e / 2];
    multiply_by_rows<T, kD>(scores, queries, keys);
    multiply_by_rows<T, kD>(dp, douts, values);
    seen.hide_by_query(scores, row, first_key);
    if (seen.caps()) multiply_by_slopes(dp, scores, seen);
    seen.template drop<false, kTiles, kChunk / 8>(
        row, first_key, [&](int m, int n, int e, float factor) {
          dp[m][n][e] = fmaf(factor, dp[m][n][e], (factor - 1.f) * delta[m][e / 2]);
        });
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kChunk / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          dp[m][n][e] *=
              fast_exp2(fmaf(scores[m][n][e], seen.sizes.scale_log2, -lse_log2[m][e / 2]));
    uint32_t left[kTiles][kChunk / 16][4];
    to_left_operand<T>(left, dp);
    multiply_by_columns<T, kD>(dq, left, keys);
  }
};

/// Computes dq of a query block from all keys that it sees, in order.
template <class T, class Shape, Hiding kHiding>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    attention_query_gradient_kernel(const __grid_constant__ BackwardArguments<T> args) {
  constexpr int kD = Shape::head_dim, kKeys = Shape::keys;
  extern __shared__ __align__(128) unsigned char attention_shared[];
  T* query_tile = reinterpret_cast<T*>(attention_shared);
  T* dout_tile = query_tile + Shape::rows * kD;

  const int query_blocks = (args.sizes.rows + Shape::rows - 1) / Shape::rows;
  const Work work(blockIdx.x, query_blocks, args.sizes.heads, args.sizes.batches,
                  args.sizes.heads_in_turn);
  const Visibility<T, kHiding> seen(args.sizes, args.filter, work.batch, work.head);
  const auto& sizes = seen.sizes;
  const int block_row = (query_blocks - 1 - work.block) * Shape::rows;
  const int here = sizes.rows - block_row;
  const int warp_row = static_cast<int>(threadIdx.x / 32) * 16 * Shape::tiles;
  const int row = block_row + warp_row;
  auto tiles = seen.template key_tiles<Shape::rows, kKeys>(block_row);

  const KeyStream<T, kKeys, kD, Shape::threads> stream{
      dout_tile + Shape::rows * kD, args.k, args.v, sizes, work.batch, work.head / sizes.group()};
  load_tile<Shape::rows, kD, Shape::threads>(
      query_tile, args.q, args.q.at(work.batch, work.head, block_row), here, sizes.d);
  load_tile<Shape::rows, kD, Shape::threads>(
      dout_tile, args.dout, args.dout.at(work.batch, work.head, block_row), here, sizes.d);
  if (tiles.start() < tiles.end) stream.load(tiles.at(0), 0);
  cp_async_commit();

  QueryGradient<T, Shape, kHiding> gradient;
  gradient.read_statistics(args.statistics_of(work.batch, work.head), row, sizes.rows);
  for (int step = 0; tiles.at(step) < tiles.end; ++step, tiles.go_on()) {
    cp_async_wait<0>();
    __syncthreads();
    if (step == 0) {
      gradient.queries.attach(query_tile, warp_row);
      gradient.douts.attach(dout_tile, warp_row);
    }
    tiles.look_ahead();
    if (tiles.after(step) < tiles.end) {
      stream.load(tiles.after(step), step + 1);
      cp_async_commit();
    }
#pragma unroll 1
    for (int first = 0; first < kKeys; first += Shape::chunk) {
      const int key = tiles.at(step) * kKeys + first;
      if (seen.template hidden<16 * Shape::tiles, Shape::chunk>(row, key)) {
        if constexpr (kHiding == Hiding::causal) break;
        else continue;
      }
      gradient.add(stream.keys(step) + first * kD, stream.values(step) + first * kD, seen, row,
                   key);
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  if (row < sizes.rows)
    store_rows<T, Shape::tiles, kD>(gradient.dq, sizes.scale, query_tile + warp_row * kD, args.dq,
                                    args.dq.at(work.batch, work.head, row), sizes.rows - row,
                                    sizes.d);
}

/// Launches a shape.
template <class T, class Shape, Hiding kHiding>
void launch_attention_query_gradient(const BackwardArguments<T>& args, cudaStream_t stream) {
  const char* op = "attention_backward";
  const AttentionSizes& sizes = args.sizes;
  const int64_t blocks = (sizes.rows + Shape::rows - 1) / Shape::rows;
  const auto grid = static_cast<unsigned>(blocks * sizes.heads * sizes.batches);
  const auto kernel = attention_query_gradient_kernel<T, Shape, kHiding>;
  allow_shared_memory(kernel, Shape::shared_bytes, op);
  if (grid == 0) return;
  kernel<<<grid, Shape::threads, Shape::shared_bytes, stream>>>(args);
  DS_CUDA_LAUNCHED(op);
}

}  // namespace ds::cuda
