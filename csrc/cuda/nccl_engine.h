// Collectives between GPUs by NCCL: a communicator per group, kernels on the caller's stream.
#pragma once

#include <memory>
#include <string>

#include "../comm/engine.h"
#include "../comm/rendezvous.h"
#include "nccl_communicator.h"

namespace ds::cuda {

class CudaDevice;

/// Enqueues collectives on the caller's stream, where they are ordered like kernels. The host waits
/// if it is more than a hundred collectives ahead, or while ranks connect for the first collective
/// of a kind. interrupt() ends that wait. If groups overlap, all ranks must use their communicators
/// in the same order.
class NcclEngine final : public comm::Engine {
 public:
  /// Blocks until all ranks of the group have joined. Throws DS_LIBRARY and DS_COMM.
  NcclEngine(const comm::Rendezvous& rendezvous, CudaDevice& device);
  ~NcclEngine() override;
  void start(const comm::Collective& call, Stream& stream, uint64_t tag,
             const comm::Begun& begun) override;
  void interrupt() noexcept override;

 private:
  class Pending;

  void open(const comm::Rendezvous& rendezvous);
  void close() noexcept;
  nccl::Result enqueue(const comm::Collective& call, cudaStream_t stream);
  template <class Call>
  nccl::Result in_rows(const comm::Collective& call, size_t input, size_t output, Call each);
  nccl::Result all_to_all(const comm::Collective& call, cudaStream_t stream);

  CudaDevice& device_;
  const int size_;
  const std::shared_ptr<NcclCommunicator> communicator_;
  void* token_ = nullptr;  // a byte of device memory, for barriers
};

}  // namespace ds::cuda
