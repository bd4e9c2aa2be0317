// Attention without tensor cores, for any floating dtype, D up to 256 and any scale. Used for f32.
#pragma once

#include "attention_backward.cuh"
#include "attention_forward.cuh"

namespace ds::cuda {

/// Processes kTile queries by kTile keys at a time, eight threads per row, in f32 in shared memory.
/// Rows are one element longer than D to avoid bank conflicts.
template <int kTile>
struct PlainTiles {
  static constexpr int threads = kTile * 8, stride = kTile + 1;
  static constexpr size_t shared_bytes(int operands, int squares, int d) {
    return sizeof(float) * kTile * (static_cast<size_t>(operands) * (d + 1) + squares * stride);
  }

  /// Loads row i of `source` to tile[i] as f32, with zeros from `rows` on. Ends with a barrier.
  template <class T>
  static __device__ void load(float* tile, const HeadsView<T>& view, const T* source, int rows,
                              int d) {
    const int row = threadIdx.x / 8;
    for (int i = threadIdx.x % 8; i < d; i += 8)
      tile[row * (d + 1) + i] = row < rows ? to_float(source[row * view.row_stride + i]) : 0.f;
    __syncthreads();
  }
  /// Returns the sum of a[i] b[i] over d elements, in order.
  static __device__ float dot(const float* a, const float* b, int d) {
    float sum = 0.f;
    for (int i = 0; i < d; ++i) sum = fmaf(a[i], b[i], sum);
    return sum;
  }
  /// Adds sum_j weight[r, j] b[j] (weight[j, r] if kTransposed) to `sum`, for this thread's row r.
  template <bool kTransposed>
  static __device__ void accumulate(float* sum, const float* weight, const float* b, int d) {
    const int row = threadIdx.x / 8;
    for (int i = threadIdx.x % 8; i < d; i += 8) {
      float total = sum[row * (d + 1) + i];
      for (int j = 0; j < kTile; ++j)
        total = fmaf(kTransposed ? weight[j * stride + row] : weight[row * stride + j],
                     b[j * (d + 1) + i], total);
      sum[row * (d + 1) + i] = total;
    }
  }
  static __device__ void clear(float* tile, int d) {
    for (int i = threadIdx.x; i < kTile * (d + 1); i += threads) tile[i] = 0.f;
  }
  /// Writes row r times `factor`.
  template <class T>
  static __device__ void store(const HeadsView<T>& view, T* target, const float* tile, float factor,
                               int rows, int d) {
    const int row = threadIdx.x / 8;
    if (row >= rows) return;
    for (int i = threadIdx.x % 8; i < d; i += 8)
      target[row * view.row_stride + i] = from_float<T>(tile[row * (d + 1) + i] * factor);
  }
};

extern __shared__ __align__(128) float attention_plain_shared[];

/// The forward: one thread block per (head, kTile queries). Rows keep a running maximum and sum.
template <class T, int kTile, Hiding kHiding>
__global__ void attention_plain_kernel(const __grid_constant__ ForwardArguments<T> args) {
  using Tiles = PlainTiles<kTile>;
  constexpr bool kSkips = kHiding != Hiding::causal;
  const int query_blocks = (args.sizes.rows + kTile - 1) / kTile;
  const Work work(blockIdx.x, query_blocks, args.sizes.heads, args.sizes.batches, 1);
  const Visibility<T, kHiding> seen(args.sizes, args.filter, work.batch, work.head);
  const auto& sizes = seen.sizes;
  const int d = sizes.d, area = kTile * (d + 1), row = threadIdx.x / 8, lane = threadIdx.x % 8;
  float *query = attention_plain_shared, *key = query + area, *out = key + area, *p = out + area;
  const int key_head = work.head / sizes.group(), first_row = work.block * kTile;
  const int last = last_key(sizes, first_row + row);
  const auto tiles = seen.template key_tiles<kTile, kTile>(first_row);
  Tiles::clear(out, d);
  const int rows = sizes.rows - first_row;
  Tiles::load(query, args.q, args.q.at(work.batch, work.head, first_row), rows, d);
  float max = -INFINITY, sum = 0.f;
  for (int block = tiles.begin; block < tiles.end; ++block) {
    const int first = block * kTile, here = sizes.keys - first;
    if (kSkips && seen.template hidden<kTile, kTile>(first_row, first)) continue;
    Tiles::load(key, args.k, args.k.at(work.batch, key_head, first), here, d);
    float top = max, scores[kTile / 8];
    for (int j = 0; j < kTile / 8; ++j) {
      const int column = lane + j * 8;
      const float s = Tiles::dot(query + row * (d + 1), key + column * (d + 1), d);
      scores[j] = seen.score(s * sizes.scale_log2, first_row + row, first + column, last);
      top = fmaxf(top, scores[j]);
    }
    for (int other = 4; other > 0; other /= 2)
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, other, 8));
    const float base = top == -INFINITY ? 0.f : top, factor = exp2f(max - base);
    max = top;
    sum *= factor;
    for (int j = 0; j < kTile / 8; ++j) {
      const float e = exp2f(scores[j] - base);
      sum += e;
      p[row * Tiles::stride + lane + j * 8] =
          e * seen.factor(first_row + row, first + lane + j * 8);
    }
    for (int i = lane; i < d; i += 8) out[row * (d + 1) + i] *= factor;
    __syncthreads();
    Tiles::load(key, args.v, args.v.at(work.batch, key_head, first), here, d);
    Tiles::template accumulate<false>(out, p, key, d);
    __syncthreads();
  }
  for (int other = 4; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other, 8);
  Tiles::store(args.out, args.out.at(work.batch, work.head, first_row), out,
               sum == 0.f ? 0.f : 1.f / sum, rows, d);
  if (lane == 0 && first_row + row < sizes.rows)
    args.lse[(static_cast<int64_t>(work.batch) * sizes.heads + work.head) * sizes.rows + first_row +
             row] = sum == 0.f ? -INFINITY : max * 0.6931471805599453f + logf(sum);
}

