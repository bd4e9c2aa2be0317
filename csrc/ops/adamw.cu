// Adam and AdamW on the GPU.
#include "adamw_rule.h"
#include "update_range.cuh"

namespace ds::cuda {

void run(const AdamW& op, CudaContext& ctx) {
  update_range(AdamWRule::of(op), op, {op.m, op.v}, ctx);
}

}  // namespace ds::cuda
