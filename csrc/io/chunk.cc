// Cuts batches into chunks, continues partial transfers and collects errors.
#include "chunk.h"

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "../core/system.h"

namespace ds::io {

void Batch::finish_one(std::optional<Error> error) {
  bool last;
  {
    std::lock_guard lock(mutex_);
    if (error && !error_) error_ = std::move(error);
    last = --left_ == 0;
  }
  if (last) done_(error_ ? &*error_ : nullptr);
}

bool Chunk::advance(int64_t result) {
  const bool reading = rest.direction == Direction::read;
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result > 0) {
    rest.offset += result;
    rest.data += result;
    rest.bytes -= static_cast<size_t>(result);
    if (rest.bytes > 0) return false;
    batch->finish_one(std::nullopt);
    return true;
  }
  const std::string& path = rest.file->path();
  std::string expected = text(rest.bytes, " bytes at offset ", rest.offset);
  if (result < 0) {
    const char* operation = reading ? "read" : "write";
    batch->finish_one(io_error(operation, path, std::move(expected), static_cast<int>(-result)));
  } else if (reading) {
    batch->finish_one(Error("DS_IO", text("read ", path), std::move(expected),
                            "the end of the file",
                            "The file was truncated, or a program still writes it."));
  } else {
    batch->finish_one(io_error("write", path, std::move(expected), ENOSPC));
  }
  return true;
}

std::deque<Chunk> cut(const std::vector<Transfer>& batch, size_t size, Completion done) {
  size_t count = 0;
  for (const Transfer& transfer : batch) count += (transfer.bytes + size - 1) / size;
  if (count == 0) {
    done(nullptr);
    return {};
  }
  auto shared = std::make_shared<Batch>(count, std::move(done));
  std::deque<Chunk> chunks;
  for (Transfer rest : batch) {
    while (rest.bytes > 0) {
      const size_t bytes = std::min(rest.bytes, size);
      chunks.push_back({shared, {rest.file, rest.offset, rest.data, bytes, rest.direction}});
      rest.offset += static_cast<int64_t>(bytes);
      rest.data += bytes;
      rest.bytes -= bytes;
    }
  }
  return chunks;
}

void begin_thread(const char* name) {
  system::name_thread(name);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace ds::io
