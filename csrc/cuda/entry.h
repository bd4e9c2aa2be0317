// The C interface of libds_cuda.so, by which the core finds and opens GPUs.
#pragma once

#include "../ops/op_list.h"
#include "probe.h"

namespace ds {

class Device;
namespace comm {
class Engine;
struct Rendezvous;
}  // namespace comm

/// Changes with each op and class that both libraries share, so that an older library is rejected.
constexpr int kCudaInterface = DS_INTERFACE_HASH;

}  // namespace ds

#define DS_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

/// Returns kCudaInterface of the library. Compare it before any other call.
DS_CUDA_EXPORT int ds_cuda_interface();
/// Fills `probe`. Never throws.
DS_CUDA_EXPORT void ds_cuda_probe(ds::CudaProbe* probe);
/// Opens GPU `index` among the GPUs visible to the process. The caller owns the device and must
/// keep it until the process ends. Throws DS_DEVICE with the probe's message if the GPU cannot be
/// used, else DS_CUDA.
DS_CUDA_EXPORT ds::Device* ds_cuda_open(int index);
/// Creates this rank's NCCL engine of a new group, for a device of ds_cuda_open. The ranks meet
/// through `rendezvous`. The caller owns the engine. Blocks until all members have joined. Throws
/// DS_COMM, or DS_LIBRARY if NCCL is missing.
DS_CUDA_EXPORT ds::comm::Engine* ds_cuda_open_nccl(const ds::comm::Rendezvous& rendezvous,
                                                   ds::Device& device);
