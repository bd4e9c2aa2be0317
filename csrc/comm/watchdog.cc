// The watchdog's loop: reports new collectives, checks pending ones, and receives the job's
// failure.
#include "watchdog.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "../core/start_threads.h"
#include "../core/system.h"
#include "store_server.h"

namespace ds::comm {
namespace {

constexpr Milliseconds kTick{20};        // interval while collectives are pending
constexpr Milliseconds kHeartbeat{500};  // longest interval between reports
constexpr Milliseconds kStoreAnswerTime{3000};
/// Delay of reporting a fault: the store may detect the death of a rank that caused it.
constexpr Milliseconds kFaultDelay{300};
constexpr Milliseconds kStoreClosedTime{5000};
constexpr size_t kMaxTexts = 4096;
/// Argument of acknowledge(): the store receives no more reports.
constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

}  // namespace

void Failure::set(const Error& error) {
  {
    std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = error;
    raised_.store(true, std::memory_order_release);
  }
  if (listener_) listener_(error);
}

void Failure::check() const {
  if (!raised()) return;
  std::lock_guard lock(mutex_);
  throw Error(*error_);
}

Watchdog::Watchdog(const StoreAddress& store, int rank, Milliseconds timeout,
                   std::shared_ptr<Failure> failure, const Cancellation& cancellation)
    : rank_(rank),
      timeout_(timeout),
      failure_(std::move(failure)),
      socket_(join_store(store, Clock::now() + timeout, cancellation)),
      last_answer_(Clock::now()) {
  report_.put(Request::report).put(static_cast<int32_t>(rank_));
  thread_ = start_thread("process group", "a thread that watches collectives", [this] { run(); });
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake();
  thread_.join();
}

void Watchdog::wake() { wake_.ring(); }

uint32_t Watchdog::define(Channel channel) {
  std::lock_guard lock(mutex_);
  channels_.push_back(std::move(channel));
  return static_cast<uint32_t>(channels_.size() - 1);
}

void Watchdog::guard(std::weak_ptr<Engine> engine) {
  std::shared_ptr<Engine> late;
  {
    std::lock_guard lock(mutex_);
    if (failure_->raised()) late = engine.lock();
    engines_.push_back(std::move(engine));
  }
  if (late) late->interrupt();
}

void Watchdog::watch(uint32_t channel, uint64_t sequence, std::string text,
                     std::shared_ptr<Completion> completion) {
  bool sleeping;
  {
    std::lock_guard lock(mutex_);
    new_work_.push_back({channel, sequence, std::move(text), std::move(completion)});
    ++watched_;
    sleeping = idle_;
  }
  if (sleeping) wake();
}

void Watchdog::flush() {
  wake();
  std::unique_lock lock(mutex_);
  const uint64_t count = watched_;
  acknowledged_changed_.wait_for(lock, kStoreAnswerTime, [&] { return acknowledged_ >= count; });
}

void Watchdog::acknowledge(uint64_t count) {
  {
    std::lock_guard lock(mutex_);
    acknowledged_ = std::max(acknowledged_, count);
  }
  acknowledged_changed_.notify_all();
}

void Watchdog::finish() {
  {
    std::lock_guard lock(mutex_);
    finished_ = true;
  }
  wake();
}

void Watchdog::run() {
  system::name_thread("ds-watchdog");
  try {
    loop();
  } catch (const std::exception& error) {
    stop_after(error);
  }
}

/// Ends the watchdog after an exception. The other ranks notice the closed connection. This rank
/// raises the failure when memory for the message is available.
void Watchdog::stop_after(const std::exception& error) {
  socket_ = Socket();
  while (true) {
    try {
      return fail(Error("DS_COMM", "process group",
                        "a running watchdog for this rank's collectives",
                        text("a watchdog that stopped: ", error.what()),
                        "Free host memory: the processes of this host need more than it has."));
    } catch (const std::exception&) {
      std::unique_lock lock(mutex_);
      const auto ending = [this] { return ending_; };
      if (acknowledged_changed_.wait_for(lock, kTick, ending)) return;
    }
  }
}

void Watchdog::loop() {
  bool ending = false;
  while (!ending) {
    ending = write_report();
    check_pending();
    {
      std::lock_guard lock(mutex_);
      idle_ = pending_.empty() && new_work_.empty();
    }
    const Clock::time_point now = Clock::now();
    if (ending) {
      report_.put(Note::leaving);
      has_notes_ = true;
    }
    if (!store_closed_ && (has_notes_ || now - reported_ >= kHeartbeat)) {
      try {
        send_all(socket_, report_.frame(), now + kStoreAnswerTime);
        sent_reports_.push_back(reported_count_);
      } catch (const Error&) {
        // The code below reads the data left in the connection, which may contain a failure.
      }
      report_ = Writer();
      report_.put(Request::report).put(static_cast<int32_t>(rank_));
      has_notes_ = false;
      reported_ = now;
    }
    if (!ending) receive(idle_ ? kHeartbeat : kTick);
  }
}

/// Adds new notes to the report. Sends each text and channel in full once. Returns true if this is
/// the last report. The last report contains all collectives that this rank has started, so the
/// board has all of them.
bool Watchdog::write_report() {
  bool finished, ending;
  std::vector<Watched> fresh;
  std::vector<Channel> channels;
  {
    std::lock_guard lock(mutex_);
    finished = std::exchange(finished_, false);
    ending = ending_;
    fresh.swap(new_work_);
    reported_count_ = watched_;
    channels.assign(channels_.begin() + static_cast<ptrdiff_t>(defined_), channels_.end());
  }
  for (const Channel& channel : channels) {
    report_.put(Note::channel).put(static_cast<uint32_t>(defined_++)).put(channel.name);
    report_.put(static_cast<uint32_t>(channel.ranks.size()));
    for (int rank : channel.ranks) report_.put(static_cast<int32_t>(rank));
    has_notes_ = true;
  }
  for (Watched& work : fresh) {
    if (text_ids_.size() >= kMaxTexts) text_ids_.clear();
    const auto [known, added] =
        text_ids_.try_emplace(work.text, static_cast<uint32_t>(text_ids_.size()));
    if (added) report_.put(Note::text).put(known->second).put(work.text);
    report_.put(Note::started).put(work.channel).put(work.sequence).put(known->second);
    work.since = Clock::now();
    pending_.push_back(std::move(work));
    has_notes_ = true;
  }
  if (finished) {
    report_.put(Note::finished);
    has_notes_ = true;
  }
  return ending;
}

/// Removes finished collectives, and reports failed and slow ones.
void Watchdog::check_pending() {
  std::erase_if(pending_, [](Watched& work) { return work.completion->ended(); });
  if (failure_->raised()) return;
  const Clock::time_point now = Clock::now();
  for (Watched& work : pending_) {
    if (work.reported) continue;
    if (work.faulty == Clock::time_point{} && !work.completion->fault().empty()) work.faulty = now;
    const bool faulty = work.faulty != Clock::time_point{} && now - work.faulty >= kFaultDelay;
    const bool late =
        now - work.since > timeout_ || (store_closed_ && now - work.since > kStoreClosedTime);
    if (faulty) report_failure(work, Note::failed, now);
    else if (late) report_failure(work, Note::stalled, now);
  }
  if (failure_sent_ &&
      now - *failure_sent_ >= (store_closed_ ? Milliseconds(0) : kStoreAnswerTime)) {
    fail(*local_failure_);
  }
}

std::string Watchdog::name_of(const Watched& work) {
  std::lock_guard lock(mutex_);
  return place_of(channels_[work.channel].name, work.sequence, work.text);
}

void Watchdog::report_failure(Watched& work, Note note, Clock::time_point now) {
  work.reported = true;
  const auto limit = store_closed_ ? kStoreClosedTime.count() : timeout_.count();
  const std::string reason = note == Note::failed
                                 ? work.completion->fault()
                                 : text("not finished after ", limit / 1000.0, " s");
  report_.put(note).put(work.channel).put(work.sequence);
  if (note == Note::failed) report_.put(reason);
  else report_.put(static_cast<uint32_t>(limit));
  has_notes_ = true;
  if (failure_sent_) return;
  failure_sent_ = now;
  local_failure_ = Error(
      "DS_COMM", name_of(work), "every rank to take part",
      text("rank ", rank_, ": ", reason,
           store_closed_ ? "; the store of the job has closed" : "; the store does not answer"),
      "Look at the output of rank 0 and of the other ranks.");
}

void Watchdog::receive(Milliseconds timeout) {
  pollfd entries[2] = {{wake_.get(), POLLIN, 0}, {store_closed_ ? -1 : socket_.get(), POLLIN, 0}};
  const Clock::time_point deadline = Clock::now() + timeout;
  if (poll(entries, 2, static_cast<int>(timeout.count())) < 0 && errno != EINTR) return;
  extend_deadlines(Clock::now() - deadline);
  if (entries[0].revents) wake_.clear();
  bool connection_lost = false;
  while (entries[1].revents) {
    char block[4096];
    const ssize_t got = recv(socket_.get(), block, sizeof(block), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    connection_lost = got <= 0;
    if (connection_lost) break;
    received_.append(block, static_cast<size_t>(got));
    last_answer_ = Clock::now();
  }
  bool garbled = false;
  while (!garbled && received_.size() >= sizeof(uint32_t)) {
    uint32_t length;
    std::memcpy(&length, received_.data(), sizeof(length));
    garbled = length > kMaxFrame;
    if (garbled || received_.size() < sizeof(length) + length) break;
    const std::string payload = received_.substr(sizeof(length), length);
    received_.erase(0, sizeof(length) + length);
    try {
      handle_answer(Reader(payload));
    } catch (const Error&) {
      garbled = true;
    }
  }
  if (garbled) received_.clear();
  const bool silent = Clock::now() - last_answer_ > StoreServer::kSilence;
  if (store_closed_ || !(connection_lost || garbled || silent)) return;
  store_closed_ = true;  // also after a failure: a closed connection would always be readable
  if (failure_->raised()) return;
  const std::string op = pending_.empty() ? "process group" : name_of(pending_.front());
  fail(Error("DS_COMM", op, "every rank to stay until the end",
             text("the process that holds the job's store (rank 0 or the launcher) ",
                  garbled           ? "sent an invalid answer"
                  : connection_lost ? "ended or its connection broke"
                                    : "sent nothing in time"),
             "Look at the output of rank 0: it ended first."));
}

void Watchdog::extend_deadlines(Clock::duration late) {
  if (late <= Clock::duration::zero()) return;
  last_answer_ += late;
  for (Watched& work : pending_) work.since += late;
}

void Watchdog::handle_answer(Reader answer) {
  switch (answer.get<Answer>()) {
    case Answer::failure: {
      const std::string op = answer.text(), expected = answer.text(), got = answer.text();
      fail(Error("DS_COMM", op, expected, got, answer.text()));
      break;
    }
    case Answer::closing:
      store_closed_ = true;
      acknowledge(kAll);
      break;
    default:
      if (sent_reports_.empty()) break;
      acknowledge(sent_reports_.front());
      sent_reports_.pop_front();
      break;
  }
}

void Watchdog::fail(const Error& error) {
  failure_->set(error);
  acknowledge(kAll);
  std::vector<std::weak_ptr<Engine>> engines;
  {
    std::lock_guard lock(mutex_);
    engines.swap(engines_);
  }
  for (const std::weak_ptr<Engine>& engine : engines) {
    if (const std::shared_ptr<Engine> alive = engine.lock()) alive->interrupt();
  }
  pending_.clear();
  failure_sent_.reset();
}

}  // namespace ds::comm
