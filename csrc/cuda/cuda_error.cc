// fail(): converts failures of the CUDA runtime to ds::Error.
#include "cuda_error.h"

#include "../core/error.h"

namespace ds::cuda {

namespace {

const char* hint_for(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "Use a smaller micro-batch or sequence, activation checkpointing or offloading.";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
      return "Restart the process: it cannot use the device any more. An earlier op may be the "
             "cause: set CUDA_LAUNCH_BLOCKING=1 to find it.";
    case cudaErrorECCUncorrectable:
      return "The GPU's memory reported a hardware fault; use another GPU.";
    case cudaErrorNoKernelImageForDevice:
      return "The library was built for other GPU architectures; rebuild it on this machine.";
    default: return "";
  }
}

}  // namespace

void fail(cudaError_t status, const char* expression, const char* op) {
  static_cast<void>(cudaGetLastError());
  const ErrorCode code =
      status == cudaErrorMemoryAllocation ? ErrorCode("DS_OUT_OF_MEMORY") : ErrorCode("DS_CUDA");
  throw Error(code, op, text(expression, " to succeed"),
              text(cudaGetErrorName(status), ": ", cudaGetErrorString(status)), hint_for(status));
}

}  // namespace ds::cuda
