// Connecting every pair, and moving many messages at once over non-blocking sockets.
#include "tcp_transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <list>

#include "../core/error.h"
#include "store_server.h"

namespace ds::comm {
namespace {

constexpr size_t kTokenBytes = 32;
constexpr size_t kStrangers = 64;  // connections that have not shown the token yet

[[noreturn]] void fail(const std::string& got) {
  throw Error("DS_COMM", "connections of the group", "every rank of the group to exchange data",
              got, "Check that the ranks reach each other, and the output of the other ranks.");
}

/// What a connecting rank says first.
std::string greeting(const std::string& token, int32_t rank) {
  return token + std::string(reinterpret_cast<const char*>(&rank), sizeof(rank));
}

}  // namespace

TcpTransport::TcpTransport(const Rendezvous& rendezvous)
    : rank_(rendezvous.rank), peers_(static_cast<size_t>(rendezvous.size)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const Clock::time_point deadline = Clock::now() + Milliseconds(rendezvous.timeout_ms);
  const Socket listener = listen_on(resolve(rendezvous.local_host, 0));
  const std::string token = random_bytes(kTokenBytes);
  const std::string port = std::to_string(port_of(listener));
  rendezvous.set(text("tcp/", rank_), token + port + ' ' + rendezvous.local_host);
  connect_lower(rendezvous, deadline);
  accept_higher(rendezvous, listener, token, deadline);
}

void TcpTransport::connect_lower(const Rendezvous& rendezvous, Clock::time_point deadline) {
  for (int peer = 0; peer < rank_; ++peer) {
    const std::string entry = rendezvous.get(text("tcp/", peer));
    const size_t space = entry.find(' ', kTokenBytes);
    if (entry.size() < kTokenBytes || space == std::string::npos) {
      fail("a damaged entry in the store");
    }
    const int port = std::atoi(entry.substr(kTokenBytes, space - kTokenBytes).c_str());
    const Address address = resolve(entry.substr(space + 1), static_cast<uint16_t>(port));
    Socket& socket = peers_[static_cast<size_t>(peer)].socket;
    socket = try_connect(address, deadline);
    if (!socket.open()) fail(text("no connection to rank ", peer, " at ", address.name));
    send_all(socket, greeting(entry.substr(0, kTokenBytes), rank_), deadline);
  }
}

/// Strangers neither get in nor hold up the members: all are read as their bytes come.
void TcpTransport::accept_higher(const Rendezvous& rendezvous, const Socket& listener,
                                 const std::string& token, Clock::time_point deadline) {
  struct Guest {
    Socket socket;
    std::string said;
  };
  std::list<Guest> guests;
  const size_t length = greeting(token, 0).size();
  int missing = rendezvous.size - 1 - rank_;
  while (missing > 0) {
    if (Clock::now() >= deadline) fail(text(missing, " ranks that did not connect in time"));
    std::vector<pollfd> entries{{listener.get(), POLLIN, 0}};
    for (const Guest& guest : guests) entries.push_back({guest.socket.get(), POLLIN, 0});
    if (poll(entries.data(), entries.size(), 100) < 0 && errno != EINTR) fail(std::strerror(errno));
    for (auto at = guests.begin(); at != guests.end();) {
      const auto guest = at++;
      char bytes[64];
      const ssize_t got = recv(guest->socket.get(), bytes, length - guest->said.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
      if (got > 0) guest->said.append(bytes, static_cast<size_t>(got));
      if (got > 0 && guest->said.size() < length) continue;
      int32_t rank = -1;
      if (got > 0) std::memcpy(&rank, guest->said.data() + kTokenBytes, sizeof(rank));
      const bool member = got > 0 && guest->said == greeting(token, rank) && rank > rank_ &&
                          rank < rendezvous.size &&
                          !peers_[static_cast<size_t>(rank)].socket.open();
      if (member) {
        peers_[static_cast<size_t>(rank)].socket = std::move(guest->socket);
        --missing;
      }
      guests.erase(guest);
    }
    Socket fresh = accept_one(listener);
    if (!fresh.open()) continue;
    if (guests.size() >= kStrangers) guests.pop_front();
    guests.push_back({std::move(fresh), ""});
  }
}

void TcpTransport::exchange(const std::vector<Transfer>& transfers) {
  for (Peer& peer : peers_) peer.out = peer.in = Lane{};
  for (const Transfer& transfer : transfers) {
    Peer& peer = peers_[static_cast<size_t>(transfer.peer)];
    (transfer.sending ? peer.out : peer.in).transfers.push_back(&transfer);
  }
  while (true) {
    if (interrupted_.load()) fail("an interrupted collective");
    bool busy = false, moved = false;
    for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
      Peer& peer = peers_[static_cast<size_t>(rank)];
      while (peer.out.busy() && advance(rank, true)) moved = true;
      while (peer.in.busy() && advance(rank, false)) moved = true;
      busy |= peer.out.busy() || peer.in.busy();
    }
    if (!busy) return;
    if (!moved) wait_for_any();
  }
}

/// Moves what the socket takes or has of the lane's first message; false when that is nothing.
bool TcpTransport::advance(int rank, bool sending) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  Lane& lane = sending ? peer.out : peer.in;
  const Transfer& transfer = *lane.transfers[lane.next];
  if (sending && lane.moved == 0) lane.header = {transfer.tag, transfer.bytes};
  const size_t head = std::min(lane.moved, sizeof(Header));
  const size_t body = lane.moved - head;
  iovec parts[2] = {{reinterpret_cast<char*>(&lane.header) + head, sizeof(Header) - head},
                    {static_cast<char*>(transfer.data) + body, transfer.bytes - body}};
  msghdr message{};
  message.msg_iov = head < sizeof(Header) ? parts : parts + 1;
  message.msg_iovlen = head < sizeof(Header) ? 2 : 1;
  const ssize_t count = sending ? sendmsg(peer.socket.get(), &message, MSG_NOSIGNAL)
                                : recvmsg(peer.socket.get(), &message, 0);
  if (count < 0 && errno == EINTR) return true;
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (count <= 0) {
    fail(text("the connection to rank ", rank, " of the group closed",
              count < 0 ? text(" (", std::strerror(errno), ")") : std::string()));
  }
  lane.moved += static_cast<size_t>(count);
  if (!sending && head < sizeof(Header) && lane.moved >= sizeof(Header)) check_header(rank, lane);
  if (lane.moved == sizeof(Header) + transfer.bytes) {
    ++lane.next;
    lane.moved = 0;
  }
  return true;
}

void TcpTransport::check_header(int rank, const Lane& lane) const {
  const Transfer& transfer = *lane.transfers[lane.next];
  if (lane.header.tag == transfer.tag && lane.header.bytes == transfer.bytes) return;
  fail(text("data of another collective from rank ", rank, " of the group"));
}

void TcpTransport::wait_for_any() const {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    const int events = (peer.out.busy() ? POLLOUT : 0) | (peer.in.busy() ? POLLIN : 0);
    if (events) entries.push_back({peer.socket.get(), static_cast<short>(events), 0});
  }
  if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) fail(std::strerror(errno));
}

void TcpTransport::interrupt() noexcept {
  interrupted_.store(true);
  const uint64_t one = 1;
  static_cast<void>(!write(wake_.get(), &one, sizeof(one)));
}

}  // namespace ds::comm
