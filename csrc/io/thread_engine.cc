// The portable engine: pread and pwrite on threads.
#include <cerrno>
#include <condition_variable>
#include <thread>
#include <unistd.h>

#include "../core/start_threads.h"
#include "chunk.h"

namespace ds::io {
namespace {

class ThreadEngine final : public FileEngine {
 public:
  /// Starts up to options.depth threads, as many as the system allows. Throws DS_LIMIT if it allows
  /// none.
  explicit ThreadEngine(const EngineOptions& options)
      : request_bytes_(options.request_bytes),
        workers_(start_threads(options.depth, "file engine", "a thread that reads and writes files",
                               [this] { work(); })) {}

  ~ThreadEngine() override {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    available_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  const char* name() const override { return "threads"; }

  void submit(const std::vector<Transfer>& batch, Completion done) override {
    std::deque<Chunk> chunks = cut(batch, request_bytes_, std::move(done));
    {
      std::lock_guard lock(mutex_);
      for (Chunk& chunk : chunks) pending_.push_back(std::move(chunk));
    }
    available_.notify_all();
  }

 private:
  void work() {
    begin_thread("ds-io");
    std::unique_lock lock(mutex_);
    while (true) {
      available_.wait(lock, [this] { return closing_ || !pending_.empty(); });
      if (pending_.empty()) return;
      Chunk chunk = std::move(pending_.front());
      pending_.pop_front();
      lock.unlock();
      while (!chunk.advance(issue(chunk.rest))) {
      }
      lock.lock();
    }
  }

  static int64_t issue(const Transfer& rest) {
    const int file = rest.file->descriptor();
    const ssize_t result = rest.direction == Direction::read
                               ? ::pread(file, rest.data, rest.bytes, rest.offset)
                               : ::pwrite(file, rest.data, rest.bytes, rest.offset);
    return result < 0 ? -errno : result;
  }

  const size_t request_bytes_;
  std::mutex mutex_;
  std::condition_variable available_;
  std::deque<Chunk> pending_;
  bool closing_ = false;
  std::vector<std::thread> workers_;  // last, because they use the other members
};

}  // namespace

std::unique_ptr<FileEngine> make_thread_engine(const EngineOptions& options) {
  return std::make_unique<ThreadEngine>(options);
}

}  // namespace ds::io
