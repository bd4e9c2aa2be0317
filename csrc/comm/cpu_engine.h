// Collectives between CPU memories: direct exchange over a transport, folded in rank order.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "engine.h"
#include "transport.h"

namespace ds::comm {

/// Collectives run one after another on a thread of the engine, so the caller continues. Memory
/// belongs to a collective from start() until it is done. CPU streams run at once, so order()
/// blocks.
///
/// Every rank folds its chunk of the elements from the inputs of all ranks and sends the result.
/// Each rank sends and receives 2 (n - 1) / n of an all-reduce's bytes, in two steps for any n. For
/// small inputs every rank folds all elements, in one step. An element's bits depend on the n
/// inputs only (see fold.h). So reduce_scatter, all_reduce and reduce agree in every bit, for any
/// split of the data into calls.
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
  std::vector<char> scratch_;  // the thread's own

  std::mutex mutex_;                      // guards the members below; exchanges run without it
  std::unique_ptr<Transport> transport_;  // gone once the thread has ended
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Pending>> queue_;
  std::shared_ptr<Pending> running_;  // the queue's head while the thread runs it
  bool aborted_ = false;
  std::thread thread_;
};

}  // namespace ds::comm
