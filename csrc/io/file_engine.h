// Asynchronous file I/O: batches of reads and writes that run while the caller continues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "file.h"

namespace ds::io {

enum class Direction { read, write };

/// A contiguous range of a file and of memory. The caller keeps both until the batch has completed.
struct Transfer {
  const File* file;
  int64_t offset;
  char* data;
  size_t bytes;
  Direction direction;
};

/// Called on an engine thread after the last transfer of a batch. `error` is the first failure
/// (DS_IO), or null. It must not throw and should be short.
using Completion = std::function<void(const Error* error)>;

/// Runs batches of transfers. submit() is thread-safe. Transfers of a batch run concurrently, in
/// any order. The engine continues partial transfers and repeats interrupted ones. Reading beyond
/// the end of a file is an error. The destructor waits for all submitted batches.
class FileEngine {
 public:
  virtual ~FileEngine() = default;
  /// Returns "io_uring" or "threads".
  virtual const char* name() const = 0;
  virtual void submit(const std::vector<Transfer>& batch, Completion done) = 0;
};

/// A range of host memory.
struct Memory {
  char* data;
  size_t bytes;
};

/// Size, number and memory of the engine's requests.
struct EngineOptions {
  /// Bytes of a request: large enough for full speed, small enough for several requests per file.
  size_t request_bytes = size_t{4} << 20;
  /// Requests in flight: the depth of the ring, or the number of threads.
  unsigned depth = 32;
  /// Memory and file (or -1) of most transfers. The ring registers them, so that the kernel does
  /// not look them up and pin pages for each request. They must outlive the engine.
  std::vector<Memory> memory = {};
  int file = -1;
};

/// Creates an engine over io_uring. Returns null if the kernel lacks or forbids it, as in many
/// containers.
std::unique_ptr<FileEngine> make_uring_engine(const EngineOptions& options = {});
/// Creates an engine over pread and pwrite on options.depth threads. Throws DS_LIMIT.
std::unique_ptr<FileEngine> make_thread_engine(const EngineOptions& options);

/// Returns the process's engine: io_uring if it is available, otherwise threads. Never destroyed.
FileEngine& file_engine();

/// Creates another engine of the kind that choose_file_engine() selected.
std::unique_ptr<FileEngine> make_file_engine(const EngineOptions& options);

/// Selects the engine of later calls, "io_uring" or "threads". Throws DS_PLATFORM if the kernel has
/// no io_uring, and DS_ARGUMENT for another name.
void choose_file_engine(const std::string& name);

/// A submitted batch. The destructor waits for it, so that its memory outlives the transfers.
class Pending {
 public:
  Pending(FileEngine& engine, const std::vector<Transfer>& batch);
  ~Pending();
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  /// Blocks until the batch has completed. Throws its error.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ds::io
