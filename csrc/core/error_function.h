// erf without branches, so that the compiler can vectorize loops over it on the CPU.
#pragma once

#include <cmath>

#include "exponential.h"

namespace ds {

/// Returns erf(x) within 1.1 ulp: an odd polynomial for |x| < 0.9375, otherwise 1 - e^-(t + t q(t))
/// with t = |x|. Both are least-squares fits of the relative error. All CPUs compute the same bits.
DS_HOST_DEVICE float erf_of(float x) {
#ifdef __CUDA_ARCH__
  return erff(x);
#else
  const float z = x * x;
  float p = 0x1.5ac332p-14f;
  p = fma_rn(p, z, -0x1.a99ef6p-11f);
  p = fma_rn(p, z, 0x1.54b5e4p-8f);
  p = fma_rn(p, z, -0x1.b80cb4p-6f);
  p = fma_rn(p, z, 0x1.ce2df4p-4f);
  p = fma_rn(p, z, -0x1.812742p-2f);
  p = fma_rn(p, z, 0x1.06eba8p-3f);
  const float near_zero = fma_rn(p, x, x);
  float t = fabsf(x);
  t = t > 4.0f ? 4.0f : t;  // above 4, erf rounds to 1
  float q = -0x1.bf7adep-13f;
  q = fma_rn(q, t, 0x1.a4ba92p-9f);
  q = fma_rn(q, t, -0x1.76c336p-6f);
  q = fma_rn(q, t, 0x1.af0c46p-4f);
  q = fma_rn(q, t, 0x1.457f6ep-1f);
  q = fma_rn(q, t, 0x1.072f7ep-3f);
  const float far = copysignf(1.0f - exp_of(-fma_rn(q, t, t)), x);
  const uint32_t mask = fabsf(x) < 0.9375f ? ~0u : 0u;
  return float_of_bits((bits_of(near_zero) & mask) | (bits_of(far) & ~mask));
#endif
}

DS_HOST_DEVICE double erf_of(double x) { return erf(x); }

}  // namespace ds
