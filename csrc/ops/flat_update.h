// Preconditions of ops that update a flat range of parameters.
#pragma once

#include <initializer_list>

#include "../core/preconditions.h"

namespace ds {

/// Checks that `values`, master weights and optimizer states, are f32 like `master`.
inline void check_states(const char* op, const View& master,
                         std::initializer_list<const View*> values) {
  for (const View* v : values) {
    require_same_shape(op, master, *v);
    require_dtype(op, *v, DType::f32, "master and states");
    require_contiguous(op, *v, "master and states");
  }
}

/// Checks that AdamW's moments have the shape of `like` and are f32, or both bf16
/// (core/bf16_moments.h).
inline void check_moments(const char* op, const View& like, const View& m, const View& v) {
  for (const View* one : {&m, &v}) {
    require_same_shape(op, like, *one);
    require_contiguous(op, *one, "moments");
  }
  if (m.dtype != DType::f32 && m.dtype != DType::bf16) {
    unsupported(op, m.dtype, "f32 or bf16 as moments");
  }
  require_same_dtype(op, m, v);
}

/// Checks that `v`, a gradient, a direction or the model's weights, has the shape of `master` and
/// is f32, f16 or bf16.
inline void check_elements(const char* op, const View& master, const View& v, const char* name) {
  require_same_shape(op, master, v);
  require_narrow(op, v, name);
  require_contiguous(op, v, name);
}

/// Checks that `v` is like the output of GradientControl.
inline void check_control(const char* op, const View& v) {
  require_list(op, v, 4, DType::f32, "control");
}

/// Checks that `starts` is [segments + 1] i64. Only the CPU back end checks that it ascends from 0
/// to n.
inline void check_segments(const char* op, const View& starts, int64_t n) {
  DS_CHECK_SHAPE(starts.dtype == DType::i64 && starts.numel() > (n > 0 ? 1 : 0), op,
                 "starts [segments + 1] i64", starts.describe());
  require_contiguous(op, starts, "starts");
}

/// Checks an op with the fields master, grad, weight and control, and its states.
template <class Op>
void check_update(const char* name, const Op& op, std::initializer_list<const View*> states) {
  check_states(name, op.master, {&op.master});
  check_states(name, op.master, states);
  check_elements(name, op.master, op.grad, "grad");
  if (op.weight) check_elements(name, op.master, op.weight, "weight");
  check_control(name, op.control);
}

}  // namespace ds
