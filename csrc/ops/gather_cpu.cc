// Gather along one dim on the CPU, and its gradient, line by line.
#include "gather.h"

#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/map.h"

namespace ds::cpu {
namespace {

/// v without the gathered dim: what is left numbers the lines along it.
View lines_of(View v, int64_t dim) {
  v.shape[dim] = 1;
  return v;
}

/// Calls line(offset of full, offset of picked, offset of index) for every line along `dim`.
template <class F>
void for_each_line(CpuContext& ctx, const View (&operands)[3], int64_t dim, F&& line) {
  const View full = lines_of(operands[0], dim), picked = lines_of(operands[1], dim),
             index = lines_of(operands[2], dim);
  const View* const views[3] = {&full, &picked, &index};
  const Walk<3> walk = plan_walk(views);
  const int64_t length = std::max<int64_t>({1, operands[0].shape[dim], operands[1].shape[dim]});
  ctx.pool.parallel_for(walk.numel, std::max<int64_t>(1, kElementGrain / length),
                        [&](int64_t begin, int64_t end) {
    walk_range(walk, begin, end, [&](const int64_t (&at)[3], int64_t n) {
      for (int64_t i = 0; i < n; ++i)
        line(at[0] + i * walk.strides[0][0], at[1] + i * walk.strides[1][0],
             at[2] + i * walk.strides[2][0]);
    });
  });
}

template <class W, class I>
void gather(const Gather& op, CpuContext& ctx) {
  const int64_t dim = op.dim, size = op.in.shape[dim], count = op.out.shape[dim];
  for_each_line(ctx, {op.in, op.out, op.index}, dim, [&](int64_t from, int64_t to, int64_t index) {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t v = op.index.as<I>()[index + j * op.index.strides[dim]];
      require_index("gather", v, size, "the gathered dim");
      op.out.as<W>()[to + j * op.out.strides[dim]] = op.in.as<W>()[from + v * op.in.strides[dim]];
    }
  });
}

template <class T, class I>
void gather_backward(const GatherBackward& op, CpuContext& ctx) {
  using C = compute_t<T>;
  const int64_t dim = op.dim, size = op.dx.shape[dim], count = op.dout.shape[dim];
  for_each_line(ctx, {op.dx, op.dout, op.index}, dim, [&](int64_t to, int64_t from, int64_t index) {
    std::vector<C> sums(static_cast<size_t>(size), C(0));
    T* const dx = op.dx.as<T>() + to;
    const int64_t stride = op.dx.strides[dim];
    if (op.accumulate)
      for (int64_t i = 0; i < size; ++i)
        sums[static_cast<size_t>(i)] = static_cast<C>(dx[i * stride]);
    for (int64_t j = 0; j < count; ++j) {
      const int64_t v = op.index.as<I>()[index + j * op.index.strides[dim]];
      require_index("gather_backward", v, size, "the gathered dim");
      const T picked = op.dout.as<T>()[from + j * op.dout.strides[dim]];
      sums[static_cast<size_t>(v)] += static_cast<C>(picked);
    }
    store_block(sums.data(), dx, stride, size);
  });
}

}  // namespace

void run(const Gather& op, CpuContext& ctx) {
  constexpr const char* kOp = "gather";
  for_all(kOp, op.in.dtype, [](auto) {});
  dispatch_index(kOp, op.index.dtype, [&](auto tag) {
    using I = typename decltype(tag)::type;
    switch (size_of(op.in.dtype)) {
      case 1: return gather<uint8_t, I>(op, ctx);
      case 2: return gather<uint16_t, I>(op, ctx);
      case 4: return gather<uint32_t, I>(op, ctx);
      default: return gather<uint64_t, I>(op, ctx);
    }
  });
}

void run(const GatherBackward& op, CpuContext& ctx) {
  constexpr const char* kOp = "gather_backward";
  for_floating(kOp, op.dx.dtype, [&](auto tag) {
    dispatch_index(kOp, op.index.dtype, [&](auto index) {
      gather_backward<typename decltype(tag)::type, typename decltype(index)::type>(op, ctx);
    });
  });
}

}  // namespace ds::cpu
