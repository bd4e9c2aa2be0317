// Adam and AdamW on the CPU.
#include "adamw_rule.h"
#include "update_range_cpu.h"

namespace ds::cpu {

void run(const AdamW& op, CpuContext& ctx) {
  update_range(AdamWRule::of(op), op, {op.m, op.v}, ctx);
}

}  // namespace ds::cpu
