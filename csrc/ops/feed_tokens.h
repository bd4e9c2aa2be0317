// Reads the tokens of a step from the result of the previous step on the device, without the host.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// out[n] = tokens[n] if it is not negative, else previous[-1 - tokens[n]]. If that is negative
/// too, out[n] = 0: SampleTokens writes a negative token for an error, which the host reads. An
/// index outside `previous` throws DS_INDEX on the CPU; the GPU does not read there and gives 0.
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
