// Top-k routing of tokens to experts: a softmax over all experts, and the k largest probabilities.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// The largest number of experts, because a warp keeps their logits in registers.
constexpr int64_t kMostExperts = 512;

/// Writes, for each token, the k experts with the largest logits, largest first. Of equal logits
/// the lower expert comes first; NaN counts as the largest. The weights are their probabilities
/// among all experts or, if `normalize`, among these k, computed in f32 (f64 for f64). If x is
/// present, the op first writes logits = x weight^T + bias. With a few tokens, a GPU needs one
/// kernel for both. Sources: Shazeer et al. 2017; MixtralTopKRouter and Qwen2MoeTopKRouter of
/// transformers.
struct RouteTopK {
  View logits;          // [T, E], floating, contiguous; E <= 512
  OptionalView x;       // [T, C], logits' dtype, not f64, contiguous
  OptionalView weight;  // [E, C], like x; required with x
  OptionalView bias;    // [E], like x; only with x
  View ids;             // [T, k] i32, contiguous; 1 <= k <= E
  View weights;         // [T, k] f32 (f64 for f64), contiguous
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
  constexpr const char* kOp = "route_top_k";
  check_route(kOp, op.logits, op.ids, op.weights);
  DS_CHECK_SHAPE(bool{op.x} == bool{op.weight} && (op.x || !op.bias), kOp,
                 "x with a weight and perhaps a bias, or none of them",
                 text(op.x ? "x" : "no x", op.weight ? ", weight" : "", op.bias ? ", bias" : ""));
  if (!op.x) return;
  const int64_t tokens = op.logits.shape[0], experts = op.logits.shape[1];
  const bool fits = op.x.ndim == 2 && op.weight.ndim == 2 && op.x.shape[0] == tokens &&
                    op.weight.shape[0] == experts && op.weight.shape[1] == op.x.shape[1];
  DS_CHECK_SHAPE(fits, kOp, text("x [", tokens, ", channels] and weight [", experts, ", channels]"),
                 text(op.x.describe(), " and ", op.weight.describe()));
  require_narrow(kOp, op.x, "x");
  require_same_dtype(kOp, op.logits, op.x);
  require_contiguous(kOp, op.x, "x");
  require_same_dtype(kOp, op.x, op.weight);
  require_contiguous(kOp, op.weight, "weight");
  if (op.bias) require_list(kOp, op.bias, experts, op.x.dtype, "bias");
}

/// Computes dlogits (+)= the gradient of the weights. An id that is not an expert throws DS_INDEX
/// on the CPU; the GPU skips it. FLOPs: 2 per element of dlogits.
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
