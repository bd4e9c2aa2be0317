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

/// Ends waits from another thread, including waits that begin later.
class Cancellation {
 public:
  void cancel();
  bool cancelled() const { return cancelled_.load(); }
  /// The socket to shut down on cancel(); null removes it.
  void guard(const Socket* socket);
  /// Calls `body` unless cancelled before; cancel() waits for it.
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

/// Address and secret of the store.
struct StoreAddress {
  std::string host;
  uint16_t port = 0;
  std::string secret;
};

/// Connects, waits until `deadline` for the server to appear, and authenticates both sides with the
/// secret. Throws DS_COMM if no process listens, the secret differs, or the server is not a store.
Socket join_store(const StoreAddress& store, Clock::time_point deadline,
                  const Cancellation& cancellation);

/// Values are bytes. Every method throws DS_COMM if the connection breaks or an answer is late, and
/// on all later calls. Methods may be called from any thread, one at a time.
class StoreClient {
 public:
  /// `answer_time` limits the store's answer, in addition to the wait of the request.
  StoreClient(const StoreAddress& store, Clock::time_point deadline,
              std::shared_ptr<Cancellation> cancellation, Milliseconds answer_time);
  ~StoreClient();

  void set(const std::string& key, const std::string& value);
  /// Waits until the key exists; returns nothing after `patience`.
  std::optional<std::string> find(const std::string& key, Milliseconds patience);
  /// find() that throws DS_COMM after `patience`.
  std::string get(const std::string& key, Milliseconds patience);
  /// Adds to a decimal number (absent: 0) and returns the sum.
  int64_t add(const std::string& key, int64_t step);
  /// Sets the key to `desired` if it is `expected` (absent: ""). Returns the value afterwards.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);
  bool remove(const std::string& key);
  std::vector<std::string> keys(const std::string& prefix);
  /// How many clients wait for the key.
  int64_t waiters(const std::string& key);

  /// Returns the address of this machine's interface that reaches the store.
  std::string local_host() const { return local_host_of(socket_); }

 private:
  /// Returns nothing if the server reports that the time is up.
  std::optional<std::string> ask(Writer& request, Milliseconds patience = Milliseconds(0));
  /// The payload of the answer.
  std::string exchange(std::string_view frame, Clock::time_point deadline);

  std::mutex mutex_;
  std::shared_ptr<Cancellation> cancellation_;
  const Milliseconds answer_time_;
  Socket socket_;
};

}  // namespace ds::comm
