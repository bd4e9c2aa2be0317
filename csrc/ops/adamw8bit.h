// AdamW with moments of 8 bits over a flat range of parameters: not exact, a quarter of the state's
// memory or less. Source: Dettmers et al. 2021, arXiv:2110.02861; bitsandbytes' AdamW8bit
// (blockwise).
#pragma once

#include "../core/dynamic_code.h"
#include "flat_update.h"

namespace ds {

/// As AdamW, with moments that are codes (core/dynamic_code.h, of m with a sign, of v without)
/// times the scale of their block of 256 elements, counted from the range's start; the last block
/// may be shorter. They are widened, updated in f32, used for the weights, and rounded to the
/// nearest codes of the largest magnitude of their block, which is its new scale, but no v above 0
/// to 0; a block of zeros has the scale 0. The same bits on every back end, denormals flushed to
/// zero. When control[1] is 0 only `weight` is written, from the unchanged master.
struct AdamW8bit {
  View master;          // [n] f32, updated
  View m;               // [n] u8, updated
  View v;               // [n] u8, updated
  View m_scale;         // [ceil(n / 256)] f32, updated
  View v_scale;         // [ceil(n / 256)] f32, updated
  View grad;            // [n] f32, f16 or bf16
  OptionalView weight;  // [n] f32, f16 or bf16: the copy that the model computes with
  View control;         // [4] f32, see GradientControl
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double correction1;  // 1 - beta1^t, or 1 without bias correction
  double correction2;  // 1 - beta2^t, or 1
  bool decoupled;
};

inline void check(const AdamW8bit& op) {
  constexpr const char* kOp = "adamw8bit";
  check_update(kOp, op, {});
  const int64_t n = op.master.numel(), blocks = (n + kCodeBlock - 1) / kCodeBlock;
  require_list(kOp, op.m, n, DType::u8, "m");
  require_list(kOp, op.v, n, DType::u8, "v");
  require_list(kOp, op.m_scale, blocks, DType::f32, "m_scale");
  require_list(kOp, op.v_scale, blocks, DType::f32, "v_scale");
}

}  // namespace ds
