// The next tokens on the GPU, a thread each.
#include "feed_tokens.h"

#include "../cuda/cuda_context.h"

namespace ds::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    feed_tokens_kernel(const int* tokens, const int* previous, int* out, int64_t count,
                       int64_t size) {
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
  feed_tokens_kernel<<<blocks, kThreads, 0, ctx.stream>>>(
      op.tokens.as<int>(), op.previous.as<int>(), op.out.as<int>(), count, op.previous.shape[0]);
  DS_CUDA_LAUNCHED("feed_tokens");
}

}  // namespace ds::cuda
