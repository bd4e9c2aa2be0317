// Adagrad on the CPU.
#include "adagrad.h"
#include "update_range_cpu.h"

namespace ds::cpu {

void run(const Adagrad& op, CpuContext& ctx) {
  update_range(AdagradRule::of(op), op, {op.sum}, ctx);
}

}  // namespace ds::cpu
