// The thread pool. Its workers take chunks of a call until none is left.
#include "thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

namespace ds {
namespace {

constexpr int kSpins = 4000;  // tens of microseconds, the usual gap between two ops

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // as long as a pause; "yield" takes no time on servers
#endif
}

/// One call of parallel_for(). `next` hands out its chunks in order.
struct Job {
  Job(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body)
      : n(n), grain(grain), chunks((n - 1) / grain + 1), body(body) {}

  void run_chunks() {
    for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
      const int64_t begin = chunk * grain;
      try {
        body(begin, n - begin < grain ? n : begin + grain);
      } catch (...) {
        keep_failure(chunk);
      }
    }
  }

  /// Keeps the failure of the lowest chunk, so that the error does not depend on timing.
  void keep_failure(int64_t chunk) {
    std::lock_guard lock(failure_mutex);
    if (chunk >= failed_chunk) return;
    failed_chunk = chunk;
    failure = std::current_exception();
  }

  const int64_t n, grain, chunks;
  const std::function<void(int64_t, int64_t)>& body;
  alignas(64) std::atomic<int64_t> next{0};
  std::mutex failure_mutex;
  int64_t failed_chunk = std::numeric_limits<int64_t>::max();
  std::exception_ptr failure;
};

}  // namespace

struct ThreadPool::State {
  std::mutex callers;  // held during a parallel_for() or resize()
  std::vector<std::thread> workers;

  std::mutex mutex;  // guards the members below; spinning threads read `generation` without it
  std::condition_variable work_changed, job_left;
  std::atomic<uint64_t> generation{0};
  Job* job = nullptr;  // null if there is no work
  int joined = 0;      // workers inside `job`
  bool stopping = false;

  void announce(Job* next_job, bool stop) {
    {
      std::lock_guard lock(mutex);
      job = next_job;
      stopping = stop;
      generation.fetch_add(1, std::memory_order_release);
    }
    work_changed.notify_all();
  }

  /// Removes the job, so that no more workers join it, and waits for its workers.
  void retire() {
    std::unique_lock lock(mutex);
    job = nullptr;
    for (int spin = 0; joined > 0 && spin < kSpins; ++spin) {
      lock.unlock();
      pause_briefly();
      lock.lock();
    }
    job_left.wait(lock, [&] { return joined == 0; });
  }

  void work(uint64_t seen) {
    for (;;) {
      for (int spin = 0; spin < kSpins && generation.load(std::memory_order_acquire) == seen;
           ++spin)
        pause_briefly();
      std::unique_lock lock(mutex);
      work_changed.wait(lock, [&] { return generation.load(std::memory_order_relaxed) != seen; });
      seen = generation.load(std::memory_order_relaxed);
      if (stopping) return;
      Job* const current_job = job;
      if (!current_job) continue;
      ++joined;
      lock.unlock();
      current_job->run_chunks();
      lock.lock();
      if (--joined == 0) job_left.notify_one();
    }
  }

  void start(int threads) {
    const uint64_t now = generation.load(std::memory_order_relaxed);
    try {
      workers.reserve(static_cast<size_t>(threads));
      for (int i = 1; i < threads; ++i) workers.emplace_back([this, now] { work(now); });
    } catch (const std::exception&) {
      // If the system refuses more threads, the existing ones do the work.
    }
  }

  void stop() {
    announce(nullptr, true);
    for (std::thread& worker : workers) worker.join();
    workers.clear();
    stopping = false;
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) { state_->start(threads); }

ThreadPool::~ThreadPool() { state_->stop(); }

int ThreadPool::threads() const {
  std::lock_guard callers(state_->callers);
  return static_cast<int>(state_->workers.size()) + 1;
}

void ThreadPool::resize(int threads) {
  std::lock_guard callers(state_->callers);
  state_->stop();
  state_->start(threads);
}

void ThreadPool::parallel_for(int64_t n, int64_t grain,
                              const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (n <= grain) return body(0, n);
  std::lock_guard callers(state_->callers);
  Job job(n, grain, body);
  const bool shared = !state_->workers.empty();
  if (shared) state_->announce(&job, false);
  job.run_chunks();
  if (shared) state_->retire();
  if (job.failure) std::rethrow_exception(job.failure);
}

ThreadPool& thread_pool() {
  // Never destroyed: at exit, its threads may outlive static objects.
  static ThreadPool* pool =
      new ThreadPool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  return *pool;
}

}  // namespace ds
