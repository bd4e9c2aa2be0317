// SGD on the CPU.
#include "sgd.h"
#include "update_range_cpu.h"

namespace ds::cpu {

void run(const Sgd& op, CpuContext& ctx) {
  if (op.momentum_buffer) update_range(SgdMomentumRule::of(op), op, {op.momentum_buffer}, ctx);
  else update_range(SgdRule::of(op), op, {}, ctx);
}

}  // namespace ds::cpu
