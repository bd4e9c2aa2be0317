// Muon's element-wise arithmetic: the sequence of IEEE operations that all back ends run.
#pragma once

#include <cmath>

#include "../core/exact_math.h"
#include "muon.h"

namespace ds {

/// Added to a norm before a division by it.
constexpr float kMuonEps = 1e-7f;

/// The scalars of the momentum, rounded once to float on the host.
struct MuonConstants {
  float beta, one_minus_beta;
  bool nesterov;
};

inline MuonConstants muon_constants(double beta, bool nesterov) {
  return {static_cast<float>(beta), static_cast<float>(1.0 - beta), nesterov};
}

/// Returns fma(beta, momentum, one_minus_beta * (grad * factor)). Once, it is the new momentum;
/// applied again, the Nesterov look-ahead.
DS_HOST_DEVICE float muon_mix(const MuonConstants& c, float factor, float grad, float momentum) {
  return fma_rn(c.beta, momentum, mul_rn(c.one_minus_beta, mul_rn(grad, factor)));
}

/// Returns u from the updated momentum.
DS_HOST_DEVICE float muon_update(const MuonConstants& c, float factor, float grad, float momentum) {
  return c.nesterov ? muon_mix(c, factor, grad, momentum) : momentum;
}

/// Returns the divisor of u from the sum of its squares.
DS_HOST_DEVICE float muon_divisor(double squares) {
  return add_rn(static_cast<float>(sqrt(squares)), kMuonEps);
}

/// The scalars of a step: -lr * weight_decay and -lr * scale.
struct MuonStep {
  float decay, rate;
};

inline MuonStep muon_step(const MuonApply& op) {
  return {static_cast<float>(-op.lr * op.weight_decay), static_cast<float>(-op.lr * op.scale)};
}

DS_HOST_DEVICE float muon_applied(const MuonStep& s, float p, float direction) {
  return fma_rn(s.rate, direction, fma_rn(s.decay, p, p));
}

}  // namespace ds
