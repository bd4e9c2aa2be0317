// The gate of Llama's feed-forward block and its gradients. Source: Shazeer 2020.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Computes out = silu(gate) * up with silu(x) = x / (1 + e^-x), in f32 (f64 for f64), rounded
/// once.
/// FLOPs: 2 per element of out.
struct Swiglu {
  View gate;  // floating, any strides
  View up;    // same shape and dtype
  View out;   // same shape and dtype
};

inline void check(const Swiglu& op) {
  require_like("swiglu", op.out, op.gate);
  require_like("swiglu", op.out, op.up);
  require_floating("swiglu", op.out);
}

/// Computes dgate (+)= dout * up * silu'(gate) and dup (+)= dout * silu(gate).
/// FLOPs: 4 per element of dout.
struct SwigluBackward {
  View gate;   // the forward's
  View up;     // the forward's
  View dout;   // same shape and dtype
  View dgate;  // same shape and dtype
  View dup;    // same shape and dtype
  bool accumulate_gate;
  bool accumulate_up;
};

inline void check(const SwigluBackward& op) {
  constexpr const char* kOp = "swiglu_backward";
  for (const View* v : {&op.gate, &op.up, &op.dgate, &op.dup}) require_like(kOp, op.dout, *v);
  require_floating(kOp, op.dout);
}

}  // namespace ds
