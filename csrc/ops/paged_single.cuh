// Paged attention of many single tokens on tensor cores. A thread block takes one item (a sequence
// and a key head) after the other, and its copies run ahead into the next items. So memory is never
// idle while blocks begin or end an item. (Blocks of one item each begin and end together, because
// the sequences of a batch are of similar length.)
//
// Products are transposed: keys are rows, and the queries of a group of heads are the eight columns
// of mma. This halves accumulators and products against tiles of 16 query rows.
#pragma once

#include "paged_tiles.cuh"

namespace ds::cuda {

/// Sizes of a kernel. Four warps share a tile of kKeyTile keys; kStages tiles are in flight.
template <int kHeadDim, int kStages, int kBlocksPerSm>
struct SingleShape {
  static constexpr int head_dim = kHeadDim, stages = kStages, blocks_per_sm = kBlocksPerSm;
  static constexpr int warps = 4, threads = 32 * warps, queries = 8;
  static constexpr int keys_of_warp = kKeyTile / warps;
  static constexpr int stage_elements = 2 * kKeyTile * kHeadDim,
                       query_elements = queries * kHeadDim;
  static constexpr size_t shared_bytes = 2 * stages * (stage_elements + query_elements);
  static constexpr int merge_width = kHeadDim + 4;  // floats; the lanes of a store differ in banks
  static_assert(keys_of_warp == 16, "a warp has one row tile of keys");
  static_assert((merge_width + 2) * 4 * warps * queries <= 2 * stage_elements);
};

/// A tile of keys of an item, as its consumers need it.
struct SingleTile {
  int token;  // row of q and out; -1: no tile left
  int head;   // key head, times 4; bit 0: first tile of its item, bit 1: last tile
  int key;    // first key
  int length;

  __device__ int key_head() const { return head >> 2; }
  __device__ bool is_first() const { return head & 1; }
  __device__ bool is_last() const { return head & 2; }
};

/// Walks over the tiles of a block's items. Lists are read one step ahead, so that copies do not
/// wait for them.
template <class T, class P>
class SingleTiles {
 public:
  __device__ SingleTiles(const PagedArguments<T, P>& a, int items)
      : a_(a), items_(items), item_(blockIdx.x) {
    next_ = read(item_);
    item_ -= static_cast<int>(gridDim.x);
    take_item();
  }
  __device__ bool done() const { return item_ >= items_; }
  /// Returns true if all keys of the tile are older than the newest token.
  __device__ bool is_old() const { return tile_ * kKeyTile + kKeyTile < own_.length; }
  __device__ SingleTile tile() const {
    if (done()) return {-1, 0, 0, 0};
    const int marks = (tile_ == first_ ? 1 : 0) + (tile_ + 1 == end_ ? 2 : 0);
    return {own_.token, head() * 4 + marks, tile_ * kKeyTile, own_.length};
  }
  /// Returns the first key of the tile, or null if its block is missing.
  __device__ const P* keys() const {
    if (block_ < 0 || block_ >= a_.rows.blocks) return nullptr;
    const int64_t row = (int64_t{block_} * 2 * a_.rows.key_heads + head()) * a_.rows.block +
                        tile_ * kKeyTile % a_.rows.block;
    return a_.rows.pool + row * a_.rows.d;
  }
  __device__ void advance() {
    if (++tile_ < end_) read_block();
    else take_item();
  }

