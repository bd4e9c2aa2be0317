// Paged attention on tensor cores. A thread block has a tile of query rows of a group of heads and
// streams tiles of 64 keys from the blocks of its sequence.
//
// For prompts, a tile has 64 or 128 rows. A warp owns 16 or 32 rows and sees all keys, as in
// attention_forward.cuh. For single tokens, a tile has the rows of a group of heads. Each warp
// takes all rows and a quarter of the keys of a tile. The partial results are reduced at the end.
#pragma once

#include "attention_tile.cuh"
#include "online_softmax.cuh"
#include "paged_rows.cuh"

namespace ds::cuda {

constexpr int kKeyTile = 64;

/// Tile sizes of a kernel. Warps split either the rows, with kTiles row tiles of 16 each, or the
/// keys of all rows. There are kBlocksPerSm thread blocks per SM. With kInvariant, the bits of a
/// row do not depend on the other rows of its tile.
template <int kHeadDim, int kRowWarps, int kTiles, int kKeyWarps, int kBlocksPerSm,
          bool kInvariant = false>
struct PagedShape {
  static constexpr bool invariant = kInvariant;
  static constexpr int head_dim = kHeadDim, tiles = kTiles, key_warps = kKeyWarps;
  static constexpr int rows = 16 * kTiles * kRowWarps,
                       keys = kKeyTile / kKeyWarps;  // keys: of a warp
  static constexpr int threads = 32 * kRowWarps * kKeyWarps, blocks_per_sm = kBlocksPerSm;
  static constexpr bool query_in_registers = kTiles * kHeadDim <= 128;
  static constexpr size_t shared_bytes = 2 * kHeadDim * (rows + 4 * kKeyTile);
  static constexpr int merge_width =
      kHeadDim + 4;  // floats; rows of a quarter warp are in different banks
  static_assert(kRowWarps == 1 || kKeyWarps == 1);
  static_assert((kKeyWarps * (merge_width + 2) + 2) * rows * 4 <= 2 * kHeadDim * 4 * kKeyTile ||
                kKeyWarps == 1);
};

/// Copies eight elements asynchronously, as cp_async_16 does.
template <class P>
__device__ __forceinline__ void cp_async_8_of(void* shared, const P* global, bool valid) {
  if constexpr (sizeof(P) == 2) cp_async_16(shared, global, valid);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(global), "r"(valid ? 8 : 0)
                 : "memory");
}

/// Starts the copy of a tile of keys and values. Rows without a block get NaN keys and zero values;
/// rows beyond `end` are 0. Codes are copied to the first half of the space of their values.
template <class Shape, class T, class P>
__device__ __forceinline__ void load_keys(const PagedArguments<T, P>& a, const QueryTile& tile,
                                          int first_key, int end, T* keys) {
  constexpr int kD = Shape::head_dim, chunks = kD / 8, rows_at_once = Shape::threads / chunks;
  const int chunk = threadIdx.x % chunks, columns = a.d - chunk * 8;
  const int64_t to_value = a.rows.value_offset();
  const bool whole = a.rows.block % kKeyTile == 0;
  const P* const block = whole ? a.rows.key(tile.sequence, tile.head, first_key) : nullptr;
#pragma unroll 4
  for (int row = threadIdx.x / chunks; row < kKeyTile; row += rows_at_once) {
    const int token = first_key + row;
    const P* from = nullptr;
    if (token < end)
      from = !whole  ? a.rows.key(tile.sequence, tile.head, token)
             : block ? block + row * a.rows.d
                     : nullptr;
    T* const key = keys + swizzled<kD>(row, chunk);
    T* const value = key + kKeyTile * kD;
    const bool missing = token < end && from == nullptr, valid = from && columns > 0;
    if (a.vectors && !missing) {
      cp_async_8_of<P>(key, valid ? from + chunk * 8 : a.rows.pool, valid);
      cp_async_8_of<P>(value, valid ? from + to_value + chunk * 8 : a.rows.pool, valid);
      continue;
    }
    P *const keys_here = reinterpret_cast<P*>(key), *const values_here =
                                                        reinterpret_cast<P*>(value);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool inside = valid && i < columns;
      keys_here[i] =
          inside ? from[chunk * 8 + i] : to_pool<T, P>(from_float<T>(missing ? NAN : 0.f));
      values_here[i] = inside ? from[to_value + chunk * 8 + i] : to_pool<T, P>(from_float<T>(0.f));
    }
  }
}

