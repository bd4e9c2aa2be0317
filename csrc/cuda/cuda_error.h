// Converts failures of the CUDA runtime to ds::Error. Plain C++ may include it, because it has no
// device code.
#pragma once

#include <cuda_runtime_api.h>

namespace ds::cuda {

/// Throws DS_CUDA with the failed expression and the runtime's text, or DS_OUT_OF_MEMORY. Clears
/// the runtime's last error, so that the next launch check does not report it again.
[[noreturn]] void fail(cudaError_t status, const char* expression, const char* op);
inline void check(cudaError_t status, const char* expression, const char* op) {
  if (status != cudaSuccess) fail(status, expression, op);
}
#define DS_CUDA(expression, op) ::ds::cuda::check((expression), #expression, op)
/// Checks a launch. Reports a bad launch configuration under the op's name.
#define DS_CUDA_LAUNCHED(op) ::ds::cuda::check(cudaGetLastError(), "kernel launch", op)

}  // namespace ds::cuda
