// One rank's membership in a job: its connections to the store, its watchdog, and its first
// failure.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "process_group.h"
#include "rendezvous.h"

namespace ds::comm {

/// The job of one rank. The destructor of its watchdog reports to the store that the rank leaves.
class Job {
 public:
  struct Member {
    StoreAddress store;
    int rank, size;
    Milliseconds timeout;  // limits joining, and each collective
  };
  using OpenEngine = std::function<std::shared_ptr<Engine>(const Rendezvous&)>;

  /// Connects to the store and blocks until it is reachable. Throws DS_COMM.
  Job(Member member, Failure::Listener listener, std::shared_ptr<Cancellation> cancellation);

  /// Opens a new group of at least two ranks. Blocks until all its ranks have called it. Throws
  /// DS_COMM.
  std::shared_ptr<ProcessGroup> open_group(ProcessGroup::Members members, Device& device,
                                           const OpenEngine& open);

  /// Waits until all ranks have called it or have left without an error, so that connections may
  /// close without loss of data. Call it after this rank's last collective. Also returns if the job
  /// fails or the timeout passes. If another rank waits for a further collective of this rank, that
  /// rank and the job fail at once. Never throws.
  void meet_at_the_end() noexcept;

  StoreClient& store() { return client_; }
  int size() const { return member_.size; }
  Milliseconds timeout() const { return member_.timeout; }
  const std::shared_ptr<Failure>& failure() const { return failure_; }

 private:
  const Member member_;
  std::shared_ptr<Cancellation> cancellation_;
  std::shared_ptr<Failure> failure_;
  StoreClient client_;
  std::shared_ptr<Watchdog> watchdog_;
};

}  // namespace ds::comm
