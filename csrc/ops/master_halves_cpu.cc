// JoinMaster and SplitMaster on the CPU.
#include "../cpu/master_halves.h"

#include "../cpu/cpu_context.h"
#include "master_halves.h"

namespace ds::cpu {
namespace {

// Floats of a task, a multiple of 8: tasks must not share a byte, which has the ties of 8 floats.
constexpr int64_t kGrain = 1 << 15;

}  // namespace

void run(const JoinMaster& op, CpuContext& ctx) {
  ctx.pool.parallel_for(op.out.numel(), kGrain, [&](int64_t begin, int64_t end) {
    join_masters(op.high.as<uint16_t>() + begin, op.low.as<uint16_t>() + begin,
                 op.ties.as<uint8_t>() + begin / 8, op.out.as<float>() + begin, end - begin);
  });
}

void run(const SplitMaster& op, CpuContext& ctx) {
  ctx.pool.parallel_for(op.in.numel(), kGrain, [&](int64_t begin, int64_t end) {
    split_masters(op.in.as<float>() + begin, op.high.as<uint16_t>() + begin,
                  op.low.as<uint16_t>() + begin, op.ties.as<uint8_t>() + begin / 8, end - begin);
  });
}

}  // namespace ds::cpu
