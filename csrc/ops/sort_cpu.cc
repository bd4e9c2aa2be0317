// The first elements of each row in sorted order on the CPU.
#include "sort.h"

#include <numeric>
#include <vector>

#include "../cpu/map.h"

namespace ds::cpu {
namespace {

/// Returns true if a comes before b. NaN is the largest value.
template <class C>
bool precedes(C a, C b, bool descending) {
  if (descending) std::swap(a, b);
  if constexpr (std::is_floating_point_v<C>)
    if (a != a || b != b) return a == a;
  return a < b;
}

template <class T>
struct Rows {
  using C = compute_t<T>;
  const Sort& op;
  const int64_t columns = op.in.size(-1), stride = op.in.strides[op.in.ndim - 1];
  const int64_t places = op.index.size(-1);

  /// Sorts the row at `from` into row `row` of the outputs.
  void sort(const T* from, int64_t row, std::vector<C>& keys, std::vector<int64_t>& order) const {
    for (int64_t i = 0; i < columns; ++i)
      keys[static_cast<size_t>(i)] = static_cast<C>(from[i * stride]);
    std::iota(order.begin(), order.end(), int64_t{0});
    const auto before = [&](int64_t i, int64_t j) {
      const C a = keys[static_cast<size_t>(i)], b = keys[static_cast<size_t>(j)];
      if (precedes(a, b, op.descending)) return true;
      return !precedes(b, a, op.descending) && i < j;
    };
    std::partial_sort(order.begin(), order.begin() + places, order.end(), before);
    for (int64_t k = 0; k < places; ++k) {
      const int64_t i = order[static_cast<size_t>(k)];
      op.index.as<int64_t>()[row * places + k] = i;
      if (op.values) op.values.as<T>()[row * places + k] = from[i * stride];
    }
  }
};

template <class T>
void sort_rows(const Sort& op, CpuContext& ctx) {
  const Rows<T> rows{op};
  View numbers = op.index, first = op.in;  // one element per row
  numbers.shape[op.in.ndim - 1] = first.shape[op.in.ndim - 1] = 1;
  const View* const views[2] = {&numbers, &first};
  const Walk<2> walk = plan_walk(views);
  const int64_t grain = std::max<int64_t>(1, kElementGrain / std::max<int64_t>(rows.columns, 1));
  ctx.pool.parallel_for(walk.numel, grain, [&](int64_t begin, int64_t end) {
    std::vector<compute_t<T>> keys(static_cast<size_t>(rows.columns));
    std::vector<int64_t> order(static_cast<size_t>(rows.columns));
    walk_range(walk, begin, end, [&](const int64_t(&at)[2], int64_t n) {
      for (int64_t i = 0; i < n; ++i)
        rows.sort(op.in.as<T>() + at[1] + i * walk.strides[1][0],
                  (at[0] + i * walk.strides[0][0]) / rows.places, keys, order);
    });
  });
}

}  // namespace

void run(const Sort& op, CpuContext& ctx) {
  if (op.index.numel() == 0) return;
  for_all("sort", op.in.dtype, [&](auto tag) { sort_rows<typename decltype(tag)::type>(op, ctx); });
}

}  // namespace ds::cpu
