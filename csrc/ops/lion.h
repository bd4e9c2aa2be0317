// Lion over a flat range of parameters: the sign of an interpolated momentum, with decoupled weight
// decay. Source: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
#pragma once

#include "flat_update.h"
#include "update_rule.h"

namespace ds {

/// Updates each element, see UpdateRule. With g = grad * control[0] in f32:
///     p -= lr * weight_decay * p;  p -= lr * sign(beta1 m + (1 - beta1) g);
///     m = beta2 m + (1 - beta2) g;  weight = p rounded to its dtype.
/// sign(0) is 0, as in the paper (DeepSpeed's kernels move such a parameter by lr). NaN stays NaN.
/// All back ends flush denormals to zero.
struct Lion {
  View master;          // [n] f32, updated
  View m;               // [n] f32, updated
  View grad;            // [n] f32, f16 or bf16
  OptionalView weight;  // [n] f32, f16 or bf16: the copy that the model computes with
  View control;         // [4] f32, see GradientControl
  double lr;
  double beta1;
  double beta2;
  double weight_decay;
};

inline void check(const Lion& op) { check_update("lion", op, {&op.m}); }

/// See UpdateRule. The state is m.
struct LionRule {
  static constexpr const char* kName = "lion";
  static constexpr int kStates = 1;

  float beta1, one_minus_beta1;
  float beta2, one_minus_beta2;
  float parameter_decay;  // -lr * weight_decay
  float negative_lr;

  static LionRule of(const Lion& op) {
    return {.beta1 = static_cast<float>(op.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - op.beta1),
            .beta2 = static_cast<float>(op.beta2),
            .one_minus_beta2 = static_cast<float>(1.0 - op.beta2),
            .parameter_decay = static_cast<float>(-op.lr * op.weight_decay),
            .negative_lr = static_cast<float>(-op.lr)};
  }

  ///     g = grad * factor
  ///     p = fma(parameter_decay, p, p)
  ///     c = fma(beta1, m, one_minus_beta1 * g)
  ///     p = fma(negative_lr, sign(c), p), where sign(0) is 0 and sign(NaN) is NaN
  ///     m = fma(beta2, m, one_minus_beta2 * g)
  DS_HOST_DEVICE void update(float factor, float grad, float& p, float& m) const {
    const float g = mul_rn(grad, factor);
    p = fma_rn(parameter_decay, p, p);
    const float c = fma_rn(beta1, m, mul_rn(one_minus_beta1, g));
    float sign = c > 0.0f ? 1.0f : c;
    sign = c < 0.0f ? -1.0f : sign;
    p = fma_rn(negative_lr, sign, p);
    m = fma_rn(beta2, m, mul_rn(one_minus_beta2, g));
  }
};

}  // namespace ds
