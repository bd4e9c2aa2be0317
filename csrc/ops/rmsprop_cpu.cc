// RMSprop on the CPU.
#include "rmsprop.h"
#include "update_range_cpu.h"

namespace ds::cpu {

void run(const Rmsprop& op, CpuContext& ctx) {
  with_rmsprop_rule(
      op, [&](const auto& rule, const auto& states) { update_range(rule, op, states, ctx); });
}

}  // namespace ds::cpu
