// The C functions of libds_cuda.so, through which the core finds and opens GPUs.
#pragma once

#include "../ops/op_list.h"

namespace ds {

class Device;
namespace comm {
class Engine;
struct Rendezvous;
}  // namespace comm

/// Another one wherever an op or a class that the two libraries share is another, so that a stale
/// library is refused.
constexpr int kCudaInterface = DS_INTERFACE_HASH;

/// What can be known about the GPUs without using one. Versions are as 13000 for 13.0; 0 is "none".
struct CudaProbe {
  int device_count;
  int driver_version;   // the newest CUDA the driver supports
  int runtime_version;  // the CUDA this library was built with
  char message[256];    // empty when GPUs can be used, else the reason, versions and cure
};

}  // namespace ds

#define DS_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

/// kCudaInterface of the library; compare before calling anything else.
DS_CUDA_EXPORT int ds_cuda_interface();
/// Fills `probe`; never throws.
DS_CUDA_EXPORT void ds_cuda_probe(ds::CudaProbe* probe);
/// Opens GPU `index` of those visible to the process. The caller owns the device and keeps it until
/// the process ends. Throws DS_DEVICE when it cannot be used, with the probe's sentence, else
/// DS_CUDA.
DS_CUDA_EXPORT ds::Device* ds_cuda_open(int index);
/// The NCCL engine of a new group whose ranks meet through `rendezvous`, for `device` of
/// ds_cuda_open. The caller owns it. Blocks until every member is there. Throws DS_LIBRARY where
/// NCCL is missing, DS_COMM.
DS_CUDA_EXPORT ds::comm::Engine* ds_cuda_open_nccl(const ds::comm::Rendezvous& rendezvous,
                                                   ds::Device& device);
