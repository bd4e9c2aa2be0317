// Finds and opens devices: number 0 is the CPU, 1 + i is GPU i.
#pragma once

#include <string>
#include <vector>

#include "../comm/engine.h"
#include "../comm/rendezvous.h"
#include "../core/device.h"

namespace ds::addon {

/// Facts about the GPU back end that need no context.
struct GpuProbe {
  std::string library;  // path of the GPU back end; empty if none could be opened
  int device_count = 0, driver_version = 0, runtime_version = 0;  // versions as 13000 for 13.0
  std::string message;  // empty if GPUs can be used, else one sentence with versions and the fix
};

/// Sets the files of the GPU back end, in order of preference, before the first probe. Default:
/// libds_cuda.so in the addon's folder.
void set_gpu_libraries(std::vector<std::string> files);

/// Opens the first library that can use the GPUs; if none can, the first one that loads.
const GpuProbe& probe_gpus();

/// Opens device `number` once per process. Throws DS_DEVICE with the probe's message if it does not
/// exist.
Device& open_device(size_t number);

/// Opens the engine of a new group on `device`: NCCL for a GPU, Gloo for the CPU. Blocks until
/// every member has joined. Throws DS_COMM, or DS_LIBRARY if the library is missing.
std::shared_ptr<comm::Engine> open_engine(const comm::Rendezvous& rendezvous, Device& device);

}  // namespace ds::addon
