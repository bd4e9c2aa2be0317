// Computes dk and dv on mma.sync: one thread block per (key head, key block).
#pragma once

#include <type_traits>

#include "attention_backward.cuh"

namespace ds::cuda {

/// Tile sizes: kKeyRows keys per thread block, kQueryRows queries per stage, processed kChunkRows
/// at a time. Keys and values are left operands, in registers or read from shared memory at each
/// use.
template <int kHeadDim, int kKeyRows, int kQueryRows, int kWarpCount, int kBlocksPerSm,
          int kChunkRows, bool kKeysInRegisters, bool kValuesInRegisters>
struct KeyGradientShape {
  static constexpr int head_dim = kHeadDim, keys = kKeyRows, rows = kQueryRows, chunk = kChunkRows;
  static constexpr int warps = kWarpCount, threads = 32 * kWarpCount;
  static constexpr int blocks_per_sm = kBlocksPerSm, tiles = kKeyRows / (16 * kWarpCount);
  static constexpr bool keys_in_registers = kKeysInRegisters;
  static constexpr bool values_in_registers = kValuesInRegisters;
  static constexpr size_t statistics_bytes = sizeof(RowStatistics) * 2 * kQueryRows;
  static constexpr size_t shared_bytes =
      2 * kHeadDim * (2 * kKeyRows + 4 * kQueryRows) + statistics_bytes;
  static_assert(tiles * 16 * kWarpCount == kKeyRows && kQueryRows % kChunkRows == 0);
  static_assert(kStatisticsPadding % kQueryRows == 0 && kChunkRows % 16 == 0);
};

/// Two stages of queries, douts and row statistics, which cp.async fills for a key block. Heads of
/// the group are the outer order, tiles of rows that see a key of the block the inner order.
template <class T, class Shape, class Tiles>
struct QueryStream {
  static constexpr int kD = Shape::head_dim, kRows = Shape::rows;
  const BackwardArguments<T>& args;
  T* stages;                  // queries, douts, queries, douts
  RowStatistics* statistics;  // one block per stage
  int batch, first_head;
  Tiles tiles;
  int count = tiles.count();                      // per head
  int next_head = 0, next_block = tiles.start();  // the block that load() copies next
  int loaded = 0;                                 // first row of the block that load() copied last

  __device__ int steps() const { return count * args.sizes.group(); }
  __device__ int head_of(int step) const { return first_head + step / count; }
  __device__ T* queries(int step) const { return stages + step % 2 * 2 * kRows * kD; }
  __device__ T* douts(int step) const { return queries(step) + kRows * kD; }
  __device__ RowStatistics* statistics_of(int step) const { return statistics + step % 2 * kRows; }

  /// Starts the copy of the next block into the stage of `step`. The caller commits it.
  __device__ __forceinline__ void load(int step) {
    static_assert(Shape::threads >= kRows / 2);
    const int head = first_head + next_head, row = next_block * kRows;
    const int here = args.sizes.rows - row, pair = static_cast<int>(threadIdx.x) * 2;
    load_tile<kRows, kD, Shape::threads>(queries(step), args.q, args.q.at(batch, head, row), here,
                                         args.sizes.d);
    load_tile<kRows, kD, Shape::threads>(douts(step), args.dout, args.dout.at(batch, head, row),
                                         here, args.sizes.d);
    if (pair < kRows)
      cp_async_16(statistics_of(step) + pair, args.statistics_of(batch, head) + row + pair, true);
    loaded = row;
    if (tiles.turn(next_block)) ++next_head;
  }
  /// Returns the first row of step 0, after load().
  __device__ int first_row() const {
    if constexpr (Tiles::every) return tiles.begin * kRows;
    else return loaded;
  }
  /// Returns the first row of the step after that of `row`, after load().
  __device__ int row_after(int row) const {
    if constexpr (!Tiles::every) return loaded;
    row += kRows;
    return row >= args.sizes.rows ? tiles.begin * kRows : row;
  }
};

/// Replaces scores by P, and dp (v dout^T - delta) by dS = P dp.
template <int kTiles, int kColumns>
__device__ __forceinline__ void probabilities_by_key(float (&scores)[kTiles][kColumns][4],
                                                     float (&dp)[kTiles][kColumns][4],
                                                     const RowStatistics* statistics,
                                                     float scale_log2) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const float4 two = *reinterpret_cast<const float4*>(statistics + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[m][n][e] = fast_exp2(fmaf(scores[m][n][e], scale_log2, e % 2 ? -two.z : -two.x));
        dp[m][n][e] *= scores[m][n][e];
      }
  }
}

