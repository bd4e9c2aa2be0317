// A persistent pool that splits index ranges; chunk borders never depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace ds {

/// parallel_for may be called from any thread; calls are serialised. A task must not call back into
/// the pool. The first exception of a task is rethrown to the caller after all chunks have ended.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  /// Waits for running work, then continues with `threads` (>= 1) threads, the caller included.
  void resize(int threads);

  /// Calls body(begin, end) for consecutive chunks of `grain` indices of [0, n). The caller takes
  /// part. Because the borders are multiples of `grain`, a reduction that combines per-chunk
  /// results in chunk order gives the same bits with any number of threads.
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The process's pool: ops of the CPU back end and host calls of other devices run on it.
ThreadPool& thread_pool();

}  // namespace ds
