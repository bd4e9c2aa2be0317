// AdamWHalves on the CPU. Rows without ties are joined, updated and split in registers, other rows
// in cache.
#include "adamw_halves.h"

#include <algorithm>

#include "../cpu/master_halves.h"
#include "adamw_rule.h"
#include "moments_cpu.h"
#include "update_range_cpu.h"

namespace ds::cpu {
namespace {

constexpr const char* kOp = "adamw_halves";

/// Updates a row of masters without ties. Returns nonzero if an updated master has a tie. `p`
/// holds the updated masters. Compiled for two instruction sets and not inlined, as UpdateLoop.
#define DS_UPDATE_HALVES(name)                                                                  \
  uint32_t name(const AdamWRule& shared, float factor, const float* __restrict grad, int64_t n, \
                uint16_t* __restrict high, uint16_t* __restrict low, float* __restrict m,       \
                float* __restrict v, float* __restrict p) {                                     \
    const AdamWRule rule = shared;                                                              \
    uint32_t any = 0;                                                                           \
    for (int64_t i = 0; i < n; ++i) {                                                           \
      float x = std::bit_cast<float>(join_master(high[i], low[i]));                             \
      rule.update(factor, grad[i], x, m[i], v[i]);                                              \
      const uint32_t bits = std::bit_cast<uint32_t>(x);                                         \
      p[i] = x;                                                                                 \
      high[i] = static_cast<uint16_t>(high_of_master(bits));                                    \
      low[i] = static_cast<uint16_t>(low_of_master(bits));                                      \
      any |= static_cast<uint32_t>(is_master_tie(bits));                                        \
    }                                                                                           \
    return any;                                                                                 \
  }
__attribute__((noinline)) DS_UPDATE_HALVES(update_baseline)
#if defined(__x86_64__)
    __attribute__((noinline, target("arch=x86-64-v4"))) DS_UPDATE_HALVES(update_avx512)
#endif
#undef DS_UPDATE_HALVES

        decltype(update_baseline)* choose_update() {
#if defined(__x86_64__)
  if (runs_avx512()) return update_avx512;
#endif
  return update_baseline;
}

template <class G>
void run_range(const AdamWHalves& op, const AdamWRule& rule, int64_t begin, int64_t end) {
  static const auto update = choose_update();
  const FlushDenormals flush;
  const float factor = op.control.as<float>()[0];
  alignas(64) float grad[kTieRow], p[kTieRow];
  for (int64_t i = begin; i < end; i += kTieRow) {
    const int64_t count = std::min(kTieRow, end - i);
    uint16_t *const high = op.high.as<uint16_t>() + i, *const low = op.low.as<uint16_t>() + i;
    uint8_t* const ties = op.ties.as<uint8_t>() + i / 8;
    MomentBlock moments(op.m, op.v, i, count);
    float *const m = moments.m(), *const v = moments.v();
    widen(op.grad.as<G>() + i, grad, count);
    if (has_ties(ties, count)) {
      join_masters(high, low, ties, p, count);
      update_values(rule, factor, grad, count, p, m, v);
      split_masters(p, high, low, ties, count);
    } else if (update(rule, factor, grad, count, high, low, m, v, p) != 0) {
      mark_ties(p, ties, count);
    }
    moments.store(p);
  }
}

}  // namespace

void run(const AdamWHalves& op, CpuContext& ctx) {
  if (op.control.as<float>()[1] == 0.0f) return;
  const AdamWRule rule = AdamWRule::of(op);
  for_floating(kOp, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    if constexpr (!std::is_same_v<G, double>) {
      ctx.pool.parallel_for(op.m.numel(), kUpdateGrain, [&](int64_t begin, int64_t end) {
        run_range<G>(op, rule, begin, end);
      });
    }
  });
}

}  // namespace ds::cpu
