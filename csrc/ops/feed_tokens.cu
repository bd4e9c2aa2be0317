// FeedTokens on the GPU, a thread per token.
#include "feed_tokens.h"

#include "../cuda/dependent_launch.cuh"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread per token. An invalid reference to `previous` gives token 0.
__global__ void __launch_bounds__(kThreads)
    feed_tokens_kernel(const int* tokens, const int* previous, int* out, int64_t count,
                       int64_t size) {
  let_next_begin();
  await_previous();
  const int64_t n = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n >= count) return;
  const int token = tokens[n];
  const int64_t place = -1 - int64_t{token};
  out[n] = token >= 0 ? token : place < size ? max(previous[place], 0) : 0;
}

}  // namespace

void run(const FeedTokens& op, CudaContext& ctx) {
  const int64_t count = op.tokens.shape[0];
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  launch_behind(ctx, {"feed_tokens", dim3(blocks), dim3(kThreads), ctx.stream}, feed_tokens_kernel,
                op.tokens.as<int>(), op.previous.as<int>(), op.out.as<int>(), count,
                op.previous.shape[0]);
}

}  // namespace ds::cuda
