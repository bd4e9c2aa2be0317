// Memory that lies on disk: a file of one process whose ranges come and go beside computation.
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
  /// Where the file is, what errors call it, and what they say it is for.
  std::string folder, label, purpose;
  int64_t bytes = 0;
  /// Bytes of a request, and of what has a checksum: a multiple of kDirectAlignment.
  size_t block_bytes = size_t{1} << 20;
  /// Requests under way at once.
  unsigned depth = 8;
  /// Threads that compute checksums.
  unsigned checkers = 1;
  /// Where most transfers come from and go to; it outlives the file.
  std::vector<Memory> memory = {};
};

/**
 * A nameless, preallocated file (File::nameless_in). Transfers run beside their submitter, each as
 * soon as those before it that touch the same bytes of memory or file are over: whoever submits
 * them in the order of a stream has them in that order where it matters, and concurrent where it
 * does not. Every block has a CRC-32C, which lives in memory and is checked when the block is read.
 * After the first failure nothing starts any more, so that what went wrong reaches no other block.
 */
class SwapFile {
 public:
  /// Throws DS_IO: no such folder, no space.
  explicit SwapFile(const SwapOptions& options);
  /// Waits for transfers under way.
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  /// Submits a transfer between the file from `offset`, a multiple of the block, and memory. Size
  /// and address are multiples of kDirectAlignment; what is read was written with the same offset
  /// and size. Does not wait, and may be called from any thread.
  void start(Direction direction, int64_t offset, Memory memory);

  /// Blocks until no transfer touches `memory`. Throws the first failure of any transfer (DS_IO),
  /// again and again, also when no transfer has moved for two minutes.
  void wait(Memory memory);

  const std::string& path() const { return file_.path(); }
  /// Transfers pass the system's cache by.
  bool direct() const { return direct_; }
  std::string file_system() const { return file_.file_system(); }
  /// "io_uring" or "threads".
  const char* engine() const { return engine_->name(); }
  uint64_t bytes_read() const { return moved_[0]; }
  uint64_t bytes_written() const { return moved_[1]; }
  /// How long wait() has blocked in all.
  double seconds_waited() const;

 private:
  /// A transfer, submitted and not over.
  struct Move {
    Direction direction;
    int64_t offset;
    Memory memory;
    size_t blocks_left;
    bool running = false;
    int64_t began = 0;  // by WorkLog, where it is kept
  };
  /// A block whose checksum is to be computed: before it is written, or after it was read.
  struct Block {
    std::shared_ptr<Move> move;
    Transfer transfer;
  };

  static bool conflict(const Move& a, const Move& b);
  std::vector<Block> blocks_of(const std::shared_ptr<Move>& move) const;
  void start_ready();  // under the lock
  void check_later(Block block);
  void check_blocks();  // a checker's thread
  void check(const Block& block);
  void finish(Move& move, const Error* error);

  const size_t block_bytes_;
  bool direct_ = true;
  File file_;
  std::vector<uint32_t> checksums_;  // by block; a block belongs to one running transfer at a time
  std::atomic<uint64_t> moved_[2] = {0, 0};

  mutable std::mutex mutex_;
  std::condition_variable changed_, to_check_;
  std::list<std::shared_ptr<Move>> moves_;  // in the order of submission
  std::deque<Block> unchecked_;
  std::optional<Error> error_;
  uint64_t progress_ = 0;  // blocks that are over
  double waited_ = 0;
  bool closing_ = false;

  std::unique_ptr<FileEngine> engine_;
  std::vector<std::thread> checkers_;  // last: they use all of the above
};

}  // namespace ds::io
