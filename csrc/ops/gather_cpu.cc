// Gather along a dim on the CPU, line by line.
#include "gather.h"

#include "../cpu/index_check.h"
#include "../cpu/lines.h"

namespace ds::cpu {
namespace {

template <class W, class I>
void gather(const Gather& op, CpuContext& ctx) {
  const int64_t dim = op.dim, size = op.in.shape[dim], count = op.out.shape[dim];
  for_each_line<3>(ctx, {op.in, op.out, op.index}, dim, [&](const int64_t(&at)[3]) {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t v = op.index.as<I>()[at[2] + j * op.index.strides[dim]];
      require_index("gather", v, size, "the gathered dim");
      op.out.as<W>()[at[1] + j * op.out.strides[dim]] =
          op.in.as<W>()[at[0] + v * op.in.strides[dim]];
    }
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

}  // namespace ds::cpu