/// Initializes dp with -delta of each column's query.
template <int kTiles, int kColumns>
__device__ __forceinline__ void start_at_minus_delta(float (&dp)[kTiles][kColumns][4],
                                                     const RowStatistics* statistics) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const float4 two = *reinterpret_cast<const float4*>(statistics + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[m][n][e] = e % 2 ? -two.w : -two.y;
  }
}

/// A warp's keys and values, and its sums dk and dv.
template <class T, class Shape, Hiding kHiding>
struct KeyGradient {
  static constexpr int kD = Shape::head_dim, kTiles = Shape::tiles, kChunk = Shape::chunk;
  RowFragments<T, kTiles, kD, Shape::keys_in_registers> keys;
  RowFragments<T, kTiles, kD, Shape::values_in_registers> values;
  float dk[kTiles][kD / 8][4] = {}, dv[kTiles][kD / 8][4] = {};  // dk: before the scale

  /// Adds kChunk queries from `query` on. The warp's first key is `key`.
  __device__ __forceinline__ void add(const T* queries, const T* douts,
                                      const RowStatistics* statistics,
                                      const Visibility<T, kHiding>& seen, int key, int query) {
    float scores[kTiles][kChunk / 8][4] = {}, dp[kTiles][kChunk / 8][4];
    start_at_minus_delta(dp, statistics);
    multiply_by_rows<T, kD>(scores, keys, queries);
    multiply_by_rows<T, kD>(dp, values, douts);
    seen.hide_by_key(scores, key, query);
    if (seen.caps()) multiply_by_slopes(dp, scores, seen);
    probabilities_by_key(scores, dp, statistics, seen.sizes.scale_log2);
    seen.template drop<true, kTiles, kChunk / 8>(
        key, query, [&](int m, int n, int e, float factor) {
          const float delta = statistics[n * 8 + threadIdx.x % 4 * 2 + e % 2].delta;
          dp[m][n][e] = fmaf(factor, dp[m][n][e], (factor - 1.f) * delta * scores[m][n][e]);
          scores[m][n][e] *= factor;
        });
    uint32_t left[kTiles][kChunk / 16][4];
    to_left_operand<T>(left, scores);
    multiply_by_columns<T, kD>(dv, left, douts);
    to_left_operand<T>(left, dp);
    multiply_by_columns<T, kD>(dk, left, queries);
  }

  /// Writes both gradients of the keys from `key` on. `staging` is the warp's own rows of a tile.
  __device__ __forceinline__ void store(const BackwardArguments<T>& args, const Work& work, int key,
                                        T* staging) const {
    const AttentionSizes& sizes = args.sizes;
    if (key >= sizes.keys) return;
    store_rows<T, kTiles, kD>(dk, sizes.scale, staging, args.dk,
                              args.dk.at(work.batch, work.head, key), sizes.keys - key, sizes.d);
    store_rows<T, kTiles, kD>(dv, 1.f, staging, args.dv, args.dv.at(work.batch, work.head, key),
                              sizes.keys - key, sizes.d);
  }
};

