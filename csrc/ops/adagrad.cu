// Adagrad on the GPU.
#include "adagrad.h"
#include "update_range.cuh"

namespace ds::cuda {

void run(const Adagrad& op, CudaContext& ctx) {
  update_range(AdagradRule::of(op), op, {op.sum}, ctx);
}

}  // namespace ds::cuda
