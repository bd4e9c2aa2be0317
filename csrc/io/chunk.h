// Shared by both engines: cuts batches into chunks and interprets the results of system calls.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "file_engine.h"

namespace ds::io {

/// Counts the finished chunks of one submit() and keeps the first error.
class Batch {
 public:
  Batch(size_t chunks, Completion done) : left_(chunks), done_(std::move(done)) {}
  /// Counts a finished chunk. Calls the completion after the last one.
  void finish_one(std::optional<Error> error);

 private:
  std::mutex mutex_;
  size_t left_;
  std::optional<Error> error_;
  Completion done_;
};

/// The unfinished part of a transfer.
struct Chunk {
  std::shared_ptr<Batch> batch;
  Transfer rest;

  /// Handles the result of one read or write of `rest`: bytes moved, or -errno. Returns true if the
  /// chunk is complete and counted in the batch, false if `rest` must be issued again.
  bool advance(int64_t result);
};

/// Cuts `batch` into chunks of at most `size` bytes. If it has no bytes, calls `done` and returns
/// an empty list.
std::deque<Chunk> cut(const std::vector<Transfer>& batch, size_t size, Completion done);

/// Names the calling thread (see /proc/PID/task/*/comm) and blocks signals on it, so that the
/// program's own threads receive them. Because SIGXFSZ is blocked too, exceeding a file size limit
/// gives an errno instead of ending the process.
void begin_thread(const char* name);

}  // namespace ds::io
