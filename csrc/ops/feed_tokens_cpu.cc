// FeedTokens on the CPU.
#include "feed_tokens.h"

#include <algorithm>

#include "../cpu/cpu_context.h"
#include "../cpu/index_check.h"

namespace ds::cpu {

void run(const FeedTokens& op, CpuContext&) {
  const auto *tokens = op.tokens.as<int32_t>(), *previous = op.previous.as<int32_t>();
  auto* const out = op.out.as<int32_t>();
  const int64_t count = op.tokens.shape[0], size = op.previous.shape[0];
  for (int64_t n = 0; n < count; ++n)
    if (tokens[n] < 0) require_index("feed_tokens", -1 - int64_t{tokens[n]}, size, "previous");
  for (int64_t n = 0; n < count; ++n)
    out[n] = tokens[n] >= 0 ? tokens[n] : std::max(previous[-1 - tokens[n]], 0);
}

}  // namespace ds::cpu
