// Rows sorted by expert on the CPU: a counting sort, and sums per token.
#include "expert_rows.h"

#include <algorithm>
#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/map.h"

namespace ds::cpu {
namespace {

/// Checks the places. Throws DS_INDEX before anything is written.
void require_places(const char* op, const View& places, int64_t rows) {
  const int32_t* const place = places.as<int32_t>();
  for (int64_t i = 0; i < places.numel(); ++i)
    if (place[i] != -1) require_index(op, place[i], rows, "the rows");
}

template <class T>
void combine(const CombineRows& op, CpuContext& ctx) {
  using C = compute_t<T>;
  const int64_t k = op.places.shape[1], width = op.out.shape[1];
  const auto tokens = [&](int64_t begin, int64_t end) {
    std::vector<C> sum(static_cast<size_t>(width)), row(sum.size());
    for (int64_t t = begin; t < end; ++t) {
      T* const out = op.out.as<T>() + t * width;
      if (op.accumulate) widen(out, sum.data(), width);
      else std::fill(sum.begin(), sum.end(), C(0));
      for (int64_t j = t * k; j < (t + 1) * k; ++j) {
        const int64_t place = op.places.as<int32_t>()[j];
        if (place < 0) continue;
        const C weight = op.weights ? op.weights.as<C>()[j] : C(1);
        widen(op.y.as<T>() + place * width, row.data(), width);
        for (size_t c = 0; c < sum.size(); ++c) sum[c] += weight * row[c];
      }
      narrow(sum.data(), out, width);
    }
  };
  const int64_t cost = std::max<int64_t>(1, k * width);
  ctx.pool.parallel_for(op.out.shape[0], std::max<int64_t>(1, kElementGrain / cost), tokens);
}

template <class T>
void backward(const CombineRowsBackward& op, CpuContext& ctx) {
  using C = compute_t<T>;
  const int64_t k = op.places.shape[1], width = op.dout.shape[1];
  const auto tokens = [&](int64_t begin, int64_t end) {
    std::vector<C> grad(static_cast<size_t>(width)), row(grad.size());
    for (int64_t t = begin; t < end; ++t) {
      widen(op.dout.as<T>() + t * width, grad.data(), width);
      for (int64_t j = t * k; j < (t + 1) * k; ++j) {
        const int64_t place = op.places.as<int32_t>()[j];
        C& slope = op.dweights.as<C>()[j];
        slope = 0;
        if (place < 0) continue;
        widen(op.y.as<T>() + place * width, row.data(), width);
        slope = sum_of<C>(width, [&](int64_t c) {
          return grad[static_cast<size_t>(c)] * row[static_cast<size_t>(c)];
        });
        const C weight = op.weights.as<C>()[j];
        for (size_t c = 0; c < row.size(); ++c) row[c] = weight * grad[c];
        narrow(row.data(), op.dy.as<T>() + place * width, width);
      }
    }
  };
  const int64_t cost = std::max<int64_t>(1, k * width);
  ctx.pool.parallel_for(op.dout.shape[0], std::max<int64_t>(1, kElementGrain / cost), tokens);
}

}  // namespace

void run(const GroupRows& op, CpuContext&) {
  const int64_t groups = op.offsets.shape[0] - 1, count = op.ids.numel(), k = op.ids.shape[1];
  const int32_t* const ids = op.ids.as<int32_t>();
  int32_t* const offsets = op.offsets.as<int32_t>();
  const auto group_of = [&](int64_t i) {
    const int64_t group = ids[i] - op.first;
    return group >= 0 && group < groups ? group : int64_t{-1};
  };
  std::fill_n(offsets, groups + 1, 0);
  for (int64_t i = 0; i < count; ++i)
    if (const int64_t g = group_of(i); g >= 0) ++offsets[g + 1];
  for (int64_t g = 0; g < groups; ++g) offsets[g + 1] += offsets[g];
  std::vector<int32_t> next(offsets, offsets + groups);
  std::fill_n(op.rows.as<int32_t>(), count, -1);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t g = group_of(i);
    const int32_t row = g < 0 ? -1 : next[static_cast<size_t>(g)]++;
    op.places.as<int32_t>()[i] = row;
    if (row >= 0) op.rows.as<int32_t>()[row] = static_cast<int32_t>(i / k);
  }
}

void run(const CombineRows& op, CpuContext& ctx) {
  constexpr const char* kOp = "combine_rows";
  require_places(kOp, op.places, op.y.shape[0]);
  for_floating(kOp, op.out.dtype, [&]<class T>(TypeTag<T>) { combine<T>(op, ctx); });
}

void run(const CombineRowsBackward& op, CpuContext& ctx) {
  constexpr const char* kOp = "combine_rows_backward";
  require_places(kOp, op.places, op.y.shape[0]);
  for_floating(kOp, op.dout.dtype, [&]<class T>(TypeTag<T>) { backward<T>(op, ctx); });
}

}  // namespace ds::cpu