/// Computes dk and dv of a key block from all queries of the group's heads that see it, in order.
template <class T, class Shape, Hiding kHiding>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    attention_key_gradient_kernel(const __grid_constant__ BackwardArguments<T> args) {
  constexpr int kD = Shape::head_dim, kRows = Shape::rows;
  extern __shared__ __align__(128) unsigned char attention_shared[];
  T* key_tile = reinterpret_cast<T*>(attention_shared);
  T* value_tile = key_tile + Shape::keys * kD;
  T* stages = value_tile + Shape::keys * kD;

  const int blocks = (args.sizes.keys + Shape::keys - 1) / Shape::keys;
  const Work work(blockIdx.x, blocks, args.sizes.key_heads, args.sizes.batches,
                  args.sizes.heads_in_turn);
  const int first_head = work.head * args.sizes.group();
  Visibility<T, kHiding> seen(args.sizes, args.filter, work.batch, first_head);
  const auto& sizes = seen.sizes;
  const int block_key = work.block * Shape::keys, here = sizes.keys - block_key;
  const int warp_key = static_cast<int>(threadIdx.x / 32) * 16 * Shape::tiles;
  const int key = block_key + warp_key;
  const auto tiles = seen.template row_tiles<kRows, Shape::keys>(block_key);
  QueryStream<T, Shape, std::remove_const_t<decltype(tiles)>> stream{
      args,       stages,     reinterpret_cast<RowStatistics*>(stages + 4 * kRows * kD),
      work.batch, first_head, tiles};
  load_tile<Shape::keys, kD, Shape::threads>(
      key_tile, args.k, args.k.at(work.batch, work.head, block_key), here, sizes.d);
  load_tile<Shape::keys, kD, Shape::threads>(
      value_tile, args.v, args.v.at(work.batch, work.head, block_key), here, sizes.d);
  const int steps = stream.steps();
  if (steps > 0) stream.load(0);
  cp_async_commit();

  KeyGradient<T, Shape, kHiding> gradient;
  int query = stream.first_row();
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<0>();
    __syncthreads();
    if (step == 0) {
      gradient.keys.attach(key_tile, warp_key);
      gradient.values.attach(value_tile, warp_key);
    }
    if (step + 1 < steps) {
      stream.load(step + 1);
      cp_async_commit();
    }
    seen.go_to(stream.head_of(step));
#pragma unroll 1
    for (int row = 0; row < kRows; row += Shape::chunk) {
      if constexpr (kHiding == Hiding::causal) {
        if (sizes.causal && key > query + row + Shape::chunk - 1 + sizes.offset()) continue;
      } else {
        if (seen.template hidden<Shape::chunk, 16 * Shape::tiles>(query + row, key)) continue;
      }
      gradient.add(stream.queries(step) + row * kD, stream.douts(step) + row * kD,
                   stream.statistics_of(step) + row, seen, key, query + row);
    }
    query = stream.row_after(query);
  }
  cp_async_wait<0>();
  __syncthreads();
  gradient.store(args, work, key, key_tile + warp_key * kD);
}

/// Launches a shape. A turn has as many key heads as other kernels have query heads.
template <class T, class Shape, Hiding kHiding>
void launch_attention_key_gradient(BackwardArguments<T> args, cudaStream_t stream) {
  const char* op = "attention_backward";
  AttentionSizes& sizes = args.sizes;
  sizes.heads_in_turn = heads_in_even_turns(static_cast<int64_t>(sizes.batches) * sizes.key_heads,
                                            sizes.heads_in_turn);
  const int64_t blocks = (sizes.keys + Shape::keys - 1) / Shape::keys;
  const auto grid = static_cast<unsigned>(blocks * sizes.key_heads * sizes.batches);
  const auto kernel = attention_key_gradient_kernel<T, Shape, kHiding>;
  allow_shared_memory(kernel, Shape::shared_bytes, op);
  if (grid == 0) return;
  kernel<<<grid, Shape::threads, Shape::shared_bytes, stream>>>(args);
  DS_CUDA_LAUNCHED(op);
}

}  // namespace ds::cuda
