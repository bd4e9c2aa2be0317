// Lion on the CPU.
#include "lion.h"
#include "update_range_cpu.h"

namespace ds::cpu {

void run(const Lion& op, CpuContext& ctx) { update_range(LionRule::of(op), op, {op.m}, ctx); }

}  // namespace ds::cpu
