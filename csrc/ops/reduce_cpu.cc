// Reductions on the CPU: fixed parts of the kept and reduced dims, combined in a fixed order.
#include "reduce.h"

#include <vector>

#include "../cpu/map.h"

namespace ds::cpu {
namespace {

constexpr const char* kOp = "reduce";

/// f32 sums accumulate in f64, because rounding errors of equal values would accumulate in f32.
template <class C>
struct Sum {
  using Total = std::conditional_t<std::is_same_v<C, float>, double, C>;
  static constexpr Total identity = 0;
  Total operator()(Total a, Total b) const { return wrapping_add(a, b); }
};

/// f32 products accumulate in f64, too.
template <class C>
struct Product {
  using Total = std::conditional_t<std::is_same_v<C, float>, double, C>;
  static constexpr Total identity = 1;
  Total operator()(Total a, Total b) const { return wrapping_multiply(a, b); }
};

/// If either side is NaN, the result is NaN.
template <class C>
struct Max {
  using Total = C;
  static constexpr C identity = std::numeric_limits<C>::has_infinity
                                    ? -std::numeric_limits<C>::infinity()
                                    : std::numeric_limits<C>::min();
  C operator()(C a, C b) const { return (a > b) | (a != a) ? a : b; }
};

template <class C>
struct Min {
  using Total = C;
  static constexpr C identity = std::numeric_limits<C>::has_infinity
                                    ? std::numeric_limits<C>::infinity()
                                    : std::numeric_limits<C>::max();
  C operator()(C a, C b) const { return (a < b) | (a != a) ? a : b; }
};

/// The iteration space, divided into a grid of tasks that depends only on shapes.
struct Plan {
  Walk<2> kept;     // operands: in, out
  Walk<1> reduced;  // operand: in
  bool columns;     // kept elements are dense in memory: accumulate consecutive ones together
  int64_t kept_step, reduced_step, kept_tasks, reduced_tasks;
};

int64_t pieces(int64_t n, int64_t step) { return std::max<int64_t>(1, (n + step - 1) / step); }

Plan plan_reduction(const Reduce& op) {
  View kept = op.in, reduced = op.in;
  for (int d = 0; d < op.in.ndim; ++d)
    (op.out.shape[d] == op.in.shape[d] ? reduced : kept).shape[d] = 1;
  const View* const kept_views[2] = {&kept, &op.out};
  const View* const reduced_views[1] = {&reduced};
  Plan plan;
  plan.kept = plan_walk(kept_views);
  plan.reduced = plan_walk(reduced_views);
  const int64_t rows = std::max<int64_t>(plan.reduced.numel, 1);
  const int64_t kept_stride = std::llabs(plan.kept.strides[0][0]);
  const int64_t reduced_stride = std::llabs(plan.reduced.strides[0][0]);
  plan.columns = plan.kept.shape[0] > 1 && (rows == 1 || kept_stride < reduced_stride);
  plan.kept_step = plan.columns ? kBlock / 2 : std::max<int64_t>(1, kElementGrain / rows);
  plan.reduced_step = plan.columns ? 2 * kBlock : 2 * kElementGrain;
  plan.kept_tasks = pieces(plan.kept.numel, plan.kept_step);
  plan.reduced_tasks = pieces(plan.reduced.numel, plan.reduced_step);
  return plan;
}

/// Combines n values in independent lanes, which the compiler vectorizes. The order depends only on
/// n.
template <class C, class Combine>
typename Combine::Total combine_all(const C* values, int64_t n, Combine combine) {
  using Total = typename Combine::Total;
  Total total = Combine::identity;
  int64_t i = 0;
  if (n >= kLanes) {
    Total lanes[kLanes];
    for (Total& lane : lanes) lane = Combine::identity;
    for (; i + kLanes <= n; i += kLanes)
      for (int j = 0; j < kLanes; ++j) lanes[j] = combine(lanes[j], values[i + j]);
    for (int width = kLanes / 2; width > 0; width /= 2)
      for (int j = 0; j < width; ++j) lanes[j] = combine(lanes[j], lanes[j + width]);
    total = lanes[0];
  }
  for (; i < n; ++i) total = combine(total, values[i]);
  return total;
}

struct Range {
  int64_t begin, end;
};

/// Writes partial[k - kept.begin], the reduction of `reduced` for each kept item k, processing
/// consecutive items together.
template <class T, class Combine>
void reduce_columns(const T* in, const Plan& plan, Range kept, Range reduced,
                    typename Combine::Total* partial) {
  using C = compute_t<T>;
  const Combine combine;
  C buffer[kBlock / 2];
  const int64_t stride = plan.kept.strides[0][0], step = plan.reduced.strides[0][0];
  std::fill_n(partial, kept.end - kept.begin, Combine::identity);
  walk_range(plan.kept, kept.begin, kept.end, [&](const int64_t(&at)[2], int64_t n) {
    const auto add_rows = [&](const int64_t(&from)[1], int64_t rows) {
      for (int64_t r = 0; r < rows; ++r) {
        const C* const values = load_block(in + at[0] + from[0] + r * step, stride, n, buffer);
#pragma GCC ivdep
        for (int64_t i = 0; i < n; ++i) partial[i] = combine(partial[i], values[i]);
      }
    };
    walk_range(plan.reduced, reduced.begin, reduced.end, add_rows);
    partial += n;
  });
}

/// Like reduce_columns(), one kept item after the other.
template <class T, class Combine>
void reduce_rows(const T* in, const Plan& plan, Range kept, Range reduced,
                 typename Combine::Total* partial) {
  using C = compute_t<T>;
  const Combine combine;
  C buffer[kBlock];
  const int64_t stride = plan.reduced.strides[0][0];
  walk_range(plan.kept, kept.begin, kept.end, [&](const int64_t(&at)[2], int64_t n) {
    for (int64_t k = 0; k < n; ++k) {
      const T* const item = in + at[0] + k * plan.kept.strides[0][0];
      typename Combine::Total total = Combine::identity;
      const auto add_run = [&](const int64_t(&from)[1], int64_t length) {
        for (int64_t i = 0; i < length; i += kBlock) {
          const int64_t count = std::min(kBlock, length - i);
          const T* const run = item + from[0] + i * stride;
          const C* const values = load_block(run, stride, count, buffer);
          total = combine(total, combine_all(values, count, combine));
        }
      };
      walk_range(plan.reduced, reduced.begin, reduced.end, add_run);
      *partial++ = total;
    }
  });
}

/// Combines the partial results of each kept item in order and stores them.
template <class T, class Combine>
void finish(const Reduce& op, const Plan& plan, std::vector<typename Combine::Total>& partials,
            CpuContext& ctx) {
  using C = compute_t<T>;
  using Total = typename Combine::Total;
  const Combine combine;
  ctx.pool.parallel_for(plan.kept.numel, kElementGrain, [&](int64_t begin, int64_t end) {
    Total* total = partials.data() + begin;
    C rounded[kBlock];
    walk_range(plan.kept, begin, end, [&](const int64_t(&at)[2], int64_t n) {
      for (int64_t task = 1; task < plan.reduced_tasks; ++task)
        for (int64_t i = 0; i < n; ++i)
          total[i] = combine(total[i], total[task * plan.kept.numel + i]);
      if (op.op == ReduceOp::mean)
        for (int64_t i = 0; i < n; ++i) total[i] /= static_cast<Total>(plan.reduced.numel);
      const int64_t stride = plan.kept.strides[1][0];
      T* const out = op.out.as<T>() + at[1];
      if (op.accumulate)
        for (int64_t i = 0; i < n; ++i)
          total[i] = wrapping_add(static_cast<Total>(static_cast<C>(out[i * stride])), total[i]);
      for (int64_t first = 0; first < n; first += kBlock) {
        const int64_t count = std::min(kBlock, n - first);
        for (int64_t i = 0; i < count; ++i) rounded[i] = static_cast<C>(total[first + i]);
        store_block(rounded, out + first * stride, stride, count);
      }
      total += n;
    });
  });
}

template <class T, class Combine>
void reduce(const Reduce& op, CpuContext& ctx) {
  const Plan plan = plan_reduction(op);
  const int64_t kept_count = plan.kept.numel;
  using Total = typename Combine::Total;
  std::vector<Total> partials(static_cast<size_t>(kept_count * plan.reduced_tasks));
  ctx.pool.parallel_for(plan.kept_tasks * plan.reduced_tasks, 1, [&](int64_t task, int64_t) {
    const int64_t k = task % plan.kept_tasks * plan.kept_step;
    const int64_t piece = task / plan.kept_tasks, r = piece * plan.reduced_step;
    const Range kept = {k, std::min(kept_count, k + plan.kept_step)};
    const Range reduced = {r, std::min(plan.reduced.numel, r + plan.reduced_step)};
    Total* const partial = partials.data() + piece * kept_count + k;
    if (plan.columns) reduce_columns<T, Combine>(op.in.as<T>(), plan, kept, reduced, partial);
    else reduce_rows<T, Combine>(op.in.as<T>(), plan, kept, reduced, partial);
  });
  finish<T, Combine>(op, plan, partials, ctx);
}

/// Returns the index of the first maximum of n elements. The first NaN counts as the maximum.
template <class T>
int64_t arg_max(const T* in, int64_t stride, int64_t n) {
  int64_t best = 0;
  compute_t<T> max = static_cast<compute_t<T>>(in[0]);
  for (int64_t i = 1; i < n && max == max; ++i) {
    const compute_t<T> x = static_cast<compute_t<T>>(in[i * stride]);
    if (x > max || x != x) max = x, best = i;
  }
  return best;
}

}  // namespace

void run(const Reduce& op, CpuContext& ctx) {
  if (op.out.numel() == 0) return;
  for_all(kOp, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    if constexpr (!std::is_same_v<T, bool>) {
      if (op.op == ReduceOp::max) reduce<T, Max<C>>(op, ctx);
      else if (op.op == ReduceOp::min) reduce<T, Min<C>>(op, ctx);
      else if (op.op == ReduceOp::prod) reduce<T, Product<C>>(op, ctx);
      else reduce<T, Sum<C>>(op, ctx);
    }
  });
}

void run(const ArgMax& op, CpuContext& ctx) {
  constexpr const char* kName = "arg_max";
  View rows = op.in;
  --rows.ndim;
  const int64_t columns = op.in.size(-1), stride = op.in.strides[op.in.ndim - 1];
  const View* const views[2] = {&op.out, &rows};
  const Walk<2> walk = plan_walk(views);
  for_all(kName, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ctx.pool.parallel_for(
        walk.numel, std::max<int64_t>(1, kElementGrain / columns), [&](int64_t begin, int64_t end) {
          walk_range(walk, begin, end, [&](const int64_t(&at)[2], int64_t n) {
            for (int64_t i = 0; i < n; ++i)
              op.out.as<int64_t>()[at[0] + i * walk.strides[0][0]] =
                  arg_max(op.in.as<T>() + at[1] + i * walk.strides[1][0], stride, columns);
          });
        });
  });
}

}  // namespace ds::cpu
