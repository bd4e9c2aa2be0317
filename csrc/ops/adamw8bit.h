// AdamW with 8-bit moments over a flat range of parameters. The moments are approximate, in a
// quarter of the memory. Source: Dettmers et al. 2021, arXiv:2110.02861; AdamW8bit (blockwise) of
// bitsandbytes.
#pragma once

#include "../core/dynamic_code.h"
#include "flat_update.h"

namespace ds {

/// Updates each element. A moment is the value of its code (core/dynamic_code.h; signed for m,
/// unsigned for v) times the scale of its block of 256 elements. Blocks count from the start of the
/// range; the last may be shorter.
/// 1. The moments are converted to f32 and updated. The weights use these values.
/// 2. The new scale of a block is its largest magnitude, or 0 if all values are 0.
/// 3. Each value is rounded to the nearest code. A positive v is never rounded to 0.
///
/// All back ends give the same bits and flush denormals to zero. If control[1] is 0, only `weight`
/// is written, from the unchanged master.
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
