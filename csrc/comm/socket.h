// TCP sockets with owners and deadlines. Failures are DS_COMM errors with the address.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace ds::comm {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

/// Owns a non-blocking descriptor and closes it.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

  /// Shuts down both directions, which wakes waiting threads. The descriptor stays open.
  void shut() const;

 private:
  int release();
  int fd_;
};

/// A resolved host and port.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  std::string name;  // "host:port", for messages
};

/// Resolves a host name. Throws DS_COMM if it is unknown.
Address resolve(const std::string& host, uint16_t port);

/// Listens on `address` only. Throws DS_COMM if it is in use or not of this machine.
Socket listen_on(const Address& address);
uint16_t port_of(const Socket& socket);
/// Returns the numeric address of this end: the interface that reaches the other end.
std::string local_host_of(const Socket& socket);

/// Accepts a waiting connection. If no connection waits, returns an invalid Socket with the reason
/// in errno.
Socket accept_one(const Socket& listener);

/// Connects. Returns an invalid Socket if no process listens. Throws DS_COMM for other failures.
Socket try_connect(const Address& address, Clock::time_point deadline);

/// Sends or receives all bytes. Throws DS_COMM if the connection ends or the deadline passes.
void send_all(const Socket& socket, std::string_view data, Clock::time_point deadline);
void receive_all(const Socket& socket, char* data, size_t size, Clock::time_point deadline);

}  // namespace ds::comm