 private:
  struct Item {
    int token, count, length;
  };
  __device__ int head() const { return item_ % a_.rows.key_heads; }
  __device__ int sequence() const { return item_ / a_.rows.key_heads; }
  __device__ Item read(int item) const {
    if (item >= items_) return {0, 1, 0};
    const int s = item / a_.rows.key_heads;
    const int begin = a_.starts[s] - a_.starts[0];
    return {begin, a_.starts[s + 1] - a_.starts[0] - begin, a_.lengths[s]};
  }
  __device__ void take_item() {
    do {
      item_ += static_cast<int>(gridDim.x);
      own_ = next_;
      next_ = read(item_ + static_cast<int>(gridDim.x));
    } while (!done() && (own_.count != 1 || own_.token < 0 || own_.token >= a_.tokens));
    own_.length = min(own_.length, a_.rows.most * a_.rows.block);
    const int begin = a_.window > 0 ? max(0, own_.length - a_.window) : 0;
    tile_ = first_ = begin / kKeyTile;
    end_ = max(first_ + 1, (own_.length + kKeyTile - 1) / kKeyTile);
    read_block();
  }
  __device__ void read_block() {
    block_ = -1;
    const int key = tile_ * kKeyTile;
    if (done() || key >= own_.length) return;
    const int place = a_.rows.shift >= 0 ? key >> a_.rows.shift : key / a_.rows.block;
    block_ = a_.rows.tables[sequence() * a_.rows.table_stride + place];
  }
  const PagedArguments<T, P>& a_;
  const int items_;
  int item_, tile_, first_, end_, block_;
  Item own_, next_;
};

/// Starts the copy of a tile of keys and values. Rows beyond the length are 0. Rows without a block
/// get NaN keys and zero values.
template <class Shape, class T, class P>
__device__ __forceinline__ void load_single_keys(const PagedArguments<T, P>& a,
                                                 const SingleTile& tile, const P* from, T* keys) {
  constexpr int kD = Shape::head_dim, chunks = kD / 8, rows_at_once = Shape::threads / chunks;
  const int chunk = threadIdx.x % chunks, first = threadIdx.x / chunks;
  const int64_t to_value = a.rows.value_offset();
  const int rows = tile.length - tile.key;
  const P* own = (from ? from + first * kD : a.rows.pool) + chunk * 8;
#pragma unroll
  for (int i = 0; i < kKeyTile / rows_at_once; ++i) {
    const int row = first + i * rows_at_once;
    T* const key = keys + swizzled<kD>(row, chunk);
    const bool valid = from && row < rows;
    const P* const source = valid ? own + i * rows_at_once * kD : a.rows.pool;
    cp_async_8_of<P>(key, source, valid);
    cp_async_8_of<P>(key + kKeyTile * kD, valid ? source + to_value : a.rows.pool, valid);
  }
  if (from || rows <= 0) return;
  cp_async_wait<0>();  // of the zeros above
  for (int row = first; row < min(rows, kKeyTile); row += rows_at_once) {
    P* const key = reinterpret_cast<P*>(keys + swizzled<kD>(row, chunk));
    for (int i = 0; i < 8; ++i) key[i] = to_pool<T, P>(from_float<T>(NAN));
  }
}

/// Starts the copy of an item's queries. Rows beyond the group are 0.
template <class Shape, class T, class P>
__device__ __forceinline__ void load_single_queries(const PagedArguments<T, P>& a,
                                                    const SingleTile& tile, T* to) {
  constexpr int kD = Shape::head_dim, chunks = kD / 8;
  for (int i = threadIdx.x; i < Shape::queries * chunks; i += Shape::threads) {
    const int row = i / chunks, chunk = i % chunks;
    const T* const from =
        a.q + tile.token * a.q_token + (tile.key_head() * a.group + row) * a.q_head + chunk * 8;
    cp_async_16(to + swizzled<kD>(row, chunk), row < a.group ? from : a.q, row < a.group);
  }
}

/// Returns the transpose of an 8x8 matrix of 16-bit elements, spread over the warp.
__device__ __forceinline__ uint32_t transposed_matrix(uint32_t own) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(own));
  return r;
}

/// Reduces x over the lanes with the same queries: those with equal lane % 4.
template <class Combine>
__device__ __forceinline__ float over_keys(float x, Combine combine) {
#pragma unroll
  for (int other = 4; other < 32; other *= 2)
    x = combine(x, __shfl_xor_sync(0xffffffffu, x, other));
  return x;
}

/// The running softmax of a warp's keys. A lane has the queries 2 (lane % 4) and the next, and of
/// each 16 channels the channels lane / 4 and lane / 4 + 8.
template <class T, int kD>
struct SingleSoftmax {
  uint32_t query[kD / 16][2];
  float out[kD / 16][4], max[2], sum[2];

  __device__ __forceinline__ void begin(const T* queries) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kD / 32; ++k) {
      uint32_t r[4];
      ldmatrix_x4(r, queries + swizzled<kD>(lane % 8, k * 4 + lane / 8));
      query[2 * k][0] = r[0], query[2 * k][1] = r[1];
      query[2 * k + 1][0] = r[2], query[2 * k + 1][1] = r[3];
    }
