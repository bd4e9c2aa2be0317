// Threads that process index ranges in chunks. The chunks do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace ds {

/// Persistent worker threads. Any thread may call parallel_for(); the pool runs one call at a time.
/// A task must not call the pool. The caller receives a task's first exception after all chunks
/// have ended.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  /// Waits for running work, then changes the number of threads (>= 1), which counts the caller.
  void resize(int threads);

  /// Calls body(begin, end) for chunks of `grain` consecutive indices of [0, n), also on the
  /// calling thread. Chunks begin at multiples of `grain`. If a reduction combines the results of
  /// chunks in order, any number of threads gives the same bits.
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the process's pool. It runs ops of the CPU back end and host functions of other devices.
ThreadPool& thread_pool();

}  // namespace ds
