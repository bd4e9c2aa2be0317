// Element-wise arithmetic, comparison, selection and activations, with broadcasting by strides.
#pragma once

#include "../core/preconditions.h"

namespace ds {

enum class UnaryOp : int32_t {
  neg,
  abs,
  exp,
  log,
  sqrt,
  rsqrt,
  reciprocal,
  square,
  sin,
  cos,
  tanh,
  sigmoid,
  relu,
  silu,
  gelu_tanh,
  gelu_erf,
  floor,
  ceil,
  round,
  trunc,
  erf,
  log1p,
  expm1,
  tan
};

/// Computes out = op(in) in f32 (f64 for f64). gelu_tanh is 0.5 x (1 + tanh(sqrt(2/pi) (x +
/// 0.044715 x^3))), gelu_erf is 0.5 x (1 + erf(x / sqrt(2))), and round rounds halves to even.
/// FLOPs: 1 per element of out.
struct Unary {
  View in;   // floating, any strides
  View out;  // same shape and dtype
  UnaryOp op;
};

inline void check(const Unary& op) {
  require_like("unary", op.in, op.out);
  require_floating("unary", op.in);
}

/// Computes dx = dout * op'(in) from the input of the forward.
/// FLOPs: 2 per element of dx.
struct UnaryBackward {
  View in;    // the forward's input
  View dout;  // same shape and dtype
  View dx;    // same shape and dtype
  UnaryOp op;
  bool accumulate;
};

inline void check(const UnaryBackward& op) {
  require_like("unary_backward", op.in, op.dout);
  require_like("unary_backward", op.in, op.dx);
  require_floating("unary_backward", op.in);
}

enum class BinaryOp : int32_t { add, sub, mul, div, maximum, minimum, pow, atan2 };

/// Computes out = a op b. The caller broadcasts by strides of 0. Integer div truncates; pow and
/// atan2 are for floating dtypes only.
/// FLOPs: 1 per element of out.
struct Binary {
  View a;    // same shape as out
  View b;    // same shape as out
  View out;  // one dtype for all three, not bool
  BinaryOp op;
  bool accumulate;
};

inline void check(const Binary& op) {
  require_like("binary", op.a, op.out);
  require_like("binary", op.b, op.out);
  if (op.out.dtype == DType::boolean) unsupported("binary", op.out.dtype, "any dtype but bool");
  if (op.op == BinaryOp::pow || op.op == BinaryOp::atan2) require_floating("binary", op.out);
}

enum class CompareOp : int32_t { eq, ne, lt, le, gt, ge };

/// Computes out = a op b as bool. A comparison with NaN is false, except ne.
/// FLOPs: 1 per element of out.
struct Compare {
  View a;    // same shape as out, any dtype
  View b;    // same shape and dtype as a
  View out;  // bool
  CompareOp op;
};

inline void check(const Compare& op) {
  require_like("compare", op.a, op.b);
  require_same_shape("compare", op.a, op.out);
  require_dtype("compare", op.out, DType::boolean, "out");
}

/// Computes out = in * scale + shift in f32 (f64 for f64).
/// FLOPs: 1 per element of out.
struct Scale {
  View in;   // floating
  View out;  // same shape and dtype
  double scale;
  double shift;
  bool accumulate;
};

inline void check(const Scale& op) {
  require_like("scale", op.in, op.out);
  require_floating("scale", op.in);
}

/// Computes out = condition ? a : b.
struct Where {
  View condition;  // bool, same shape as out
  View a;          // same shape and dtype as out
  View b;          // same shape and dtype as out
  View out;        // any dtype
};

inline void check(const Where& op) {
  require_like("where", op.a, op.out);
  require_like("where", op.b, op.out);
  require_same_shape("where", op.condition, op.out);
  require_dtype("where", op.condition, DType::boolean, "condition");
}

}  // namespace ds
