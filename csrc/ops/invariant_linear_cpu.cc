// The batch-invariant linear layer on the CPU: dot products of eight rows at a time. The order of a
// sum depends only on K.
#include "invariant_linear.h"

#include <algorithm>
#include <vector>

#include "../cpu/few_rows.h"
#include "../cpu/rows.h"

namespace ds::cpu {
namespace {

constexpr int64_t kGrainFlops = 1 << 20;  // with less work, waking a thread does not pay

/// The rows and columns of a task.
struct Tile {
  int64_t row, rows, column, columns;
};

/// Adds the bias to `sums`, with rows `step` apart, and rounds once.
template <class T>
void finish(const InvariantLinear& op, const Tile& t, compute_t<T>* sums, int64_t step) {
  compute_t<T> bias[kFewRowsOutputs];
  if (op.bias) widen(op.bias.as<T>() + t.column, bias, t.columns);
  for (int64_t i = 0; i < t.rows; ++i) {
    compute_t<T>* const row = sums + i * step;
    if (op.bias)
      for (int64_t j = 0; j < t.columns; ++j) row[j] += bias[j];
    narrow(row, op.out.as<T>() + (t.row + i) * op.out.strides[0] + t.column, t.columns);
  }
}

/// Calls tile(t) for all tiles. Tiles of the same columns are consecutive, so that weights stay in
/// cache.
template <class F>
void for_each_tile(const InvariantLinear& op, CpuContext& ctx, const F& tile) {
  const int64_t m = op.out.shape[0], n = op.out.shape[1], k = op.x.shape[1];
  const int64_t down = (m + kFewRows - 1) / kFewRows;
  const int64_t across = (n + kFewRowsOutputs - 1) / kFewRowsOutputs;
  const int64_t flops = 2 * std::min(m, kFewRows) * kFewRowsOutputs * std::max<int64_t>(1, k);
  const int64_t grain = std::max<int64_t>(1, kGrainFlops / flops);
  ctx.pool.parallel_for(down * across, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i % down * kFewRows, column = i / down * kFewRowsOutputs;
      tile(Tile{row, std::min(kFewRows, m - row), column, std::min(kFewRowsOutputs, n - column)});
    }
  });
}

template <class T>
void multiply(const InvariantLinear& op, CpuContext& ctx) {
  const int64_t m = op.out.shape[0], k = op.x.shape[1];
  std::vector<FewRows> blocks;
  blocks.reserve(static_cast<size_t>((m + kFewRows - 1) / kFewRows));
  for (int64_t row = 0; row < m; row += kFewRows)
    blocks.emplace_back(op.x.as<T>() + row * op.x.strides[0], op.x.strides[0],
                        std::min(kFewRows, m - row), k);
  const DenseRows<T> weights{op.weight.as<T>(), op.weight.strides[0], std::max<int64_t>(1, k)};
  for_each_tile(op, ctx, [&](const Tile& t) {
    float sums[kFewRows * kFewRowsOutputs];
    blocks[static_cast<size_t>(t.row / kFewRows)].multiply(weights, t.column, t.columns, sums);
    finish<T>(op, t, sums, kFewRowsOutputs);
  });
}

void multiply_doubles(const InvariantLinear& op, CpuContext& ctx) {
  const int64_t k = op.x.shape[1];
  for_each_tile(op, ctx, [&](const Tile& t) {
    double sums[kFewRows * kFewRowsOutputs];
    for (int64_t i = 0; i < t.rows; ++i) {
      const auto* const x = op.x.as<double>() + (t.row + i) * op.x.strides[0];
      for (int64_t j = 0; j < t.columns; ++j) {
        const auto* const w = op.weight.as<double>() + (t.column + j) * op.weight.strides[0];
        sums[i * kFewRowsOutputs + j] =
            sum_of<double>(k, [&](int64_t at) { return x[at] * w[at]; });
      }
    }
    finish<double>(op, t, sums, kFewRowsOutputs);
  });
}

}  // namespace

void run(const InvariantLinear& op, CpuContext& ctx) {
  if (op.out.numel() == 0) return;
  for_floating("invariant_linear", op.x.dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (std::is_same_v<T, double>) multiply_doubles(op, ctx);
    else multiply<T>(op, ctx);
  });
}

}  // namespace ds::cpu