/// Writes P and dS of a query tile and a key tile to shared memory [query, key]. Hidden entries are
/// 0.
template <int kTile, class Seen>
__device__ void plain_score_gradient(float* p, float* ds, const float* const (&tiles)[4],
                                     const Seen& seen, RowStatistics of_row, int row,
                                     int first_key) {
  const auto& sizes = seen.sizes;
  const int d = sizes.d, r = threadIdx.x / 8, last = last_key(sizes, row);
  const auto& [query, dout, key, value] = tiles;
  for (int column = threadIdx.x % 8; column < kTile; column += 8) {
    const float s = PlainTiles<kTile>::dot(query + r * (d + 1), key + column * (d + 1), d);
    const float dp = PlainTiles<kTile>::dot(dout + r * (d + 1), value + column * (d + 1), d);
    const float score = seen.score(s * sizes.scale_log2, row, first_key + column, last);
    const float e = row < sizes.rows ? exp2f(score - of_row.lse_log2) : 0.f;
    const float factor = seen.factor(row, first_key + column);
    p[r * PlainTiles<kTile>::stride + column] = e * factor;
    const float slope = seen.caps() ? seen.slope(score) : 1.f;
    ds[r * PlainTiles<kTile>::stride + column] = slope * e * (factor * dp - of_row.delta);
  }
  __syncthreads();
}

/// Computes dq, one thread block per (head, kTile queries).
template <class T, int kTile, Hiding kHiding>
__global__ void attention_plain_query_gradient_kernel(
    const __grid_constant__ BackwardArguments<T> args) {
  using Tiles = PlainTiles<kTile>;
  constexpr bool kSkips = kHiding != Hiding::causal;
  const int query_blocks = (args.sizes.rows + kTile - 1) / kTile;
  const Work work(blockIdx.x, query_blocks, args.sizes.heads, args.sizes.batches, 1);
  const Visibility<T, kHiding> seen(args.sizes, args.filter, work.batch, work.head);
  const auto& sizes = seen.sizes;
  const int d = sizes.d, area = kTile * (d + 1), square = kTile * Tiles::stride;
  float *query = attention_plain_shared, *dout = query + area, *key = dout + area;
  float *value = key + area, *dq = value + area, *p = dq + area, *ds = p + square;
  const int key_head = work.head / sizes.group(), first_row = work.block * kTile;
  const int row = first_row + threadIdx.x / 8, here = sizes.rows - first_row;
  const auto tiles = seen.template key_tiles<kTile, kTile>(first_row);
  const RowStatistics of_row = args.statistics_of(work.batch, work.head)[row];
  Tiles::clear(dq, d);
  Tiles::load(query, args.q, args.q.at(work.batch, work.head, first_row), here, d);
  Tiles::load(dout, args.dout, args.dout.at(work.batch, work.head, first_row), here, d);
  for (int block = tiles.begin; block < tiles.end; ++block) {
    const int first = block * kTile;
    if (kSkips && seen.template hidden<kTile, kTile>(first_row, first)) continue;
    Tiles::load(key, args.k, args.k.at(work.batch, key_head, first), sizes.keys - first, d);
    Tiles::load(value, args.v, args.v.at(work.batch, key_head, first), sizes.keys - first, d);
    plain_score_gradient<kTile>(p, ds, {query, dout, key, value}, seen, of_row, row, first);
    Tiles::template accumulate<false>(dq, ds, key, d);
    __syncthreads();
  }
  Tiles::store(args.dq, args.dq.at(work.batch, work.head, first_row), dq, sizes.scale, here, d);
}

