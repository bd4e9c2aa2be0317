// Embedding lookup on the GPU. The gradient uses a stable sort and ordered sums instead of atomics.
#include "embedding.h"

#include <algorithm>
#include <type_traits>

#include "../cuda/dependent_launch.cuh"
#include "../cuda/sort_pairs.h"
#include "../cuda/vector.cuh"

namespace ds::cuda {
namespace {

constexpr int kMaxThreads = 256;

/// Returns the result of an invalid index: NaN if the dtype has it, otherwise 0.
template <class T>
__device__ __forceinline__ T missing() {
  if constexpr (std::is_integral_v<T>) return T{0};
  else return from_float<T>(NAN);
}

/// Copies the row of an index, N elements per thread and step. A block per index.
template <class T, class I, int N>
__global__ void __launch_bounds__(kMaxThreads)
    embedding_kernel(const T* weight, const I* index, T* out, int64_t rows, int64_t columns,
                     int64_t weight_stride) {
  let_next_begin();
  await_previous();
  const int64_t n = blockIdx.x, v = index[n];
  const bool bad = v < 0 || v >= rows;
  const T* source = weight + (bad ? 0 : v) * weight_stride;
  for (int64_t c = int64_t{threadIdx.x} * N; c < columns; c += int64_t{blockDim.x} * N) {
    Vector<T, N> x = load_vector<N>(source + c);
    if (bad)
      for (int i = 0; i < N; ++i) x.v[i] = missing<T>();
    store_streaming(out + n * columns + c, x);
  }
}

// -------------------------------------------------------------------------------------------------
// Backward. Positions are stably sorted by index, so that each index is a segment in ascending
// order. Blocks take tiles of kTile sorted positions. A block finishes the segments inside its
// tile. A segment that crosses tiles leaves an f32 fragment per tile, and a second kernel adds the
// fragments in order.

constexpr uint32_t kTile = 64;
constexpr int kLookAhead = 8;

/// Writes the sort key and the position of each index.
template <class I>
__global__ void __launch_bounds__(256) sort_keys_kernel(const I* index, uint32_t n, uint32_t rows,
                                                        uint32_t* keys, uint32_t* positions) {
  const uint32_t i = blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  const int64_t v = index[i];
  keys[i] = v < 0 || v >= rows ? rows : static_cast<uint32_t>(v);  // invalid indices sort last
  positions[i] = i;
}

template <class T>
struct Segments {
  const T* dout;
  T* dweight;
  const uint32_t *keys, *positions;  // [n], sorted by key
  float* fragments;                  // [tiles, 2, C]: sums of a tile's first and last segment
  int64_t columns;
  uint32_t n, rows;
  bool accumulate;
};

template <int N, class T>
__device__ __forceinline__ void write_row(const Segments<T>& s, uint32_t key, int64_t column,
                                          const float (&sum)[N]) {
  if (key >= s.rows) return;
  T* at = s.dweight + key * s.columns + column;
  Vector<T, N> out = {};
  if (s.accumulate) out = load_vector<N>(at);
#pragma unroll
  for (int i = 0; i < N; ++i)
    out.v[i] = from_float<T>(s.accumulate ? to_float(out.v[i]) + sum[i] : sum[i]);
  store_vector(at, out);
}

/// Returns the fragment for a segment that crosses tiles: the tile's first if it began in an
/// earlier tile.
template <int N, class T>
__device__ __forceinline__ float* fragment(const Segments<T>& s, uint32_t tile, bool began_here,
                                           int64_t column) {
  return s.fragments + (int64_t{tile} * 2 + began_here) * s.columns + column;
}

/// Adds the rows of dout of a tile of sorted positions. Block (tile, group of columns); a thread
/// adds N columns.
template <int N, class T>
__global__ void __launch_bounds__(kMaxThreads) sum_tiles_kernel(Segments<T> s) {
  __shared__ uint32_t keys[kTile + 1], positions[kTile];
  const uint32_t tile = blockIdx.x, first = tile * kTile, count = min(kTile, s.n - first);
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    keys[i] = s.keys[first + i];
    positions[i] = s.positions[first + i];
  }
  // A key that is larger than all others marks the end of the list.
  if (threadIdx.x == 0) keys[count] = first + count < s.n ? s.keys[first + count] : 0xffffffffu;
  __syncthreads();
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (column >= s.columns) return;
  bool began_here = first == 0 || s.keys[first - 1] != keys[0];
  float sum[N] = {};
  for (uint32_t i0 = 0; i0 < count; i0 += kLookAhead) {
    Vector<T, N> x[kLookAhead];
#pragma unroll
    for (uint32_t u = 0; u < kLookAhead; ++u)
      if (i0 + u < count) x[u] = load_streaming<N>(s.dout + positions[i0 + u] * s.columns + column);
#pragma unroll
    for (uint32_t u = 0; u < kLookAhead; ++u) {
      const uint32_t i = i0 + u;
      if (i >= count) break;
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += to_float(x[u].v[k]);
      const bool ends = keys[i + 1] != keys[i];
      if (!ends && i + 1 < count) continue;
      if (ends && began_here) write_row<N>(s, keys[i], column, sum);
      else {
        float* out = fragment<N>(s, tile, began_here, column);
#pragma unroll
        for (int k = 0; k < N; ++k) out[k] = sum[k];
      }
      began_here = true;
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] = 0;
    }
  }
}

