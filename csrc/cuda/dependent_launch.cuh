// Programmatic dependent launch: a kernel starts while the previous kernel of the stream still
// runs, which hides its launch latency. Needs code for compute capability 9.0 or newer.
#pragma once

#include "cuda_context.h"

namespace ds::cuda {

/// In the previous kernel: allows the next kernel to start once all blocks have called this or have
/// ended.
__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// In a kernel of launch_behind(): waits until the previous kernel has ended and its writes are
/// visible. Before this call, the kernel must not access memory that other kernels write, nor write
/// memory that they read.
__device__ __forceinline__ void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Name, shape, shared memory and stream of a launch.
struct Launch {
  const char* op;
  dim3 grid, block;
  cudaStream_t stream;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks per cluster, in code for 9.0 or newer
};

/// Returns true if the launch is recorded and `data` is older than the recording. A kernel of
/// launch_behind() may read such data at once, unless recorded work writes it. (Recorded work
/// writes only its own allocations and the key-value cache.)
bool is_settled(const CudaContext& ctx, const void* data);

/// Launches a kernel that may start early and calls await_previous(). If the GPU runs code for 8.0,
/// which cannot wait, the kernel starts after the previous one has ended.
template <class... Parameters, class... Arguments>
void launch_behind(const CudaContext& ctx, const Launch& launch, void (*kernel)(Parameters...),
                   Arguments... arguments) {
  if (launch.shared_bytes > 48 * 1024)  // CUDA requires this attribute above 48 KiB
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
  how.numAttrs = ctx.code.architecture < 90 ? 0 : launch.cluster > 1 ? 2 : 1;
  DS_CUDA(cudaLaunchKernelEx(&how, kernel, Parameters(arguments)...), launch.op);
}

}  // namespace ds::cuda
