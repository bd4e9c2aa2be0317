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
  unsigned cluster = 1;  // neighbouring blocks of one, where compute capability is 9.0
};

/// Whether the kernel is being recorded, and what lies at `data` was there before: a kernel of
/// launch_behind may read it at once, where recorded work does not write it (it writes what it has
/// allocated itself, and the cache of keys).
bool is_settled(const CudaContext& ctx, const void* data);

/// Launches a kernel that may begin early and calls await_previous(). Devices that run the code of
/// compute capability 8.0, whose kernels cannot wait, start it when the one in front has ended.
template <class... Parameters, class... Arguments>
void launch_behind(const CudaContext& ctx, const Launch& launch, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  if (launch.shared_bytes > 48 * 1024)  // What is more has to be asked for.
    DS_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(launch.shared_bytes)),
            launch.op);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {launch.cluster, 1, 1};
  cudaLaunchConfig_t how = {};
  how.gridDim = launch.grid;
  how.blockDim = launch.block;
  how.dynamicSmemBytes = launch.shared_bytes;
  how.stream = launch.stream;
  how.attrs = attributes;
  how.numAttrs = ctx.compute_capability != 90 ? 0 : launch.cluster > 1 ? 2 : 1;
  DS_CUDA(cudaLaunchKernelEx(&how, kernel, Parameters(arguments)...), launch.op);
}

}  // namespace ds::cuda
