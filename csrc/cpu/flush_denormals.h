// Treats denormal floats as zero within a scope, like the ftz mode of a GPU.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ds::cpu {

/// While it exists, operands and results of this thread that are denormal become zero.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(get()) { set(saved_ | kFlush); }
  ~FlushDenormals() { set(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kFlush = _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON;
  static uint64_t get() { return _mm_getcsr(); }
  static void set(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = uint64_t{1} << 24;  // FPCR.FZ
  static uint64_t get() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
#else
#error "FlushDenormals needs the floating-point control register of this processor"
#endif

  const uint64_t saved_;
};

}  // namespace ds::cpu
