// The Linux engine: one thread feeds an io_uring and handles its completions.
#include <algorithm>
#include <cerrno>
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>

#include "../core/start_threads.h"
#include "chunk.h"

namespace ds::io {
namespace {

constexpr size_t kLargestRegistered = size_t{1} << 30;  // bytes: the kernel's limit of one range
constexpr int kNotRegistered = -1;

/// Memory and a file that are registered with a ring, so that the kernel keeps them pinned and
/// open.
class Registered {
 public:
  /// Registers as much memory as the kernel accepts. Older kernels count it as locked memory
  /// (`ulimit -l`).
  Registered(io_uring& ring, const EngineOptions& options) {
    std::vector<iovec> ranges;
    for (const Memory& memory : options.memory) {
      for (size_t at = 0; at < memory.bytes; at += kLargestRegistered) {
        ranges.push_back({memory.data + at, std::min(kLargestRegistered, memory.bytes - at)});
      }
    }
    const auto count = static_cast<unsigned>(ranges.size());
    if (count && io_uring_register_buffers(&ring, ranges.data(), count) == 0) {
      ranges_ = std::move(ranges);
    }
    const int file = options.file;
    if (file >= 0 && io_uring_register_files(&ring, &file, 1) == 0) file_ = file;
  }

  /// Returns the index of the registered range that contains the transfer, or -1.
  int range_of(const Transfer& transfer) const {
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const char* begin = static_cast<const char*>(ranges_[i].iov_base);
      const char* end = begin + ranges_[i].iov_len;
      if (transfer.data >= begin && transfer.data + transfer.bytes <= end) {
        return static_cast<int>(i);
      }
    }
    return kNotRegistered;
  }

  bool has_file(int descriptor) const { return descriptor == file_; }

 private:
  std::vector<iovec> ranges_;
  int file_ = kNotRegistered;
};

/// Only the engine's thread uses the ring. Submitters queue chunks and signal an eventfd, the bell.
/// The ring always has a read of the bell in flight.
class UringEngine final : public FileEngine {
 public:
  /// Takes ownership of an initialized ring and the bell. If it throws DS_LIMIT because the system
  /// refuses a thread, the caller still owns them.
  UringEngine(const io_uring& ring, int bell, const EngineOptions& options)
      : ring_(ring),
        bell_(bell),
        request_bytes_(options.request_bytes),
        depth_(options.depth),
        registered_(ring_, options),
        thread_(start_thread("file engine", "a thread that reads and writes files",
                             [this] { work(); })) {}

  ~UringEngine() override {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    ring_bell();
    thread_.join();
    io_uring_queue_exit(&ring_);
    ::close(bell_);
  }

  const char* name() const override { return "io_uring"; }

  void submit(const std::vector<Transfer>& batch, Completion done) override {
    std::deque<Chunk> chunks = cut(batch, request_bytes_, std::move(done));
    {
      std::lock_guard lock(mutex_);
      for (Chunk& chunk : chunks) pending_.push_back(std::move(chunk));
    }
    ring_bell();
  }

 private:
  void ring_bell() {
    const uint64_t one = 1;
    while (::write(bell_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  void work() {
    begin_thread("ds-io");
    listen();
    while (true) {
      const bool closing = take_pending();
      if (closing && under_way_ == 0) return;
      // If this call fails (interrupted, or out of kernel memory), the entries stay queued for the
      // next round.
      io_uring_submit_and_wait(&ring_, 1);
      handle_completions();
    }
  }

  /// Queues a read of the bell. Its completion has no chunk.
  void listen() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    io_uring_prep_read(entry, bell_, &bell_count_, sizeof bell_count_, 0);
    io_uring_sqe_set_data(entry, nullptr);
  }

  /// Fills the ring up to its depth. Returns true if the engine is closing and no chunk is left.
  bool take_pending() {
    std::lock_guard lock(mutex_);
    while (under_way_ < depth_ && !pending_.empty()) {
      issue(new Chunk(std::move(pending_.front())));
      pending_.pop_front();
      ++under_way_;
    }
    return closing_ && pending_.empty();
  }

  void issue(Chunk* chunk) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    const Transfer& rest = chunk->rest;
    const int file = rest.file->descriptor();
    const auto bytes = static_cast<unsigned>(rest.bytes);
    const auto offset = static_cast<uint64_t>(rest.offset);
    const bool reading = rest.direction == Direction::read;
    const bool known_file = registered_.has_file(file);
    const int place = known_file ? 0 : file;
    const int range = registered_.range_of(rest);
    if (range != kNotRegistered && reading) {
      io_uring_prep_read_fixed(entry, place, rest.data, bytes, offset, range);
    } else if (range != kNotRegistered) {
      io_uring_prep_write_fixed(entry, place, rest.data, bytes, offset, range);
    } else if (reading) {
      io_uring_prep_read(entry, place, rest.data, bytes, offset);
    } else {
      io_uring_prep_write(entry, place, rest.data, bytes, offset);
    }
    if (known_file) entry->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(entry, chunk);
  }

  void handle_completions() {
    io_uring_cqe* completion;
    while (io_uring_peek_cqe(&ring_, &completion) == 0) {
      auto* chunk = static_cast<Chunk*>(io_uring_cqe_get_data(completion));
      const int64_t result = completion->res;
      io_uring_cqe_seen(&ring_, completion);
      if (!chunk) {
        listen();
      } else if (chunk->advance(result)) {
        delete chunk;
        --under_way_;
      } else {
        issue(chunk);
      }
    }
  }

  io_uring ring_;
  int bell_;
  uint64_t bell_count_ = 0;
  const size_t request_bytes_;
  const unsigned depth_;
  const Registered registered_;
  unsigned under_way_ = 0;
  std::mutex mutex_;
  std::deque<Chunk> pending_;
  bool closing_ = false;
  std::thread thread_;  // last, because it uses the other members
};

/// Returns false for kernels before 5.6, which have io_uring without these two operations.
bool can_read_and_write(io_uring& ring) {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  if (!probe) return false;
  const bool both = io_uring_opcode_supported(probe, IORING_OP_READ) &&
                    io_uring_opcode_supported(probe, IORING_OP_WRITE);
  io_uring_free_probe(probe);
  return both;
}

}  // namespace

std::unique_ptr<FileEngine> make_uring_engine(const EngineOptions& options) {
  io_uring ring;
  // Twice the depth: the bell takes one entry, and a queue must never be full.
  if (io_uring_queue_init(2 * options.depth, &ring, 0) < 0) return nullptr;
  const int bell = can_read_and_write(ring) ? ::eventfd(0, EFD_CLOEXEC) : -1;
  if (bell < 0) {
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  try {
    return std::make_unique<UringEngine>(ring, bell, options);
  } catch (...) {
    io_uring_queue_exit(&ring);
    ::close(bell);
    throw;
  }
}

}  // namespace ds::io
