// What the Adam bodies of the CPU share: the floating-point mode and the update of one cached block.
#pragma once

#include <cstdint>

#include "../cpu/flush_denormals.h"
#include "adamw_rule.h"

namespace ds::cpu {

constexpr int64_t kAdamWBlock = 1024;     // parameters per pass over the cached gradient
constexpr int64_t kAdamWGrain = 1 << 15;  // parameters per task, a multiple of kAdamWBlock

/// adamw_update over n parameters. Call it in the scope of a FlushDenormals.
using UpdateBlock = void(const AdamWConstants&, float factor, const float* grad, float* p, float* m,
                         float* v, int64_t n);

/// The widest UpdateBlock that this processor runs; the choice changes the speed and no bit.
UpdateBlock* choose_update_block();

}  // namespace ds::cpu
