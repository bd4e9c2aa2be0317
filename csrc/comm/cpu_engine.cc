// The CPU engine's thread and algorithms. A reduction is an exchange, a fold and an exchange.
#include "cpu_engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>

#include "../core/error.h"
#include "../core/start_threads.h"
#include "../core/work_log.h"
#include "fold.h"

namespace ds::comm {
namespace {

/// Bytes that a rank folds between two exchanges. It limits the scratch memory.
constexpr size_t kSegment = size_t{1} << 20;

/// If all inputs together have at most this many bytes, a reduction takes one exchange instead of
/// two. Each rank that needs the result then folds all elements.
constexpr size_t kWhole = size_t{64} << 10;

/// Short enough for a std::string that does not allocate.
constexpr const char* kNoMemory = "out of memory";

}  // namespace

/// One collective and its state.
class CpuEngine::Pending final : public Completion {
 public:
  Pending(const Collective& call, uint64_t tag) : call(call), tag(tag) {}

  bool done() override { return ended(); }
  bool ended() const override { return state_.load(std::memory_order_acquire) == State::done; }
  void order(Stream&) override { synchronize(); }
  void synchronize() override {
    if (done()) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
      const State state = state_.load();
      return state == State::done || state == State::ended;
    });
  }
  std::string fault() override {
    std::lock_guard lock(mutex_);
    return fault_;
  }

  void finish() { move_to(State::done, ""); }
  void break_down(const std::string& reason) { move_to(State::broken, reason); }
  /// Ends a collective that the abort prevents, which wakes its waiting threads.
  void end() {
    if (!done()) move_to(State::ended, "aborted");
  }

  const Collective call;
  const uint64_t tag;

 private:
  enum class State { running, broken, done, ended };
  void move_to(State state, const std::string& reason) {
    std::lock_guard lock(mutex_);
    state_.store(state, std::memory_order_release);
    if (fault_.empty()) fault_ = reason;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<State> state_{State::running};
  std::string fault_;
};

CpuEngine::CpuEngine(int rank, int size, std::unique_ptr<Transport> transport)
    : rank_(rank),
      size_(size),
      transport_(std::move(transport)),
      thread_(start_thread("newGroup", "a thread for collectives", [this] { work(); })) {}

CpuEngine::~CpuEngine() {
  interrupt();
  thread_.join();
}

void CpuEngine::start(const Collective& call, Stream&, uint64_t tag, const Begun& begun) {
  const auto pending = std::make_shared<Pending>(call, tag);
  begun(pending);
  {
    std::lock_guard lock(mutex_);
    if (aborted_) pending->end();
    else queue_.push_back(pending);
  }
  changed_.notify_all();
}

void CpuEngine::interrupt() noexcept {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  if (transport_) transport_->interrupt();
  // The running collective still uses its memory. The engine's thread ends it.
  for (const auto& pending : queue_) {
    if (pending != running_) pending->end();
  }
  changed_.notify_all();
}

/// Runs the queue. After a failure it stops and keeps the failed collective at the head, because
/// later collectives cannot run. An interrupt() follows.
void CpuEngine::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return aborted_ || !queue_.empty(); });
    if (aborted_) break;
    const std::shared_ptr<Pending> pending = running_ = queue_.front();
    lock.unlock();
    std::optional<std::string> failure;
    try {
      const int64_t began = WorkLog::kept() ? WorkLog::now() : 0;
      run(pending->call, pending->tag);
      if (began) log(pending->call, began);
    } catch (const Error& error) {
      failure = error.got;
    } catch (const std::bad_alloc&) {
      failure = kNoMemory;
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    running_.reset();
    if (!failure) {
      pending->finish();
      queue_.pop_front();
      continue;
    }
    if (!aborted_) pending->break_down(failure->empty() ? "a failure without a message" : *failure);
    changed_.wait(lock, [this] { return aborted_; });
    break;
  }
  for (const auto& waiting : queue_) waiting->end();
  queue_.clear();
  transport_.reset();  // closes the connections, so that the peers notice at once
}

/// Adds a line to the work log. It counts `count` elements of each row, as bytes.
void CpuEngine::log(const Collective& call, int64_t began) {
  const uint64_t bytes = static_cast<uint64_t>(call.count * call.rows) * size_of(call.dtype);
  const char* of = call.purpose.empty() ? "" : " of ";
  WorkLog::add("collective", {kKindNames[static_cast<size_t>(call.kind)], of, call.purpose}, bytes,
               began);
}

