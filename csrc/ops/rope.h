// Rotary position embedding, in the rotate-half form of GPT-NeoX and Llama. Source: Su et al. 2021.
#pragma once

#include "../core/view.h"

namespace ds {

/// With x1, x2 the halves of the last dim: out = (x1 cos - x2 sin, x2 cos + x1 sin); `inverse` negates sin,
/// which is the gradient.
struct Rope {
  View in;   // [B, T, H, D], D even, last stride 1
  View cos;  // [T, D / 2] f32 (f64 for f64), contiguous
  View sin;  // [T, D / 2]
  View out;  // [B, T, H, D], in's dtype, last stride 1; may be in itself
  bool inverse;
};

}  // namespace ds
