// Asynchronous file I/O: batches of reads and writes that run concurrently with the submitter.
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

/// Called once per batch on an engine thread, after its last transfer. `error` is the first failure
/// (DS_IO), null if all succeeded. It must not throw and should be short.
using Completion = std::function<void(const Error* error)>;

/// submit() may be called from any thread. Transfers of a batch run in any order and concurrently.
/// The engine continues partial transfers and repeats interrupted ones. A read beyond the end is an
/// error. The destructor waits for everything submitted.
class FileEngine {
 public:
  virtual ~FileEngine() = default;
  /// "io_uring" or "threads".
  virtual const char* name() const = 0;
  virtual void submit(const std::vector<Transfer>& batch, Completion done) = 0;
};

/// A range of memory.
struct Memory {
  char* data;
  size_t bytes;
};

/// Sizes of the requests and their number in flight.
struct EngineOptions {
  /// Bytes of one request: large enough to stream at full speed, small enough for several per file.
  size_t request_bytes = size_t{4} << 20;
  /// Requests in flight: the depth of a ring, or the number of threads.
  unsigned depth = 32;
  /// Memory and a file (or -1) of most transfers. A ring registers them, so the kernel does not
  /// look them up and pin pages for every request. They must outlive the engine.
  std::vector<Memory> memory = {};
  int file = -1;
};

/// Uses the kernel's io_uring; returns null if it is missing or forbidden (common in containers).
std::unique_ptr<FileEngine> make_uring_engine(const EngineOptions& options = {});
/// Uses pread and pwrite on options.depth threads.
std::unique_ptr<FileEngine> make_thread_engine(const EngineOptions& options);

/// Returns the process's engine: io_uring if it works here, else threads. Never destroyed.
FileEngine& file_engine();

/// Creates a separate engine of the kind that choose_file_engine() has selected.
std::unique_ptr<FileEngine> make_file_engine(const EngineOptions& options);

/// Selects `name` ("io_uring" or "threads") as the engine of later calls. Throws DS_PLATFORM if the
/// kernel has no io_uring, DS_ARGUMENT for another name.
void choose_file_engine(const std::string& name);

/// A batch in flight. The destructor waits, so that borrowed memory outlives the transfers.
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
