// Top-k routing of tokens to experts: a softmax over all experts, of which the largest k count.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Largest number of experts: a warp keeps their logits in registers.
constexpr int64_t kMostExperts = 512;

/// Per token, the k experts with the largest logits, largest first. Of equal logits the lower
/// expert is first, and NaN counts as the largest. Their weights are their probabilities among all
/// experts or, with `normalize`, among these k; f32 inside (f64 for f64). Sources: Shazeer et al.
/// 2017; transformers' MixtralTopKRouter and Qwen2MoeTopKRouter. FLOPs: 1 per element of logits.
struct RouteTopK {
  View logits;   // [T, E], floating, contiguous; E <= 512
  View ids;      // [T, k] i32, contiguous; 1 <= k <= E
  View weights;  // [T, k] f32 (f64 for f64), contiguous
  bool normalize;
};

inline void check_route(const char* op, const View& logits, const View& ids, const View& weights) {
  DS_CHECK_SHAPE(logits.ndim == 2 && logits.shape[1] >= 1 && logits.shape[1] <= kMostExperts, op,
                 text("logits [tokens, experts], at most ", kMostExperts, " experts"),
                 logits.describe());
  require_floating(op, logits);
  require_contiguous(op, logits, "logits");
  const int64_t tokens = logits.shape[0], experts = logits.shape[1];
  DS_CHECK_SHAPE(
      ids.ndim == 2 && ids.shape[0] == tokens && ids.shape[1] >= 1 && ids.shape[1] <= experts, op,
      text("ids [", tokens, ", 1 to ", experts, "]"), ids.describe());
  require_dtype(op, ids, DType::i32, "ids");
  require_contiguous(op, ids, "ids");
  require_same_shape(op, ids, weights);
  require_dtype(op, weights, statistic_of(logits.dtype), "weights");
  require_contiguous(op, weights, "weights");
}

inline void check(const RouteTopK& op) {
  check_route("route_top_k", op.logits, op.ids, op.weights);
}

/// dlogits (+)= the gradient of the weights. An id that is not an expert throws DS_INDEX on the
/// CPU; the GPU skips it. FLOPs: 2 per element of dlogits.
struct RouteTopKBackward {
  View logits;    // the forward's
  View ids;       // the forward's
  View dweights;  // [T, k] f32 (f64 for f64), contiguous
  View dlogits;   // as logits
  bool normalize;
  bool accumulate;
};

inline void check(const RouteTopKBackward& op) {
  constexpr const char* kOp = "route_top_k_backward";
  check_route(kOp, op.logits, op.ids, op.dweights);
  require_like(kOp, op.logits, op.dlogits);
  require_contiguous(kOp, op.dlogits, "dlogits");
}

}  // namespace ds
