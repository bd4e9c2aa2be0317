// Collectives between GPUs over NCCL: one communicator per group, kernels on the caller's stream.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "../comm/engine.h"
#include "../comm/rendezvous.h"
#include "nccl.h"

namespace ds::cuda {

class CudaDevice;

/// One communicator. Calls are made under `mutex`; interrupt() may come from another thread.
class NcclCommunicator {
 public:
  explicit NcclCommunicator(int device) : nccl(Nccl::get()), device(device) {}
  ~NcclCommunicator() { interrupt(); }
  /// Aborts it; returns when it is aborted, whoever did it.
  void interrupt() noexcept;
  bool interrupted() const { return interrupted_.load(); }
  /// NCCL's asynchronous failure; empty while there is none. Any thread.
  std::string fault();
  /// Waits while a non-blocking call is in progress. Returns NCCL's reason where it refused the
  /// call, else nothing.
  std::string settle(nccl::Result result);

  const Nccl& nccl;
  const int device;  // current on every thread that calls CUDA: another one would get a context too
  std::timed_mutex mutex;
  nccl::Comm comm = nullptr;  // not to be used once interrupted

 private:
  std::string reason_of(nccl::Result result) const;

  std::atomic<bool> interrupted_{false}, aborted_{false};
};

/// A collective is enqueued on the given stream and ordered there like a kernel; the host does not
/// wait for it. The communicator is non-blocking, so that no call can hang where interrupt() cannot
/// reach it. Communicators of overlapping groups must be used in the same order on every rank.
class NcclEngine final : public comm::Engine {
 public:
  /// Blocks until every rank of the group is there. Throws DS_LIBRARY, DS_COMM.
  NcclEngine(const comm::Rendezvous& rendezvous, CudaDevice& device);
  ~NcclEngine() override;
  std::shared_ptr<comm::Completion> start(const comm::Collective& call, Stream& stream,
                                          uint64_t tag) override;
  void interrupt() noexcept override;

 private:
  class Pending;
  class Refused;

  nccl::Result enqueue(const comm::Collective& call, cudaStream_t stream);
  nccl::Result all_to_all(const comm::Collective& call, cudaStream_t stream);

  CudaDevice& device_;
  const int size_;
  const std::shared_ptr<NcclCommunicator> communicator_;
  void* token_ = nullptr;  // a byte on the device, for barriers
};

}  // namespace ds::cuda
