// A group's NCCL communicator with the threads that watch its collectives end and that abort it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nccl.h"

namespace ds::cuda {

/// A point in a stream, right behind a collective. done() may wait for the driver, ended() never
/// does: it says what done() found last, on any thread.
class CollectiveEnd {
 public:
  CollectiveEnd(cudaEvent_t event, int device) : event_(event), device_(device) {}
  bool done();
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  cudaEvent_t event() const { return event_; }

 private:
  const cudaEvent_t event_;
  const int device_;
  std::atomic<bool> ended_{false};
};

/// Why three threads: a call into CUDA may wait for the driver's lock of the context, and a launch
/// keeps that lock while its stream's queue is full. Behind a collective that cannot end the queue
/// stays full, so everything that ends such a collective must get by without CUDA:
///
/// - the watchdog asks ended() alone, and tells the abort thread, without waiting for it;
/// - the abort thread has made the device its own beforehand, so its first step is ncclCommAbort,
///   and that one's first step is a store to the flag which the kernels poll. Each group has its
///   own: ncclCommAbort goes on to wait for the streams, where the kernels of another group may be
///   in front, and those need their flag too;
/// - the look-out queries events, and may get stuck in that until the flag is set.
///
/// And why two communicators of NCCL's: where calls are non-blocking, each one starts a thread that
/// makes the launch, which takes the host 80 us instead of 20; and where they block, nobody may
/// free the communicator while a call waits in it for ranks to connect. So the one that is used is
/// a blocking child. Its parent is opened without blocking, and used for nothing but its abort: the
/// two share the flag, which kernels and calls under way poll. Once none is, the child may go.
///
/// At most kAhead collectives are under way. A kernel that is still queued looks at the flag only
/// after ten thousand vain polls, some milliseconds, so a long queue would take its time to end;
/// and collectives alone do not fill a stream's queue.
class NcclCommunicator {
 public:
  /// Its maker interrupts it and waits for its end. Throws DS_LIBRARY, DS_LIMIT.
  static std::shared_ptr<NcclCommunicator> make(int device);

  /// Orders the abort and returns at once. Any thread; idempotent.
  void interrupt() noexcept;
  bool interrupted() const { return interrupted_.load(std::memory_order_acquire); }
  /// Waits for the end of an interrupted one: it is aborted, its threads and events are gone. False
  /// when that did not come in time: the GPU may still be at work on the memory of its collectives.
  bool await_end() noexcept;
  /// Whether it is aborted, or given up.
  bool over() const;

  /// Opens it between `ranks` ranks; asks `is_waiting`, which may throw, whether to go on while
  /// some have not come: in_progress where it did not. Once, before everything else but
  /// interrupt().
  nccl::Result open(const nccl::UniqueId& id, int ranks, int rank,
                    const std::function<bool()>& is_waiting);

  /// NCCL's asynchronous failure; empty while there is none. Any thread.
  std::string fault();
  /// NCCL's reason where it refused a call with `result`, else nothing.
  std::string refusal_of(nccl::Result result) const;
  /// What NCCL says of a call that failed with `result`.
  std::string reason_of(nccl::Result result) const;

  /// Returns when fewer than kAhead collectives are under way, or it is interrupted.
  void await_room();
  /// The end of a collective that is about to be enqueued: what it needs is there before.
  std::shared_ptr<CollectiveEnd> make_end();
  /// Records `end` behind the collective that was just enqueued on `stream`.
  void mark(const std::shared_ptr<CollectiveEnd>& end, cudaStream_t stream);

  const Nccl& nccl;
  const int device;  // current on every thread that calls CUDA: another one would get a context too
  std::mutex mutex;  // of calls into NCCL
  nccl::Comm comm = nullptr;  // the child, once it is open; not to be used once interrupted

 private:
  using Clock = std::chrono::steady_clock;

  explicit NcclCommunicator(int device) : nccl(Nccl::get()), device(device) {}
  size_t forget_ended();
  void give_back(CollectiveEnd* end) noexcept;
  void look_out();
  void abort_on_order();
  void run(void (NcclCommunicator::*body)());

  std::atomic<bool> interrupted_{false};
  std::atomic<Clock::time_point> interrupted_at_{};
  std::weak_ptr<NcclCommunicator> self_;
  nccl::Comm parent_ = nullptr;
  nccl::Comm child_ = nullptr;  // NCCL writes it while a split is under way

  mutable std::mutex state_mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<CollectiveEnd>> under_way_;  // they end in order
  std::vector<cudaEvent_t> spare_;                        // has room for all events
  size_t events_ = 0;
  int threads_ = 0;
};

}  // namespace ds::cuda
