// Scatter and ScatterAdd on the CPU, line by line in ascending order.
#include "scatter.h"

#include <type_traits>
#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/lines.h"
#include "../cpu/map.h"

namespace ds::cpu {
namespace {

/// Offsets of a line in the operands out, src and index.
using LineAt = const int64_t (&)[3];

template <class W, class I>
void scatter(const Scatter& op, CpuContext& ctx) {
  const int64_t dim = op.dim, size = op.out.shape[dim], count = op.src.shape[dim];
  for_each_line<3>(ctx, {op.out, op.src, op.index}, dim, [&](LineAt at) {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t v = op.index.as<I>()[at[2] + j * op.index.strides[dim]];
      require_index("scatter", v, size, "the dim that is written");
      op.out.as<W>()[at[0] + v * op.out.strides[dim]] =
          op.src.as<W>()[at[1] + j * op.src.strides[dim]];
    }
  });
}

/// Floating sums are f64, because thousands of elements may have the same destination.
template <class T>
using Sum = std::conditional_t<std::is_floating_point_v<compute_t<T>>, double, compute_t<T>>;

template <class T, class I>
void scatter_add(const ScatterAdd& op, CpuContext& ctx) {
  using C = Sum<T>;
  const int64_t dim = op.dim, size = op.out.shape[dim], count = op.src.shape[dim];
  for_each_line<3>(ctx, {op.out, op.src, op.index}, dim, [&](LineAt at) {
    std::vector<C> sums(static_cast<size_t>(size), C(0));
    T* const out = op.out.as<T>() + at[0];
    const int64_t stride = op.out.strides[dim];
    if (op.accumulate)
      for (int64_t i = 0; i < size; ++i)
        sums[static_cast<size_t>(i)] = static_cast<C>(out[i * stride]);
    for (int64_t j = 0; j < count; ++j) {
      const int64_t v = op.index.as<I>()[at[2] + j * op.index.strides[dim]];
      require_index("scatter_add", v, size, "the dim that is written");
      C& sum = sums[static_cast<size_t>(v)];
      sum = wrapping_add(sum, static_cast<C>(op.src.as<T>()[at[1] + j * op.src.strides[dim]]));
    }
    store_block(sums.data(), out, stride, size);
  });
}

}  // namespace

void run(const Scatter& op, CpuContext& ctx) {
  dispatch_index("scatter", op.index.dtype, [&](auto tag) {
    using I = typename decltype(tag)::type;
    switch (size_of(op.out.dtype)) {
      case 1: return scatter<uint8_t, I>(op, ctx);
      case 2: return scatter<uint16_t, I>(op, ctx);
      case 4: return scatter<uint32_t, I>(op, ctx);
      default: return scatter<uint64_t, I>(op, ctx);
    }
  });
}

void run(const ScatterAdd& op, CpuContext& ctx) {
  constexpr const char* kOp = "scatter_add";
  for_all(kOp, op.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, bool>) {
      dispatch_index(kOp, op.index.dtype,
                     [&](auto index) { scatter_add<T, typename decltype(index)::type>(op, ctx); });
    }
  });
}

}  // namespace ds::cpu
