// Compiles the attention kernels on wgmma and TMA with windows, documents and lengths.
#include "attention_hopper_launch.cuh"

namespace ds::cuda {

template bool launch_hopper_forward<__nv_bfloat16, Hiding::tiles>(
    const ForwardArguments<__nv_bfloat16>&, CudaContext&);
template bool launch_hopper_forward<__half, Hiding::tiles>(const ForwardArguments<__half>&,
                                                           CudaContext&);
template bool launch_hopper_backward<__nv_bfloat16, Hiding::tiles>(
    const BackwardArguments<__nv_bfloat16>&, CudaContext&);
template bool launch_hopper_backward<__half, Hiding::tiles>(const BackwardArguments<__half>&,
                                                            CudaContext&);

}  // namespace ds::cuda
