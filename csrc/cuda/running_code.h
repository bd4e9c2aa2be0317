// Which of the library's embedded architectures a GPU runs. The driver selects it.
#pragma once

namespace ds::cuda {

/// The running code. All source files have the same architectures, so this holds for all kernels.
struct RunningCode {
  int architecture;  // compute capability of the code: 80, 90, 100 or 120
  bool hopper;       // code for 90a, with wgmma and setmaxnreg
};

/// Runs a kernel on the current device and waits for its result. Throws DS_CUDA.
RunningCode running_code();

}  // namespace ds::cuda
