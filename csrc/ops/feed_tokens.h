// Gets the tokens of a step from the previous step's result on the device, without the host.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// Computes out[n] = tokens[n] if it is not negative, else previous[-1 - tokens[n]]. If that is
/// negative too (SampleTokens writes negative tokens for errors, which the host reads), out[n] = 0.
/// An index outside `previous` throws DS_INDEX on the CPU and gives 0 on the GPU.
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
