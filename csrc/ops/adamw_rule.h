// One Adam(W) update of one parameter: the sequence of IEEE operations that every back end runs.
#pragma once

#include <cmath>

#include "../core/exact_math.h"
#include "adamw.h"

namespace ds {

/// The scalars of AdamW, each computed in double and rounded to float once, on the host.
struct AdamWConstants {
  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float parameter_decay;  // -lr * weight_decay when decoupled, else 0
  float gradient_decay;   // weight_decay when not decoupled, else 0
  float inverse_root_correction2;
  float eps;
  float negative_step;  // -lr / correction1
};

/// Of an op or a struct with the fields lr, beta1 ... decoupled of AdamW.
template <class Rule>
inline AdamWConstants adamw_constants(const Rule& op) {
  AdamWConstants c;
  c.beta1 = static_cast<float>(op.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - op.beta1);
  c.beta2 = static_cast<float>(op.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - op.beta2);
  c.parameter_decay = op.decoupled ? static_cast<float>(-op.lr * op.weight_decay) : 0.0f;
  c.gradient_decay = op.decoupled ? 0.0f : static_cast<float>(op.weight_decay);
  c.inverse_root_correction2 = static_cast<float>(1.0 / std::sqrt(op.correction2));
  c.eps = static_cast<float>(op.eps);
  c.negative_step = static_cast<float>(-op.lr / op.correction1);
  return c;
}

/// Updates p, m and v in place from the gradient and the factor control[0]. The exact order, where
/// every line is one operation per fma / mul / sqrt / div, rounded to nearest, ties to even:
///   g = grad * factor
///   g = fma(gradient_decay, p, g)
///   p = fma(parameter_decay, p, p)
///   m = fma(beta1, m, one_minus_beta1 * g)
///   v = fma(beta2, v, (one_minus_beta2 * g) * g)
///   d = fma(sqrt(v), inverse_root_correction2, eps)
///   p = fma(negative_step, m / d, p)
/// Both decays are always executed: one of them is 0, so that the two forms share one sequence. The
/// caller's floating-point mode reads denormal operands as 0 and writes denormal results as 0 (FTZ
/// and DAZ in MXCSR on the CPU, the ftz mode of the compiler on the GPU).
DS_HOST_DEVICE void adamw_update(const AdamWConstants& c, float factor, float grad, float& p,
                                 float& m, float& v) {
  float g = mul_rn(grad, factor);
  g = fma_rn(c.gradient_decay, p, g);
  p = fma_rn(c.parameter_decay, p, p);
  m = fma_rn(c.beta1, m, mul_rn(c.one_minus_beta1, g));
  v = fma_rn(c.beta2, v, mul_rn(mul_rn(c.one_minus_beta2, g), g));
  const float d = fma_rn(sqrt_rn(v), c.inverse_root_correction2, c.eps);
  p = fma_rn(c.negative_step, div_rn(m, d), p);
}

}  // namespace ds
