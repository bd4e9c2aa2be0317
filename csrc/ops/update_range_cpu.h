// Runs an element-wise optimizer rule on the CPU, in blocks that stay in cache, with denormals
// flushed to zero.
#pragma once

#include <algorithm>
#include <utility>

#include "../cpu/flush_denormals.h"
#include "../cpu/processor.h"
#include "../cpu/rows.h"
#include "update_rule.h"

namespace ds::cpu {

constexpr int64_t kUpdateBlock = 1024;     // parameters per pass over the cached gradient
constexpr int64_t kUpdateGrain = 1 << 15;  // parameters per task, a multiple of kUpdateBlock

/// The loop over a block of 1 + Rule::kStates arrays, for two instruction sets. Wider vectors
/// change the speed, not the bits. It must not be inlined, so that the arithmetic stays inside the
/// scope of FlushDenormals.
template <UpdateRule Rule, class... Floats>
struct UpdateLoop {
  using Function = void(const Rule&, float factor, const float* grad, int64_t n, Floats*... values);

#define DS_UPDATE_LOOP(name)                                                                  \
  static void name(const Rule& shared, float factor, const float* __restrict grad, int64_t n, \
                   Floats* __restrict... values) {                                            \
    const Rule rule = shared;                                                                 \
    for (int64_t i = 0; i < n; ++i) rule.update(factor, grad[i], values[i]...);               \
  }
  __attribute__((noinline)) DS_UPDATE_LOOP(baseline)
#if defined(__x86_64__)
      __attribute__((noinline, target("arch=x86-64-v4"))) DS_UPDATE_LOOP(avx512)
#endif
#undef DS_UPDATE_LOOP

      /// Returns the loop of the widest instruction set that this processor has.
      static Function* choose() {
#if defined(__x86_64__)
    if (runs_avx512()) return avx512;
#endif
    return baseline;
  }
};

/// Calls rule.update for n parameters. `grad` is their gradient; `values` are the master weights
/// and the rule's states. Call it in the scope of a FlushDenormals.
template <UpdateRule Rule, class... Floats>
inline void update_values(const Rule& rule, float factor, const float* grad, int64_t n,
                          Floats*... values) {
  static_assert(sizeof...(values) == 1 + Rule::kStates);
  static const auto loop = UpdateLoop<Rule, Floats...>::choose();
  loop(rule, factor, grad, n, values...);
}

/// Updates parameters [begin, end). Converts gradients and rounds weights while a block is cached.
template <class G, class W, class Rule, class Op, size_t... I>
void update_part(const Rule& rule, const Op& op, const UpdateStates<Rule>& states,
                 std::pair<int64_t, int64_t> part, std::index_sequence<I...>) {
  const FlushDenormals flush;
  const float factor = op.control.template as<float>()[0];
  const bool apply = op.control.template as<float>()[1] != 0.0f;
  alignas(64) float grad[kUpdateBlock];
  for (int64_t i = part.first; i < part.second; i += kUpdateBlock) {
    const int64_t count = std::min(kUpdateBlock, part.second - i);
    float* const p = op.master.template as<float>() + i;
    if (apply) {
      widen(op.grad.template as<G>() + i, grad, count);
      update_values(rule, factor, grad, count, p, states[I].template as<float>() + i...);
    }
    if (op.weight) narrow(p, op.weight.template as<W>() + i, count);
  }
}

/// Runs `rule` over the range of `op`, see UpdateRule. The borders of chunks do not depend on the
/// number of threads.
template <UpdateRule Rule, class Op>
void update_range(const Rule& rule, const Op& op, const UpdateStates<Rule>& states,
                  CpuContext& ctx) {
  const DType weight_dtype = op.weight ? op.weight.dtype : DType::f32;
  for_floating(Rule::kName, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    for_floating(Rule::kName, weight_dtype, [&]<class W>(TypeTag<W>) {
      if constexpr (!std::is_same_v<G, double> && !std::is_same_v<W, double>) {
        ctx.pool.parallel_for(op.master.numel(), kUpdateGrain, [&](int64_t begin, int64_t end) {
          update_part<G, W>(rule, op, states, {begin, end},
                            std::make_index_sequence<Rule::kStates>());
        });
      }
    });
  });
}

}  // namespace ds::cpu
