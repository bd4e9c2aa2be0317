// Softmax and log-softmax on the CPU, row by row in the compute type.
#include "softmax.h"

#include <vector>

#include "../core/exponential.h"
#include "../cpu/map.h"

namespace ds::cpu {
namespace {

/// Calls row(begin, end) for ranges of rows with about kElementGrain elements.
template <class F>
void for_each_rows(CpuContext& ctx, const View& v, F&& rows) {
  const int64_t n = v.numel(), columns = v.size(-1);
  if (n > 0)
    ctx.pool.parallel_for(n / columns, std::max<int64_t>(1, kElementGrain / columns), rows);
}

/// Computes y = softmax(x) or log_softmax(x) of a row. y may be x.
template <class C>
void softmax_row(const C* x, C* y, int64_t n, bool log) {
  const C max = max_of(x, n);
  if (log) {
    const C log_sum = std::log(sum_of<C>(n, [=](int64_t i) { return exp_of(x[i] - max); }));
    // max + log_sum would round by an ulp of the largest value.
    apply_block(
        y, n, [=](C value) { return (value - max) - log_sum; }, x);
  } else {
    apply_block(
        y, n, [=](C value) { return exp_of(value - max); }, x);
    const C scale = C(1) / sum_of<C>(n, [=](int64_t i) { return y[i]; });
    apply_block(
        y, n, [=](C value) { return value * scale; }, y);
  }
}

template <class C>
void softmax_backward_row(const C* y, const C* dout, C* dx, int64_t n, bool log) {
  if (log) {
    const C total = sum_of<C>(n, [=](int64_t i) { return dout[i]; });
    apply_block(
        dx, n, [=](C v, C d) { return d - exp_of(v) * total; }, y, dout);
  } else {
    const C total = sum_of<C>(n, [=](int64_t i) { return dout[i] * y[i]; });
    apply_block(
        dx, n, [=](C v, C d) { return v * (d - total); }, y, dout);
  }
}

}  // namespace

void run(const Softmax& op, CpuContext& ctx) {
  for_floating("softmax", op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t columns = op.in.size(-1);
    for_each_rows(ctx, op.in, [&](int64_t begin, int64_t end) {
      std::vector<compute_t<T>> row(static_cast<size_t>(columns));
      for (int64_t r = begin; r < end; ++r) {
        widen(op.in.as<T>() + r * columns, row.data(), columns);
        softmax_row(row.data(), row.data(), columns, op.log);
        narrow(row.data(), op.out.as<T>() + r * columns, columns);
      }
    });
  });
}

void run(const SoftmaxBackward& op, CpuContext& ctx) {
  constexpr const char* kOp = "softmax_backward";
  for_floating(kOp, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    const int64_t columns = op.out.size(-1);
    for_each_rows(ctx, op.out, [&](int64_t begin, int64_t end) {
      const size_t size = static_cast<size_t>(columns);
      std::vector<C> y(size), dout(size), old(op.accumulate ? size : 0);
      for (int64_t r = begin; r < end; ++r) {
        T* const dx = op.dx.as<T>() + r * columns;
        widen(op.out.as<T>() + r * columns, y.data(), columns);
        widen(op.dout.as<T>() + r * columns, dout.data(), columns);
        softmax_backward_row(y.data(), dout.data(), y.data(), columns, op.log);
        if (op.accumulate) {
          widen(dx, old.data(), columns);
          apply_block(
              y.data(), columns, [](C a, C b) { return a + b; }, old.data(), y.data());
        }
        narrow(y.data(), dx, columns);
      }
    });
  });
}

}  // namespace ds::cpu
