// Products of ragged groups on wgmma and TMA, which grouped_matmul.cu prefers on compute capability
// 9.0.
#pragma once

#include "grouped_product.cuh"

namespace ds::cuda {

/// Runs the product if this GPU has code for it. n, k and all pointers allow packets of 16 bytes.
/// Returns false, without a launch, if not. T is __nv_bfloat16 or __half.
template <class T, Form kForm>
bool run_hopper_product(const char* op, const Product<T>& p, CudaContext& ctx);

}  // namespace ds::cuda
