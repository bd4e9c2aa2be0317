// The code of this library that a GPU runs: the driver selects one of the embedded architectures.
#pragma once

namespace ds::cuda {

/// Every source file is compiled for the same architectures, so one kernel answers for all.
struct RunningCode {
  int architecture;  // that the kernels were compiled for: 80, 90, 100 or 120
  bool hopper;       // with the instructions of target 90a: wgmma and setmaxnreg
};

/// Runs a kernel on the current device. It waits for the result. Throws DS_CUDA.
RunningCode running_code();

}  // namespace ds::cuda
