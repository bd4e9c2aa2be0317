// An authenticated connection to the job's store, for one request at a time.
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

/// Ends waits from another thread, also waits that begin later.
class Cancellation {
 public:
  void cancel();
  bool cancelled() const { return cancelled_.load(); }
  /// Sets the socket that cancel() shuts down. Null removes it.
  void guard(const Socket* socket);
  /// Calls `body` unless cancelled. cancel() waits until `body` returns.
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

/// Address and secret of a store.
struct StoreAddress {
  std::string host;
  uint16_t port = 0;
  std::string secret;
};

/// Connects and authenticates both sides by the secret. Waits until `deadline` for the server to
/// appear. Throws DS_COMM if no process listens, the secret differs, or the server is not a store.
Socket join_store(const StoreAddress& store, Clock::time_point deadline,
                  const Cancellation& cancellation);

/// A client of the store. Values are bytes. If the connection breaks or an answer is late, a method
/// throws DS_COMM, and so do all later calls. Thread-safe: calls run one at a time.
class StoreClient {
 public:
  /// `answer_time` limits the wait for an answer, in addition to the wait of the request itself.
  StoreClient(const StoreAddress& store, Clock::time_point deadline,
              std::shared_ptr<Cancellation> cancellation, Milliseconds answer_time);
  ~StoreClient();

  void set(const std::string& key, const std::string& value);
  /// Waits until the key exists and returns its value, or nothing after `patience`.
  std::optional<std::string> find(const std::string& key, Milliseconds patience);
  /// Like find(), but throws DS_COMM after `patience`.
  std::string get(const std::string& key, Milliseconds patience);
  /// Adds `step` to a decimal number (0 if absent) and returns the sum.
  int64_t add(const std::string& key, int64_t step);
  /// Sets the key to `desired` if its value is `expected` ("" if absent). Returns the new value.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);
  bool remove(const std::string& key);
  std::vector<std::string> keys(const std::string& prefix);
  /// Returns the number of clients that wait for the key.
  int64_t waiters(const std::string& key);

  /// Returns this machine's address on the interface that reaches the store.
  std::string local_host() const { return local_host_of(socket_); }

 private:
  /// Sends a request. Returns nothing if the server answers that the time is up.
  std::optional<std::string> ask(Writer& request, Milliseconds patience = Milliseconds(0));
  /// Sends a frame and returns the payload of the answer.
  std::string exchange(std::string_view frame, Clock::time_point deadline);

  std::mutex mutex_;
  std::shared_ptr<Cancellation> cancellation_;
  const Milliseconds answer_time_;
  Socket socket_;
};

}  // namespace ds::comm
