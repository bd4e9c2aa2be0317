// Sockets by POSIX calls. Each wait is a poll with a deadline.
#include "socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "../core/error.h"
#include "../core/system.h"

namespace ds::comm {
namespace {

[[noreturn]] void fail(const std::string& expected, const std::string& got,
                       const std::string& hint = "") {
  throw Error("DS_COMM", "store", expected, got, hint);
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::min<int64_t>(std::max<int64_t>(left, 0), 1 << 30));
}

/// Waits for `events`. Returns false if the deadline passes first.
bool wait_for(const Socket& socket, short events, Clock::time_point deadline) {
  while (true) {
    pollfd entry{socket.get(), events, 0};
    const int ready = poll(&entry, 1, milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) fail("a working socket", std::strerror(errno));
  }
}

void set_option(const Socket& socket, int level, int option) {
  const int on = 1;
  setsockopt(socket.get(), level, option, &on, sizeof(on));
}

Socket new_socket(const Address& address) {
  Socket socket(system::stream_socket(address.storage.ss_family));
  if (!socket.open()) fail("a new socket", std::strerror(errno));
  return socket;
}

sockaddr_storage local_address(const Socket& socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    fail("a connected socket", std::strerror(errno));
  }
  return storage;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = other.release();
  }
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

void Socket::shut() const { ::shutdown(fd_, SHUT_RDWR); }

int Socket::release() { return std::exchange(fd_, -1); }

Address resolve(const std::string& host, uint16_t port) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (status != 0 || !found) {
    fail("a host name or address that resolves", text('"', host, "\": ", gai_strerror(status)),
         "Set MASTER_ADDR to the name or address of the machine that runs rank 0.");
  }
  Address out;
  std::memcpy(&out.storage, found->ai_addr, found->ai_addrlen);
  out.length = found->ai_addrlen;
  out.name = text(host, ':', port);
  freeaddrinfo(found);
  return out;
}

Socket listen_on(const Address& address) {
  Socket socket = new_socket(address);
  set_option(socket, SOL_SOCKET, SO_REUSEADDR);
  const auto* raw = reinterpret_cast<const sockaddr*>(&address.storage);
  if (bind(socket.get(), raw, address.length) == 0 && listen(socket.get(), 1024) == 0) {
    return socket;
  }
  const int reason = errno;
  fail(text("to listen on ", address.name), std::strerror(reason),
       reason == EADDRINUSE
           ? "Another program or an earlier run holds the port: end it, or choose another "
             "MASTER_PORT."
       : reason == EADDRNOTAVAIL ? "MASTER_ADDR must be an address of the machine that runs rank 0."
                                 : "");
}

uint16_t port_of(const Socket& socket) {
  const sockaddr_storage storage = local_address(socket);
  if (storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

std::string local_host_of(const Socket& socket) {
  const sockaddr_storage storage = local_address(socket);
  char host[NI_MAXHOST];
  const int status = getnameinfo(reinterpret_cast<const sockaddr*>(&storage), sizeof(storage), host,
                                 sizeof(host), nullptr, 0, NI_NUMERICHOST);
  if (status != 0) fail("a numeric address", gai_strerror(status));
  return host;
}

Socket accept_one(const Socket& listener) {
  Socket socket(system::accept_stream(listener.get()));
  if (socket.open()) set_option(socket, IPPROTO_TCP, TCP_NODELAY);
  return socket;
}

Socket try_connect(const Address& address, Clock::time_point deadline) {
  Socket socket = new_socket(address);
  set_option(socket, IPPROTO_TCP, TCP_NODELAY);
  const auto* raw = reinterpret_cast<const sockaddr*>(&address.storage);
  if (connect(socket.get(), raw, address.length) == 0) return socket;
  int reason = errno;
  if (reason == EINPROGRESS) {
    if (!wait_for(socket, POLLOUT, deadline)) return Socket();
    socklen_t length = sizeof(reason);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &reason, &length);
    if (reason == 0) return socket;
  }
  const bool later = reason == ECONNREFUSED || reason == EHOSTUNREACH || reason == ENETUNREACH ||
                     reason == ETIMEDOUT || reason == ECONNRESET || reason == EAGAIN;
  if (later) return Socket();
  fail(text("a connection to ", address.name), std::strerror(reason));
}

void send_all(const Socket& socket, std::string_view data, Clock::time_point deadline) {
  while (!data.empty()) {
    const ssize_t sent = send(socket.get(), data.data(), data.size(), system::send_flags());
    if (sent > 0) {
      data.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(socket, POLLOUT, deadline)) fail("the store to read", "no progress in time");
    } else if (errno != EINTR) {
      fail("an open connection", std::strerror(errno));
    }
  }
}

void receive_all(const Socket& socket, char* data, size_t size, Clock::time_point deadline) {
  while (size > 0) {
    const ssize_t got = recv(socket.get(), data, size, 0);
    if (got > 0) {
      data += got;
      size -= static_cast<size_t>(got);
    } else if (got == 0) {
      fail("an open connection", "a connection that the other side closed");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(socket, POLLIN, deadline)) fail("an answer from the store", "none in time");
    } else if (errno != EINTR) {
      fail("an open connection", std::strerror(errno));
    }
  }
}

}  // namespace ds::comm
