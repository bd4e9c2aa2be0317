// FlashAttention-2 backward on mma.sync: one kernel computes dk and dv, a second one dq.
//
// Results are deterministic: each sum stays in the registers of one warp, in a fixed order. P and
// dS stay in registers too: the accumulators of one product are the left operand of the next. Two
// kernels need seven products. One kernel would need five, but must add dq across thread blocks.
// Atomics are not deterministic. A sum in order costs an f32 copy of dq, waits, and P and dS in
// shared memory. At D <= 64 the two extra products cost fewer cycles of tensor cores and shared
// memory than that traffic, at D = 128 about as many. Source: Dao 2023 (FlashAttention-2),
// algorithm 2, split in two.
#pragma once

#include "../cuda/vector.cuh"
#include "attention_masks.cuh"

namespace ds::cuda {

/// Statistics of a query row. Rows beyond the last, and rows that see no key, have {infinity, 0},
/// so that their probabilities are exactly 0.
struct RowStatistics {
  float lse_log2;  // lse log2(e)
  float delta;     // sum(out * dout)
};
constexpr int kStatisticsPadding = 128;  // the rows of a head are padded to a multiple of this

inline __host__ __device__ int64_t padded_rows(int rows) {
  return (static_cast<int64_t>(rows) + kStatisticsPadding - 1) / kStatisticsPadding *
         kStatisticsPadding;
}

template <class T>
struct BackwardArguments {
  HeadsView<T> q, k, v, out, dout, dq, dk, dv;
  const float* lse;
  RowStatistics* statistics;  // [B, H, padded_rows], scratch
  AttentionSizes sizes;
  ScoreFilter filter;

  __device__ RowStatistics* statistics_of(int batch, int head) const {
    const int64_t which = static_cast<int64_t>(batch) * sizes.heads + head;
    return statistics + which * padded_rows(sizes.rows);
  }
};

constexpr int kStatisticsThreads = 256, kStatisticsRows = kStatisticsThreads / 8;

/// Computes the statistics of all query rows, padding included. A thread block takes
/// kStatisticsRows rows of a head, eight lanes per row.
template <class T>
__global__ void __launch_bounds__(kStatisticsThreads)
    attention_statistics_kernel(const __grid_constant__ BackwardArguments<T> args) {
  const AttentionSizes& sizes = args.sizes;
  const auto head_blocks = static_cast<unsigned>(padded_rows(sizes.rows) / kStatisticsRows);
  const int which = static_cast<int>(blockIdx.x / head_blocks);
  const int row = static_cast<int>(blockIdx.x % head_blocks * kStatisticsRows + threadIdx.x / 8);
  const int batch = which / sizes.heads, head = which % sizes.heads, lane = threadIdx.x % 8;
  const bool valid = row < sizes.rows;
  float delta = 0.f;
  if (valid) {
    const T* out = args.out.at(batch, head, row);
    const T* dout = args.dout.at(batch, head, row);
    if (args.out.vectors && args.dout.vectors && sizeof(T) == 2) {
      for (int d = lane * 8; d < sizes.d; d += 64) {
        constexpr int N = kPacket<T>;
        const Vector<T, N> a = load_vector<N>(out + d), b = load_vector<N>(dout + d);
#pragma unroll
        for (int i = 0; i < N; ++i) delta += to_float(a.v[i]) * to_float(b.v[i]);
      }
    } else {
      for (int d = lane; d < sizes.d; d += 8) delta += to_float(out[d]) * to_float(dout[d]);
    }
  }
#pragma unroll
  for (int other = 4; other > 0; other /= 2) delta += __shfl_xor_sync(0xffffffffu, delta, other, 8);
  if (lane != 0) return;
  float lse = valid ? args.lse[static_cast<int64_t>(which) * sizes.rows + row] : INFINITY;
  if (lse == -INFINITY) lse = INFINITY;
  args.statistics_of(batch, head)[row] = {lse * 1.4426950408889634f, delta};
}

template <class T>
void launch_attention_statistics(const BackwardArguments<T>& args, cudaStream_t stream) {
  const AttentionSizes& sizes = args.sizes;
  const int64_t rows = padded_rows(sizes.rows) * sizes.heads * sizes.batches;
  if (rows == 0) return;
  const auto grid = static_cast<unsigned>(rows / kStatisticsRows);
  attention_statistics_kernel<T><<<grid, kStatisticsThreads, 0, stream>>>(args);
  DS_CUDA_LAUNCHED("attention_backward");
}

}  // namespace ds::cuda