/// Completes a segment that begins in this tile and ends in a later one. It adds the fragments of
/// the segment in order: the last one of this tile, then the first ones of the next tiles.
template <int N, class T>
__global__ void __launch_bounds__(kMaxThreads) join_tiles_kernel(Segments<T> s) {
  const uint32_t tile = blockIdx.x, first = tile * kTile, next = first + kTile;
  if (next >= s.n) return;
  const uint32_t key = s.keys[next - 1];
  if (s.keys[next] != key) return;                                            // ends at the border
  if (s.keys[first] == key && first > 0 && s.keys[first - 1] == key) return;  // began earlier
  uint32_t end = next + 1, beyond = s.n;  // end of the segment, by bisection of the sorted keys
  while (end < beyond) {
    const uint32_t middle = end + (beyond - end) / 2;
    if (s.keys[middle] == key) end = middle + 1;
    else beyond = middle;
  }
  const uint32_t last = (end - 1) / kTile;
  const int64_t column = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (column >= s.columns) return;
  float sum[N];
  const float* start = fragment<N>(s, tile, true, column);
#pragma unroll
  for (int k = 0; k < N; ++k) sum[k] = start[k];
  for (uint32_t t0 = tile + 1; t0 <= last; t0 += kLookAhead) {
    float part[kLookAhead][N];
#pragma unroll
    for (uint32_t u = 0; u < kLookAhead; ++u)
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (t0 + u <= last) part[u][k] = fragment<N>(s, t0 + u, false, column)[k];
#pragma unroll
    for (uint32_t u = 0; u < kLookAhead; ++u)
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (t0 + u <= last) sum[k] += part[u][k];
  }
  write_row<N>(s, key, column, sum);
}

/// Sorts the positions by key into scratch memory.
template <class T>
void sort_positions(const char* op, const View& index, Segments<T>& s, CudaContext& ctx) {
  SortedPairs pairs(op, s.n, ctx);
  dispatch_index(op, index.dtype, [&](auto tag) {
    using I = typename decltype(tag)::type;
    sort_keys_kernel<I><<<(s.n + 255) / 256, 256, 0, ctx.stream>>>(index.as<I>(), s.n, s.rows,
                                                                   pairs.keys, pairs.positions);
    DS_CUDA_LAUNCHED(op);
  });
  pairs.sort(s.n, bits_for(s.rows));
  s.keys = pairs.keys;
  s.positions = pairs.positions;
}

