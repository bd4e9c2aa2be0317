// A swap file: tensors of one process on disk. Transfers run while the caller computes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "file_engine.h"

namespace ds::io {

struct SwapOptions {
  /// Folder of the file, and its name and purpose in errors.
  std::string folder, label, purpose;
  int64_t bytes = 0;
  /// Bytes of a request and of a block with a checksum. A multiple of kDirectAlignment.
  size_t block_bytes = size_t{1} << 20;
  /// Requests in flight.
  unsigned depth = 8;
  /// Threads that compute checksums.
  unsigned checkers = 1;
  /// Memory of most transfers. It must outlive the file.
  std::vector<Memory> memory = {};
};

/**
 * A nameless, preallocated file (File::nameless_in). Transfers run concurrently with their
 * submitter. Each starts when all earlier transfers on the same bytes of memory or file are
 * complete. So transfers that are submitted in stream order keep that order where they overlap.
 * Every block has a CRC-32C in memory, which is checked when the block is read. After the first
 * failure no transfer starts, so a fault reaches no other block.
 */
class SwapFile {
 public:
  /// Throws DS_IO if the folder is missing or has too little space.
  explicit SwapFile(const SwapOptions& options);
  /// Waits for running transfers.
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  /// Submits a transfer between memory and the file at `offset`, a multiple of the block. Size and
  /// address are multiples of kDirectAlignment. A read must have the offset and size of an earlier
  /// write. Returns at once; thread-safe. `owner` keeps the memory alive until the transfer ends.
  void start(Direction direction, int64_t offset, Memory memory, std::shared_ptr<void> owner = {});

  /// Blocks until no transfer uses `memory`. After a failed transfer, each call throws the first
  /// failure (DS_IO). Also fails if no block finishes for two minutes.
  void wait(Memory memory);

  const std::string& path() const { return file_.path(); }
  int64_t bytes() const { return bytes_; }
  /// True if transfers bypass the page cache.
  bool direct() const { return direct_; }
  std::string file_system() const { return file_.file_system(); }
  /// Returns "io_uring" or "threads".
  const char* engine() const { return engine_->name(); }
  uint64_t bytes_read() const { return moved_[0]; }
  uint64_t bytes_written() const { return moved_[1]; }
  /// Returns the total time that wait() has blocked, in seconds.
  double seconds_waited() const;

 private:
  /// A submitted transfer that has not ended.
  struct Move {
    Direction direction;
    int64_t offset;
    Memory memory;
    std::shared_ptr<void> owner;
    size_t blocks_left;
    bool running = false;
    int64_t began = 0;  // WorkLog::now() at its start, if the log is on
  };
  /// A block to checksum: before it is written, or after it was read.
  struct Block {
    std::shared_ptr<Move> move;
    Transfer transfer;
  };

  static bool conflict(const Move& a, const Move& b);
  std::vector<Block> blocks_of(const std::shared_ptr<Move>& move) const;
  void start_ready();  // needs the lock
  void check_later(Block block);
  void check_blocks();  // runs on a checker thread
  void check(const Block& block);
  void drop_waiting(std::list<std::shared_ptr<Move>>& dropped);  // needs the lock
  void finish(Move& move, const Error* error);

  const int64_t bytes_;
  const size_t block_bytes_;
  bool direct_ = true;
  File file_;
  std::vector<uint32_t> checksums_;  // by block; one running transfer at a time uses a block
  std::atomic<uint64_t> moved_[2] = {0, 0};

  mutable std::mutex mutex_;
  std::condition_variable changed_, to_check_;
  std::list<std::shared_ptr<Move>> moves_;  // in the order of submission
  std::deque<Block> unchecked_;
  std::optional<Error> error_;
  uint64_t progress_ = 0;  // finished blocks
  double waited_ = 0;
  bool closing_ = false;

  std::unique_ptr<FileEngine> engine_;
  std::vector<std::thread> checkers_;  // last, because they use the other members
};

}  // namespace ds::io