/// Replaces the codes of a tile by their values. Each thread converts the codes that it has copied.
template <class Shape, class T>
__device__ __forceinline__ void decode_keys(T* keys) {
  constexpr int kD = Shape::head_dim, chunks = kD / 8, rows_at_once = Shape::threads / chunks;
  const int chunk = threadIdx.x % chunks;
#pragma unroll 4
  for (int row = threadIdx.x / chunks; row < kKeyTile; row += rows_at_once) {
    T* const key = keys + swizzled<kD>(row, chunk);
    T* const value = key + kKeyTile * kD;
    store_vector(key, values_of<T>(*reinterpret_cast<const uint2*>(key)));
    store_vector(value, values_of<T>(*reinterpret_cast<const uint2*>(value)));
  }
}

/// Starts the copy of query rows. Missing rows are 0.
template <class Shape, class T, class P>
__device__ __forceinline__ void load_queries(const PagedArguments<T, P>& a, const QueryTile& tile,
                                             T* to) {
  constexpr int kD = Shape::head_dim, chunks = kD / 8, rows_at_once = Shape::threads / chunks;
  const int chunk = threadIdx.x % chunks, columns = a.d - chunk * 8;
#pragma unroll 2
  for (int row = threadIdx.x / chunks; row < Shape::rows; row += rows_at_once) {
    const bool valid = tile.first_row + row < tile.rows && columns > 0;
    const T* from = a.q + tile.token(row) * a.q_token + tile.query_head(row) * a.q_head + chunk * 8;
    T* const query = to + swizzled<kD>(row, chunk);
    if (a.row_vectors) {
      cp_async_16(query, valid ? from : a.q, valid);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) query[i] = valid && i < columns ? from[i] : from_float<T>(0.f);
    }
  }
}

/// The range of keys that each row of a warp sees. Both ends grow with the row.
template <int kTiles>
struct SeenKeys {
  int begin[kTiles][2], end[kTiles][2];  // for this thread's rows
  int least_begin, most_begin, least_end, most_end;

  template <class T, class P>
  __device__ SeenKeys(const PagedArguments<T, P>& a, const QueryTile& tile, int warp_row) {
    const int last = warp_row + 16 * kTiles - 1;
    least_begin = tile.begin(warp_row, a.window), most_begin = tile.begin(last, a.window);
    least_end = tile.end(warp_row), most_end = tile.end(last);
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + m * 16 + half * 8 + threadIdx.x % 32 / 4;
        begin[m][half] = tile.begin(row, a.window);
        end[m][half] = tile.end(row);
      }
  }
  __device__ bool none(int first, int keys) const {
    return first >= most_end || first + keys <= least_begin;
  }
  template <int kColumns>
  __device__ __forceinline__ void hide(float (&scores)[kTiles][kColumns][4], int first) const {
    if (first >= most_begin && first + 8 * kColumns <= least_end) return;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = first + n * 8 + threadIdx.x % 4 * 2 + e % 2;
          if (key < begin[m][e / 2] || key >= end[m][e / 2]) scores[m][n][e] = -INFINITY;
        }
  }
};

