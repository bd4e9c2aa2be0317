// Adds 16-bit or f32 elements to an f32 sum on the CPU, by cpu/map.h.
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
