// One NCCL communicator with the threads that watch its collectives end and that abort it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
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
///   and that one's first step is a store to the flag which the kernels poll. Each communicator has
///   its own: ncclCommAbort goes on to wait for the streams, where the kernels of another
///   communicator may be in front, and those need their flag too;
/// - the look-out queries events, and may get stuck in that until the flag is set.
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

  /// NCCL's asynchronous failure; empty while there is none. Any thread.
  std::string fault();
  /// Waits while a non-blocking call is in progress. Returns NCCL's reason where it refused the
  /// call, else nothing.
  std::string settle(nccl::Result result);

  /// Returns when fewer than kAhead collectives are under way, or it is interrupted.
  void await_room();
  /// The end of a collective that is about to be enqueued: what it needs is there before.
  std::shared_ptr<CollectiveEnd> make_end();
  /// Records `end` behind the collective that was just enqueued on `stream`.
  void mark(const std::shared_ptr<CollectiveEnd>& end, cudaStream_t stream);

  const Nccl& nccl;
  const int device;  // current on every thread that calls CUDA: another one would get a context too
  std::timed_mutex mutex;     // of calls into NCCL
  nccl::Comm comm = nullptr;  // not to be used once interrupted

 private:
  using Clock = std::chrono::steady_clock;

  explicit NcclCommunicator(int device) : nccl(Nccl::get()), device(device) {}
  std::string reason_of(nccl::Result result) const;
  size_t forget_ended();
  void give_back(CollectiveEnd* end) noexcept;
  void look_out();
  void abort_on_order();
  void run(void (NcclCommunicator::*body)());

  std::atomic<bool> interrupted_{false};
  std::atomic<Clock::time_point> interrupted_at_{};
  std::weak_ptr<NcclCommunicator> self_;

  mutable std::mutex state_mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<CollectiveEnd>> under_way_;  // they end in order
  std::vector<cudaEvent_t> spare_;                        // has room for all events
  size_t events_ = 0;
  int threads_ = 0;
};

}  // namespace ds::cuda