/// Writes a warp's rows, or this split's part of them. `staging` is shared memory for 16 kTiles
/// rows of kD, which only this warp uses.
template <int kD, int kTiles, class T, class P, class State>
__device__ __forceinline__ void write_warp_rows(const PagedArguments<T, P>& a,
                                                const QueryTile& tile, int warp_row, State& state,
                                                T* staging) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m * 16 + half * 8 + lane / 4, r = warp_row + row;
      const float sum = state.sum[m][half], top = state.max[m][half] * a.scale_log2;
      const float all = sum == 0.f ? 0.f : sum + sink_weight(a, tile.query_head(r), top);
      const float factor = sum == 0.f ? 0.f : 1.f / all;
      if (a.splits == 1) {
        if (a.lse && lane % 4 == 0 && tile.first_row + r < tile.rows)
          a.lse[int64_t{tile.token(r)} * a.heads + tile.query_head(r)] = log_sum_exp_of(top, sum);
#pragma unroll
        for (int n = 0; n < kD / 8; ++n)
          *reinterpret_cast<uint32_t*>(staging + swizzled<kD>(row, n) + lane % 4 * 2) =
              pack_pair<T>(state.out[m][n][half * 2] * factor,
                           state.out[m][n][half * 2 + 1] * factor);
        continue;
      }
      if (tile.first_row + r >= tile.rows) continue;
      const int64_t at =
          tile.split * a.total + int64_t{tile.token(r)} * a.heads + tile.query_head(r);
      if (lane % 4 == 0) a.marks[at] = make_float2(top, sum);
      if (sum == 0.f) continue;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int c = n * 8 + lane % 4 * 2 + e;
          if (c < a.d) a.sums[at * a.d + c] = state.out[m][n][half * 2 + e];
        }
    }
  if (a.splits > 1) return;
  __syncwarp();
  constexpr int chunks = kD / 8;
  for (int i = lane; i < kTiles * 16 * chunks; i += 32) {
    const int row = i / chunks, chunk = i % chunks, r = warp_row + row;
    if (tile.first_row + r >= tile.rows || chunk * 8 >= a.d) continue;
    const T* from = staging + swizzled<kD>(row, chunk);
    T* to = a.out + tile.token(r) * a.out_token + tile.query_head(r) * a.out_head + chunk * 8;
    if (a.row_vectors) {
      *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(from);
    } else {
      for (int j = 0; j < min(8, a.d - chunk * 8); ++j) to[j] = from[j];
    }
  }
}

/// Like write_warp_rows(), for warps that have processed different keys of the same 16 rows.
template <class Shape, class T, class P, class State>
__device__ __forceinline__ void write_shared_rows(const PagedArguments<T, P>& a,
                                                  const QueryTile& tile, int warp, State& state,
                                                  float* sums) {
  constexpr int kRows = Shape::rows, kWidth = Shape::merge_width;
  const int lane = threadIdx.x % 32;
  auto* const marks = reinterpret_cast<float2*>(sums + Shape::key_warps * kRows * kWidth);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * kRows + half * 8 + lane / 4;
    if (lane % 4 == 0)
      marks[row] = make_float2(state.max[0][half] * a.scale_log2, state.sum[0][half]);
#pragma unroll
    for (int n = 0; n < Shape::head_dim / 8; ++n)
      *reinterpret_cast<float2*>(sums + row * kWidth + n * 8 + lane % 4 * 2) =
          make_float2(state.out[0][n][half * 2], state.out[0][n][half * 2 + 1]);
  }
  __syncthreads();
  write_merged<Shape::key_warps, kRows, Shape::threads, true>(a, tile, sums, kWidth, marks);
}

