// Runs host functions in stream order on a thread of their own.
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

/// Stream and thread exchange their progress through two words of page-locked memory.
///
///     stream   write reached = n ─► wait until run >= n ─► next GPU work
///                      │                    ▲
///     thread           └─► runs task n ─────┘ write run = n
///
/// cudaLaunchHostFunc has the same order. But a host that enqueues updates of milliseconds through
/// it blocks until nearly all have run: in a trace of GPT-2 1558M, 314 of a step's 520 ms. Here
/// push() blocks only if the driver's queue is full, at about 500 tasks per stream.
class HostQueue {
 public:
  /// `stream` must outlive the queue. Throws DS_CUDA if the driver has no stream memory operations,
  /// and DS_LIMIT if the system refuses a thread.
  explicit HostQueue(cudaStream_t stream);
  /// Waits for all tasks that the stream can still reach. Drops tasks behind work that failed.
  ~HostQueue();
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;

  /// Enqueues `task`, which must not throw. It runs when the stream reaches it, and the stream
  /// waits for its end.
  void push(std::function<void()> task);
  /// Drops tasks that have not begun. It does not free the objects that they capture.
  void drop();

 private:
  struct Words;
  /// A task. `turn` is its number in the queue from 1, modulo 2^32.
  struct Task {
    uint32_t turn = 0;
    std::function<void()> body;
  };
  /// Runs tasks in order, until drop().
  void run();
  /// Waits until the stream has reached the task. Returns false if the queue was dropped before.
  bool await_stream(uint32_t turn) const;
  /// Waits until the stream has no more work. Returns false if the stream failed or the queue was
  /// dropped before.
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
