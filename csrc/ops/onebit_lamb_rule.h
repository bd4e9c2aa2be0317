// 1-bit LAMB per element and per parameter: the sequence of IEEE operations that all back ends run.
#pragma once

#include <cmath>

#include "../core/exact_math.h"
#include "onebit_lamb.h"

namespace ds {

/// The scalars, computed in double on the host and rounded once to float.
struct OneBitLambConstants {
  float negative_beta1, inverse_one_minus_beta1;
  float beta2, one_minus_beta2;
  float eps, decay;
};

inline OneBitLambConstants one_bit_lamb_constants(const OneBitLambMoments& op) {
  return {static_cast<float>(-op.beta1), static_cast<float>(1.0 / (1.0 - op.beta1)),
          static_cast<float>(op.beta2),  static_cast<float>(1.0 - op.beta2),
          static_cast<float>(op.eps),    static_cast<float>(op.weight_decay)};
}

/// What an element adds to the sums of its parameter.
struct OneBitLambTerms {
  double direction, update, ratio;
};

/// Updates the moment and returns what the element adds:
///     g = fma(negative_beta1, m, payload) * inverse_one_minus_beta1;  m = payload
///     fresh = fma(beta2, fresh, (one_minus_beta2 * g) * g)
///     d = sqrt(v) + eps;  u = m / d;  update = fma(decay, p, u);  ratio = d / (sqrt(fresh) + eps)
DS_HOST_DEVICE OneBitLambTerms one_bit_lamb_element(const OneBitLambConstants& c, float p,
                                                    float payload, float v, float& m,
                                                    float& fresh) {
  const bool live = v != 0.0f;
  const float x = live ? payload : 0.0f;
  const float g = mul_rn(fma_rn(c.negative_beta1, m, x), c.inverse_one_minus_beta1);
  const float moved = fma_rn(c.beta2, fresh, mul_rn(mul_rn(c.one_minus_beta2, g), g));
  m = x;
  fresh = live ? moved : fresh;
  const float d = add_rn(sqrt_rn(v), c.eps);
  const float u = x == 0.0f ? 0.0f : div_rn(x, d);
  const float ratio = live ? div_rn(d, add_rn(sqrt_rn(fresh), c.eps)) : 0.0f;
  const double wide = u, update = fma_rn(c.decay, p, u);
  return {wide * wide, update * update, static_cast<double>(ratio)};
}

/// Returns the new factor of a parameter, as OneBitLambCoefficients defines it. `sums` are the
/// three of OneBitLambMoments, `last` is the previous factor.
DS_HOST_DEVICE float one_bit_lamb_factor(const double* sums, float last, bool decays, double least,
                                         double most, double threshold) {
  double factor = sums[2] > 0 ? sums[2] : 1;
  if (decays) {
    const double share = sums[1] > 0 ? sqrt(sums[0]) / sqrt(sums[1]) : 1;
    const double q = share < 1 ? share : 1;
    factor = factor * q + (1 - q);
  }
  if (factor < least) factor = least;
  if (factor > most) factor = most;
  const double low = last * (1 - threshold), high = last * (1 + threshold);
  if (factor < low) factor = low;
  if (factor > high) factor = high;
  return static_cast<float>(factor);
}

}  // namespace ds
