// RMSprop over a flat range of parameters, optionally centered and with momentum, with L2 weight
// decay. Sources: Tieleman & Hinton 2012, lecture 6.5; Graves 2013, arXiv:1308.0850; in the form of
// torch.optim.RMSprop.
#pragma once

#include "flat_update.h"
#include "update_rule.h"

namespace ds {

/// Updates each element, see UpdateRule. With g = grad * control[0] + weight_decay * p in f32:
///     square_avg = alpha * square_avg + (1 - alpha) g^2;
///     centered: grad_avg += (1 - alpha) (g - grad_avg), v = max(0, square_avg - grad_avg^2);
///     else v = square_avg;
///     d = g / (sqrt(v) + eps);
///     with momentum: momentum_buffer = momentum * momentum_buffer + d, then d = momentum_buffer;
///     p -= lr * d; weight = p rounded to its dtype.
/// All back ends flush denormals to zero.
struct Rmsprop {
  View master;                   // [n] f32, updated
  View square_avg;               // [n] f32, updated
  OptionalView grad_avg;         // [n] f32, updated; absent: not centered
  OptionalView momentum_buffer;  // [n] f32, updated; absent: no momentum
  View grad;                     // [n] f32, f16 or bf16
  OptionalView weight;           // [n] f32, f16 or bf16: the copy that the model computes with
  View control;                  // [4] f32, see GradientControl
  double lr;
  double alpha;
  double eps;
  double weight_decay;
  double momentum;  // read with momentum_buffer
};

inline void check(const Rmsprop& op) {
  check_update("rmsprop", op, {&op.square_avg});
  if (op.grad_avg) check_states("rmsprop", op.master, {&op.grad_avg});
  if (op.momentum_buffer) check_states("rmsprop", op.master, {&op.momentum_buffer});
}

/// The update of one parameter, see UpdateRule. The states are the mean of squares, with kCentered
/// the mean of gradients, and with kMomentum the momentum buffer.
template <bool kCentered, bool kMomentum>
struct RmspropRule {
  static constexpr const char* kName = "rmsprop";
  static constexpr int kStates = 1 + kCentered + kMomentum;

  float weight_decay;
  float alpha, one_minus_alpha;
  float eps;
  float momentum;
  float negative_lr;

  static RmspropRule of(const Rmsprop& op) {
    return {.weight_decay = static_cast<float>(op.weight_decay),
            .alpha = static_cast<float>(op.alpha),
            .one_minus_alpha = static_cast<float>(1.0 - op.alpha),
            .eps = static_cast<float>(op.eps),
            .momentum = static_cast<float>(op.momentum),
            .negative_lr = static_cast<float>(-op.lr)};
  }

  /// Updates in this order:
  ///     g = grad * factor;  g = fma(weight_decay, p, g)
  ///     square = fma(alpha, square, one_minus_alpha * g * g)
  ///     mean = fma(one_minus_alpha, g - mean, mean)
  ///     v = max(0, fma(-mean, mean, square)), NaN stays NaN
  ///     d = g / (sqrt(v) + eps)
  ///     buffer = fma(momentum, buffer, d)
  ///     p = fma(negative_lr, kMomentum ? buffer : d, p)
  DS_HOST_DEVICE void apply(float factor, float grad, float& p, float& square, float& mean,
                            float& buffer) const {
    float g = mul_rn(grad, factor);
    g = fma_rn(weight_decay, p, g);
    square = fma_rn(alpha, square, mul_rn(mul_rn(one_minus_alpha, g), g));
    float variance = square;
    if constexpr (kCentered) {
      mean = fma_rn(one_minus_alpha, sub_rn(g, mean), mean);
      variance = fma_rn(-mean, mean, square);
      variance = variance < 0.0f ? 0.0f : variance;
    }
    float d = div_rn(g, add_rn(sqrt_rn(variance), eps));
    if constexpr (kMomentum) d = buffer = fma_rn(momentum, buffer, d);
    p = fma_rn(negative_lr, d, p);
  }

  template <class... States>
  DS_HOST_DEVICE void update(float factor, float grad, float& p, float& square,
                             States&... others) const {
    float none = 0.0f;
    if constexpr (sizeof...(States) == 2) apply(factor, grad, p, square, others...);
    else if constexpr (kCentered) apply(factor, grad, p, square, others..., none);
    else if constexpr (kMomentum) apply(factor, grad, p, square, none, others...);
    else apply(factor, grad, p, square, none, none);
  }
};

/// Calls body(rule, states) with the rule that matches the op's states.
template <class Body>
void with_rmsprop_rule(const Rmsprop& op, const Body& body) {
  const View &square = op.square_avg, &mean = op.grad_avg, &buffer = op.momentum_buffer;
  if (op.grad_avg && op.momentum_buffer) {
    body(RmspropRule<true, true>::of(op), std::array{square, mean, buffer});
  } else if (op.grad_avg) {
    body(RmspropRule<true, false>::of(op), std::array{square, mean});
  } else if (op.momentum_buffer) {
    body(RmspropRule<false, true>::of(op), std::array{square, buffer});
  } else {
    body(RmspropRule<false, false>::of(op), std::array{square});
  }
}

}  // namespace ds
