// Column sums in a fixed order, by two kernels. Each block of the first writes a partial row. The
// second kernel, which is launched while the first runs, adds the partial rows.
#pragma once

#include <algorithm>

#include "block_reduce.cuh"
#include "dependent_launch.cuh"
#include "vector.cuh"

namespace ds::cuda {

/// Where the totals go: column k of part p to out[p][k]. A null pointer drops its part.
template <class T>
struct ColumnTotals {
  T* out[2];
  int64_t columns;  // columns of each part
  int64_t stride;   // length of a partial row: columns of all parts
  bool accumulate;
};

constexpr int kJoinLanes = 32, kJoinRows = 16;

/// Writes or adds the sum of `rows` partial rows to `out`. Thread row y adds rows y, y + 16, ...
/// Then the 16 sums are added in order.
template <class T>
__global__ void __launch_bounds__(kJoinLanes* kJoinRows)
    column_join_kernel(ColumnTotals<T> totals, const float* partials, int64_t rows) {
  constexpr int kUnroll = 9;  // a partial row per SM: all loads are in flight at once
  __shared__ float sums[kJoinRows][kJoinLanes];
  let_next_begin();
  const int64_t column = int64_t{blockIdx.x} * kJoinLanes + threadIdx.x;
  const bool active = column < totals.stride;
  await_previous();
  float sum = 0;
  for (int64_t first = threadIdx.y; active && first < rows; first += kJoinRows * kUnroll) {
    float part[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t row = first + u * kJoinRows;
      part[u] = row < rows ? partials[row * totals.stride + column] : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum += part[u];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || !active) return;
  float total = 0;
#pragma unroll
  for (int y = 0; y < kJoinRows; ++y) total += sums[y][threadIdx.x];
  const bool second = column >= totals.columns;
  T* const out = second ? totals.out[1] : totals.out[0];
  if (!out) return;
  T& at = out[second ? column - totals.columns : column];
  at = from_float<T>(totals.accumulate ? to_float(at) + total : total);
}

/// Adds the `rows` partial rows that the previous kernel of the stream writes.
template <class T>
void join_columns(const char* op, const CudaContext& ctx, const ColumnTotals<T>& totals,
                  const float* partials, int64_t rows) {
  const auto blocks = static_cast<unsigned>((totals.stride + kJoinLanes - 1) / kJoinLanes);
  const Launch launch = {op, dim3(blocks), dim3(kJoinLanes, kJoinRows), ctx.stream};
  launch_behind(ctx, launch, column_join_kernel<T>, totals, partials, rows);
}

// -------------------------------------------------------------------------------------------------
// Column sums of a dense matrix of 16-bit elements

/// A matrix with contiguous rows. Each row is 16-byte aligned and a multiple of 16 bytes long.
template <class T>
struct DenseRows {
  const T* data;
  int64_t rows, columns;
  int64_t apart;  // elements between rows
};

constexpr int kColumnThreads = 256, kColumnLanes = 32, kColumnRows = kColumnThreads / kColumnLanes;
constexpr int kColumnLoads = 8, kColumnBlocksPerSm = 4;

/// Block (x, y) sums rows [y part, (y + 1) part) of 32 packets of columns. Its threads form 8 rows,
/// each with 8 loads in flight.
template <class T>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocksPerSm)
    column_parts_kernel(DenseRows<T> in, float* partials, int64_t part) {
  constexpr int N = kPacket<T>, kWidth = kColumnLanes * N;
  __shared__ alignas(16) float shared[kColumnRows][kWidth];
  let_next_begin();
  const int lane = threadIdx.x % kColumnLanes, y = threadIdx.x / kColumnLanes;
  const int64_t block_column = int64_t{blockIdx.x} * kWidth, column = block_column + lane * N;
  const int64_t first = blockIdx.y * part, last = min(first + part, in.rows);
  float sums[N] = {};
  await_previous();
  for (int64_t row = first + y; column < in.columns && row < last;
       row += kColumnRows * kColumnLoads) {
    Vector<T, N> x[kColumnLoads];
#pragma unroll
    for (int u = 0; u < kColumnLoads; ++u) {
      const int64_t at = row + u * kColumnRows;
      x[u] = {};
      if (at < last) x[u] = load_streaming<N>(in.data + at * in.apart + column);
    }
#pragma unroll
    for (int u = 0; u < kColumnLoads; ++u)
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += to_float(x[u].v[i]);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) shared[y][lane * N + i] = sums[i];
  __syncthreads();
  for (int k = threadIdx.x; k < kWidth && block_column + k < in.columns; k += kColumnThreads) {
    float total = 0;
#pragma unroll
    for (int r = 0; r < kColumnRows; ++r) total += shared[r][k];
    partials[blockIdx.y * in.columns + block_column + k] = total;
  }
}

/// Writes or adds the sums of the columns to out [columns]. Needs at least one row and one column.
/// It launches as many blocks as an H100 runs at once, so that no block starts late.
template <class T>
void sum_columns(const char* op, CudaContext& ctx, const DenseRows<T>& in, T* out,
                 bool accumulate) {
  constexpr int kWidth = kColumnLanes * kPacket<T>;
  const int64_t blocks = (in.columns + kWidth - 1) / kWidth;
  const int64_t wanted = std::max<int64_t>(1, int64_t{ctx.sm_count} * kColumnBlocksPerSm / blocks);
  const int64_t part = std::max<int64_t>((in.rows + wanted - 1) / wanted, kColumnRows);
  const int64_t parts = (in.rows + part - 1) / part;
  float* const partials = ctx.scratch_of<float>(parts * in.columns);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
  launch_behind(ctx, {op, grid, dim3(kColumnThreads), ctx.stream}, column_parts_kernel<T>, in,
                partials, part);
  const ColumnTotals<T> totals = {{out, nullptr}, in.columns, in.columns, accumulate};
  join_columns(op, ctx, totals, partials, parts);
}

}  // namespace ds::cuda
