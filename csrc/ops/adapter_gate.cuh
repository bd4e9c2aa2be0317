// Kernel of AdapterSum with gates for a few rows of an adapter, on tensor cores. Factors come
// through shared memory: the warp copies consecutive bytes, two turns ahead. This takes
// 13 us for 32 adapters of rank 16 in a layer of Llama 8B. sum_tile() takes 19 us, because it loads
// factors into registers, from eight lines of 128 bytes at a time.
#pragma once

#include "adapter_sum.cuh"

namespace ds::cuda {

/// The rank of the factors, turns in flight of a warp, and blocks per SM.
constexpr int kGateRank = 16, kGateStages = 2, kGateBlocks = 5;
/// Factors of 8 columns, which a lane group reads, have padding: four lane groups then read
/// different banks.
constexpr int kGateGroupBytes = 8 * kGateRank * 2 + 32;
constexpr int kGateUnitBytes = kSumUnit / 8 * kGateGroupBytes;
constexpr int kGateStageBytes = 2 * kGateUnitBytes;

/// Returns the shared memory of a block in bytes.
template <int kWarps>
constexpr size_t kGateSharedBytes = size_t{kWarps} * kGateStages * kGateStageBytes;

/// Copies the factors of a warp's turns to shared memory. A turn has the same 64 columns of gate
/// and up.
template <class T>
class GateFactors {
 public:
  __device__ GateFactors(const SumArguments<T>& args, int adapter, unsigned char* stages)
      : args_(args), adapter_(adapter), stages_(stages) {}

  /// Starts the copy of the columns from `column` on. Without an adapter or columns, it only
  /// closes the group of copies.
  __device__ __forceinline__ void copy(int column, int stage) const {
    const int lane = threadIdx.x % kWarp, packets = (args_.m[0] - column) * (kGateRank / 8);
    unsigned char* const to = place(stage) + lane / 16 * kGateGroupBytes + lane % 16 * 16;
    if (adapter_ >= 0 && packets > 0) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const T* const from =
            args_.b[u] + (int64_t{adapter_} * args_.m[0] + column) * kGateRank + lane * 8;
#pragma unroll
        for (int i = 0; i < kSumUnit * kGateRank / (8 * kWarp); ++i)
          if (i * kWarp + lane < packets)
            cp_async_16(to + u * kGateUnitBytes + i * 2 * kGateGroupBytes, from + i * kWarp * 8,
                        true);
      }
    }
    cp_async_commit();
  }
  /// Returns the left operand of the n-th mma of a unit: two columns of each lane group.
  __device__ __forceinline__ void operand(int stage, int u, int n, uint32_t (&factor)[4]) const {
    const int lane = threadIdx.x % kWarp;
    const unsigned char* const from = place(stage) + u * kGateUnitBytes +
                                      lane / 4 * kGateGroupBytes + lane % 4 * 8 +
                                      2 * n * kGateRank * 2;
    const uint2 low = *reinterpret_cast<const uint2*>(from);
    const uint2 high = *reinterpret_cast<const uint2*>(from + kGateRank * 2);
    factor[0] = low.x, factor[1] = high.x, factor[2] = low.y, factor[3] = high.y;
  }

 private:
  __device__ __forceinline__ unsigned char* place(int stage) const {
    return stages_ + stage * kGateStageBytes;
  }
  const SumArguments<T>& args_;
  const int adapter_;
  unsigned char* const stages_;
};

