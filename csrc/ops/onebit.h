// Adam for ranks that exchange one bit per element: the payloads of the exchange, and the updates
// from its result. Sources: Tang et al. 2021, arXiv:2102.02888 (1-bit Adam); Lu et al. 2022,
// arXiv:2202.06009 (0/1 Adam); OneBitAdam and ZeroOneAdam of DeepSpeed.
#pragma once

#include <array>

#include "flat_update.h"
#include "update_rule.h"

namespace ds {

/// Computes payload = beta1 * m + (1 - beta1) * g with g = grad * control[0] in f32, or g without
/// m. If control[1] is 0, writes zeros. Denormals are flushed to zero.
struct MomentPayload {
  OptionalView m;  // [n] f32, read
  View grad;       // [n] f32, f16 or bf16
  View payload;    // [n] f32, overwritten
  View control;    // [4] f32, see GradientControl
  double beta1;    // read with m
};

inline void check(const MomentPayload& op) {
  constexpr const char* kOp = "moment_payload";
  check_states(kOp, op.payload, {&op.payload});
  if (op.m) check_states(kOp, op.payload, {&op.m});
  check_elements(kOp, op.payload, op.grad, "grad");
  check_control(kOp, op.control);
}

/// Computes payload = (p - anchor) * (sqrt(v) + eps): the local drift from `anchor`, the weights
/// that all ranks had last, in units of the moment. If control[1] is 0, writes zeros. Denormals are
/// flushed to zero.
struct DriftPayload {
  View master;   // [n] f32, read
  View anchor;   // [n] f32, read
  View v;        // [n] f32, read
  View payload;  // [n] f32, overwritten
  View control;  // [4] f32
  double eps;
};

inline void check(const DriftPayload& op) {
  constexpr const char* kOp = "drift_payload";
  check_states(kOp, op.master, {&op.master, &op.anchor, &op.v, &op.payload});
  check_control(kOp, op.control);
}

/// Updates each element with a frozen second moment, see UpdateRule. With g = grad * control[0] in
/// f32, or 0 if v is 0:
///     m = beta1 m + (1 - beta1) g;  p -= lr * weight_decay * p;  p -= lr * m / (sqrt(v) + eps).
/// v is 0 if the element never had a gradient. Then its compressed value is noise, which a division
/// by eps would amplify. (DeepSpeed leaves this to the caller, by exp_avg_mask.)
struct FrozenAdam {
  View master;          // [n] f32, updated
  View m;               // [n] f32, updated
  View v;               // [n] f32, read
  View grad;            // [n] f32, f16 or bf16: a gradient, or with beta1 = 0 the moment itself
  OptionalView weight;  // [n] f32, f16 or bf16: the copy that the model computes with
  View control;         // [4] f32
  double lr;
  double beta1;
  double eps;
  double weight_decay;
};

inline void check(const FrozenAdam& op) { check_update("frozen_adam", op, {&op.m, &op.v}); }

/// Synchronizes ranks after local updates, see UpdateRule. `grad` is the average of the ranks'
/// DriftPayloads, u = grad * control[0]:
///     m = -u / rate;  p = anchor + u / (sqrt(v) + eps).
/// `rate` is the sum of the learning rates since all ranks had the weights `anchor`. If v is 0, all
/// ranks have the same p, which is unchanged, and m becomes 0.
struct AnchorAdam {
  View master;          // [n] f32, updated
  View m;               // [n] f32, updated
  View v;               // [n] f32, read
  View anchor;          // [n] f32, read
  View grad;            // [n] f32
  OptionalView weight;  // [n] f32, f16 or bf16
  View control;         // [4] f32
  double rate;
  double eps;
};

inline void check(const AnchorAdam& op) {
  check_update("anchor_adam", op, {&op.m, &op.v, &op.anchor});
}

/// See UpdateRule. The states are m and v.
struct FrozenAdamRule {
  static constexpr const char* kName = "frozen_adam";
  static constexpr int kStates = 2;

  float beta1, one_minus_beta1;
  float parameter_decay;
  float eps;
  float negative_lr;

  static FrozenAdamRule of(const FrozenAdam& op) {
    return {.beta1 = static_cast<float>(op.beta1),
            .one_minus_beta1 = static_cast<float>(1.0 - op.beta1),
            .parameter_decay = static_cast<float>(-op.lr * op.weight_decay),
            .eps = static_cast<float>(op.eps),
            .negative_lr = static_cast<float>(-op.lr)};
  }

  /// g = v == 0 ? 0 : grad * factor
  ///     m = fma(beta1, m, one_minus_beta1 * g)
  ///     p = fma(parameter_decay, p, p);  p = fma(negative_lr, m / (sqrt(v) + eps), p), 0 / 0 = 0
  DS_HOST_DEVICE void update(float factor, float grad, float& p, float& m, float& v) const {
    const float g = v == 0.0f ? 0.0f : mul_rn(grad, factor);
    m = fma_rn(beta1, m, mul_rn(one_minus_beta1, g));
    const float quotient = div_rn(m, add_rn(sqrt_rn(v), eps));
    p = fma_rn(parameter_decay, p, p);
    p = fma_rn(negative_lr, m == 0.0f ? 0.0f : quotient, p);
  }
};

/// See UpdateRule. The states are m, v and the anchor.
struct AnchorAdamRule {
  static constexpr const char* kName = "anchor_adam";
  static constexpr int kStates = 3;

  float negative_inverse_rate;
  float eps;

  static AnchorAdamRule of(const AnchorAdam& op) {
    const double inverse = op.rate > 0 ? 1 / op.rate : 0;
    return {.negative_inverse_rate = static_cast<float>(-inverse),
            .eps = static_cast<float>(op.eps)};
  }

  ///     u = grad * factor;  m = u * negative_inverse_rate;  p = anchor + u / (sqrt(v) + eps)
  DS_HOST_DEVICE void update(float factor, float grad, float& p, float& m, float& v,
                             float& anchor) const {
    const float u = mul_rn(grad, factor);
    const float moved = add_rn(anchor, div_rn(u, add_rn(sqrt_rn(v), eps)));
    m = v == 0.0f ? 0.0f : mul_rn(u, negative_inverse_rate);
    p = v == 0.0f ? p : moved;
  }
};

/// Returns an element of MomentPayload; drift_payload() returns one of DriftPayload.
DS_HOST_DEVICE float moment_payload(float beta1, float one_minus_beta1, float factor, float grad,
                                    float m) {
  return fma_rn(beta1, m, mul_rn(one_minus_beta1, mul_rn(grad, factor)));
}

DS_HOST_DEVICE float drift_payload(float eps, float p, float anchor, float v) {
  return mul_rn(sub_rn(p, anchor), add_rn(sqrt_rn(v), eps));
}

}  // namespace ds
