// Compiles the attention kernels on wgmma and TMA with layouts, masks and dropout.
#include "attention_hopper_launch.cuh"

namespace ds::cuda {

template bool launch_hopper_forward<__nv_bfloat16, Hiding::elements>(
    const ForwardArguments<__nv_bfloat16>&, CudaContext&);
template bool launch_hopper_forward<__half, Hiding::elements>(const ForwardArguments<__half>&,
                                                              CudaContext&);
template bool launch_hopper_backward<__nv_bfloat16, Hiding::elements>(
    const BackwardArguments<__nv_bfloat16>&, CudaContext&);
template bool launch_hopper_backward<__half, Hiding::elements>(const BackwardArguments<__half>&,
                                                               CudaContext&);

}  // namespace ds::cuda
