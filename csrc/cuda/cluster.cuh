// Thread blocks of a cluster: they run at the same time and read each other's shared memory
// (compute capability 9.0; elsewhere a block is its own cluster).
#pragma once

#include "mma.cuh"

namespace ds::cuda {

/// All threads of all blocks of the cluster have come here, and see what each has written before.
__device__ __forceinline__ void cluster_barrier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
#endif
}

/// What block `rank` of the cluster has where this one has `own`, in shared memory.
__device__ __forceinline__ float load_of_block(const float* own, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t address;
  float x;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
#else
  return *own;
#endif
}

}  // namespace ds::cuda
