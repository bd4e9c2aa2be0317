// What the Adam bodies of the CPU share: the floating-point mode and the update of one cached block.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "adamw_rule.h"

namespace ds::cpu {

constexpr int64_t kAdamWBlock = 1024;     // parameters per pass over the cached gradient
constexpr int64_t kAdamWGrain = 1 << 15;  // parameters per task, a multiple of kAdamWBlock

/// Flushes denormals of this thread to zero for its lifetime, operands and results alike.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) {
    _mm_setcsr(saved_ | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
  }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  const unsigned saved_;
};

/// adamw_update over n parameters. Call it in the scope of a FlushDenormals.
using UpdateBlock = void(const AdamWConstants&, float factor, const float* grad, float* p, float* m,
                         float* v, int64_t n);

/// The widest UpdateBlock that this processor runs; the choice changes the speed and no bit.
UpdateBlock* choose_update_block();

}  // namespace ds::cpu
