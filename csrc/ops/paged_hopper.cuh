// Paged attention of prompts on wgmma and TMA, which paged_attention.cu prefers on compute
// capability 9.0.
#pragma once

#include "paged_attention.h"
#include "paged_rows.cuh"

namespace ds::cuda {

/// Runs paged attention on wgmma. Returns false, without a launch, if this GPU has no code for it,
/// the operands do not allow TMA, or there are too few queries. T is __nv_bfloat16 or __half.
template <class T>
bool run_paged_hopper(const PagedArguments<T>& a, const PagedAttention& op, CudaContext& ctx);

}  // namespace ds::cuda
