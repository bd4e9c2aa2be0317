// One Adagrad update of one parameter: the sequence of IEEE operations that every back end runs.
// Source: Duchi et al. 2011 in the form of torch.optim.Adagrad.
#pragma once

#include "adagrad.h"
#include "update_rule.h"

namespace ds {

/// See UpdateRule; the state is the sum of squares.
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
