// A group of ranks. It checks collectives, numbers them, starts them on the engine, and keeps their
// memory alive.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "watchdog.h"

namespace ds::comm {

/// Returns the JavaScript name: "allReduce", "reduceScatter", ...
const char* name_of(Kind kind);

/// References that keep a collective's memory alive until it is done. Released on the caller's
/// thread.
using Memory = std::vector<std::shared_ptr<void>>;

/// A rank's part of a group. Used on one thread.
class ProcessGroup {
 public:
  struct Members {
    std::string name;        // unique in the job, equal on all ranks
    std::vector<int> ranks;  // ranks of the job, in the group's order
    int rank;                // index of this rank in `ranks`
  };

  ProcessGroup(Members members, Device& device, std::shared_ptr<Engine> engine,
               std::shared_ptr<Watchdog> watchdog, std::shared_ptr<Failure> failure);
  ~ProcessGroup();

  /// Starts `call` after all work enqueued on `stream` so far, and returns its ticket. The group
  /// keeps `memory` until the collective is done. `label` describes the call in errors. Throws the
  /// job's failure if it has one, and DS_ARGUMENT or DS_DTYPE for an invalid call.
  uint64_t start(const Collective& call, Stream& stream, const std::string& label, Memory memory);
  /// Sends an error record in place of the next collective and of the next message to and from each
  /// rank of the group. A rank that issues a collective there, not an error record, fails with
  /// `error`. Blocks until the job's store has the record.
  void give_up(const std::string& error);
  /// Makes later work of `stream` wait for the ticket's collective. After this call, only that
  /// order protects the collective's memory. Throws the job's failure.
  void wait(uint64_t ticket, Stream& stream);
  /// Blocks until the collective is done. Throws the job's failure.
  void synchronize(uint64_t ticket);
  /// Returns true if the collective is done. Throws the job's failure.
  bool done(uint64_t ticket);
  /// Blocks until all started collectives have ended. Never throws.
  void drain() noexcept;

  int rank() const { return members_.rank; }
  int size() const { return static_cast<int>(members_.ranks.size()); }
  Device& device() const { return device_; }

 private:
  struct Flight {
    uint64_t ticket;
    std::shared_ptr<Completion> completion;
    Memory memory;
  };
  struct Sequence {
    uint32_t channel;  // the watchdog's number of the channel
    std::string name;
    uint64_t next = 0;
  };

  void check(const Collective& call) const;
  Sequence& sequence_of(const Collective& call);
  /// Returns the sequence of messages from one rank of the group to another.
  Sequence& sequence_between(int from, int to);
  void land();
  Flight* find(uint64_t ticket);

  const Members members_;
  Device& device_;
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<Watchdog> watchdog_;
  const std::shared_ptr<Failure> failure_;
  std::unordered_map<std::string, Sequence> sequences_;  // by channel name
  Sequence* own_ = nullptr;                              // the sequence of collectives
  std::deque<Flight> flights_;
  uint64_t tickets_ = 0;
};

}  // namespace ds::comm