#pragma unroll
    for (int m = 0; m < kD / 16; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) out[m][e] = 0.f;
    max[0] = max[1] = -INFINITY, sum[0] = sum[1] = 0.f;
  }

  /// Adds 16 keys. `keys` and `values` are the warp's rows; `first` is the first of them. Keys
  /// before `begin` and from `end` on are hidden.
  __device__ __forceinline__ void add(const T* keys, const T* values, int first, int begin, int end,
                                      float scale_log2, const ScoreCap& cap) {
    const int lane = threadIdx.x % 32;
    float scores[1][4] = {};
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      uint32_t left[4];
      ldmatrix_x4(left, keys + swizzled<kD>(lane % 16, k * 2 + lane / 16));
      mma_16x8x16<T>(scores[0], left, query[k][0], query[k][1]);
    }
    if (cap.is_set()) cap.apply(scores);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = first + e / 2 * 8 + lane / 4;
      if (key < begin || key >= end) scores[0][e] = -INFINITY;
    }
    raise_max(scores[0], scale_log2);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const float base = max[q] == -INFINITY ? 0.f : max[q] * scale_log2;
#pragma unroll
      for (int e = q; e < 4; e += 2) {
        scores[0][e] = fast_exp2(fmaf(scores[0][e], scale_log2, -base));
        sum[q] += scores[0][e];
      }
    }
    const uint32_t low = transposed_matrix(pack_pair<T>(scores[0][0], scores[0][1]));
    const uint32_t high = transposed_matrix(pack_pair<T>(scores[0][2], scores[0][3]));
#pragma unroll
    for (int m = 0; m < kD / 16; ++m) {
      uint32_t left[4];
      ldmatrix_x4_transposed(left,
                             values + swizzled<kD>(lane / 16 * 8 + lane % 8, m * 2 + lane / 8 % 2));
      mma_16x8x16<T>(out[m], left, low, high);
    }
  }

  /// Writes the sums [queries, width] and marks of this warp for the first `rows` queries.
  __device__ __forceinline__ void write(float* sums, int width, float2* marks, int rows,
                                        float scale_log2) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const float total = over_keys(sum[q], Add{});
      const int row = lane % 4 * 2 + q;
      if (row >= rows) continue;
      if (lane / 4 == 0) marks[row] = make_float2(max[q] * scale_log2, total);
#pragma unroll
      for (int m = 0; m < kD / 16; ++m) {
        sums[row * width + m * 16 + lane / 4] = out[m][q];
        sums[row * width + m * 16 + 8 + lane / 4] = out[m][2 + q];
      }
    }
  }

 private:
  struct Add {
    __device__ float operator()(float a, float b) const { return a + b; }
  };
  struct Larger {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  };
  /// Raises the maxima if scores exceed them by kMaxLag, and rescales the sums.
  __device__ __forceinline__ void raise_max(const float (&scores)[4], float scale_log2) {
    float top[2];
    bool lags = false;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      top[q] = over_keys(fmaxf(scores[q], scores[2 + q]), Larger{});
      top[q] = fmaxf(top[q], max[q]);
      lags |= (top[q] - max[q]) * scale_log2 > kMaxLag;
    }
    if (!__any_sync(0xffffffffu, lags)) return;
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const float lag = (max[q] - top[q]) * scale_log2;
      const float factor = top[q] == -INFINITY ? 1.f : fast_exp2(lag);
      max[q] = top[q];
      sum[q] *= factor;
#pragma unroll
      for (int m = 0; m < kD / 16; ++m) out[m][q] *= factor, out[m][2 + q] *= factor;
    }
  }
};

