// Grouped products on wgmma and TMA, which grouped_matmul.cu prefers on compute capability 9.0.
#pragma once

#include "grouped_product.cuh"

namespace ds::cuda {

/// Runs a product. Returns false, without a launch, if this GPU has no code for it. n, k and all
/// pointers must allow packets of 16 bytes. T is __nv_bfloat16 or __half.
template <class T, Form kForm>
bool run_hopper_product(const char* op, const Product<T>& p, CudaContext& ctx);

}  // namespace ds::cuda
