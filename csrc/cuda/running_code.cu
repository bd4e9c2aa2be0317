// Determines the architecture of the running code by a kernel.
#include "running_code.h"

#include "cuda_error.h"

namespace ds::cuda {
namespace {

/// Reports the architecture that this kernel was compiled for. The GPU's compute capability does
/// not suffice: on a GPU of 9.0, code from PTX 8.0 cannot wait for the previous kernel, and code
/// from PTX 9.0 has no wgmma.
__global__ void report(RunningCode* code) {
#if defined(__CUDA_ARCH__)
  code->architecture = __CUDA_ARCH__ / 10;
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  code->hopper = true;
#endif
}

}  // namespace

RunningCode running_code() {
  constexpr const char* kOp = "open";
  RunningCode code{0, false};
  RunningCode* reported = nullptr;
  DS_CUDA(cudaMalloc(&reported, sizeof code), kOp);
  cudaError_t status = cudaMemcpy(reported, &code, sizeof code, cudaMemcpyHostToDevice);
  if (status == cudaSuccess) {
    report<<<1, 1>>>(reported);
    status = cudaGetLastError();
  }
  if (status == cudaSuccess)
    status = cudaMemcpy(&code, reported, sizeof code, cudaMemcpyDeviceToHost);
  cudaFree(reported);
  DS_CUDA(status, kOp);
  return code;
}

}  // namespace ds::cuda
