// Collectives over CPU memory: ranks exchange data directly and fold it in rank order.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "engine.h"
#include "transport.h"

namespace ds::comm {

/// Runs collectives in order on a thread of its own, so start() returns at once. A collective owns
/// its memory from start() until it is done. CPU streams run at once, so order() blocks.
///
/// In a reduction, each rank folds its part of the elements over the inputs of all ranks and sends
/// the result to the others. An all-reduce takes two steps for any n and moves 2 (n - 1) / n of its
/// bytes to and from each rank. For small inputs each rank folds all elements, in one step. The
/// bits of an element depend only on its n inputs (see fold.h). So reduce_scatter, all_reduce and
/// reduce return equal bits, for any split of the data into calls.
class CpuEngine final : public Engine {
 public:
  CpuEngine(int rank, int size, std::unique_ptr<Transport> transport);
  ~CpuEngine() override;
  void start(const Collective& call, Stream& stream, uint64_t tag, const Begun& begun) override;
  void interrupt() noexcept override;

 private:
  class Pending;
  struct Range {
    int64_t begin, end;
  };

  void work();
  static void log(const Collective& call, int64_t began);
  void run(const Collective& call, uint64_t tag);
  void all_reduce(const Collective& call, uint64_t tag);
  void reduce_whole(const Collective& call, uint64_t tag);
  void reduce_scatter(const Collective& call, uint64_t tag);
  void all_gather(const Collective& call, uint64_t tag);
  void broadcast(const Collective& call, uint64_t tag);
  void all_to_all(const Collective& call, uint64_t tag);
  void barrier(uint64_t tag);
  void scatter_and_fold(const Collective& call, uint64_t tag, const std::vector<Range>& parts,
                        void* folded);
  void hand_on(const Collective& call, uint64_t tag, const std::vector<Range>& parts, void* folded);

  const int rank_, size_;
  std::vector<char> scratch_;  // used by the thread only

  std::mutex mutex_;                      // guards the members below, except during an exchange
  std::unique_ptr<Transport> transport_;  // null after the thread has ended
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Pending>> queue_;
  std::shared_ptr<Pending> running_;  // the head of the queue while the thread runs it
  bool aborted_ = false;
  std::thread thread_;
};

}  // namespace ds::comm
