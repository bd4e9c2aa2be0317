// A group's NCCL communicator, with the threads that watch its collectives and abort it.
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

/// A point in a stream directly after a collective. done() may wait for the driver. ended() never
/// waits: it returns the last result of done(), on any thread.
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

/// Three threads. A call into CUDA may wait for the driver's context lock, and a launch holds that
/// lock while its stream's queue is full. After a collective that cannot end, the queue stays full.
/// So the path that aborts such a collective must not call CUDA:
///
/// - The watchdog calls only ended(). It signals the abort thread and does not wait for it.
/// - The abort thread has made the device current beforehand, so its first step is ncclCommAbort.
///   The first step of ncclCommAbort sets the flag that the kernels poll. Each group has its own
///   abort thread: ncclCommAbort then waits for the streams. Kernels of another group may be ahead
///   in them, and those need their flag too.
/// - The look-out queries events. It may block until the flag is set.
///
/// Two NCCL communicators. With non-blocking calls, NCCL starts a thread for each launch, which
/// costs the host 80 us instead of 20. With blocking calls, the communicator must not be freed
/// while a call waits in it for ranks to connect. So collectives use a blocking child. Its parent
/// is non-blocking and serves only the abort: the two share the flag, which kernels and pending
/// calls poll. When no call is pending, the child may be freed.
///
/// At most kAhead collectives are in flight. A queued kernel reads the flag only after ten thousand
/// failed polls (some milliseconds), so a long queue would end slowly. With this limit, collectives
/// do not fill a stream's queue.
class NcclCommunicator {
 public:
  /// The creator calls interrupt() and await_end(). Throws DS_LIBRARY, DS_LIMIT.
  static std::shared_ptr<NcclCommunicator> make(int device);

  /// Orders the abort and returns at once. Any thread; idempotent.
  void interrupt() noexcept;
  bool interrupted() const { return interrupted_.load(std::memory_order_acquire); }
  /// Waits until an interrupted communicator is aborted and its threads and events are gone.
  /// Returns false after a timeout: the GPU may still use the memory of its collectives.
  bool await_end() noexcept;
  /// Whether it is aborted, or given up.
  bool over() const;

  /// Connects `ranks` ranks. While some are missing, it calls `is_waiting`, which may throw, to
  /// decide whether to go on; returns in_progress if it stops. Call once, before every other method
  /// except interrupt().
  nccl::Result open(const nccl::UniqueId& id, int ranks, int rank,
                    const std::function<bool()>& is_waiting);

  /// Returns NCCL's asynchronous failure, or an empty text. Any thread.
  std::string fault();
  /// Returns NCCL's reason if it rejected a call with `result`, else an empty text.
  std::string refusal_of(nccl::Result result) const;
  /// Returns NCCL's message for a call that failed with `result`.
  std::string reason_of(nccl::Result result) const;

  /// Waits until fewer than kAhead collectives are in flight, or until interrupt().
  void await_room();
  /// Creates the end of the next collective. It allocates all resources beforehand.
  std::shared_ptr<CollectiveEnd> make_end();
  /// Records `end` after the collective that was just enqueued on `stream`.
  void mark(const std::shared_ptr<CollectiveEnd>& end, cudaStream_t stream);

  const Nccl& nccl;
  const int device;           // current on every thread that calls CUDA; a second one would get a
                              // context too
  std::mutex mutex;           // of calls into NCCL
  nccl::Comm comm = nullptr;  // the child, once it is open; must not be used after interrupt()

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
  nccl::Comm child_ = nullptr;  // NCCL writes it during a split

  mutable std::mutex state_mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::shared_ptr<CollectiveEnd>> under_way_;  // they end in order
  std::vector<cudaEvent_t> spare_;                        // has room for all events
  size_t events_ = 0;
  int threads_ = 0;
};

}  // namespace ds::cuda
