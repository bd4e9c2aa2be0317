// Facts about the GPUs that need no context: their number, and the versions of driver and runtime.
#pragma once

#include <string>

namespace ds {

/// Versions are encoded as 13000 for 13.0; 0 means absent.
struct CudaProbe {
  int device_count;
  int driver_version;   // the newest CUDA the driver supports
  int runtime_version;  // the CUDA this library was built with
  char message[256];    // empty if GPUs can be used, else the reason, versions and fix
};

namespace cuda {

/// Never throws.
CudaProbe probe_gpus();

/// Returns "13.0" for 13000.
std::string version_text(int version);

}  // namespace cuda
}  // namespace ds
