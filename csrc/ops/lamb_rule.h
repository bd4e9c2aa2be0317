// LAMB's update of an element: the sequence of IEEE operations that all back ends run.
#pragma once

#include <cmath>

#include "../core/exact_math.h"
#include "lamb.h"

namespace ds {

/// The scalars of LAMB, computed in double on the host and rounded once to float.
struct LambConstants {
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float inverse_correction1, inverse_correction2;
  float eps_inside, eps_outside;  // one of them is 0
  float decay;
  float negative_lr;
};

inline LambConstants lamb_constants(const LambScalars& rule) {
  LambConstants c;
  c.beta1 = static_cast<float>(rule.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - rule.beta1);
  c.beta2 = static_cast<float>(rule.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - rule.beta2);
  c.inverse_correction1 = static_cast<float>(1.0 / rule.correction1);
  c.inverse_correction2 = static_cast<float>(1.0 / rule.correction2);
  c.eps_inside = rule.eps_inside_sqrt ? static_cast<float>(rule.eps) : 0.0f;
  c.eps_outside = rule.eps_inside_sqrt ? 0.0f : static_cast<float>(rule.eps);
  c.decay = static_cast<float>(rule.weight_decay);
  c.negative_lr = static_cast<float>(-rule.lr);
  return c;
}

/// Updates m and v from the gradient and the factor control[0]. Each fma and mul is one operation,
/// rounded to nearest even, with denormals flushed to zero:
///     g = grad * factor
///     m = fma(beta1, m, one_minus_beta1 * g)
///     v = fma(beta2, v, (one_minus_beta2 * g) * g)
DS_HOST_DEVICE void lamb_moments(const LambConstants& c, float factor, float grad, float& m,
                                 float& v) {
  const float g = mul_rn(grad, factor);
  m = fma_rn(c.beta1, m, mul_rn(c.one_minus_beta1, g));
  v = fma_rn(c.beta2, v, mul_rn(mul_rn(c.one_minus_beta2, g), g));
}

/// Returns the direction u:
///     d = sqrt(fma(v, inverse_correction2, eps_inside)) + eps_outside
///     u = fma(decay, p, m == 0 ? 0 : (m * inverse_correction1) / d)
DS_HOST_DEVICE float lamb_direction(const LambConstants& c, float p, float m, float v) {
  const float d = add_rn(sqrt_rn(fma_rn(v, c.inverse_correction2, c.eps_inside)), c.eps_outside);
  const float quotient = div_rn(mul_rn(m, c.inverse_correction1), d);
  return fma_rn(c.decay, p, m == 0.0f ? 0.0f : quotient);
}

/// Returns the trust ratio from the sums of squares of a parameter and its direction.
DS_HOST_DEVICE float lamb_coefficient(double parameter_squares, double direction_squares,
                                      double least, double most) {
  const double parameter = sqrt(parameter_squares), direction = sqrt(direction_squares);
  if (parameter == 0 || direction == 0) return 1.0f;
  double ratio = parameter / direction;
  if (ratio > most) ratio = most;
  if (ratio < least) ratio = least;
  return static_cast<float>(ratio);
}

/// Returns p = fma(negative_lr * coefficient, u, p).
DS_HOST_DEVICE float lamb_applied(const LambConstants& c, float coefficient, float p, float m,
                                  float v) {
  return fma_rn(mul_rn(c.negative_lr, coefficient), lamb_direction(c, p, m, v), p);
}

}  // namespace ds
