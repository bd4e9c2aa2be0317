// A write: checksum, then disk. A read: disk, then checksum. Conflicting transfers run in order.
#include "swap_file.h"

#include <algorithm>
#include <chrono>

#include "../core/start_threads.h"
#include "../core/work_log.h"
#include "chunk.h"
#include "crc32c.h"

namespace ds::io {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{120};  // time without any finished block

bool overlap(int64_t a, size_t a_bytes, int64_t b, size_t b_bytes) {
  return a < b + static_cast<int64_t>(b_bytes) && b < a + static_cast<int64_t>(a_bytes);
}

bool overlap(const Memory& a, const Memory& b) {
  return a.data < b.data + b.bytes && b.data < a.data + a.bytes;
}

File open(const SwapOptions& options, bool& direct) {
  File file = File::nameless_in(options.folder, options.label, direct);
  file.preallocate(options.bytes, options.purpose);
  return file;
}

}  // namespace

SwapFile::SwapFile(const SwapOptions& options)
    : bytes_(options.bytes), block_bytes_(options.block_bytes), file_(open(options, direct_)) {
  const auto bytes = static_cast<size_t>(options.bytes);
  checksums_.resize((bytes + block_bytes_ - 1) / block_bytes_);
  engine_ = make_file_engine({.request_bytes = block_bytes_,
                              .depth = options.depth,
                              .memory = options.memory,
                              .file = file_.descriptor()});
  checkers_ = start_threads(options.checkers, "swap file", "a thread that checks blocks",
                            [this] { check_blocks(); });
}

SwapFile::~SwapFile() {
  std::list<std::shared_ptr<Move>> dropped;  // destroyed after the unlock: owners may lock
  {
    std::unique_lock lock(mutex_);
    drop_waiting(dropped);
    changed_.wait(lock, [this] { return moves_.empty(); });
    closing_ = true;
  }
  to_check_.notify_all();
  for (std::thread& checker : checkers_) checker.join();
  engine_.reset();
}

void SwapFile::start(Direction direction, int64_t offset, Memory memory,
                     std::shared_ptr<void> owner) {
  std::lock_guard lock(mutex_);
  if (error_ || memory.bytes == 0) return;
  const size_t blocks = (memory.bytes + block_bytes_ - 1) / block_bytes_;
  moves_.push_back(
      std::make_shared<Move>(Move{direction, offset, memory, std::move(owner), blocks}));
  moved_[direction == Direction::write] += memory.bytes;
  start_ready();
}

void SwapFile::wait(Memory memory) {
  std::unique_lock lock(mutex_);
  const auto begin = Clock::now();
  const auto over = [&] {
    return error_ || std::none_of(moves_.begin(), moves_.end(),
                                  [&](const auto& move) { return overlap(move->memory, memory); });
  };
  for (uint64_t seen = progress_; !changed_.wait_for(lock, kPatience, over); seen = progress_) {
    if (progress_ != seen) continue;
    const Move& move = *moves_.front();
    const char* operation = move.direction == Direction::read ? "read " : "write ";
    error_ = Error("DS_IO", text(operation, file_.path()),
                   text(move.memory.bytes, " bytes at offset ", move.offset, " within ",
                        kPatience.count(), " seconds"),
                   "no answer from the disk",
                   "The disk or network file system has stalled: see the system log.");
  }
  waited_ += std::chrono::duration<double>(Clock::now() - begin).count();
  if (error_) throw Error(*error_);
}

double SwapFile::seconds_waited() const {
  std::lock_guard lock(mutex_);
  return waited_;
}

bool SwapFile::conflict(const Move& a, const Move& b) {
  if (overlap(a.memory, b.memory)) return true;
  if (a.direction == Direction::read && b.direction == Direction::read) return false;
  return overlap(a.offset, a.memory.bytes, b.offset, b.memory.bytes);
}

