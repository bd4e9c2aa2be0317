// Iterates over the lines of operands along one dim.
#pragma once

#include "strided.h"

namespace ds::cpu {

/// Returns `v` with size 1 in dim `dim`. Each of its elements stands for a line along `dim`.
inline View without_dim(View v, int64_t dim) {
  v.shape[dim] = 1;
  return v;
}

/// Calls line(offsets) on the thread pool for each line along `dim`. offsets[o] is the first
/// element of the line in operand o. The operands have equal sizes in the other dims.
template <int kOperands, class F>
void for_each_line(CpuContext& ctx, const View (&operands)[kOperands], int64_t dim, F&& line) {
  View first[kOperands];
  const View* views[kOperands];
  int64_t length = 1;
  for (int o = 0; o < kOperands; ++o) {
    first[o] = without_dim(operands[o], dim);
    views[o] = &first[o];
    length = std::max(length, operands[o].shape[dim]);
  }
  const Walk<kOperands> walk = plan_walk(views);
  const int64_t grain = std::max<int64_t>(1, kElementGrain / length);
  ctx.pool.parallel_for(walk.numel, grain, [&](int64_t begin, int64_t end) {
    walk_range(walk, begin, end, [&](const int64_t(&at)[kOperands], int64_t n) {
      int64_t offsets[kOperands];
      for (int64_t i = 0; i < n; ++i) {
        for (int o = 0; o < kOperands; ++o) offsets[o] = at[o] + i * walk.strides[o][0];
        line(static_cast<const int64_t(&)[kOperands]>(offsets));
      }
    });
  });
}

}  // namespace ds::cpu
