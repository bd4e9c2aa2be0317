// RMSprop on the GPU.
#include "rmsprop.h"
#include "update_range.cuh"

namespace ds::cuda {

void run(const Rmsprop& op, CudaContext& ctx) {
  with_rmsprop_rule(
      op, [&](const auto& rule, const auto& states) { update_range(rule, op, states, ctx); });
}

}  // namespace ds::cuda
