// One SGD update of one parameter: the sequence of IEEE operations that every back end runs.
// Source: Sutskever et al. 2013 in the form of torch.optim.SGD.
#pragma once

#include "sgd.h"
#include "update_rule.h"

namespace ds {

/// Without momentum; see UpdateRule.
struct SgdRule {
  static constexpr const char* kName = "sgd";
  static constexpr int kStates = 0;

  float weight_decay;
  float negative_lr;

  static SgdRule of(const Sgd& op) {
    return {.weight_decay = static_cast<float>(op.weight_decay),
            .negative_lr = static_cast<float>(-op.lr)};
  }

  ///   g = grad * factor;  g = fma(weight_decay, p, g);  p = fma(negative_lr, g, p)
  DS_HOST_DEVICE void update(float factor, float grad, float& p) const {
    float g = mul_rn(grad, factor);
    g = fma_rn(weight_decay, p, g);
    p = fma_rn(negative_lr, g, p);
  }
};

/// With momentum; the state is the buffer.
struct SgdMomentumRule {
  static constexpr const char* kName = "sgd";
  static constexpr int kStates = 1;

  float weight_decay;
  float momentum;
  float one_minus_dampening;
  float negative_lr;
  bool nesterov;
  bool first;

  static SgdMomentumRule of(const Sgd& op) {
    return {.weight_decay = static_cast<float>(op.weight_decay),
            .momentum = static_cast<float>(op.momentum),
            .one_minus_dampening = static_cast<float>(1.0 - op.dampening),
            .negative_lr = static_cast<float>(-op.lr),
            .nesterov = op.nesterov,
            .first = op.first};
  }

  ///   g = grad * factor
  ///   g = fma(weight_decay, p, g)
  ///   buffer = first ? g : fma(momentum, buffer, one_minus_dampening * g)
  ///   d = nesterov ? fma(momentum, buffer, g) : buffer
  ///   p = fma(negative_lr, d, p)
  DS_HOST_DEVICE void update(float factor, float grad, float& p, float& buffer) const {
    float g = mul_rn(grad, factor);
    g = fma_rn(weight_decay, p, g);
    const float moved = fma_rn(momentum, buffer, mul_rn(one_minus_dampening, g));
    buffer = first ? g : moved;
    const float ahead = fma_rn(momentum, buffer, g);
    p = fma_rn(negative_lr, nesterov ? ahead : buffer, p);
  }
};

}  // namespace ds
