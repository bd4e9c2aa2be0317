// Host work in the order of a stream, on a dedicated thread.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ds::cuda {

/// The stream and the thread signal their progress through two words of page-locked memory.
///
///     stream   write reached = n ─► wait until run >= n ─► next GPU work
///                      │                    ▲
///     thread           └─► runs task n ─────┘ write run = n
///
/// cudaLaunchHostFunc has the same order. But a host that enqueues updates of milliseconds through
/// it blocks until nearly all of them have run (314 ms of a step's 520 in a trace of GPT-2 1558M).
/// The driver's queue holds about 500 tasks of a stream; push() blocks when it is full.
class HostQueue {
 public:
  /// `stream` must outlive the queue. Throws DS_CUDA if the driver has no stream memory operations,
  /// DS_LIMIT if the system refuses a thread.
  explicit HostQueue(cudaStream_t stream);
  /// Waits for the tasks that the stream still reaches; drops tasks after failed work.
  ~HostQueue();
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;

  /// Runs `task` once the stream reaches it; the stream waits for it. It must not throw.
  void push(std::function<void()> task);
  /// Drops tasks that have not begun. Their captures are not freed.
  void drop();

 private:
  struct Words;
  /// `turn` is the task's number in the queue, from 1, modulo 2^32.
  struct Task {
    uint32_t turn = 0;
    std::function<void()> body;
  };
  /// One after the other, until drop().
  void run();
  /// Waits until the stream has reached the task; returns false if the queue was dropped first.
  bool await_stream(uint32_t turn) const;
  /// Waits until the stream has no work left; returns false if it failed or the queue was dropped
  /// first.
  bool await_end() const;

  const cudaStream_t stream_;
  Words* const words_;
  uint32_t turns_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::atomic<bool> dropped_{false};
  std::thread thread_;
};

}  // namespace ds::cuda