/// Computes a tile of at most kFewRows rows like sum_tile(), with the same bits. `shared` has
/// kGateSharedBytes.
template <class T, int kWarps>
__device__ __forceinline__ void gate_tile(const SumArguments<T>& args, const AdapterTile& tile,
                                          unsigned char* shared) {
  constexpr int kWidth = 4;  // columns of a lane
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = lane / 4, quad = lane % 4;
  const int own = group * 8 + quad / 2 * kWidth, m = args.m[0];
  const int step = static_cast<int>(gridDim.y);
  const auto column_of = [&](int turn) { return (turn * kWarps + warp) * kSumUnit; };
  const GateFactors<T> factors(args, tile.adapter, shared + warp * kGateStages * kGateStageBytes);
  int turn = static_cast<int>(blockIdx.y);
#pragma unroll
  for (int i = 0; i < kGateStages; ++i) factors.copy(column_of(turn + i * step), i);
  const int inner_row = tile.row(args.lists, group % kFewRows);
  int rows[2], ranks[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    rows[e] = tile.row(args.lists, quad % 2 * 2 + e);
    ranks[e] = tile.adapter < 0 ? 0 : valid_rank(args.ranks[e][tile.adapter], args.most);
  }
  if (args.settled) await_previous();
  uint2 h[2];
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    h[u] = make_uint2(0, 0);
    if (inner_row >= 0 && ranks[u] > 0)
      h[u] = *reinterpret_cast<const uint2*>(args.inner_of(u, tile.adapter) +
                                             inner_row * args.wide_stride + quad * 4);
  }
  const auto load_old = [&](Vector<T, kWidth>(&old)[2][2]) {
    const int column = column_of(turn) + own;
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (rows[e] >= 0 && column < m)
          old[u][e] =
              load_vector<kWidth>(args.wide + rows[e] * args.wide_stride + args.first[u] + column);
  };
  Vector<T, kWidth> old[2][2];
  load_old(old);
  for (int stage = 0;; stage = (stage + 1) % kGateStages) {
    cp_async_wait<kGateStages - 1>();
    __syncwarp();
    float acc[2][4][4] = {};
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int n = 0; n < 4 && ranks[u] > 0; ++n) {
        uint32_t factor[4];
        factors.operand(stage, u, n, factor);
        mma_16x8x16<T>(acc[u][n], factor, h[u].x, h[u].y);
      }
    const int column = column_of(turn) + own;
    turn += step;
    const bool more = turn < args.all_turns;
    Vector<T, kWidth> after[2][2];
    if (more) load_old(after);
    else prefetch_next(args);
    __syncwarp();
    factors.copy(column_of(turn + (kGateStages - 1) * step), stage);
    // Returns the lane's value c of unit u in row e, with its update.
    const auto value = [&](int u, int e, int c) {
      const float before = to_float(old[u][e].v[c]);
      if (ranks[u] == 0) return before;
      const int i = c % 2 * 2 + e;
      const float update = quad < 2 ? acc[u][c / 2][i] : acc[u][c / 2 + 2][i];
      return to_float(from_float<T>(before + update));
    };
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (rows[e] < 0 || column >= m) continue;
      Vector<T, kWidth> gated;
#pragma unroll
      for (int c = 0; c < kWidth; ++c)
        gated.v[c] = from_float<T>(unary_value<UnaryOp::silu>(value(0, e, c)) * value(1, e, c));
      store_vector(args.out + rows[e] * args.out_stride + column, gated);
    }
    if (!more) return;
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int e = 0; e < 2; ++e) old[u][e] = after[u][e];
  }
}

/// Computes AdapterSum with gates and factors of rank kGateRank, one tile per blockIdx.x. It reads
/// the factors again for each kFewRows rows of a tile, so sum_kernel is faster for larger tiles.
template <class T, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, kGateBlocks)
    gate_kernel(const __grid_constant__ SumArguments<T> args) {
  extern __shared__ __align__(16) unsigned char gate_shared[];
  let_next_begin();
  if (!args.settled) await_previous();
  AdapterTile tile(args.lists, static_cast<int>(blockIdx.x), -1);
  if (tile.count == 0) return end_without_work();
  for (int left = tile.count; left > 0; left -= kFewRows, tile.first += kFewRows) {
    tile.count = min(left, kFewRows);
    gate_tile<T, kWarps>(args, tile, gate_shared);
  }
}

}  // namespace ds::cuda