/// Computes dk and dv, one thread block per (key head, kTile keys). It adds the query heads of its
/// key head in order.
template <class T, int kTile, Hiding kHiding>
__global__ void attention_plain_key_gradient_kernel(
    const __grid_constant__ BackwardArguments<T> args) {
  using Tiles = PlainTiles<kTile>;
  constexpr bool kSkips = kHiding != Hiding::causal;
  const int key_blocks = (args.sizes.keys + kTile - 1) / kTile;
  const Work work(blockIdx.x, key_blocks, args.sizes.key_heads, args.sizes.batches, 1);
  Visibility<T, kHiding> seen(args.sizes, args.filter, work.batch, 0);
  const auto& sizes = seen.sizes;
  const int d = sizes.d, area = kTile * (d + 1), square = kTile * Tiles::stride;
  float *query = attention_plain_shared, *dout = query + area, *key = dout + area;
  float *value = key + area, *dk = value + area, *dv = dk + area, *p = dv + area, *ds = p + square;
  const int first_key = work.block * kTile, here = sizes.keys - first_key;
  const auto tiles = seen.template row_tiles<kTile, kTile>(first_key);
  Tiles::clear(dk, d);
  Tiles::clear(dv, d);
  Tiles::load(key, args.k, args.k.at(work.batch, work.head, first_key), here, d);
  Tiles::load(value, args.v, args.v.at(work.batch, work.head, first_key), here, d);
  for (int head = work.head * sizes.group(); head < (work.head + 1) * sizes.group(); ++head) {
    seen.go_to(head);
    for (int block = tiles.begin; block < tiles.end; ++block) {
      const int start = block * kTile, row = start + threadIdx.x / 8;
      if (kSkips && seen.template hidden<kTile, kTile>(start, first_key)) continue;
      Tiles::load(query, args.q, args.q.at(work.batch, head, start), sizes.rows - start, d);
      Tiles::load(dout, args.dout, args.dout.at(work.batch, head, start), sizes.rows - start, d);
      plain_score_gradient<kTile>(p, ds, {query, dout, key, value}, seen,
                                  args.statistics_of(work.batch, head)[row], row, first_key);
      Tiles::template accumulate<true>(dv, p, dout, d);
      Tiles::template accumulate<true>(dk, ds, query, d);
      __syncthreads();
    }
  }
  const int rows = args.sizes.keys - first_key;
  Tiles::store(args.dk, args.dk.at(work.batch, work.head, first_key), dk, sizes.scale, rows, d);
  Tiles::store(args.dv, args.dv.at(work.batch, work.head, first_key), dv, 1.f, rows, d);
}

/// Launches the forward on `stream`.
template <class T, int kTile, Hiding kHiding>
void launch_attention_plain(const ForwardArguments<T>& args, cudaStream_t stream) {
  using Tiles = PlainTiles<kTile>;
  const AttentionSizes& sizes = args.sizes;
  const auto blocks = static_cast<unsigned>((sizes.rows + kTile - 1) / kTile);
  const auto kernel = attention_plain_kernel<T, kTile, kHiding>;
  const size_t bytes = Tiles::shared_bytes(3, 1, sizes.d);
  allow_shared_memory(kernel, bytes, "attention");
  kernel<<<blocks * sizes.heads * sizes.batches, Tiles::threads, bytes, stream>>>(args);
  DS_CUDA_LAUNCHED("attention");
}

/// Launches both gradients on `stream`, which must have computed the statistics of the rows.
template <class T, int kTile, Hiding kHiding>
void launch_attention_plain_backward(const BackwardArguments<T>& args, cudaStream_t stream) {
  using Tiles = PlainTiles<kTile>;
  const char* op = "attention_backward";
  const AttentionSizes& sizes = args.sizes;
  const auto key_blocks = static_cast<unsigned>((sizes.keys + kTile - 1) / kTile);
  const auto query_blocks = static_cast<unsigned>((sizes.rows + kTile - 1) / kTile);
  const auto for_keys = attention_plain_key_gradient_kernel<T, kTile, kHiding>;
  const auto for_queries = attention_plain_query_gradient_kernel<T, kTile, kHiding>;
  const size_t key_bytes = Tiles::shared_bytes(6, 2, sizes.d);
  const size_t query_bytes = Tiles::shared_bytes(5, 2, sizes.d);
  if (key_blocks > 0) {
    const unsigned grid = key_blocks * sizes.key_heads * sizes.batches;
    allow_shared_memory(for_keys, key_bytes, op);
    for_keys<<<grid, Tiles::threads, key_bytes, stream>>>(args);
    DS_CUDA_LAUNCHED(op);
  }
  if (query_blocks > 0) {
    const unsigned grid = query_blocks * sizes.heads * sizes.batches;
    allow_shared_memory(for_queries, query_bytes, op);
    for_queries<<<grid, Tiles::threads, query_bytes, stream>>>(args);
    DS_CUDA_LAUNCHED(op);
  }
}

}  // namespace ds::cuda
