// One connection to the job's store: authenticated, one request at a time.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "socket.h"
#include "wire.h"

namespace ds::comm {

/// Ends waits from another thread, also those that have not begun yet.
class Cancellation {
 public:
  void cancel();
  bool cancelled() const { return cancelled_.load(); }
  /// The socket to shut when cancelled; null when there is none any more.
  void guard(const Socket* socket);
  /// Calls `body` unless it comes too late; cancel() waits for it.
  template <class Body>
  void unless_cancelled(Body body) {
    std::lock_guard lock(mutex_);
    if (!cancelled()) body();
  }

 private:
  std::mutex mutex_;
  const Socket* socket_ = nullptr;
  std::atomic<bool> cancelled_{false};
};

/// Where the store is and how to be let in.
struct StoreAddress {
  std::string host;
  uint16_t port = 0;
  std::string secret;
};

/// Connects, waiting until `deadline` for the server to appear, and proves the secret both ways.
/// Throws DS_COMM: nobody listens, another secret, or not a store at all.
Socket join_store(const StoreAddress& store, Clock::time_point deadline,
                  const Cancellation& cancellation);

/// Values are bytes. Every method throws DS_COMM when the connection breaks or an answer is late,
/// and from then on; methods may be called from any thread, one after another.
class StoreClient {
 public:
  /// `answer_time` is how long the store may take to answer, beyond what a request itself waits
  /// for.
  StoreClient(const StoreAddress& store, Clock::time_point deadline,
              std::shared_ptr<Cancellation> cancellation, Milliseconds answer_time);
  ~StoreClient();

  void set(const std::string& key, const std::string& value);
  /// Waits until the key exists; nothing after `patience`.
  std::optional<std::string> find(const std::string& key, Milliseconds patience);
  /// The same, but throws DS_COMM after `patience`.
  std::string get(const std::string& key, Milliseconds patience);
  /// Adds to a decimal number (absent: 0) and returns the sum.
  int64_t add(const std::string& key, int64_t step);
  /// Sets the key to `desired` where it is `expected` (absent: ""); returns what it is afterwards.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);
  bool remove(const std::string& key);
  std::vector<std::string> keys(const std::string& prefix);
  /// How many clients wait for the key.
  int64_t waiters(const std::string& key);

  /// The address of this machine's interface that reaches the store.
  std::string local_host() const { return local_host_of(socket_); }

 private:
  /// Nothing when the server says that time is up.
  std::optional<std::string> ask(Writer& request, Milliseconds patience = Milliseconds(0));
  /// The payload of the answer.
  std::string exchange(std::string_view frame, Clock::time_point deadline);

  std::mutex mutex_;
  std::shared_ptr<Cancellation> cancellation_;
  const Milliseconds answer_time_;
  Socket socket_;
};

}  // namespace ds::comm
