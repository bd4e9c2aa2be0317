// Hopper's attention kernels on wgmma and TMA. attention.cu tries them before other kernels.
#pragma once

#include "attention_backward.cuh"
#include "attention_forward.cuh"

namespace ds::cuda {

/// Runs the forward on wgmma. Returns false, without a launch, if the GPU has no code for it or the
/// operands do not allow TMA. T is __nv_bfloat16 or __half.
template <class T>
bool run_hopper_forward(const ForwardArguments<T>& args, CudaContext& ctx);

/// Like run_hopper_forward() for dq, dk and dv. Call it after the row statistics are computed.
template <class T>
bool run_hopper_backward(const BackwardArguments<T>& args, CudaContext& ctx);

/// Launch the kernels compiled for kHiding. Return false if this GPU has no code for them.
template <class T, Hiding kHiding>
bool launch_hopper_forward(const ForwardArguments<T>& args, CudaContext& ctx);
template <class T, Hiding kHiding>
bool launch_hopper_backward(const BackwardArguments<T>& args, CudaContext& ctx);

}  // namespace ds::cuda
