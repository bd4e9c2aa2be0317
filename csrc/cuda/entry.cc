// The C interface of the library: probes the driver and opens GPUs.
#include "entry.h"

#include "../core/error.h"
#include "cuda_device.h"

int ds_cuda_interface() { return ds::kCudaInterface; }

void ds_cuda_probe(ds::CudaProbe* probe) { *probe = ds::cuda::probe_gpus(); }

ds::Device* ds_cuda_open(int index) {
  const ds::CudaProbe probe = ds::cuda::probe_gpus();
  if (index < 0 || index >= probe.device_count) {
    throw ds::Error(
        "DS_DEVICE", "open", ds::text("GPU ", index), ds::text(probe.device_count, " GPUs"),
        probe.message[0] ? probe.message : "Use a number below the number of visible GPUs.");
  }
  return new ds::cuda::CudaDevice(index);
}
