// Iterates over operands of equal shape and any strides. It merges dims and calls a function for
// each inner run.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "cpu_context.h"

namespace ds::cpu {

/// The merged dims of kOperands views, innermost first, with strides in elements. The strides of
/// operand 0, the leader, determine the order of the dims.
template <int kOperands>
struct Walk {
  int ndim = 1;
  int64_t numel = 0;
  int64_t shape[kMaxDims] = {1};
  int64_t strides[kOperands][kMaxDims] = {};
};

/// Plans a walk: drops dims of size 1, orders the others by the leader's stride (smallest
/// innermost), and merges neighbours that are evenly spaced in all operands. All views must have
/// the leader's shape.
template <int kOperands>
Walk<kOperands> plan_walk(const View* const (&views)[kOperands]) {
  const View& lead = *views[0];
  int order[kMaxDims], count = 0;
  for (int d = lead.ndim - 1; d >= 0; --d)
    if (lead.shape[d] != 1) order[count++] = d;
  std::stable_sort(order, order + count, [&](int a, int b) {
    return std::llabs(lead.strides[a]) < std::llabs(lead.strides[b]);
  });
  Walk<kOperands> walk;
  walk.numel = lead.numel();
  int last = -1;
  for (int i = 0; i < count; ++i) {
    const int d = order[i];
    bool joins = last >= 0;
    for (int o = 0; o < kOperands && joins; ++o)
      joins = views[o]->strides[d] == walk.strides[o][last] * walk.shape[last];
    if (joins) {
      walk.shape[last] *= lead.shape[d];
      continue;
    }
    walk.shape[++last] = lead.shape[d];
    for (int o = 0; o < kOperands; ++o) walk.strides[o][last] = views[o]->strides[d];
  }
  walk.ndim = std::max(last + 1, 1);
  return walk;
}

/// Calls run(offsets, n) for each run of the innermost dim within the elements [begin, end).
/// offsets[o] is the first element of operand o; strides[o][0] is its stride within the run.
template <int kOperands, class F>
void walk_range(const Walk<kOperands>& walk, int64_t begin, int64_t end, F&& run) {
  if (begin >= end) return;
  int64_t index[kMaxDims], offsets[kOperands] = {};
  int64_t rest = begin;
  for (int d = 0; d < walk.ndim; ++d) {
    index[d] = rest % walk.shape[d];
    rest /= walk.shape[d];
    for (int o = 0; o < kOperands; ++o) offsets[o] += index[d] * walk.strides[o][d];
  }
  while (begin < end) {
    const int64_t n = std::min(walk.shape[0] - index[0], end - begin);
    run(static_cast<const int64_t(&)[kOperands]>(offsets), n);
    begin += n;
    index[0] += n;
    for (int o = 0; o < kOperands; ++o) offsets[o] += n * walk.strides[o][0];
    for (int d = 0; d + 1 < walk.ndim && index[d] == walk.shape[d]; ++d) {
      index[d] = 0;
      ++index[d + 1];
      for (int o = 0; o < kOperands; ++o)
        offsets[o] += walk.strides[o][d + 1] - walk.shape[d] * walk.strides[o][d];
    }
  }
}

constexpr int64_t kElementGrain = 1 << 15;  // elements of a parallel chunk

/// Visits all elements on the thread pool. Calls `run` for each part of an inner run, in any order.
template <int kOperands, class F>
void for_each_run(CpuContext& ctx, const Walk<kOperands>& walk, F&& run) {
  ctx.pool.parallel_for(walk.numel, kElementGrain,
                        [&](int64_t begin, int64_t end) { walk_range(walk, begin, end, run); });
}

}  // namespace ds::cpu
