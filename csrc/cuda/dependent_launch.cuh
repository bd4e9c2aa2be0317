// Kernels that begin while the one in front of them in the stream still runs, so that the second of
// two does not pay for its start (programmatic dependent launch of compute capability 9.0).
#pragma once

#include "cuda_context.h"

namespace ds::cuda {

/// In the kernel in front: the next one may begin as soon as every block has come here or ended.
__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// In a kernel of launch_behind: waits until the kernel in front has ended and what it wrote can be
/// read. Nothing that another kernel writes or reads may be touched before.
__device__ __forceinline__ void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Whose kernel it is, in what shape and where it runs.
struct Launch {
  const char* op;
  dim3 grid, block;
  cudaStream_t stream;
  size_t shared_bytes = 0;
};

/// Launches a kernel that may begin early and calls await_previous(). Devices that run the code of
/// compute capability 8.0, whose kernels cannot wait, start it when the one in front has ended.
template <class... Parameters, class... Arguments>
void launch_behind(const CudaContext& ctx, const Launch& launch, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t how = {};
  how.gridDim = launch.grid;
  how.blockDim = launch.block;
  how.dynamicSmemBytes = launch.shared_bytes;
  how.stream = launch.stream;
  how.attrs = &early;
  how.numAttrs = ctx.compute_capability == 90 ? 1 : 0;
  DS_CUDA(cudaLaunchKernelEx(&how, kernel, Parameters(arguments)...), launch.op);
}

}  // namespace ds::cuda
