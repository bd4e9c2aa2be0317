// Gets the versions and GPUs from the driver and the runtime.
#include "probe.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "../core/error.h"

namespace ds::cuda {

namespace {

/// Returns the oldest driver branch that runs programs of a CUDA release (NVIDIA's compatibility
/// table).
const char* driver_for(int runtime_version) {
  return runtime_version >= 13000 ? "580" : runtime_version >= 12000 ? "525" : "450";
}

std::string problem_of(const CudaProbe& probe, cudaError_t status) {
  const std::string runtime = version_text(probe.runtime_version);
  const std::string needed = text("release ", driver_for(probe.runtime_version), " or newer");
  if (probe.driver_version == 0) {
    return text("No NVIDIA driver was found; this build uses CUDA ", runtime,
                ". Install a driver of ", needed, ", or use the CPU device.");
  }
  if (status == cudaErrorInsufficientDriver) {
    return text("The NVIDIA driver supports CUDA ", version_text(probe.driver_version),
                " but this build uses CUDA ", runtime, ". Update the driver to ", needed,
                probe.runtime_version >= 13000
                    ? ", or install @ds/native-linux-x64-cuda12 for drivers from 525 on."
                    : ".");
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && probe.device_count == 0)) {
    return "The driver shows no GPU to this process; check nvidia-smi, CUDA_VISIBLE_DEVICES and "
           "the container's device settings.";
  }
  if (status == cudaSuccess) return "";
  return text("CUDA could not start (driver ", version_text(probe.driver_version), ", runtime ",
              runtime, "): ", cudaGetErrorString(status), ".");
}

/// Sets the number of hardware queues. Streams share queues (by default 8), and a waiting stream
/// blocks the others of its queue. The driver reads the variable when it starts. Keeps a value that
/// the user has set.
void ask_for_queues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

}  // namespace

std::string version_text(int version) { return text(version / 1000, ".", version % 1000 / 10); }

CudaProbe probe_gpus() {
  ask_for_queues();
  CudaProbe probe{};
  cudaDriverGetVersion(&probe.driver_version);
  cudaRuntimeGetVersion(&probe.runtime_version);
  const cudaError_t status = cudaGetDeviceCount(&probe.device_count);
  if (status != cudaSuccess) {
    probe.device_count = 0;
    static_cast<void>(cudaGetLastError());
  }
  const std::string message = problem_of(probe, status);
  std::memcpy(probe.message, message.data(), std::min(message.size(), sizeof(probe.message) - 1));
  return probe;
}

}  // namespace ds::cuda