/// Reduces the warps' parts of an item and writes its rows.
template <class Shape, class T, class P>
__device__ __forceinline__ void write_single(const PagedArguments<T, P>& a, const SingleTile& tile,
                                             const float* sums, const float2* marks) {
  constexpr int kWidth = Shape::merge_width, kQueries = Shape::queries,
                kPairs = Shape::head_dim / 2;
  for (int i = threadIdx.x; i < a.group * kPairs; i += Shape::threads) {
    const int row = i / kPairs, c = i % kPairs * 2, head = tile.key_head() * a.group + row;
    float top = -INFINITY, total = 0.f, low = 0.f, high = 0.f;
#pragma unroll
    for (int w = 0; w < Shape::warps; ++w) top = fmaxf(top, marks[w * kQueries + row].x);
    const float base = top == -INFINITY ? 0.f : top;
#pragma unroll
    for (int w = 0; w < Shape::warps; ++w) {
      const float2 mark = marks[w * kQueries + row];
      const float2 pair =
          *reinterpret_cast<const float2*>(sums + (w * kQueries + row) * kWidth + c);
      const float factor = exp2f(mark.x - base);
      total = fmaf(mark.y, factor, total);
      low = fmaf(pair.x, factor, low), high = fmaf(pair.y, factor, high);
    }
    const float all = total + sink_weight(a, head, base);
    T* const out = a.out + tile.token * a.out_token + head * a.out_head + c;
    *reinterpret_cast<uint32_t*>(out) = total == 0.f ? 0u : pack_pair<T>(low / all, high / all);
  }
}

/// Attends to the keys of single tokens, one item after the other. The queries of an item arrive
/// with its first tile.
template <class T, class P, class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks_per_sm)
    paged_single_kernel(const __grid_constant__ PagedArguments<T, P> a) {
  constexpr int kD = Shape::head_dim, kStages = Shape::stages;
  extern __shared__ __align__(128) unsigned char paged_shared[];
  __shared__ SingleTile tiles[kStages];
  T* const stages = reinterpret_cast<T*>(paged_shared);
  T* const queries = stages + kStages * Shape::stage_elements;
  const int warp = threadIdx.x / 32, warp_key = warp * Shape::keys_of_warp;
  if (!a.settled) await_previous();
  SingleTiles<T, P> next(a, a.sequences * a.rows.key_heads);

  // Returns the tile whose keys it starts to copy.
  const auto fetch_keys = [&](int stage) {
    const SingleTile tile = next.tile();
    if (threadIdx.x == 0) tiles[stage] = tile;
    if (tile.token < 0) return tile;
    load_single_keys<Shape>(a, tile, next.keys(), stages + stage * Shape::stage_elements);
    next.advance();
    return tile;
  };
  const auto fetch_queries = [&](int stage, const SingleTile& tile) {
    if (tile.token >= 0 && tile.is_first())
      load_single_queries<Shape>(a, tile, queries + stage * Shape::query_elements);
  };
  SingleTile early[kStages];
  int begun = 0;
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
    early[s] = {-1, 0, 0, 0};
    if (a.settled && begun == s && !next.done() && next.is_old()) early[s] = fetch_keys(s), ++begun;
  }
  if (a.settled) await_previous();
  let_next_begin();
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
    if (s >= begun) early[s] = fetch_keys(s);
    fetch_queries(s, early[s]);
    cp_async_commit();
  }

  SingleSoftmax<T, kD> state;
  for (int stage = 0;; stage = stage + 1 == kStages ? 0 : stage + 1) {
    T* const keys = stages + stage * Shape::stage_elements;
    cp_async_wait<kStages - 1>();
    if constexpr (kIsCoded<T, P>) decode_keys<Shape>(keys);
    __syncthreads();
    const SingleTile tile = tiles[stage];
    if (tile.token < 0) return;
    if (tile.is_first()) state.begin(queries + stage * Shape::query_elements);
    const int begin = a.window > 0 ? tile.length - a.window : 0;
    const T* const own = keys + warp_key * kD;
    if (tile.key + warp_key < tile.length)
      state.add(own, own + kKeyTile * kD, tile.key + warp_key, begin, tile.length, a.scale_log2,
                a.cap);
    __syncthreads();
    if (tile.is_last()) {
      constexpr int kRows = Shape::queries, kWidth = Shape::merge_width;
      auto* const sums = reinterpret_cast<float*>(keys);
      auto* const marks = reinterpret_cast<float2*>(sums + Shape::warps * kRows * kWidth);
      state.write(sums + warp * kRows * kWidth, kWidth, marks + warp * kRows, a.group,
                  a.scale_log2);
      __syncthreads();
      write_single<Shape>(a, tile, sums, marks);
      __syncthreads();
    }
    fetch_queries(stage, fetch_keys(stage));
    cp_async_commit();
  }
}

}  // namespace ds::cuda
