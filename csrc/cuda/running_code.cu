// Asks a kernel which architecture it was compiled for.
#include "running_code.h"

#include "cuda_error.h"

namespace ds::cuda {
namespace {

/// The GPU's capability is no answer. Code of PTX 8.0 on a GPU of 9.0 cannot wait for the previous
/// kernel, and code of PTX 9.0 has no wgmma.
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
