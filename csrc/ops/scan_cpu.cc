// Running sums on the CPU, one line after the other.
#include "scan.h"

#include "../cpu/lines.h"
#include "../cpu/map.h"

namespace ds::cpu {
namespace {

/// f32 is accumulated in f64, as in Reduce.
template <class T>
using Total = std::conditional_t<std::is_same_v<compute_t<T>, float>, double, compute_t<T>>;

/// place = value, or what is there plus value.
template <class T>
void settle(T& place, bool accumulate, Total<T> value) {
  if (accumulate) value = wrapping_add(static_cast<Total<T>>(static_cast<compute_t<T>>(place)), value);
  place = convert<T>(static_cast<compute_t<T>>(value));
}

template <class T>
void scan(const Scan& op, CpuContext& ctx) {
  const int64_t n = op.in.shape[op.dim];
  const int64_t from = op.in.strides[op.dim], to = op.out.strides[op.dim];
  for_each_line<2>(ctx, {op.out, op.in}, op.dim, [&](const int64_t (&at)[2]) {
    Total<T> total = 0;
    for (int64_t k = 0; k < n; ++k) {
      const int64_t i = op.reverse ? n - 1 - k : k;
      const auto x = static_cast<Total<T>>(static_cast<compute_t<T>>(op.in.as<T>()[at[1] + i * from]));
      total = wrapping_add(total, x);
      settle(op.out.as<T>()[at[0] + i * to], op.accumulate, total);
    }
  });
}

}  // namespace

void run(const Scan& op, CpuContext& ctx) {
  if (op.in.dtype == DType::i64) return scan<int64_t>(op, ctx);
  for_floating("scan", op.in.dtype, [&](auto tag) { scan<typename decltype(tag)::type>(op, ctx); });
}

}  // namespace ds::cpu
