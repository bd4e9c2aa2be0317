// Adagrad over a flat range of parameters, with L2 weight decay.
// Source: Duchi et al. 2011 in the form of torch.optim.Adagrad.
#pragma once

#include "flat_update.h"
#include "update_rule.h"

namespace ds {

/// Updates each element, see UpdateRule. With g = grad * control[0] + weight_decay * p in f32:
///   sum += g^2;  p -= lr * g / (sqrt(sum) + eps);  weight = p rounded to its dtype.
/// Denormals are flushed to zero on every back end.
struct Adagrad {
  View master;          // [n] f32, updated
  View sum;             // [n] f32, updated
  View grad;            // [n] f32, f16 or bf16
  OptionalView weight;  // [n] f32, f16 or bf16: the copy that the model computes with
  View control;         // [4] f32, see GradientControl
  double lr;            // already decayed: lr / (1 + (t - 1) lr_decay)
  double eps;
  double weight_decay;
};

inline void check(const Adagrad& op) { check_update("adagrad", op, {&op.sum}); }

/// See UpdateRule. The state is the sum of squares.
struct AdagradRule {
  static constexpr const char* kName = "adagrad";
  static constexpr int kStates = 1;

  float weight_decay;
  float eps;
  float negative_lr;

  static AdagradRule of(const Adagrad& op) {
    return {.weight_decay = static_cast<float>(op.weight_decay),
            .eps = static_cast<float>(op.eps),
            .negative_lr = static_cast<float>(-op.lr)};
  }

  ///   g = grad * factor
  ///   g = fma(weight_decay, p, g)
  ///   sum = fma(g, g, sum)
  ///   p = fma(negative_lr, g / (sqrt(sum) + eps), p)
  DS_HOST_DEVICE void update(float factor, float grad, float& p, float& sum) const {
    float g = mul_rn(grad, factor);
    g = fma_rn(weight_decay, p, g);
    sum = fma_rn(g, g, sum);
    p = fma_rn(negative_lr, div_rn(g, add_rn(sqrt_rn(sum), eps)), p);
  }
};

}  // namespace ds
