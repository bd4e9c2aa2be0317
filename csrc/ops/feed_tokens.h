// Tokens that a step reads where the step before has left them, so that no host has to hand them
// on.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// out[n] = tokens[n], or where that is negative previous[-1 - tokens[n]], or 0 where that is
/// negative too: a step that has sampled nothing (SampleTokens) says so to the host. A place
/// outside `previous` is DS_INDEX on the CPU; the GPU reads nothing there and gives 0.
struct FeedTokens {
  View tokens;    // [N] i32
  View previous;  // [P] i32
  View out;       // [N] i32; may be tokens itself
};

inline void check(const FeedTokens& op) {
  constexpr const char* kOp = "feed_tokens";
  DS_CHECK_SHAPE(op.tokens.ndim == 1 && op.previous.ndim == 1, kOp, "tokens [N] and previous [P]",
                 text(op.tokens.describe(), " and ", op.previous.describe()));
  require_list(kOp, op.tokens, op.tokens.shape[0], DType::i32, "tokens");
  require_list(kOp, op.previous, op.previous.shape[0], DType::i32, "previous");
  require_list(kOp, op.out, op.tokens.shape[0], DType::i32, "out");
}

}  // namespace ds
