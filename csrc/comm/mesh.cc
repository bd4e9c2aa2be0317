// Connects all pairs of ranks: each rank connects to lower ranks and accepts higher ones.
#include "mesh.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <list>

#include "../core/error.h"
#include "store_server.h"

namespace ds::comm {
namespace {

constexpr size_t kTokenBytes = 32;
constexpr size_t kStrangers = 64;  // limit of connections that have not sent the token yet

[[noreturn]] void fail(const std::string& got) {
  throw Error("DS_COMM", "connections of the group", "every rank of the group to connect", got,
              "Check the network between the ranks, and the output of the other ranks.");
}

/// Returns the first bytes that a connecting rank sends.
std::string greeting(const std::string& token, int32_t rank) {
  return token + std::string(reinterpret_cast<const char*>(&rank), sizeof(rank));
}

void call_lower(const Rendezvous& rendezvous, std::vector<Socket>& peers,
                Clock::time_point deadline) {
  for (int peer = 0; peer < rendezvous.rank; ++peer) {
    const std::string entry = rendezvous.get(text("address/", peer));
    const size_t space = entry.find(' ', kTokenBytes);
    if (entry.size() < kTokenBytes || space == std::string::npos) {
      fail(text("an invalid address of rank ", peer, " in the store"));
    }
    const int port = std::atoi(entry.substr(kTokenBytes, space - kTokenBytes).c_str());
    const Address address = resolve(entry.substr(space + 1), static_cast<uint16_t>(port));
    Socket& socket = peers[static_cast<size_t>(peer)];
    socket = try_connect(address, deadline);
    if (!socket.open()) fail(text("no connection to rank ", peer, " at ", address.name));
    send_all(socket, greeting(entry.substr(0, kTokenBytes), rendezvous.rank), deadline);
  }
}

/// Accepts the connections of higher ranks. It reads all connections as their bytes arrive, so that
/// connections without the token do not delay ranks.
void admit_higher(const Rendezvous& rendezvous, std::vector<Socket>& peers, const Socket& listener,
                  const std::string& token, Clock::time_point deadline) {
  struct Guest {
    Socket socket;
    std::string said;
  };
  std::list<Guest> guests;
  const size_t length = greeting(token, 0).size();
  int missing = rendezvous.size - 1 - rendezvous.rank;
  while (missing > 0) {
    rendezvous.check();
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
      const bool has_token = got > 0 && guest->said == greeting(token, rank);
      const bool member = has_token && rank > rendezvous.rank && rank < rendezvous.size &&
                          !peers[static_cast<size_t>(rank)].open();
      if (member) {
        peers[static_cast<size_t>(rank)] = std::move(guest->socket);
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

}  // namespace

std::vector<Socket> connect_mesh(const Rendezvous& rendezvous) {
  const Clock::time_point deadline = Clock::now() + Milliseconds(rendezvous.timeout_ms);
  const Socket listener = listen_on(resolve(rendezvous.local_host, 0));
  const std::string token = random_bytes(kTokenBytes);
  const std::string port = std::to_string(port_of(listener));
  rendezvous.set(text("address/", rendezvous.rank), token + port + ' ' + rendezvous.local_host);
  std::vector<Socket> peers(static_cast<size_t>(rendezvous.size));
  call_lower(rendezvous, peers, deadline);
  admit_higher(rendezvous, peers, listener, token, deadline);
  return peers;
}

}  // namespace ds::comm
