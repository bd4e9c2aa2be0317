// TCP sockets with an owner and deadlines; failures are DS_COMM errors that name the address.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace ds::comm {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

/// A non-blocking descriptor, closed on destruction.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

  /// Ends both directions, so that a thread that waits on it wakes; the descriptor stays.
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

/// Throws DS_COMM when `host` does not resolve.
Address resolve(const std::string& host, uint16_t port);

/// Listens on exactly `address`. Throws DS_COMM: in use, or not an address of this machine.
Socket listen_on(const Address& address);
uint16_t port_of(const Socket& socket);
/// The numeric address of this end of a connection: the interface that reaches the other end.
std::string local_host_of(const Socket& socket);

/// The next waiting connection, or an invalid Socket; errno says why.
Socket accept_one(const Socket& listener);

/// An invalid Socket when nobody listens; throws DS_COMM on other failures.
Socket try_connect(const Address& address, Clock::time_point deadline);

/// Both throw DS_COMM when the connection ends or the deadline passes.
void send_all(const Socket& socket, std::string_view data, Clock::time_point deadline);
void receive_all(const Socket& socket, char* data, size_t size, Clock::time_point deadline);

}  // namespace ds::comm