void CpuEngine::run(const Collective& call, uint64_t tag) {
  const size_t bytes = static_cast<size_t>(call.count) * size_of(call.dtype);
  auto* input = const_cast<void*>(call.input);
  switch (call.kind) {
    case Kind::all_reduce:
    case Kind::reduce: return all_reduce(call, tag);
    case Kind::reduce_scatter: return reduce_scatter(call, tag);
    case Kind::all_gather: return all_gather(call, tag);
    case Kind::broadcast: return broadcast(call, tag);
    case Kind::all_to_all: return all_to_all(call, tag);
    case Kind::send:
      if (bytes) transport_->exchange({{call.peer, tag, input, bytes, true}});
      return;
    case Kind::receive:
      if (bytes) transport_->exchange({{call.peer, tag, call.output, bytes, false}});
      return;
    case Kind::barrier: return barrier(tag);
  }
}

/// Receives the other ranks' elements of this rank's part and folds them into `folded`. parts[r] is
/// the range of input elements that rank r folds in this step.
void CpuEngine::scatter_and_fold(const Collective& call, uint64_t tag,
                                 const std::vector<Range>& parts, void* folded) {
  const size_t width = size_of(call.dtype);
  const auto* input = static_cast<const char*>(call.input);
  const Range own_part = parts[static_cast<size_t>(rank_)];
  const size_t bytes = static_cast<size_t>(own_part.end - own_part.begin) * width;
  scratch_.resize(bytes * static_cast<size_t>(size_));
  std::vector<Transfer> transfers;
  std::vector<const void*> inputs(static_cast<size_t>(size_));
  for (int peer = 0; peer < size_; ++peer) {
    const auto slot = static_cast<size_t>(peer);
    if (peer == rank_) {
      inputs[slot] = input + static_cast<size_t>(own_part.begin) * width;
      continue;
    }
    inputs[slot] = scratch_.data() + slot * bytes;
    const Range peer_part = parts[slot];
    auto* from = const_cast<char*>(input) + static_cast<size_t>(peer_part.begin) * width;
    const size_t outgoing = static_cast<size_t>(peer_part.end - peer_part.begin) * width;
    if (bytes) transfers.push_back({peer, tag, scratch_.data() + slot * bytes, bytes, false});
    if (outgoing) transfers.push_back({peer, tag, from, outgoing, true});
  }
  transport_->exchange(transfers);
  fold(call.op, call.dtype, inputs, folded, own_part.end - own_part.begin);
}

/// Sends this rank's folded part to the ranks that store the result (all, or the root), and
/// receives the other parts.
void CpuEngine::hand_on(const Collective& call, uint64_t tag, const std::vector<Range>& parts,
                        void* folded) {
  const size_t width = size_of(call.dtype);
  const bool to_all = call.kind == Kind::all_reduce;
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Range own_part = parts[static_cast<size_t>(rank_)],
                peer_part = parts[static_cast<size_t>(peer)];
    const size_t outgoing = static_cast<size_t>(own_part.end - own_part.begin) * width;
    const size_t incoming = static_cast<size_t>(peer_part.end - peer_part.begin) * width;
    char* to = static_cast<char*>(call.output) + static_cast<size_t>(peer_part.begin) * width;
    if (incoming && (to_all || rank_ == call.peer)) {
      transfers.push_back({peer, tag, to, incoming, false});
    }
    if (outgoing && (to_all || peer == call.peer)) {
      transfers.push_back({peer, tag, folded, outgoing, true});
    }
  }
  transport_->exchange(transfers);
}

