// Ranks as threads of one process, so that ThreadSanitizer sees both ends of everything they share.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../../../csrc/comm/cpu_engine.h"
#include "../../../csrc/comm/job.h"
#include "../../../csrc/comm/store_server.h"

namespace ds::threads {

/// Throws std::runtime_error unless `holds`.
void require(bool holds, const std::string& what);

/// Memory of collectives, kept by a group as the addon's buffers are: until it lets go of them. It
/// is written over before it is freed, as ThreadSanitizer looks at the first bytes of what is freed
/// only.
using Floats = std::shared_ptr<std::vector<float>>;
Floats floats(int64_t count, float value = 0);

/// One rank: its job, the group of all ranks, and its failures as the listener heard them.
class Rank {
 public:
  Rank(const comm::StoreAddress& store, int rank, int size, comm::Milliseconds timeout);
  /// Leaves at once: whoever still waits for this rank is told so.
  ~Rank();

  /// Starts a collective with root 0 of `count` elements per rank; returns its ticket.
  uint64_t start(comm::Kind kind, Floats input, Floats output, int64_t count,
                 const std::string& label = "");
  /// One all-reduce in place, to its end.
  void all_reduce(Floats data, const std::string& label = "");
  /// Gives up what is under way.
  void close_group() { group_.reset(); }
  comm::ProcessGroup& group() { return *group_; }
  comm::Job& job() { return job_; }
  comm::Cancellation& cancellation() { return *cancellation_; }
  int failures_heard() const { return heard_.load(); }

 private:
  std::shared_ptr<comm::Cancellation> cancellation_ = std::make_shared<comm::Cancellation>();
  std::atomic<int> heard_{0};
  comm::Job job_;
  std::shared_ptr<comm::ProcessGroup> group_;
};

/// A store on loopback and how to reach it.
struct Store {
  std::unique_ptr<comm::StoreServer> server;
  comm::StoreAddress address;
};
Store open_store();

/// Runs `body` once per rank, each on a thread of its own that joins the store first and returns
/// when all have ended. Throws what the first of them threw.
void on_ranks(const Store& store, int count, comm::Milliseconds timeout,
              const std::function<void(Rank&, int)>& body);

/// What the error says that `body` ends with, which must be DS_COMM.
std::string failure_of(const std::function<void()>& body);

}  // namespace ds::threads