void SwapFile::start_ready() {
  for (auto at = moves_.begin(); at != moves_.end(); ++at) {
    const std::shared_ptr<Move>& move = *at;
    if (move->running) continue;
    const bool waits = std::any_of(moves_.begin(), at,
                                   [&](const auto& earlier) { return conflict(*earlier, *move); });
    if (waits) continue;
    move->running = true;
    if (WorkLog::kept()) move->began = WorkLog::now();
    for (Block& block : blocks_of(move)) {
      if (move->direction == Direction::write) {
        unchecked_.push_back(std::move(block));
        to_check_.notify_one();
        continue;
      }
      engine_->submit({block.transfer}, [this, block](const Error* error) {
        if (error) finish(*block.move, error);
        else check_later(block);
      });
    }
  }
}

std::vector<SwapFile::Block> SwapFile::blocks_of(const std::shared_ptr<Move>& move) const {
  std::vector<Block> blocks;
  for (size_t at = 0; at < move->memory.bytes; at += block_bytes_) {
    const size_t bytes = std::min(block_bytes_, move->memory.bytes - at);
    const int64_t offset = move->offset + static_cast<int64_t>(at);
    blocks.push_back({move, {&file_, offset, move->memory.data + at, bytes, move->direction}});
  }
  return blocks;
}

void SwapFile::check_later(Block block) {
  std::lock_guard lock(mutex_);
  unchecked_.push_back(std::move(block));
  to_check_.notify_one();
}

void SwapFile::check_blocks() {
  begin_thread("ds-swap");
  std::unique_lock lock(mutex_);
  while (true) {
    to_check_.wait(lock, [this] { return closing_ || !unchecked_.empty(); });
    if (unchecked_.empty()) return;
    const Block block = std::move(unchecked_.front());
    unchecked_.pop_front();
    lock.unlock();
    check(block);
    lock.lock();
  }
}

void SwapFile::check(const Block& block) {
  const Transfer& transfer = block.transfer;
  const uint32_t found = crc32c(0, transfer.data, transfer.bytes);
  uint32_t& checksum = checksums_[static_cast<size_t>(transfer.offset) / block_bytes_];
  if (transfer.direction == Direction::write) {
    checksum = found;
    engine_->submit({transfer},
                    [this, move = block.move](const Error* error) { finish(*move, error); });
    return;
  }
  if (found == checksum) return finish(*block.move, nullptr);
  const Error error("DS_IO", text("read ", file_.path()),
                    text("the written data: ", transfer.bytes, " bytes at offset ", transfer.offset,
                         " with checksum ", checksum),
                    text("bytes with checksum ", found),
                    "The disk, its cable or memory changed data. Check the disk (`smartctl -a`), "
                    "and continue from the last checkpoint on another disk.");
  finish(*block.move, &error);
}

void SwapFile::drop_waiting(std::list<std::shared_ptr<Move>>& dropped) {
  for (auto at = moves_.begin(); at != moves_.end();) {
    const auto one = at++;
    if (!(*one)->running) dropped.splice(dropped.end(), moves_, one);
  }
}

void SwapFile::finish(Move& move, const Error* error) {
  std::list<std::shared_ptr<Move>> dropped;  // destroyed after the unlock: owners may lock
  std::lock_guard lock(mutex_);
  ++progress_;
  if (error && !error_) error_ = *error;
  if (error_) drop_waiting(dropped);
  if (--move.blocks_left == 0) {
    if (move.began) {
      const char* kind = move.direction == Direction::read ? "read" : "write";
      WorkLog::add(kind, {}, move.memory.bytes, move.began);
    }
    const auto over = std::find_if(moves_.begin(), moves_.end(),
                                   [&](const auto& one) { return one.get() == &move; });
    if (over != moves_.end()) dropped.splice(dropped.end(), moves_, over);
    if (!error_) start_ready();
  }
  changed_.notify_all();
}

}  // namespace ds::io
