// Sums of narrow elements in f32 on the CPU, over cpu/map.h.
#include "accumulate.h"

#include "../cpu/map.h"

namespace ds::cpu {

void run(const Accumulate& op, CpuContext& ctx) {
  constexpr const char* kOp = "accumulate";
  for_floating(kOp, op.in.dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_same_v<T, double>)
      map<float, T>(
          ctx, true, [](float x) { return x; }, op.out, op.in);
  });
}

}  // namespace ds::cpu