/// Attends to the keys of a split for a tile of queries on mma.sync. Keys and values have two
/// stages in shared memory: while warps multiply one, cp.async fills the other.
template <class T, class P, class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    paged_tile_kernel(const __grid_constant__ PagedArguments<T, P> a) {
  constexpr int kD = Shape::head_dim, kTiles = Shape::tiles, kKeys = Shape::keys;
  extern __shared__ __align__(128) unsigned char paged_shared[];
  T* const query_tile = reinterpret_cast<T*>(paged_shared);
  T* const stages = query_tile + Shape::rows * kD;
  const auto keys = [&](int step) { return stages + step % 2 * 2 * kKeyTile * kD; };
  if (!a.settled) await_previous();

  const QueryTile tile(a, Shape::rows);
  if (tile.first_row >= tile.rows) return await_previous();
  // Only the last instructions read sinks, which no earlier kernel has brought into the cache.
  if (a.sinks && threadIdx.x == 0)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(a.sinks + tile.head * a.group));
  const int end = tile.end(Shape::rows - 1), first_tile = tile.begin(0, a.window) / kKeyTile;
  const int key_tiles = max(0, (end + kKeyTile - 1) / kKeyTile - first_tile);
  const int each = (key_tiles + a.splits - 1) / a.splits;
  const int from = min(key_tiles, tile.split * each), steps = min(key_tiles, from + each) - from;
  const int first_key = (first_tile + from) * kKeyTile;
  const int warp = threadIdx.x / 32, warp_row = Shape::key_warps > 1 ? 0 : warp * 16 * kTiles;
  const int warp_key = Shape::key_warps > 1 ? warp * kKeys : 0;

  // Tiles in flight. If `settled`, the first pass loads tiles of older keys before
  // await_previous(). The second pass loads the queries and the other tiles.
  constexpr int kAhead = Shape::key_warps > 1 ? 2 : 1;
#pragma unroll 1
  for (int i = 0; i < 2 * kAhead; ++i) {
    const bool late = i >= kAhead;
    const int step = i % kAhead, key = first_key + step * kKeyTile;
    if (i == kAhead) {
      if (a.settled) await_previous();
      let_next_begin();  // if called earlier, a layer of Llama 8B with codes takes 1 us more
      load_queries<Shape>(a, tile, query_tile);
    }
    const bool early = kAhead > 1 && a.settled && key + kKeyTile <= tile.length - tile.count;
    if (step < steps && early != late) load_keys<Shape>(a, tile, key, end, keys(step));
    if (late) cp_async_commit();
  }
  const SeenKeys<kTiles> seen(a, tile, warp_row);
  RowFragments<T, kTiles, kD, Shape::query_in_registers> query;
  OnlineSoftmax<kTiles, kD, true> state;
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<kAhead - 1>();
    if constexpr (kIsCoded<T, P>) decode_keys<Shape>(keys(step));
    __syncthreads();
    const int key = first_key + step * kKeyTile;
    if constexpr (kAhead == 1)
      if (step + 1 < steps) {
        load_keys<Shape>(a, tile, key + kKeyTile, end, keys(step + 1));
        cp_async_commit();
      }
    if (step == 0) query.attach(query_tile, warp_row);
    if (!seen.none(key + warp_key, kKeys)) {
      float scores[kTiles][kKeys / 8][4] = {};
      multiply_by_rows<T, kD>(scores, query, keys(step) + warp_key * kD);
      if (a.cap.is_set()) a.cap.apply(scores);
      seen.hide(scores, key + warp_key);
      state.template update_max<Shape::invariant>(scores, a.scale_log2);
      state.exponentiate(scores, a.scale_log2);
      uint32_t weights[kTiles][kKeys / 16][4];
      to_left_operand<T>(weights, scores);
      multiply_by_columns<T, kD>(state.out, weights, keys(step) + (kKeyTile + warp_key) * kD);
    }
    if constexpr (kAhead > 1) {
      __syncthreads();
      if (step + 2 < steps) load_keys<Shape>(a, tile, key + 2 * kKeyTile, end, keys(step));
      cp_async_commit();
    }
  }
  cp_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& sum = state.sum[m][half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    }
  if constexpr (Shape::key_warps > 1)
    write_shared_rows<Shape>(a, tile, warp, state, reinterpret_cast<float*>(stages));
  else write_warp_rows<kD, kTiles>(a, tile, warp_row, state, query_tile + warp_row * kD);
}

}  // namespace ds::cuda
