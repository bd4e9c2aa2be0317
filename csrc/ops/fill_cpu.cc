// Fill and Arange on the CPU.
#include "fill.h"

#include "../cpu/map.h"

namespace ds::cpu {

void run(const Fill& op, CpuContext& ctx) {
  for_all("fill", op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T value = convert<T>(op.value);
    const View* const views[1] = {&op.out};
    const Walk<1> walk = plan_walk(views);
    const int64_t stride = walk.strides[0][0];
    for_each_run(ctx, walk, [&](const int64_t(&at)[1], int64_t n) {
      T* const out = op.out.as<T>() + at[0];
      if (stride == 1) std::fill_n(out, n, value);
      else
        for (int64_t i = 0; i < n; ++i) out[i * stride] = value;
    });
  });
}

void run(const Arange& op, CpuContext& ctx) {
  for_all("arange", op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const out = op.out.as<T>();
    ctx.pool.parallel_for(op.out.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        out[i] = convert<T>(op.start + static_cast<double>(i) * op.step);
    });
  });
}

}  // namespace ds::cpu
