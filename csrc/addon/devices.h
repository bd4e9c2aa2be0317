// Finding and opening devices: number 0 is the CPU, 1 + i is GPU i.
#pragma once

#include <string>

#include "../comm/engine.h"
#include "../comm/rendezvous.h"
#include "../core/device.h"

namespace ds::addon {

/// What is known about the GPU back end without using it.
struct GpuProbe {
  bool library_found = false;  // libds_cuda.so lies beside the addon and could be opened
  int device_count = 0, driver_version = 0, runtime_version = 0;  // versions as 13000 for 13.0
  std::string message;  // empty when GPUs can be used, else one sentence with versions and the cure
};

const GpuProbe& probe_gpus();

/// Opens device `number` once per process. Throws DS_DEVICE with the probe's sentence when there is
/// none.
Device& open_device(double number);

/// The engine of a new group of `device`: NCCL for a GPU, Gloo for the CPU. Blocks until every
/// member is there. Throws DS_COMM; DS_LIBRARY where the library is missing.
std::shared_ptr<comm::Engine> open_engine(const comm::Rendezvous& rendezvous, Device& device);

}  // namespace ds::addon
