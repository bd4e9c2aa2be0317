// One rank's membership in a job: its connections to the store, its watchdog, its first failure.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "process_group.h"
#include "rendezvous.h"

namespace ds::comm {

class Job {
 public:
  struct Member {
    StoreAddress store;
    int rank, size;
    Milliseconds timeout;  // of joining and of each collective
  };
  using OpenEngine = std::function<std::shared_ptr<Engine>(const Rendezvous&)>;

  /// Connects to the store; blocks until the store is reachable. Throws DS_COMM.
  Job(Member member, Failure::Listener listener, std::shared_ptr<Cancellation> cancellation);

  /// Opens a new group of two or more ranks. Every rank of it must call this. Blocks. Throws
  /// DS_COMM.
  std::shared_ptr<ProcessGroup> open_group(ProcessGroup::Members members, Device& device,
                                           const OpenEngine& open);

  /// Call after this rank's last collective. Blocks until every rank has called it or has left
  /// without an error, the job has failed, or the timeout is over. Then connections may close
  /// without loss. A rank that waits for another collective of this rank fails at once, and the job
  /// with it. Never throws.
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
