// Gradient norm, clipping and the overflow check, kept on the device so that no step waits for the host.
#pragma once

#include "../core/view.h"

namespace ds {

/// out[0] = sum of squares of x, f64 accumulators in a fixed order, rounded to f32. Inf and NaN propagate.
struct SumOfSquares {
  View x;    // [n] contiguous, floating
  View out;  // [1] f32
};

/// From the units' sums of squares of gradients that carry the factor loss_scale:
///   norm = sqrt(sum(partials)) / loss_scale;  clip = max_norm > 0 ? max(1, (norm + 1e-6) / max_norm) : 1
///   control = { 1 / (loss_scale * clip), apply, norm, finite }
/// finite is 1 when the sum is finite; apply is 1 unless `skip_nonfinite` and finite is 0.
/// Source: DeepSpeed's clipping formula.
struct GradientControl {
  View partials;  // [k] f32
  View control;   // [4] f32
  double loss_scale;
  double max_norm;
  bool skip_nonfinite;
};

}  // namespace ds
