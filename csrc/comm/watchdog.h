// The thread that watches a rank's collectives: it reports them to the store, detects timeouts, and
// receives the job's failure.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine.h"
#include "progress_board.h"
#include "store_client.h"
#include "wakeup.h"

namespace ds::comm {

/// The job's first failure. All groups of the process share it.
class Failure {
 public:
  using Listener = std::function<void(const Error&)>;
  /// `listener` is called once, on the thread that detects the failure.
  explicit Failure(Listener listener) : listener_(std::move(listener)) {}
  void set(const Error& error);
  /// Throws the failure if there is one.
  void check() const;
  bool raised() const { return raised_.load(std::memory_order_acquire); }

 private:
  mutable std::mutex mutex_;
  std::optional<Error> error_;
  std::atomic<bool> raised_{false};
  Listener listener_;
};

/// Watches collectives on a thread and connection of its own, so that it works while JavaScript
/// waits. The thread never calls into a device: if a collective cannot end, a driver may block
/// every call.
class Watchdog {
 public:
  /// `timeout` limits the time of a collective.
  Watchdog(const StoreAddress& store, int rank, Milliseconds timeout,
           std::shared_ptr<Failure> failure, const Cancellation& cancellation);
  /// Reports to the store that this rank leaves.
  ~Watchdog();

  /// Registers a channel and returns its number for watch().
  uint32_t define(Channel channel);
  void watch(uint32_t channel, uint64_t sequence, std::string text,
             std::shared_ptr<Completion> completion);
  /// Returns when the store has all reports of watch(), or the time limit passes.
  void flush();
  /// Reports that this rank starts no more collectives. Ranks that wait for one fail at once.
  void finish();
  /// Registers an engine to be aborted if the job fails.
  void guard(std::weak_ptr<Engine> engine);

 private:
  struct Watched {
    uint32_t channel;
    uint64_t sequence;
    std::string text;
    std::shared_ptr<Completion> completion;
    Clock::time_point since{};   // when the thread received it
    Clock::time_point faulty{};  // when its fault was first seen
    bool reported = false;
  };

  void run();
  void loop();
  void stop_after(const std::exception& error);
  bool write_report();
  void check_pending();
  void report_failure(Watched& work, Note note, Clock::time_point now);
  void receive(Milliseconds timeout);
  /// Extends the time limits by `late`, a delay of this thread (if the whole job was stopped).
  void extend_deadlines(Clock::duration late);
  void handle_answer(Reader answer);
  void fail(const Error& error);
  void wake();
  /// Records that the store has the reports of the first `count` calls of watch(), or kAll.
  void acknowledge(uint64_t count);
  std::string name_of(const Watched& work);

  const int rank_;
  const Milliseconds timeout_;
  std::shared_ptr<Failure> failure_;
  Socket socket_;
  Wakeup wake_;

  std::mutex mutex_;  // guards the members below
  std::vector<Channel> channels_;
  std::vector<Watched> new_work_;
  std::vector<std::weak_ptr<Engine>> engines_;
  bool idle_ = false, finished_ = false, ending_ = false;
  uint64_t watched_ = 0, acknowledged_ = 0;  // calls of watch(), and how many of them the store has
  std::condition_variable acknowledged_changed_;

  // Used only by the thread.
  std::deque<Watched> pending_;
  size_t defined_ = 0;
  std::unordered_map<std::string, uint32_t> text_ids_;
  Writer report_;
  uint64_t reported_count_ = 0;        // watched_ at the last report
  std::deque<uint64_t> sent_reports_;  // reported_count_ of each unanswered report
  bool has_notes_ = false;             // the report is not empty
  bool store_closed_ = false;
  std::string received_;
  Clock::time_point reported_{}, last_answer_{};
  std::optional<Clock::time_point> failure_sent_;  // when the failure was reported to the store
  std::optional<Error> local_failure_;             // thrown if the store does not answer
  std::thread thread_;
};

}  // namespace ds::comm
