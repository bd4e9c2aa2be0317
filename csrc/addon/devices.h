// Finds and opens devices. Device 0 is the CPU, device 1 + i is GPU i.
#pragma once

#include <string>
#include <vector>

#include "../comm/engine.h"
#include "../comm/rendezvous.h"
#include "../core/device.h"

namespace ds::addon {

/// What is known of the GPU back end before a GPU is opened.
struct GpuProbe {
  std::string library;  // path of the GPU back end; empty if none could be opened
  int device_count = 0, driver_version = 0, runtime_version = 0;  // versions as 13000 for 13.0
  std::string message;  // empty if GPUs can be used, else one sentence with versions and the fix
};

/// Sets the candidate files of the GPU back end, in order of preference. Call it before the first
/// probe. Default: libds_cuda.so in the addon's folder.
void set_gpu_libraries(std::vector<std::string> files);

/// Opens the first library that can use the GPUs, or else the first that loads. Returns its facts.
const GpuProbe& probe_gpus();

/// Returns device `number` and opens it on the first call. Throws DS_DEVICE with the probe's
/// message if it does not exist.
Device& open_device(size_t number);

/// Creates this rank's engine of a new group: NCCL for a GPU, Gloo for the CPU. Blocks until all
/// members have joined. Throws DS_COMM, or DS_LIBRARY if the library is missing.
std::shared_ptr<comm::Engine> open_engine(const comm::Rendezvous& rendezvous, Device& device);

}  // namespace ds::addon
