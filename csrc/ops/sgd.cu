// SGD on the GPU.
#include "sgd.h"
#include "update_range.cuh"

namespace ds::cuda {

void run(const Sgd& op, CudaContext& ctx) {
  if (op.momentum_buffer) update_range(SgdMomentumRule::of(op), op, {op.momentum_buffer}, ctx);
  else update_range(SgdRule::of(op), op, {}, ctx);
}

}  // namespace ds::cuda
