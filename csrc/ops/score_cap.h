// The bound of attention scores: a scaled score s becomes cap tanh(s / cap). Source: Gemma 2.
#pragma once

#include <cmath>
#include <cstdint>

#include "../core/preconditions.h"

namespace ds {

/// Checks that `cap` is 0 or a positive number. The scale must be positive too.
inline void check_cap(const char* name, double cap, double scale) {
  if (cap == 0 || (cap > 0 && std::isfinite(cap) && scale > 0)) return;
  throw Error("DS_ARGUMENT", name, "a cap of 0 (none), or above 0 with a scale above 0",
              text("cap ", cap, ", scale ", scale));
}

namespace cpu {

/// Replaces n scaled scores s by cap tanh(s / cap); does nothing if `cap` is 0.
template <class C>
void cap_scores(C* scores, int64_t n, C cap) {
  if (cap == C(0)) return;
  for (int64_t i = 0; i < n; ++i) scores[i] = cap * std::tanh(scores[i] / cap);
}

}  // namespace cpu
}  // namespace ds
