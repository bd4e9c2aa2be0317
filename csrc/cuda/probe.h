// What can be known of GPUs without a context: their number, and the versions of driver and
// runtime.
#pragma once

#include <string>

namespace ds {

/// The result of a probe. Version 13.0 is 13000; 0 means absent.
struct CudaProbe {
  int device_count;
  int driver_version;   // newest CUDA that the driver supports
  int runtime_version;  // the CUDA that this library was built with
  char message[256];    // empty if GPUs can be used, else reason, versions and fix
};

namespace cuda {

/// Probes the driver. Never throws.
CudaProbe probe_gpus();

/// Returns "13.0" for 13000.
std::string version_text(int version);

}  // namespace cuda
}  // namespace ds
