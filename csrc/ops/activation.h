// Activations with a parameter: leaky ReLU, ELU and softplus, and their gradients.
#pragma once

#include <cmath>

#include "../core/exponential.h"
#include "../core/preconditions.h"

namespace ds {

enum class ActivationOp : int32_t { leaky_relu, elu, softplus };

/// Computes out = op(in) in f32 (f64 for f64), rounded once.
///
///     leaky_relu   in > 0: in                     else: alpha in
///     elu          in > 0: in                     else: alpha (e^in - 1)
///     softplus     alpha in > threshold: in       else: log(1 + e^(alpha in)) / alpha
///
/// Only softplus reads `threshold`. FLOPs: 1 per element of out.
struct Activation {
  View in;   // floating, any strides
  View out;  // same shape and dtype
  ActivationOp op;
  double alpha;
  double threshold;
};

inline void check(const Activation& op) {
  require_like("activation", op.out, op.in);
  require_floating("activation", op.out);
}

/// Computes dx (+)= dout * op'(in). At 0 the slopes are alpha, alpha and 1/2. FLOPs: 2 per element
/// of dx.
struct ActivationBackward {
  View in;    // the forward's
  View dout;  // same shape and dtype
  View dx;    // same shape and dtype
  ActivationOp op;
  double alpha;
  double threshold;
  bool accumulate;
};

inline void check(const ActivationBackward& op) {
  for (const View* v : {&op.in, &op.dout}) require_like("activation_backward", op.dx, *v);
  require_floating("activation_backward", op.dx);
}

/// The curve of `op`, shared by the back ends. T is float or double.
template <class T>
struct ActivationCurve {
  ActivationOp op;
  T alpha, threshold;

  DS_HOST_DEVICE T value(T x) const {
    if (op == ActivationOp::softplus) {
      const T scaled = alpha * x;
      if (scaled > threshold) return x;
      return ((scaled > T(0) ? scaled : T(0)) + std::log1p(std::exp(-std::fabs(scaled)))) / alpha;
    }
    if (x > T(0)) return x;
    return alpha * (op == ActivationOp::elu ? std::expm1(x) : x);
  }

  DS_HOST_DEVICE T slope(T x) const {
    if (op == ActivationOp::softplus) return alpha * x > threshold ? T(1) : sigmoid_of(alpha * x);
    if (x > T(0)) return T(1);
    return op == ActivationOp::elu ? alpha * std::exp(x) : alpha;
  }
};

}  // namespace ds
