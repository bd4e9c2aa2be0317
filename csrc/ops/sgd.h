// Stochastic gradient descent over a flat range of parameters, with momentum and L2 weight decay.
// Source: Sutskever et al. 2013 in the form of torch.optim.SGD.
#pragma once

#include "flat_update.h"
#include "update_rule.h"

namespace ds {

/// Updates each element, see UpdateRule. With g = grad * control[0] + weight_decay * p in f32:
///   without momentum: d = g; otherwise
///   buffer = g at the first update, then momentum * buffer + (1 - dampening) * g;
///   d = nesterov ? g + momentum * buffer : buffer;
/// p -= lr * d; weight = p rounded to its dtype. All back ends flush denormals to zero.
struct Sgd {
  View master;                   // [n] f32, updated
  OptionalView momentum_buffer;  // [n] f32, updated; absent: no momentum
  View grad;                     // [n] f32, f16 or bf16
  OptionalView weight;           // [n] f32, f16 or bf16: the copy that the model computes with
  View control;                  // [4] f32, see GradientControl
  double lr;
  double weight_decay;
  double momentum;   // read with momentum_buffer
  double dampening;  // read with momentum_buffer
  bool nesterov;     // read with momentum_buffer
  bool first;        // writes the buffer without reading it
};

inline void check(const Sgd& op) {
  check_update("sgd", op, {});
  if (op.momentum_buffer) check_states("sgd", op.master, {&op.momentum_buffer});
}

/// Without momentum. See UpdateRule.
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

/// With momentum. The state is the buffer.
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
