// Thread blocks of a cluster, which run at the same time and read each other's shared memory. Needs
// code for compute capability 9.0 or newer; in older code each block is its own cluster.
#pragma once

#include "mma.cuh"

namespace ds::cuda {

/// Waits for all threads of the cluster and makes their earlier writes visible.
__device__ __forceinline__ void cluster_barrier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
#endif
}

/// Returns the value at the address of `own` in the shared memory of block `rank` of the cluster.
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
