// Value and derivative of each unary op, shared by the back ends.
#pragma once

#include <cmath>
#include <type_traits>

#include "../core/error_function.h"
#include "../core/exponential.h"
#include "elementwise.h"

namespace ds {

/// Returns 2 u with u = sqrt(2/pi) (x + 0.044715 x^3). gelu_tanh uses 0.5 (1 + tanh(u)) =
/// sigmoid(2u), which needs one exponential and has no cancellation.
template <class T>
DS_HOST_DEVICE T gelu_twice_inner(T x) {
  constexpr T kTwiceRoot = T(1.5957691216057308);  // 2 sqrt(2 / pi)
  return kTwiceRoot * x * (T(1) + T(0.044715) * x * x);
}

/// Returns op(x). T is float or double.
template <UnaryOp op, class T>
DS_HOST_DEVICE T unary_value(T x) {
  if constexpr (op == UnaryOp::neg) return -x;
  else if constexpr (op == UnaryOp::abs) return std::fabs(x);
  else if constexpr (op == UnaryOp::exp) return exp_of(x);
  else if constexpr (op == UnaryOp::log) return std::log(x);
  else if constexpr (op == UnaryOp::sqrt) return std::sqrt(x);
  else if constexpr (op == UnaryOp::rsqrt) return T(1) / std::sqrt(x);
  else if constexpr (op == UnaryOp::reciprocal) return T(1) / x;
  else if constexpr (op == UnaryOp::square) return x * x;
  else if constexpr (op == UnaryOp::sin) return std::sin(x);
  else if constexpr (op == UnaryOp::cos) return std::cos(x);
  else if constexpr (op == UnaryOp::tanh) return tanh_of(x);
  else if constexpr (op == UnaryOp::sigmoid) return sigmoid_of(x);
  else if constexpr (op == UnaryOp::relu) return x < T(0) ? T(0) : x;
  else if constexpr (op == UnaryOp::silu) return quotient(x, T(1) + exp_of(-x));
  else if constexpr (op == UnaryOp::gelu_tanh) {
    return quotient(x, T(1) + exp_of(-gelu_twice_inner(x)));
  } else if constexpr (op == UnaryOp::gelu_erf) {
    return T(0.5) * x * (T(1) + erf_of(x * T(0.70710678118654752)));
  } else if constexpr (op == UnaryOp::floor) return std::floor(x);
  else if constexpr (op == UnaryOp::ceil) return std::ceil(x);
  else if constexpr (op == UnaryOp::round) return std::rint(x);
  else if constexpr (op == UnaryOp::trunc) return std::trunc(x);
  else if constexpr (op == UnaryOp::erf) return erf_of(x);
  else if constexpr (op == UnaryOp::log1p) return std::log1p(x);
  else if constexpr (op == UnaryOp::expm1) return std::expm1(x);
  else {
    static_assert(op == UnaryOp::tan, "every UnaryOp has a value");
    return std::tan(x);
  }
}

/// Returns true if op is a step function, with derivative 0.
constexpr bool is_staircase(UnaryOp op) {
  return op == UnaryOp::floor || op == UnaryOp::ceil || op == UnaryOp::round ||
         op == UnaryOp::trunc;
}

/// Returns d op(x) / dx. The derivative of abs and relu at 0 is 0.
template <UnaryOp op, class T>
DS_HOST_DEVICE T unary_derivative(T x) {
  if constexpr (op == UnaryOp::neg) return T(-1);
  else if constexpr (op == UnaryOp::abs) return x > T(0) ? T(1) : (x < T(0) ? T(-1) : T(0));
  else if constexpr (op == UnaryOp::exp) return exp_of(x);
  else if constexpr (op == UnaryOp::log) return T(1) / x;
  else if constexpr (op == UnaryOp::sqrt) return T(0.5) / std::sqrt(x);
  else if constexpr (op == UnaryOp::rsqrt) return T(-0.5) / (x * std::sqrt(x));
  else if constexpr (op == UnaryOp::reciprocal) return T(-1) / (x * x);
  else if constexpr (op == UnaryOp::square) return T(2) * x;
  else if constexpr (op == UnaryOp::sin) return std::cos(x);
  else if constexpr (op == UnaryOp::cos) return -std::sin(x);
  else if constexpr (op == UnaryOp::tanh) {
    const T t = tanh_of(x);
    return (T(1) - t) * (T(1) + t);
  } else if constexpr (op == UnaryOp::sigmoid) {
    const T s = sigmoid_of(x);
    return s * (T(1) - s);
  } else if constexpr (op == UnaryOp::relu) return x > T(0) ? T(1) : T(0);
  else if constexpr (op == UnaryOp::silu) {
    const T s = sigmoid_of(x);
    return s * (T(1) + x * (T(1) - s));
  } else if constexpr (op == UnaryOp::gelu_tanh) {
    constexpr T kTwiceRoot = T(1.5957691216057308);
    const T s = sigmoid_of(gelu_twice_inner(x));
    const T inner_slope = kTwiceRoot * (T(1) + T(3 * 0.044715) * x * x);
    return s + x * (s * (T(1) - s)) * inner_slope;
  } else if constexpr (op == UnaryOp::gelu_erf) {
    constexpr T kInverseRoot = T(0.39894228040143268);  // 1 / sqrt(2 pi)
    const T cdf = T(0.5) * (T(1) + erf_of(x * T(0.70710678118654752)));
    return cdf + x * (kInverseRoot * exp_of(T(-0.5) * x * x));
  } else if constexpr (is_staircase(op)) return T(0);
  else if constexpr (op == UnaryOp::erf)
    return T(1.1283791670955126) * exp_of(-x * x);  // 2 / sqrt(pi)
  else if constexpr (op == UnaryOp::log1p) return T(1) / (T(1) + x);
  else if constexpr (op == UnaryOp::expm1) return exp_of(x);
  else {
    static_assert(op == UnaryOp::tan, "every UnaryOp has a derivative");
    const T t = std::tan(x);
    return T(1) + t * t;
  }
}

/// Calls f with `op` as a std::integral_constant<UnaryOp, op>.
template <class F>
void dispatch_unary(const char* name, UnaryOp op, F&& f) {
#define DS_CASE(value) \
  case UnaryOp::value: return f(std::integral_constant<UnaryOp, UnaryOp::value>{})
  switch (op) {
    DS_CASE(neg);
    DS_CASE(abs);
    DS_CASE(exp);
    DS_CASE(log);
    DS_CASE(sqrt);
    DS_CASE(rsqrt);
    DS_CASE(reciprocal);
    DS_CASE(square);
    DS_CASE(sin);
    DS_CASE(cos);
    DS_CASE(tanh);
    DS_CASE(sigmoid);
    DS_CASE(relu);
    DS_CASE(silu);
    DS_CASE(gelu_tanh);
    DS_CASE(gelu_erf);
    DS_CASE(floor);
    DS_CASE(ceil);
    DS_CASE(round);
    DS_CASE(trunc);
    DS_CASE(erf);
    DS_CASE(log1p);
    DS_CASE(expm1);
    DS_CASE(tan);
  }
#undef DS_CASE
  throw Error("DS_ARGUMENT", name, "a unary op", text("op ", static_cast<int32_t>(op)));
}

}  // namespace ds
