// The update of one parameter by Adam or AdamW: the sequence of IEEE operations that all back ends
// run. Sources: Kingma & Ba 2015; Loshchilov & Hutter 2019.
#pragma once

#include <cmath>

#include "adamw.h"
#include "update_rule.h"

namespace ds {

/// See UpdateRule. The states are m and v.
struct AdamWRule {
  static constexpr const char* kName = "adamw";
  static constexpr int kStates = 2;

  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float parameter_decay;  // -lr * weight_decay if decoupled, else 0
  float gradient_decay;   // weight_decay if not decoupled, else 0
  float inverse_root_correction2;
  float eps;
  float negative_step;  // -lr / correction1

  /// `Op` is a struct with AdamW's fields from lr to decoupled.
  template <class Op>
  static AdamWRule of(const Op& op) {
    return {.beta1 = static_cast<float>(op.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - op.beta1),
            .beta2 = static_cast<float>(op.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - op.beta2),
            .parameter_decay = op.decoupled ? static_cast<float>(-op.lr * op.weight_decay) : 0.0f,
            .gradient_decay = op.decoupled ? 0.0f : static_cast<float>(op.weight_decay),
            .inverse_root_correction2 = static_cast<float>(1.0 / std::sqrt(op.correction2)),
            .eps = static_cast<float>(op.eps),
            .negative_step = static_cast<float>(-op.lr / op.correction1)};
  }

  /// Updates in this order. Each fma, mul, sqrt and div is one operation, rounded to nearest even:
  ///     g = grad * factor
  ///     g = fma(gradient_decay, p, g)
  ///     p = fma(parameter_decay, p, p)
  ///     m = fma(beta1, m, one_minus_beta1 * g)
  ///     v = fma(beta2, v, (one_minus_beta2 * g) * g)
  ///     d = fma(sqrt(v), inverse_root_correction2, eps)
  ///     p = fma(negative_step, m / d, p)
  /// One of the decays is 0. Both lines always run, so that both forms share one sequence.
  DS_HOST_DEVICE void update(float factor, float grad, float& p, float& m, float& v) const {
    float g = mul_rn(grad, factor);
    g = fma_rn(gradient_decay, p, g);
    p = fma_rn(parameter_decay, p, p);
    m = fma_rn(beta1, m, mul_rn(one_minus_beta1, g));
    v = fma_rn(beta2, v, mul_rn(mul_rn(one_minus_beta2, g), g));
    const float d = fma_rn(sqrt_rn(v), inverse_root_correction2, eps);
    p = fma_rn(negative_step, div_rn(m, d), p);
  }
};

}  // namespace ds
