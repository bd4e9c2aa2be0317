// FlashAttention-2 forward on mma.sync: one thread block per (head, query block), streaming keys.
//
// Each warp owns kTiles x 16 query rows from the first score to the stored output. So the softmax
// needs no exchange between warps, and probabilities stay in registers. Keys and values have two
// stages: while warps multiply one, cp.async fills the other. One __syncthreads per key block frees
// and publishes a stage. With two row tiles per warp, a key fragment read from shared memory serves
// two mma. With one, shared memory would limit the kernel. Source: Dao 2023 (FlashAttention-2),
// algorithm 1.
#pragma once

#include "attention_masks.cuh"
#include "online_softmax.cuh"

namespace ds::cuda {

template <class T>
struct ForwardArguments {
  HeadsView<T> q, k, v, out;
  float* lse;
  AttentionSizes sizes;
  ScoreFilter filter;
};

/// Tile sizes of a kernel: queries per thread block, keys per stage, warps, and thread blocks per
/// SM. With kQueryInRegisters, query fragments stay in registers. Otherwise each use reads shared
/// memory.
template <int kHeadDim, int kQueryRows, int kKeyRows, int kWarpCount, int kBlocksPerSm,
          bool kQueryInRegisters>
struct ForwardShape {
  static constexpr int head_dim = kHeadDim, rows = kQueryRows, keys = kKeyRows;
  static constexpr int warps = kWarpCount, threads = 32 * kWarpCount;
  static constexpr int blocks_per_sm = kBlocksPerSm;
  static constexpr int tiles = kQueryRows / (16 * kWarpCount);
  static constexpr bool query_in_registers = kQueryInRegisters;
  static constexpr size_t shared_bytes = 2 * kHeadDim * (kQueryRows + 4 * kKeyRows);
  static_assert(tiles * 16 * kWarpCount == kQueryRows && kKeyRows % 16 == 0);
};

/// Writes out and lse of a warp's rows. A row that sees no key gets 0 and -infinity.
template <class T, class Shape, class State>
__device__ __forceinline__ void finish_rows(State& state, const ForwardArguments<T>& args,
                                            const Work& work, int row, T* staging) {
  const int lane = threadIdx.x % 32;
  float* lse = args.lse +
               (static_cast<int64_t>(work.batch) * args.sizes.heads + work.head) * args.sizes.rows;
#pragma unroll
  for (int m = 0; m < Shape::tiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[m][half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float factor = sum == 0.f ? 0.f : 1.f / sum;
#pragma unroll
      for (int n = 0; n < Shape::head_dim / 8; ++n) {
        state.out[m][n][half * 2] *= factor;
        state.out[m][n][half * 2 + 1] *= factor;
      }
      const int r = row + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && r < args.sizes.rows)
        lse[r] = sum == 0.f ? -INFINITY : state.max[m][half] * args.sizes.scale + logf(sum);
    }
  if (row < args.sizes.rows)
    store_rows<T, Shape::tiles, Shape::head_dim>(state.out, 1.f, staging, args.out,
                                                 args.out.at(work.batch, work.head, row),
                                                 args.sizes.rows - row, args.sizes.d);
}

/// Computes out and lse of a query block from all keys that it sees, in order.
template <class T, class Shape, Hiding kHiding>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    attention_forward_kernel(const __grid_constant__ ForwardArguments<T> args) {
  constexpr int kD = Shape::head_dim, kTiles = Shape::tiles, kKeys = Shape::keys;
  extern __shared__ __align__(128) unsigned char attention_shared[];
  T* query_tile = reinterpret_cast<T*>(attention_shared);

  const int query_blocks = (args.sizes.rows + Shape::rows - 1) / Shape::rows;
  const Work work(blockIdx.x, query_blocks, args.sizes.heads, args.sizes.batches,
                  args.sizes.heads_in_turn);
  const Visibility<T, kHiding> seen(args.sizes, args.filter, work.batch, work.head);
  const auto& sizes = seen.sizes;
  const int block_row = (query_blocks - 1 - work.block) * Shape::rows;
  const int warp_row = static_cast<int>(threadIdx.x / 32) * 16 * kTiles;
  const int row = block_row + warp_row;
  auto tiles = seen.template key_tiles<Shape::rows, kKeys>(block_row);

  const KeyStream<T, kKeys, kD, Shape::threads> stream{
      query_tile + Shape::rows * kD, args.k, args.v, sizes, work.batch, work.head / sizes.group()};
  load_tile<Shape::rows, kD, Shape::threads>(query_tile, args.q,
                                             args.q.at(work.batch, work.head, block_row),
                                             sizes.rows - block_row, sizes.d);
  if (tiles.start() < tiles.end) stream.load(tiles.at(0), 0);
  cp_async_commit();

  RowFragments<T, kTiles, kD, Shape::query_in_registers> query;
  OnlineSoftmax<kTiles, kD, kHiding != Hiding::causal> state;
  for (int step = 0; tiles.at(step) < tiles.end; ++step, tiles.go_on()) {
    cp_async_wait<0>();
    __syncthreads();
    tiles.look_ahead();
    if (tiles.after(step) < tiles.end) {
      stream.load(tiles.after(step), step + 1);
      cp_async_commit();
    }
    if (step == 0) query.attach(query_tile, warp_row);
    const int first_key = tiles.at(step) * kKeys;
    if (seen.template hidden<16 * kTiles, kKeys>(row, first_key)) continue;

    float scores[kTiles][kKeys / 8][4] = {};
    multiply_by_rows<T, kD>(scores, query, stream.keys(step));
    seen.hide_by_query(scores, row, first_key);
    state.update_max(scores, sizes.scale_log2);
    state.exponentiate(scores, sizes.scale_log2);
    seen.template drop<false, kTiles, kKeys / 8>(
        row, first_key, [&](int m, int n, int e, float factor) { scores[m][n][e] *= factor; });
    uint32_t probabilities[kTiles][kKeys / 16][4];
    to_left_operand<T>(probabilities, scores);
    multiply_by_columns<T, kD>(state.out, probabilities, stream.values(step));
  }
  cp_async_wait<0>();
  __syncthreads();
  finish_rows<T, Shape>(state, args, work, row, query_tile + warp_row * kD);
}

/// Launches a shape. T is __nv_bfloat16 or __half; d <= Shape::head_dim.
template <class T, class Shape, Hiding kHiding>
void launch_attention_forward(const ForwardArguments<T>& args, cudaStream_t stream) {
  const char* op = "attention";
  const AttentionSizes& sizes = args.sizes;
  const int64_t blocks = (sizes.rows + Shape::rows - 1) / Shape::rows;
  const auto grid = static_cast<unsigned>(blocks * sizes.heads * sizes.batches);
  const auto kernel = attention_forward_kernel<T, Shape, kHiding>;
  allow_shared_memory(kernel, Shape::shared_bytes, op);
  kernel<<<grid, Shape::threads, Shape::shared_bytes, stream>>>(args);
  DS_CUDA_LAUNCHED(op);
}

}  // namespace ds::cuda
