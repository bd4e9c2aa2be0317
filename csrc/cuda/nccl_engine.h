// Collectives between GPUs over NCCL: one communicator per group, kernels on the caller's stream.
#pragma once

#include <memory>
#include <string>

#include "../comm/engine.h"
#include "../comm/rendezvous.h"
#include "nccl_communicator.h"

namespace ds::cuda {

class CudaDevice;

/// A collective is enqueued on the given stream and ordered there like a kernel. The host waits in
/// two cases: it is more than a hundred collectives ahead, or ranks connect for the first
/// collective of a kind. interrupt() ends that wait. Every rank must use communicators of
/// overlapping groups in the same order.
class NcclEngine final : public comm::Engine {
 public:
  /// Blocks until every rank of the group has joined. Throws DS_LIBRARY, DS_COMM.
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
  void* token_ = nullptr;  // a byte on the device, for barriers
};

}  // namespace ds::cuda