/// Runs all_reduce and reduce, which stores the result on the root only. It sends the input before
/// the output overwrites it.
void CpuEngine::all_reduce(const Collective& call, uint64_t tag) {
  const auto width = static_cast<int64_t>(size_of(call.dtype));
  if (call.count * width * size_ <= static_cast<int64_t>(kWhole)) return reduce_whole(call, tag);
  const int64_t chunk = (call.count + size_ - 1) / size_;
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kSegment) / width);
  const bool stores = call.kind == Kind::all_reduce || rank_ == call.peer;
  std::vector<char> elsewhere(stores ? 0 : static_cast<size_t>(std::min(step, chunk) * width));
  for (int64_t at = 0; at < chunk; at += step) {
    std::vector<Range> parts;
    for (int peer = 0; peer < size_; ++peer) {
      const int64_t begin = std::min(call.count, peer * chunk + at);
      const int64_t end = std::min({call.count, (peer + 1) * chunk, begin + step});
      parts.push_back({begin, std::max(begin, end)});
    }
    const Range own_part = parts[static_cast<size_t>(rank_)];
    char* folded =
        stores ? static_cast<char*>(call.output) + own_part.begin * width : elsewhere.data();
    scatter_and_fold(call, tag, parts, folded);
    hand_on(call, tag + 1, parts, folded);
  }
}

void CpuEngine::reduce_whole(const Collective& call, uint64_t tag) {
  std::vector<Range> parts;
  for (int peer = 0; peer < size_; ++peer) {
    const bool stores = call.kind == Kind::all_reduce || peer == call.peer;
    parts.push_back({0, stores ? call.count : 0});
  }
  scatter_and_fold(call, tag, parts, call.output);
}

void CpuEngine::reduce_scatter(const Collective& call, uint64_t tag) {
  const auto width = static_cast<int64_t>(size_of(call.dtype));
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kSegment) / width);
  for (int64_t row = 0; row < call.rows; ++row) {
    auto* output = static_cast<char*>(call.output) + row * call.count * width;
    for (int64_t at = 0; at < call.count; at += step) {
      const int64_t end = std::min(call.count, at + step);
      std::vector<Range> parts;
      for (int peer = 0; peer < size_; ++peer) {
        const int64_t slot = (row * size_ + peer) * call.count;
        parts.push_back({slot + at, slot + end});
      }
      scatter_and_fold(call, tag, parts, output + at * width);
    }
  }
}

void CpuEngine::all_gather(const Collective& call, uint64_t tag) {
  const size_t bytes = static_cast<size_t>(call.count) * size_of(call.dtype);
  if (bytes == 0) return;
  for (size_t row = 0; row < static_cast<size_t>(call.rows); ++row) {
    auto* output = static_cast<char*>(call.output) + row * static_cast<size_t>(size_) * bytes;
    const auto* input = static_cast<const char*>(call.input) + row * bytes;
    char* own_output = output + static_cast<size_t>(rank_) * bytes;
    if (own_output != input) std::memcpy(own_output, input, bytes);
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      transfers.push_back({peer, tag, output + static_cast<size_t>(peer) * bytes, bytes, false});
      transfers.push_back({peer, tag, own_output, bytes, true});
    }
    transport_->exchange(transfers);
  }
}

void CpuEngine::broadcast(const Collective& call, uint64_t tag) {
  const size_t bytes = static_cast<size_t>(call.count) * size_of(call.dtype);
  if (bytes == 0) return;
  if (rank_ != call.peer) {
    return transport_->exchange({{call.peer, tag, call.output, bytes, false}});
  }
  if (call.output != call.input) std::memcpy(call.output, call.input, bytes);
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) transfers.push_back({peer, tag, call.output, bytes, true});
  }
  transport_->exchange(transfers);
}

void CpuEngine::all_to_all(const Collective& call, uint64_t tag) {
  const size_t bytes = static_cast<size_t>(call.count) * size_of(call.dtype);
  if (bytes == 0) return;
  auto* input = static_cast<char*>(const_cast<void*>(call.input));
  auto* output = static_cast<char*>(call.output);
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size_; ++peer) {
    const size_t at = static_cast<size_t>(peer) * bytes;
    if (peer == rank_) {
      std::memcpy(output + at, input + at, bytes);
      continue;
    }
    transfers.push_back({peer, tag, output + at, bytes, false});
    transfers.push_back({peer, tag, input + at, bytes, true});
  }
  transport_->exchange(transfers);
}

void CpuEngine::barrier(uint64_t tag) {
  char token = 0;
  std::vector<char> tokens(static_cast<size_t>(size_));
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    transfers.push_back({peer, tag, &tokens[static_cast<size_t>(peer)], 1, false});
    transfers.push_back({peer, tag, &token, 1, true});
  }
  transport_->exchange(transfers);
}

}  // namespace ds::comm
