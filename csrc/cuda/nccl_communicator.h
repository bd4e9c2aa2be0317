// A group's NCCL communicator, with the threads that watch its collectives and abort them.
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

/// The point in a stream right after a collective. done() may wait for the driver. ended() returns
/// the last result of done() without waiting, on any thread.
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

/// Aborts a collective that cannot end, without a call of CUDA. Such a call may wait for the
/// driver's context lock, which a launch holds while its stream's queue is full. Behind a
/// collective that cannot end, the queue stays full. Three threads share the work:
///
///   watchdog   watches all groups. Calls ended() and interrupt(), which wait neither for CUDA nor
///              for the abort.
///   abort      one per group. The device is current since its start, so it calls ncclCommAbort at
///              once. That sets the flag that the kernels poll, then waits for the streams. Kernels
///              of another group may come earlier in these streams and need their flag too, so
///              groups cannot share this thread.
///   look-out   one per group. Queries the events of collectives. May block until the flag is set.
///
/// A group has two NCCL communicators. With non-blocking calls, NCCL starts a thread per launch,
/// which costs the host 80 us instead of 20. With blocking calls, the communicator must not be
/// freed while a call in it waits for ranks to connect. So collectives use a blocking child, and
/// its non-blocking parent only serves aborts. Both share the flag, which kernels and pending calls
/// poll. The abort thread frees the child when no call is pending any more.
///
/// At most kAhead collectives are in flight, so they do not fill a stream's queue. A queued kernel
/// reads the flag only after ten thousand failed polls (some milliseconds), so a long queue would
/// end slowly.
class NcclCommunicator {
 public:
  /// Creates a communicator for `device`. Its owner calls interrupt() and await_end(). Throws
  /// DS_LIBRARY and DS_LIMIT.
  static std::shared_ptr<NcclCommunicator> make(int device);

  /// Requests the abort and returns at once. Thread-safe; may be called again.
  void interrupt() noexcept;
  bool interrupted() const { return interrupted_.load(std::memory_order_acquire); }
  /// Waits until the interrupted communicator is aborted and its threads and events are gone.
  /// Returns false after a timeout. Then the GPU may still use the memory of its collectives.
  bool await_end() noexcept;
  /// Returns true if the abort has ended or was given up.
  bool over() const;

  /// Connects the group's ranks. While some are missing, it calls `is_waiting`, which may throw. If
  /// that returns false, it stops and returns in_progress. Call it once, before all other methods
  /// except interrupt().
  nccl::Result open(const nccl::UniqueId& id, int ranks, int rank,
                    const std::function<bool()>& is_waiting);

  /// Returns NCCL's asynchronous failure, or "". Thread-safe.
  std::string fault();
  /// Returns NCCL's reason if `result` means that it rejected a call, else "".
  std::string refusal_of(nccl::Result result) const;
  /// Returns NCCL's message for a call that failed with `result`.
  std::string reason_of(nccl::Result result) const;

  /// Waits until fewer than kAhead collectives are in flight, or until interrupt().
  void await_room();
  /// Creates the end of the next collective and allocates all that mark() needs.
  std::shared_ptr<CollectiveEnd> make_end();
  /// Records `end` after the collective that was just enqueued on `stream`.
  void mark(const std::shared_ptr<CollectiveEnd>& end, cudaStream_t stream);

  const Nccl& nccl;
  const int device;           // current on every thread that calls CUDA; a second one would get a
                              // context too
  std::mutex mutex;           // guards calls into NCCL
  nccl::Comm comm = nullptr;  // the child, once open; must not be used after interrupt()

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
  nccl::Comm child_ = nullptr;  // written by NCCL during a split

  mutable std::mutex state_mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::shared_ptr<CollectiveEnd>> under_way_;  // oldest first
  std::vector<cudaEvent_t> spare_;                        // has capacity for all events
  size_t events_ = 0;
  int threads_ = 0;
};

}  // namespace ds::cuda
