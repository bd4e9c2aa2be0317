// Sums of narrow elements in f32 on the CPU, over cpu/map.h.
#include "accumulate.h"

#include "../cpu/map.h"

namespace ds::cpu {

void run(const Accumulate& op, CpuContext& ctx) {
  constexpr const char* kOp = "accumulate";
  require_same_shape(kOp, op.in, op.out);
  if (op.out.dtype != DType::f32) unsupported(kOp, op.out.dtype, "f32 as out");
  if (op.in.dtype == DType::f64) unsupported(kOp, op.in.dtype, "f32, f16 or bf16 as in");
  for_floating(kOp, op.in.dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_same_v<T, double>)
      map<float, T>(ctx, true, [](float x) { return x; }, op.out, op.in);
  });
}

}  // namespace ds::cpu
