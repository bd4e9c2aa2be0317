// Sums the rows of per-block partial results in a fixed order: the second pass of column
// reductions.
#pragma once

#include "block_reduce.cuh"
#include "vector.cuh"

namespace ds::cuda {

constexpr int kColumnLanes = 32, kColumnRows = 32;

/// Total of column `column` of partials [rows, stride], known to the threads with threadIdx.y == 0.
/// Thread y adds rows y, y + 32, ...; then the 32 sums are added in order.
__device__ __forceinline__ float column_total(const float* partials, int64_t rows, int64_t stride,
                                              int64_t column, bool active) {
  __shared__ float sums[kColumnRows][kColumnLanes];
  float sum = 0;
  if (active)
    for (int64_t r = threadIdx.y; r < rows; r += kColumnRows) sum += partials[r * stride + column];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  float total = 0;
  if (threadIdx.y == 0)
    for (int y = 0; y < kColumnRows; ++y) total += sums[y][threadIdx.x];
  return total;
}

/// out[c] (+)= sum over r of partials[r, c] for the columns of one block.
template <class T>
__global__ void __launch_bounds__(kColumnLanes* kColumnRows)
    column_sum_kernel(T* out, const float* partials, int64_t rows, int64_t stride, int64_t columns,
                      bool accumulate) {
  const int64_t column = int64_t{blockIdx.x} * kColumnLanes + threadIdx.x;
  const bool active = column < columns;
  const float total = column_total(partials, rows, stride, column, active);
  if (threadIdx.y == 0 && active)
    out[column] = from_float<T>(accumulate ? to_float(out[column]) + total : total);
}

template <class T>
void column_sum(const char* op, cudaStream_t stream, T* out, const float* partials, int64_t rows,
                int64_t stride, int64_t columns, bool accumulate) {
  const unsigned blocks = static_cast<unsigned>((columns + kColumnLanes - 1) / kColumnLanes);
  column_sum_kernel<<<blocks, dim3(kColumnLanes, kColumnRows), 0, stream>>>(
      out, partials, rows, stride, columns, accumulate);
  DS_CUDA_LAUNCHED(op);
}

}  // namespace ds::cuda
