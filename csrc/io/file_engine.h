// Asynchronous file I/O: batches of reads and writes that run beside their submitter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "file.h"

namespace ds::io {

enum class Direction { read, write };

/// One contiguous range of a file and of memory. Both are borrowed until the batch has completed.
struct Transfer {
  const File* file;
  int64_t offset;
  char* data;
  size_t bytes;
  Direction direction;
};

/// Called once per batch on an engine thread, when none of its transfers runs any more. `error` is
/// the first failure (DS_IO), null when all succeeded. It must not throw and should be brief.
using Completion = std::function<void(const Error* error)>;

/// submit() may be called from any thread. Transfers of a batch run in any order and concurrently;
/// partial transfers are continued and interrupted ones repeated. A read beyond the end is an
/// error. The destructor waits for everything submitted.
class FileEngine {
 public:
  virtual ~FileEngine() = default;
  /// "io_uring" or "threads".
  virtual const char* name() const = 0;
  virtual void submit(const std::vector<Transfer>& batch, Completion done) = 0;
};

/// The kernel's queues; null where it has none or forbids them (containers often do).
std::unique_ptr<FileEngine> make_uring_engine();
/// pread and pwrite on `threads` threads.
std::unique_ptr<FileEngine> make_thread_engine(int threads);

/// The process's engine: io_uring if it works here, else threads. Never destroyed.
FileEngine& file_engine();

/// Makes `name` ("io_uring" or "threads") the engine of later calls. Throws DS_PLATFORM when the
/// kernel has no io_uring, DS_ARGUMENT for another name.
void choose_file_engine(const std::string& name);

/// A batch under way. The destructor waits, so that borrowed memory outlives the transfers.
class Pending {
 public:
  Pending(FileEngine& engine, const std::vector<Transfer>& batch);
  ~Pending();
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  /// Blocks until the batch has completed; throws its error.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ds::io
