// What both back ends share: batches cut into chunks, and the meaning of a system call's result.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "file_engine.h"

namespace ds::io {

/// Counts the chunks of one submit() and keeps its first error.
class Batch {
 public:
  Batch(size_t chunks, Completion done) : left_(chunks), done_(std::move(done)) {}
  /// Calls the completion after the last chunk.
  void finish_one(std::optional<Error> error);

 private:
  std::mutex mutex_;
  size_t left_;
  std::optional<Error> error_;
  Completion done_;
};

/// The unfinished rest of a piece of a transfer.
struct Chunk {
  std::shared_ptr<Batch> batch;
  Transfer rest;

  /// Takes the result of one read or write of `rest` (bytes moved, or -errno). False: the chunk
  /// must be issued again. True: it is over, and the batch knows.
  bool advance(int64_t result);
};

/// Cuts `batch` into chunks of at most `size` bytes. A batch without bytes completes at once and
/// gives none.
std::deque<Chunk> cut(const std::vector<Transfer>& batch, size_t size, Completion done);

/// Names the calling thread, as /proc/PID/task/*/comm shows it, and keeps signals on the program's
/// own threads; a file size limit then is an errno, not a fatal signal.
void begin_thread(const char* name);

}  // namespace ds::io
