// Lion on the GPU.
#include "lion.h"
#include "update_range.cuh"

namespace ds::cuda {

void run(const Lion& op, CudaContext& ctx) { update_range(LionRule::of(op), op, {op.m}, ctx); }

}  // namespace ds::cuda