/// Returns the threads of a block for rows of `items` vectors: whole warps, at most kMaxThreads.
unsigned threads_for(int64_t items) {
  return static_cast<unsigned>(std::min<int64_t>(kMaxThreads, (items + 31) / 32 * 32));
}

template <int N, class T>
void sum_segments(const char* op, Segments<T>& s, CudaContext& ctx) {
  const unsigned tiles = (s.n + kTile - 1) / kTile, threads = threads_for(s.columns / N);
  const int64_t strips = (s.columns / N + threads - 1) / threads;
  const dim3 grid(tiles, static_cast<unsigned>(strips));
  s.fragments = ctx.scratch_of<float>(size_t{tiles} * 2 * s.columns);
  sum_tiles_kernel<N, T><<<grid, threads, 0, ctx.stream>>>(s);
  DS_CUDA_LAUNCHED(op);
  join_tiles_kernel<N, T><<<grid, threads, 0, ctx.stream>>>(s);
  DS_CUDA_LAUNCHED(op);
}

}  // namespace

void run(const Embedding& op, CudaContext& ctx) {
  constexpr const char* kOp = "embedding";
  const int64_t columns = op.out.shape[1], n = op.index.shape[0];
  if (op.out.numel() == 0) return;
  DS_CHECK_SHAPE(op.weight.shape[0] > 0, kOp, "a weight with at least one row",
                 op.weight.describe());
  for_all(kOp, op.weight.dtype, [&](auto tag) {
    dispatch_index(kOp, op.index.dtype, [&](auto index) {
      using T = typename decltype(tag)::type;
      using I = typename decltype(index)::type;
      constexpr int N = kPacket<T>;
      const T* weight = op.weight.as<T>();
      T* out = op.out.as<T>();
      const int64_t stride = op.weight.strides[0];
      const bool vectors =
          columns % N == 0 && stride % N == 0 && aligned_for<N>(weight) && aligned_for<N>(out);
      const auto kernel = vectors ? embedding_kernel<T, I, N> : embedding_kernel<T, I, 1>;
      const unsigned threads = threads_for(vectors ? columns / N : columns);
      launch_behind(ctx, {kOp, dim3(static_cast<unsigned>(n)), dim3(threads), ctx.stream}, kernel,
                    weight, op.index.as<I>(), out, op.weight.shape[0], columns, stride);
    });
  });
}

void run(const EmbeddingBackward& op, CudaContext& ctx) {
  constexpr const char* kOp = "embedding_backward";
  const int64_t n = op.index.shape[0], columns = op.dout.shape[1];
  const int64_t rows = op.dweight.shape[0], limit = (int64_t{1} << 31) - 1;
  DS_CHECK_SHAPE(n < limit && rows < limit, kOp, "fewer than 2^31 - 1 indices and rows",
                 text(n, " indices and ", rows, " rows"));
  for_floating(kOp, op.dout.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int N = kPacket<T>;
    if (!op.accumulate && op.dweight.numel() > 0)
      DS_CUDA(cudaMemsetAsync(op.dweight.data, 0, op.dweight.numel() * sizeof(T), ctx.stream), kOp);
    if (op.dout.numel() == 0 || rows == 0) return;
    Segments<T> s = {op.dout.as<T>(),
                     op.dweight.as<T>(),
                     nullptr,
                     nullptr,
                     nullptr,
                     columns,
                     static_cast<uint32_t>(n),
                     static_cast<uint32_t>(rows),
                     op.accumulate};
    sort_positions(kOp, op.index, s, ctx);
    if (columns % N == 0 && aligned_for<N>(s.dout) && aligned_for<N>(s.dweight))
      sum_segments<N>(kOp, s, ctx);
    else sum_segments<1>(kOp, s, ctx);
  });
}

}  // namespace ds::cuda
