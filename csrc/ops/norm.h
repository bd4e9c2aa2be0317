// LayerNorm and RMSNorm with the residual addition that precedes them fused in, and their gradients.
// Sources: Ba et al. 2016 (LayerNorm), Zhang & Sennrich 2019 (RMSNorm); fusion as in llm.c.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// s = x + residual (rounded to x's dtype; s = x when residual is absent); out = (s - mean) * rstd *
/// weight + bias; statistics in f32 (f64 for f64) of the rounded s, by the corrected two-pass formula (Chan,
/// Golub & LeVeque 1983): what the deviations from the mean add up to is the mean's own rounding error, which
/// would be all that is left of a row of equal values.
struct LayerNorm {
  View x;         // [N, C] contiguous, floating
  OptionalView residual;  // like x
  View weight;    // [C]
  OptionalView bias;      // [C]
  OptionalView sum;       // like x: receives s; required when residual is given
  View out;       // like x
  View mean;      // [N] f32 (f64 for f64)
  View rstd;      // [N] f32 (f64 for f64)
  double eps;
};

/// dx = dsum + the gradient through the normalisation, in one pass. dx is the gradient of s, so of x and of
/// residual alike. dweight and dbias are column sums in a fixed order.
struct LayerNormBackward {
  View s;        // [N, C] the forward's sum (or x when there was no residual)
  View weight;   // [C]
  View mean;     // [N]
  View rstd;     // [N]
  View dout;     // [N, C]
  OptionalView dsum;     // [N, C]: gradient that reaches s from elsewhere
  OptionalView dx;       // [N, C], overwritten; may be dsum itself
  OptionalView dweight;  // [C]
  OptionalView dbias;    // [C]
  bool accumulate;  // concerns dweight and dbias only
};

/// As LayerNorm without mean and bias: out = s * rstd * weight, rstd = 1 / sqrt(mean(s^2) + eps).
struct RmsNorm {
  View x;         // [N, C] contiguous, floating
  OptionalView residual;  // like x
  View weight;    // [C]
  OptionalView sum;       // like x; required when residual is given
  View out;       // like x
  View rstd;      // [N] f32 (f64 for f64)
  double eps;
};

/// As LayerNormBackward.
struct RmsNormBackward {
  View s;        // [N, C]
  View weight;   // [C]
  View rstd;     // [N]
  View dout;     // [N, C]
  OptionalView dsum;     // [N, C]
  OptionalView dx;       // [N, C], overwritten; may be dsum itself
  OptionalView dweight;  // [C]
  bool accumulate;  // concerns dweight only
};

}  // namespace ds
