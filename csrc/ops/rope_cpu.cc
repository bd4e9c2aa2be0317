// Rotary position embedding on the CPU, a head row at a time.
#include "rope.h"

#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/map.h"

namespace ds::cpu {
namespace {

constexpr const char* kOp = "rope";

/// Rotates the 2 * half values of x in place.
template <class C>
void rotate(C* x, const C* cos, const C* sin, C direction, int64_t half) {
#pragma GCC ivdep
  for (int64_t i = 0; i < half; ++i) {
    const C a = x[i], b = x[half + i], s = sin[i] * direction;
    x[i] = a * cos[i] - b * s;
    x[half + i] = b * cos[i] + a * s;
  }
}

}  // namespace

void run(const Rope& op, CpuContext& ctx) {
  const int64_t t = op.in.shape[1], h = op.in.shape[2], d = op.in.shape[3];
  if (op.in.numel() == 0) return;
  const int32_t* const positions = op.positions ? op.positions.as<int32_t>() : nullptr;
  for (int64_t i = 0; positions && i < op.positions.numel(); ++i)
    require_index(kOp, positions[i], op.cos.shape[0], "the rows of cos and sin");
  for_floating(kOp, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = compute_t<T>;
    const C direction = op.inverse ? C(-1) : C(1);
    const auto row = [&](const View& v, int64_t i) {
      const int64_t b = i / (t * h), position = i / h % t, head = i % h;
      return v.as<T>() + b * v.strides[0] + position * v.strides[1] + head * v.strides[2];
    };
    ctx.pool.parallel_for(
        op.in.numel() / d, std::max<int64_t>(1, kElementGrain / d),
        [&](int64_t begin, int64_t end) {
          std::vector<C> x(static_cast<size_t>(d));
          for (int64_t i = begin; i < end; ++i) {
            const int64_t angles = (positions ? positions[i / h] : i / h % t) * (d / 2);
            widen(row(op.in, i), x.data(), d);
            rotate(x.data(), op.cos.as<C>() + angles, op.sin.as<C>() + angles, direction, d / 2);
            narrow(x.data(), row(op.out, i), d);
          }
        });
  });
}

}  // namespace ds::cpu
