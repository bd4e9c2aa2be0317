// The attention kernels on wgmma and TMA, which attention.cu prefers on compute capability 9.0.
#pragma once

#include "attention_backward.cuh"
#include "attention_forward.cuh"

namespace ds::cuda {

/// Runs the forward on wgmma if this GPU has code for it and the operands suit TMA. Returns false,
/// without a launch, if not. T is __nv_bfloat16 or __half.
template <class T>
bool run_hopper_forward(const ForwardArguments<T>& args, CudaContext& ctx);

/// The same for dq, dk and dv, after the row statistics.
template <class T>
bool run_hopper_backward(const BackwardArguments<T>& args, CudaContext& ctx);

/// The launches for one Hiding; false if this GPU has no code for them.
template <class T, Hiding kHiding>
bool launch_hopper_forward(const ForwardArguments<T>& args, CudaContext& ctx);
template <class T, Hiding kHiding>
bool launch_hopper_backward(const BackwardArguments<T>& args, CudaContext& ctx);

}  // namespace ds::cuda
