// Parts that both back ends share: batches cut into chunks, and the interpretation of system call
// results.
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

/// The unfinished rest of one part of a transfer.
struct Chunk {
  std::shared_ptr<Batch> batch;
  Transfer rest;

  /// Processes the result of one read or write of `rest` (bytes moved, or -errno). Returns false if
  /// the chunk must be issued again, true if it is complete and counted in the batch.
  bool advance(int64_t result);
};

/// Cuts `batch` into chunks of at most `size` bytes. A batch without bytes completes at once and
/// returns an empty list.
std::deque<Chunk> cut(const std::vector<Transfer>& batch, size_t size, Completion done);

/// Names the calling thread (visible in /proc/PID/task/*/comm) and blocks signals on it, so that
/// the program's own threads receive them. A file size limit then gives an errno, not a fatal
/// signal.
void begin_thread(const char* name);

}  // namespace ds::io
