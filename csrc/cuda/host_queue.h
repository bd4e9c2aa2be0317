// Host work in the order of a stream, on a thread of its own.
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

/// The stream and the thread tell each other how far they are through two words of page-locked
/// memory. cudaLaunchHostFunc does the same, but a host that enqueues updates of milliseconds each
/// through it stands still until nearly all of them have run, one call for each that ends: 314 ms
/// of a step's 520 in a trace of GPT-2 1558M. About 500 tasks of a stream fit the driver's queue;
/// one more waits for its turn.
class HostQueue {
 public:
  /// For `stream`, which outlives it. Throws DS_CUDA where the driver has no operations of streams
  /// on memory, DS_LIMIT where the system grants no thread.
  explicit HostQueue(cudaStream_t stream);
  /// Waits for the tasks that the stream still reaches; those behind failed work are dropped.
  ~HostQueue();
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;

  /// Runs `task` once the stream reaches it; the stream waits for it. It must not throw.
  void push(std::function<void()> task);
  /// Tasks that have not begun never will, and what they own is not freed.
  void drop();

 private:
  struct Words;
  /// `turn` is its place among all of the queue, from 1, modulo 2^32.
  struct Task {
    uint32_t turn = 0;
    std::function<void()> body;
  };
  /// One after the other, until drop().
  void run();
  /// Until the stream has reached the task; false where the queue was dropped instead.
  bool await_stream(uint32_t turn) const;
  /// Until the stream has no work left; false where it failed or the queue was dropped instead.
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
