// LayerNorm and RMSNorm, fused with the residual addition before them, and their gradients.
// Sources: Ba et al. 2016 (LayerNorm), Zhang & Sennrich 2019 (RMSNorm); fusion as in llm.c.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Checks that `v` is absent, or [N, C] like `model`.
inline void check_rows(const char* op, const View& model, const View& v, const char* name) {
  DS_CHECK_SHAPE(model.ndim == 2, op, text(name, " [N, C]"), model.describe());
  if (!v) return;
  require_like(op, model, v);
  require_contiguous(op, v, name);
}

/// Checks that `v` is absent, or [C] with the dtype of `rows` [N, C].
inline void check_columns(const char* op, const View& rows, const View& v, const char* name) {
  if (!v) return;
  require_vector(op, v, rows.shape[1], name);
  require_dtype(op, v, rows.dtype, name);
}

/// Computes s = x + residual, rounded to x's dtype (s = x if residual is absent), and out = (s -
/// mean) * rstd * weight + bias. Mean and rstd are those of the rounded s, in f32 (f64 for f64), by
/// the corrected two-pass formula (Chan, Golub & LeVeque 1983). Its correction subtracts the
/// rounding error of the mean, of which a row of equal values would otherwise consist. FLOPs: 5 per
/// element of out, 1 of residual.
struct LayerNorm {
  View x;                 // [N, C] contiguous, floating
  OptionalView residual;  // like x
  View weight;            // [C]
  OptionalView bias;      // [C]
  OptionalView sum;       // like x: receives s; required when residual is given
  View out;               // like x
  View mean;              // [N] f32 (f64 for f64)
  View rstd;              // [N] f32 (f64 for f64)
  double eps;
};

/// Preconditions of both forwards. `bias` and `mean` are absent for RMSNorm.
template <class Op>
void check_forward(const char* name, const Op& op, const View& bias, const View& mean) {
  require_floating(name, op.x);
  check_rows(name, op.x, op.x, "x");
  check_rows(name, op.x, op.residual, "residual");
  check_rows(name, op.x, op.sum, "sum");
  check_rows(name, op.x, op.out, "out");
  check_columns(name, op.x, op.weight, "weight");
  check_columns(name, op.x, bias, "bias");
  if (mean) require_statistic(name, mean, op.x.shape[0], op.x, "mean");
  require_statistic(name, op.rstd, op.x.shape[0], op.x, "rstd");
  DS_CHECK_SHAPE(!op.residual || op.sum, name, "sum together with residual",
                 "residual without sum");
}

inline void check(const LayerNorm& op) { check_forward("layer_norm", op, op.bias, op.mean); }

/// Computes dx = dsum + the gradient through the normalization, in one pass. dx is the gradient of
/// s, and so of x and of residual. dweight and dbias are column sums in a fixed order. FLOPs: 10
/// per element of dout, 1 of dsum.
struct LayerNormBackward {
  View s;                // [N, C] the forward's sum (or x when there was no residual)
  View weight;           // [C]
  View mean;             // [N]
  View rstd;             // [N]
  View dout;             // [N, C]
  OptionalView dsum;     // [N, C]: gradient of s from its other uses
  OptionalView dx;       // [N, C], overwritten; may be dsum itself
  OptionalView dweight;  // [C]
  OptionalView dbias;    // [C]
  bool accumulate;       // for dweight and dbias only
};

/// Preconditions of both backwards. `dbias` and `mean` are absent for RMSNorm.
template <class Op>
void check_backward(const char* name, const Op& op, const View& dbias, const View& mean) {
  require_floating(name, op.s);
  check_rows(name, op.s, op.s, "s");
  check_rows(name, op.s, op.dout, "dout");
  check_rows(name, op.s, op.dsum, "dsum");
  check_rows(name, op.s, op.dx, "dx");
  check_columns(name, op.s, op.weight, "weight");
  check_columns(name, op.s, op.dweight, "dweight");
  check_columns(name, op.s, dbias, "dbias");
  if (mean) require_statistic(name, mean, op.s.shape[0], op.s, "mean");
  require_statistic(name, op.rstd, op.s.shape[0], op.s, "rstd");
}

inline void check(const LayerNormBackward& op) {
  check_backward("layer_norm_backward", op, op.dbias, op.mean);
}

/// Like LayerNorm without mean and bias: out = s * rstd * weight, rstd = 1 / sqrt(mean(s^2) + eps).
/// FLOPs: 4 per element of out, 1 of residual.
struct RmsNorm {
  View x;                 // [N, C] contiguous, floating
  OptionalView residual;  // like x
  View weight;            // [C]
  OptionalView sum;       // like x; required when residual is given
  View out;               // like x
  View rstd;              // [N] f32 (f64 for f64)
  double eps;
};

inline void check(const RmsNorm& op) { check_forward("rms_norm", op, View{}, View{}); }

/// Like LayerNormBackward, for RmsNorm.
/// FLOPs: 8 per element of dout, 1 of dsum.
struct RmsNormBackward {
  View s;                // [N, C]
  View weight;           // [C]
  View rstd;             // [N]
  View dout;             // [N, C]
  OptionalView dsum;     // [N, C]
  OptionalView dx;       // [N, C], overwritten; may be dsum itself
  OptionalView dweight;  // [C]
  bool accumulate;       // for dweight only
};

inline void check(const RmsNormBackward& op) {
  check_backward("rms_norm_backward", op, View{}, View{});
}

}  // namespace ds
