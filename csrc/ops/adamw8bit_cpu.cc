// AdamW with 8-bit moments on the CPU: one block at a time, widened, updated by AdamW's loop and
// rounded.
#include "adamw8bit.h"

#include <algorithm>

#include "adamw_rule.h"
#include "update_range_cpu.h"

namespace ds::cpu {
namespace {

constexpr DynamicCode kSigned = dynamic_code(true), kUnsigned = dynamic_code(false);
constexpr int64_t kGrain = 64;  // blocks per task

// These functions must not be inlined: the arithmetic must stay inside the scope of FlushDenormals.

__attribute__((noinline)) void widen_codes(const DynamicCode& code, const uint8_t* codes,
                                           float scale, float* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = code.value[codes[i]] * scale;
}

/// Returns the new scale; NaN if a value is NaN.
__attribute__((noinline)) float round_to_codes(const DynamicCode& code, const float* __restrict x,
                                               uint8_t* codes, int64_t n) {
  float scale = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float size = __builtin_fabsf(x[i]);
    scale = scale > size || scale != scale ? scale : size;
  }
  if (scale == 0.0f) {
    std::fill_n(codes, n, static_cast<uint8_t>(code.zero));
    return scale;
  }
  for (int64_t i = 0; i < n; ++i)
    codes[i] = static_cast<uint8_t>(nearest_code(code.middle, code.zero, x[i] / scale));
  return scale;
}

template <class G, class W>
void update_block(const AdamW8bit& op, const AdamWRule& rule, int64_t block) {
  const int64_t at = block * kCodeBlock, n = std::min(kCodeBlock, op.master.numel() - at);
  float* const p = op.master.as<float>() + at;
  const float* const control = op.control.as<float>();
  if (control[1] != 0.0f) {
    alignas(64) float grad[kCodeBlock], m[kCodeBlock], v[kCodeBlock];
    uint8_t *const ms = op.m.as<uint8_t>() + at, *const vs = op.v.as<uint8_t>() + at;
    float &m_scale = op.m_scale.as<float>()[block], &v_scale = op.v_scale.as<float>()[block];
    widen(op.grad.as<G>() + at, grad, n);
    widen_codes(kSigned, ms, m_scale, m, n);
    widen_codes(kUnsigned, vs, v_scale, v, n);
    update_values(rule, control[0], grad, n, p, m, v);
    m_scale = round_to_codes(kSigned, m, ms, n);
    v_scale = round_to_codes(kUnsigned, v, vs, n);
  }
  if (op.weight) narrow(p, op.weight.as<W>() + at, n);
}

}  // namespace

void run(const AdamW8bit& op, CpuContext& ctx) {
  constexpr const char* kOp = "adamw8bit";
  const AdamWRule rule = AdamWRule::of(op);
  for_floating(kOp, op.grad.dtype, [&]<class G>(TypeTag<G>) {
    for_floating(kOp, op.weight ? op.weight.dtype : DType::f32, [&]<class W>(TypeTag<W>) {
      if constexpr (!std::is_same_v<G, double> && !std::is_same_v<W, double>) {
        ctx.pool.parallel_for(op.m_scale.numel(), kGrain, [&](int64_t begin, int64_t end) {
          const FlushDenormals flush;
          for (int64_t block = begin; block < end; ++block) update_block<G, W>(op, rule, block);
        });
      }
    });
  });
}

}  // namespace ds::cpu
