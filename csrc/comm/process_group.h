// A group of ranks: checks collectives, numbers them, starts them on its engine, and keeps their
// memory alive.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "watchdog.h"

namespace ds::comm {

/// "allReduce", "reduceScatter", ...
const char* name_of(Kind kind);

/// References that keep the memory of a collective alive until it is done. Released on the caller's
/// thread.
using Memory = std::vector<std::shared_ptr<void>>;

/// One rank's side of a group; used on one thread.
class ProcessGroup {
 public:
  struct Members {
    std::string name;        // unique in the job, the same on every rank
    std::vector<int> ranks;  // ranks of the job, in the order of the group
    int rank;                // this rank's place in it
  };

  ProcessGroup(Members members, Device& device, std::shared_ptr<Engine> engine,
               std::shared_ptr<Watchdog> watchdog, std::shared_ptr<Failure> failure);
  ~ProcessGroup();

  /// Starts `call` after everything enqueued on `stream` so far and returns its ticket. The
  /// collective owns the memory until it is done. `label` names the place in the program. Throws
  /// the job's failure if there is one; DS_ARGUMENT or DS_DTYPE for invalid calls.
  uint64_t start(const Collective& call, Stream& stream, const std::string& label, Memory memory);
  /// Issues an error record in place of the group's next collective, and of the next message to and
  /// from each rank of it. Ranks that issue a collective there fail with `error`, unless they issue
  /// an error record too. Returns once the job's store has the record.
  void give_up(const std::string& error);
  /// Orders later work of `stream` after the ticket's collective. From here on only that order
  /// protects its memory. Throws the job's failure.
  void wait(uint64_t ticket, Stream& stream);
  /// Blocks until it is done. Throws the job's failure.
  void synchronize(uint64_t ticket);
  /// Throws the job's failure.
  bool done(uint64_t ticket);
  /// Blocks until all started collectives are done or have failed; never throws.
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
    uint32_t channel;  // the watchdog's number
    std::string name;
    uint64_t next = 0;
  };

  void check(const Collective& call) const;
  Sequence& sequence_of(const Collective& call);
  /// Sequence of messages between two ranks of the group, by their group ranks.
  Sequence& sequence_between(int from, int to);
  void land();
  Flight* find(uint64_t ticket);

  const Members members_;
  Device& device_;
  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<Watchdog> watchdog_;
  const std::shared_ptr<Failure> failure_;
  std::unordered_map<std::string, Sequence> sequences_;  // by channel name
  Sequence* own_ = nullptr;                              // sequence of the group's collectives
  std::deque<Flight> flights_;
  uint64_t tickets_ = 0;
};

}  // namespace ds::comm
