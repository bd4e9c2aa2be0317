// Running sums and products on the CPU, line by line.
#include "scan.h"

#include <vector>

#include "../cpu/lines.h"
#include "../cpu/map.h"

namespace ds::cpu {
namespace {

/// Like Reduce, f32 accumulates in f64.
template <class T>
using Total = std::conditional_t<std::is_same_v<compute_t<T>, float>, double, compute_t<T>>;

/// Writes `value`, or adds it to the old element if `accumulate`.
template <class T>
void settle(T& place, bool accumulate, Total<T> value) {
  if (accumulate)
    value = wrapping_add(static_cast<Total<T>>(static_cast<compute_t<T>>(place)), value);
  place = convert<T>(static_cast<compute_t<T>>(value));
}

template <class T>
void scan(const Scan& op, CpuContext& ctx) {
  const int64_t n = op.in.shape[op.dim];
  const int64_t from = op.in.strides[op.dim], to = op.out.strides[op.dim];
  for_each_line<2>(ctx, {op.out, op.in}, op.dim, [&](const int64_t(&at)[2]) {
    Total<T> total = op.op == ScanOp::sum ? 0 : 1;
    for (int64_t k = 0; k < n; ++k) {
      const int64_t i = op.reverse ? n - 1 - k : k;
      const auto x =
          static_cast<Total<T>>(static_cast<compute_t<T>>(op.in.as<T>()[at[1] + i * from]));
      total = op.op == ScanOp::sum ? wrapping_add(total, x) : wrapping_multiply(total, x);
      settle(op.out.as<T>()[at[0] + i * to], op.accumulate, total);
    }
  });
}

template <class T>
void cumprod_backward(const CumprodBackward& op, CpuContext& ctx) {
  const int64_t n = op.in.shape[op.dim];
  const auto element = [&](const View& v, int64_t at, int64_t i) -> T& {
    return v.as<T>()[at + i * v.strides[op.dim]];
  };
  const auto value = [&](const View& v, int64_t at, int64_t i) {
    return static_cast<Total<T>>(static_cast<compute_t<T>>(element(v, at, i)));
  };
  for_each_line<3>(ctx, {op.dx, op.in, op.dout}, op.dim, [&](const int64_t(&at)[3]) {
    std::vector<Total<T>> before(static_cast<size_t>(n), 1);  // product of all previous elements
    for (int64_t i = 1; i < n; ++i)
      before[static_cast<size_t>(i)] =
          before[static_cast<size_t>(i - 1)] * value(op.in, at[1], i - 1);
    Total<T> suffix = 0;
    for (int64_t i = n - 1; i >= 0; --i) {
      const Total<T> next = i + 1 < n ? value(op.in, at[1], i + 1) * suffix : 0;
      suffix = value(op.dout, at[2], i) + next;
      settle(element(op.dx, at[0], i), op.accumulate, before[static_cast<size_t>(i)] * suffix);
    }
  });
}

}  // namespace

void run(const Scan& op, CpuContext& ctx) {
  if (op.in.dtype == DType::i64) return scan<int64_t>(op, ctx);
  for_floating("scan", op.in.dtype, [&](auto tag) { scan<typename decltype(tag)::type>(op, ctx); });
}

void run(const CumprodBackward& op, CpuContext& ctx) {
  for_floating("cumprod_backward", op.in.dtype,
               [&](auto tag) { cumprod_backward<typename decltype(tag)::type>(op, ctx); });
}

}  // namespace ds::cpu
