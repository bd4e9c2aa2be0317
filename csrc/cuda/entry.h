// The C API of libds_cuda.so. The core uses it to find and open GPUs.
#pragma once

#include "../ops/op_list.h"
#include "probe.h"

namespace ds {

class Device;
namespace comm {
class Engine;
struct Rendezvous;
}  // namespace comm

/// Changes with every op or class that the two libraries share, so that a stale library is
/// rejected.
constexpr int kCudaInterface = DS_INTERFACE_HASH;

}  // namespace ds

#define DS_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

/// kCudaInterface of the library; compare before calling anything else.
DS_CUDA_EXPORT int ds_cuda_interface();
/// Fills `probe`; never throws.
DS_CUDA_EXPORT void ds_cuda_probe(ds::CudaProbe* probe);
/// Opens GPU `index` of the GPUs that are visible to the process. The caller owns the device and
/// keeps it until the process ends. Throws DS_DEVICE with the probe's message if the GPU cannot be
/// used, else DS_CUDA.
DS_CUDA_EXPORT ds::Device* ds_cuda_open(int index);
/// Opens the NCCL engine of a new group for `device` of ds_cuda_open. The ranks meet through
/// `rendezvous`. The caller owns the engine. Blocks until every member has joined. Throws
/// DS_LIBRARY if NCCL is missing, or DS_COMM.
DS_CUDA_EXPORT ds::comm::Engine* ds_cuda_open_nccl(const ds::comm::Rendezvous& rendezvous,
                                                   ds::Device& device);
