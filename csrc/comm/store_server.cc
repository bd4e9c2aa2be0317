// The server's poll loop: connections, authentication, requests, waiting gets, progress reports.
#include "store_server.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "../core/start_threads.h"
#include "../core/system.h"
#include "sha256.h"

namespace ds::comm {
namespace {

std::string proof(const char* role, const std::string& secret, std::string_view server_nonce,
                  std::string_view client_nonce) {
  std::string data = role;
  data.append(server_nonce).append(client_nonce);
  const Digest digest = hmac_sha256(secret, data);
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

}  // namespace

std::string client_proof(const std::string& secret, std::string_view server_nonce,
                         std::string_view client_nonce) {
  return proof("ds client", secret, server_nonce, client_nonce);
}

std::string server_proof(const std::string& secret, std::string_view server_nonce,
                         std::string_view client_nonce) {
  return proof("ds server", secret, server_nonce, client_nonce);
}

std::string random_bytes(size_t count) {
  std::string out(count, '\0');
  if (!system::random_bytes(out.data(), count)) {
    throw Error("DS_COMM", "store", "random bytes from the kernel", "none");
  }
  return out;
}

StoreServer::StoreServer(const std::string& host, uint16_t port, std::string secret)
    : secret_(std::move(secret)),
      listener_(listen_on(resolve(host, port))),
      port_(port_of(listener_)) {
  thread_ = start_thread("store", "a thread that serves the ranks", [this] { serve(); });
}

StoreServer::~StoreServer() {
  ending_.store(true);
  wake_.ring();
  thread_.join();
}

void StoreServer::serve() {
  system::name_thread("ds-store");
  try {
    serve_all();
  } catch (const std::exception&) {
    // Usually memory is exhausted. Clients notice that the store is gone, and the process
    // continues.
    clients_.clear();
    listener_ = Socket();
  }
}

void StoreServer::serve_all() {
  std::vector<pollfd> entries;
  while (!ending_.load()) {
    entries.assign({{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}});
    for (const Client& client : clients_) {
      const short events = client.out.empty() ? POLLIN : POLLIN | POLLOUT;
      entries.push_back({client.socket.get(), events, 0});
    }
    const size_t count = clients_.size();
    const int wait = next_wait(Clock::now());
    const Clock::time_point deadline = Clock::now() + Milliseconds(wait);
    if (poll(entries.data(), entries.size(), wait) < 0 && errno != EINTR) return;
    extend_deadlines(Clock::now() - deadline);
    auto client = clients_.begin();
    for (size_t i = 0; i < count; ++i, ++client) {
      const short ready = entries[i + 2].revents;
      if (ready & (POLLIN | POLLHUP | POLLERR)) receive(*client);
      if (ready & POLLOUT) send(*client, "");
    }
    if (entries[1].revents) accept_all();
    expire(Clock::now());
    send_failure();
    for (auto at = clients_.begin(); at != clients_.end();) {
      const auto current = at++;
      if (current->broken) remove_client(current);
    }
    send_failure();
  }
  const std::string closing = Writer().put(Answer::closing).frame();
  for (Client& client : clients_) {
    if (client.authenticated) send(client, closing);
  }
}

int StoreServer::next_wait(Clock::time_point now) const {
  Clock::time_point next = now + Milliseconds(1000);
  for (const Client& client : clients_) {
    if (!client.authenticated || client.waiting) next = std::min(next, client.deadline);
  }
  const auto left = std::chrono::ceil<Milliseconds>(next - now).count();
  return static_cast<int>(std::max<int64_t>(left, 0));
}

void StoreServer::extend_deadlines(Clock::duration late) {
  if (late <= Clock::duration::zero()) return;
  for (Client& client : clients_) client.last_report += late;
}

void StoreServer::accept_all() {
  while (true) {
    Socket socket = accept_one(listener_);
    if (!socket.open()) {
      // Descriptors are exhausted. Dropping the oldest unauthenticated client frees one for the
      // next round.
      if (errno == EMFILE || errno == ENFILE) drop_oldest_unauthenticated();
      return;
    }
    clients_.emplace_back();
    Client& client = clients_.back();
    client.socket = std::move(socket);
    client.deadline = Clock::now() + kProofTime;
    client.nonce = random_bytes(kNonceBytes);
    send(client, client.nonce);
    const auto unauthenticated = [](const Client& c) { return !c.authenticated && !c.broken; };
    const auto waiting = std::count_if(clients_.begin(), clients_.end(), unauthenticated);
    if (static_cast<size_t>(waiting) > kMaxUnauthenticated) drop_oldest_unauthenticated();
  }
}

void StoreServer::drop_oldest_unauthenticated() {
  for (auto at = clients_.begin(); at != clients_.end(); ++at) {
    if (at->authenticated || at->broken) continue;
    // Closes it now, so that a burst of connections does not hold descriptors until the round ends.
    at->socket = Socket();
    at->broken = true;
    return;
  }
}

void StoreServer::receive(Client& client) {
  char block[16384];
  while (client.socket.open() && !client.broken) {
    const ssize_t got = recv(client.socket.get(), block, sizeof(block), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      client.write_closed = true;
      answer_all(client);  // a rank reports that it leaves and then closes
      client.broken = true;
      return;
    }
    client.in.append(block, static_cast<size_t>(got));
    if (!client.authenticated) authenticate(client);
    if (client.in.size() > 2 * size_t{kMaxFrame}) break;
  }
  answer_all(client);
}

void StoreServer::answer_all(Client& client) {
  while (client.authenticated && !client.broken && client.in.size() >= sizeof(uint32_t)) {
    uint32_t length;
    std::memcpy(&length, client.in.data(), sizeof(length));
    if (length == 0 || length > kMaxFrame || client.waiting) {
      client.broken = true;  // not a valid client, or out of step
      return;
    }
    if (client.in.size() < sizeof(length) + length) return;
    const std::string payload = client.in.substr(sizeof(length), length);
    client.in.erase(0, sizeof(length) + length);
    try {
      answer(client, Reader(payload));
    } catch (const Error&) {
      client.broken = true;
    }
  }
}

void StoreServer::authenticate(Client& client) {
  constexpr size_t needed = kNonceBytes + std::tuple_size_v<Digest>;
  if (client.in.size() < needed) return;
  const std::string nonce = client.in.substr(0, kNonceBytes);
  const std::string client_signature = client.in.substr(kNonceBytes, needed - kNonceBytes);
  client.in.erase(0, needed);
  Digest right;
  const std::string bytes = client_proof(secret_, client.nonce, nonce);
  std::memcpy(right.data(), bytes.data(), right.size());
  const auto authenticated = [](const Client& c) { return c.authenticated; };
  const auto count =
      static_cast<size_t>(std::count_if(clients_.begin(), clients_.end(), authenticated));
  if (!same_digest(right, client_signature) || count >= kMaxAuthenticated) {
    client.broken = true;
    return;
  }
  client.authenticated = true;
  client.last_report = Clock::now();
  send(client, server_proof(secret_, client.nonce, nonce));
}

void StoreServer::send(Client& client, const std::string& bytes) {
  if (client.write_closed) return;
  client.out += bytes;
  while (!client.out.empty() && !client.broken) {
    const ssize_t sent =
        ::send(client.socket.get(), client.out.data(), client.out.size(), system::send_flags());
    if (sent > 0) {
      client.out.erase(0, static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (client.out.size() > 4 * size_t{kMaxFrame}) client.broken = true;
      return;
    } else if (errno != EINTR) {
      client.write_closed = true;
      client.out.clear();
      client.socket.shut();  // reads the data that it has sent, then sees its end
    }
  }
}

void StoreServer::answer(Client& client, Reader request) {
  Writer out;
  const auto kind = request.get<Request>();
  if (kind == Request::report) return answer_report(client, request);
  const std::string key = request.text();
  const auto found = values_.find(key);
  const std::string present = found == values_.end() ? "" : found->second;
  switch (kind) {
    case Request::set: values_[key] = request.text(); break;
    case Request::get: {
      const auto patience = request.get<uint32_t>();
      if (found == values_.end()) {
        client.waiting = true;
        client.awaited_key = key;
        client.deadline = Clock::now() + Milliseconds(patience);
        return;
      }
      return send(client, out.put(Answer::ok).put(present).frame());
    }
    case Request::add: {
      send(client, out.put(Answer::ok).put(add(key, request.get<int64_t>())).frame());
      return wake_waiters(key);
    }
    case Request::compare_set: {
      const std::string expected = request.text(), desired = request.text();
      if (present == expected) values_[key] = desired;
      send(client, out.put(Answer::ok).put(present == expected ? desired : present).frame());
      return wake_waiters(key);
    }
    case Request::remove:
      send(client, out.put(Answer::ok).put(values_.erase(key) ? "1" : "0").frame());
      return;
    case Request::keys: {
      std::string list;
      for (const auto& [name, value] : values_) {
        if (name.starts_with(key)) list += name + '\n';
      }
      return send(client, out.put(Answer::ok).put(list).frame());
    }
    case Request::waiters: {
      const auto waits = [&](const Client& c) { return c.waiting && c.awaited_key == key; };
      const auto count = std::count_if(clients_.begin(), clients_.end(), waits);
      return send(client, out.put(Answer::ok).put(std::to_string(count)).frame());
    }
    default: return send(client, out.put(Answer::refused).put("").frame());
  }
  send(client, out.put(Answer::ok).put("").frame());
  wake_waiters(key);
}

const std::string& StoreServer::add(const std::string& key, int64_t step) {
  std::string& value = values_[key];
  const int64_t before = value.empty() ? 0 : std::strtoll(value.c_str(), nullptr, 10);
  const uint64_t sum = static_cast<uint64_t>(before) + static_cast<uint64_t>(step);
  return value = std::to_string(static_cast<int64_t>(sum));
}

void StoreServer::wake_waiters(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return;
  for (Client& client : clients_) {
    if (!client.waiting || client.awaited_key != key) continue;
    client.waiting = false;
    send(client, Writer().put(Answer::ok).put(found->second).frame());
  }
}

void StoreServer::expire(Clock::time_point now) {
  for (Client& client : clients_) {
    if (!client.authenticated && now >= client.deadline) client.broken = true;
    if (client.waiting && now >= client.deadline) {
      client.waiting = false;
      send(client, Writer().put(Answer::timeout).put("").frame());
    }
    if (client.rank >= 0 && now - client.last_report > kSilence) client.broken = true;
  }
}

void StoreServer::answer_report(Client& client, Reader& request) {
  client.last_report = Clock::now();
  client.rank = request.get<int32_t>();
  while (!request.empty()) {
    const auto note = request.get<Note>();
    if (note == Note::finished) {
      client.finished = true;
      board_.finished(client.rank);
      continue;
    }
    if (note == Note::leaving) {
      board_.left(client.rank, true, "it has left the job");
      if (!client.finished) add(kAtTheEnd, 1);  // ranks that end must not wait for this rank
      client.rank = -1;
      break;
    }
    const auto id = request.get<uint32_t>();
    if (note == Note::text) {
      client.texts[id] = request.text();
      continue;
    }
    if (note == Note::channel) {
      Channel channel{request.text(), std::vector<int>(request.get<uint32_t>() & 0xfffff)};
      for (int& rank : channel.ranks) rank = request.get<int32_t>();
      client.channels[id] = channel.name;
      board_.define(channel);
      continue;
    }
    const std::string& channel = client.channels[id];
    const auto sequence = request.get<uint64_t>();
    if (note == Note::started) {
      board_.started(client.rank, channel, sequence, client.texts[request.get<uint32_t>()]);
    } else if (note == Note::stalled) {
      board_.stalled(client.rank, channel, sequence, request.get<uint32_t>() / 1e3);
    } else if (note == Note::failed) {
      board_.failed(client.rank, channel, sequence, request.text());
    } else {
      client.broken = true;
      return;
    }
  }
  if (!client.failure_sent) send(client, Writer().put(Answer::ok).frame());
}

void StoreServer::send_failure() {
  if (!board_.failure()) return;
  const JobFailure& failure = *board_.failure();
  for (Client& client : clients_) {
    if (client.rank < 0 || client.failure_sent) continue;
    client.failure_sent = true;
    Writer out;
    out.put(Answer::failure)
        .put(failure.op)
        .put(failure.expected)
        .put(failure.got)
        .put(failure.hint);
    send(client, out.frame());
  }
}

void StoreServer::remove_client(Clients::iterator client) {
  if (client->rank >= 0) {
    const bool silent = Clock::now() - client->last_report > kSilence;
    board_.left(client->rank, false,
                silent ? ds::text("it sent nothing for ", kSilence.count() / 1000, " s")
                       : "its process ended or its connection broke");
  }
  clients_.erase(client);
}

}  // namespace ds::comm
