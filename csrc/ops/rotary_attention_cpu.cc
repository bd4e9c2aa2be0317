// RotaryAttention on the CPU: its two ops, one after the other.
#include "rotary_attention.h"

#include <vector>

#include "../cpu/cpu_context.h"

namespace ds::cpu {

void run(const RotaryStore& op, CpuContext& ctx);
void run(const PagedAttention& op, CpuContext& ctx);

void run(const RotaryAttention& op, CpuContext& ctx) {
  std::vector<std::byte> scratch(static_cast<size_t>(op.q.numel()) * size_of(op.q.dtype));
  const View rotated = rotated_queries(op, scratch.data());
  run(store_of(op, rotated), ctx);
  run(attention_of(op, rotated), ctx);
}

}  // namespace ds::cpu
