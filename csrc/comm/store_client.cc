// The client's side of the handshake and of requests.
#include "store_client.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

#include "sha256.h"
#include "store_server.h"

namespace ds::comm {
namespace {

constexpr Milliseconds kRetry{50};
constexpr Milliseconds kConnectTime{3000};  // for one attempt: a machine that is off never replies
/// If the store is silent for this long, it is gone, whatever the job's timeout.
constexpr Milliseconds kAnswerTime{30000};
constexpr int kProofAttempts = 5;  // a flooded store may drop an honest client

enum class Proof { accepted, dropped };

Proof prove(const Socket& socket, const StoreAddress& store) {
  const Clock::time_point deadline = Clock::now() + StoreServer::kProofTime;
  char challenge[kNonceBytes], answer[std::tuple_size_v<Digest>];
  const std::string nonce = random_bytes(kNonceBytes);
  try {
    receive_all(socket, challenge, sizeof(challenge), deadline);
    const std::string_view theirs(challenge, sizeof(challenge));
    send_all(socket, nonce + client_proof(store.secret, theirs, nonce), deadline);
    receive_all(socket, answer, sizeof(answer), deadline);
    Digest right;
    std::memcpy(right.data(), server_proof(store.secret, theirs, nonce).data(), right.size());
    if (same_digest(right, {answer, sizeof(answer)})) return Proof::accepted;
  } catch (const Error&) {
    return Proof::dropped;
  }
  throw Error("DS_COMM", "store", text("the store of this job at ", store.host, ":", store.port),
              "a server that does not know the job's secret",
              "Another program or another job listens there: choose another MASTER_PORT.");
}

}  // namespace

void Cancellation::cancel() {
  std::lock_guard lock(mutex_);
  cancelled_.store(true);
  if (socket_) socket_->shut();
}

void Cancellation::guard(const Socket* socket) {
  std::lock_guard lock(mutex_);
  socket_ = socket;
  if (socket && cancelled()) socket->shut();
}

Socket join_store(const StoreAddress& store, Clock::time_point deadline,
                  const Cancellation& cancellation) {
  const Address address = resolve(store.host, store.port);
  int dropped = 0;
  while (!cancellation.cancelled()) {
    Socket socket = try_connect(address, std::min(deadline, Clock::now() + kConnectTime));
    if (socket.open()) {
      if (prove(socket, store) == Proof::accepted) return socket;
      if (++dropped >= kProofAttempts) {
        throw Error("DS_COMM", "store", text("the store at ", address.name, " to accept this rank"),
                    "a refusal",
                    "Every rank needs the same job secret (DS_JOB_SECRET); the launcher sets it.");
      }
    }
    if (Clock::now() >= deadline) {
      throw Error("DS_COMM", "store", text("rank 0's store at ", address.name),
                  "no server there in time",
                  "Start every rank, and give all the same MASTER_ADDR and MASTER_PORT.");
    }
    std::this_thread::sleep_for(kRetry * (1 + dropped));
  }
  throw Error("DS_COMM", "store", "this rank to join", "the end of this process");
}

StoreClient::StoreClient(const StoreAddress& store, Clock::time_point deadline,
                         std::shared_ptr<Cancellation> cancellation, Milliseconds answer_time)
    : cancellation_(std::move(cancellation)),
      answer_time_(std::min(answer_time, kAnswerTime)),
      socket_(join_store(store, deadline, *cancellation_)) {
  cancellation_->guard(&socket_);
}

StoreClient::~StoreClient() { cancellation_->guard(nullptr); }

std::optional<std::string> StoreClient::ask(Writer& request, Milliseconds patience) {
  std::lock_guard lock(mutex_);
  const Clock::time_point deadline = Clock::now() + patience + answer_time_;
  if (request.frame().size() > kMaxFrame) {
    throw Error("DS_COMM", "store", text("a request of at most ", kMaxFrame, " bytes"),
                text(request.frame().size()), "Store smaller values.");
  }
  std::string payload;
  try {
    payload = exchange(request.frame(), deadline);
  } catch (const Error& broken) {
    socket_.shut();  // the next request must not read this request's answer
    if (cancellation_->cancelled()) throw;
    throw Error("DS_COMM", "store",
                "an answer from the process that holds the job's store (rank 0 or the launcher)",
                broken.got, "That process ended or the connection broke: look at its output.");
  }
  Reader answer(payload);
  switch (answer.get<Answer>()) {
    case Answer::ok: return answer.text();
    case Answer::timeout: return std::nullopt;
    case Answer::closing:
      throw Error("DS_COMM", "store", "an open store", "a store that rank 0 has closed",
                  "Rank 0 ended first: look at its output.");
    default:
      throw Error("DS_COMM", "store", "a request that the store can read", "a refusal",
                  "Run the same version of the package on all ranks.");
  }
}

std::string StoreClient::exchange(std::string_view frame, Clock::time_point deadline) {
  send_all(socket_, frame, deadline);
  uint32_t length;
  receive_all(socket_, reinterpret_cast<char*>(&length), sizeof(length), deadline);
  if (length > kMaxFrame)
    throw Error("DS_COMM", "store", text("an answer of at most ", kMaxFrame, " bytes"),
                text(length));
  std::string payload(length, '\0');
  receive_all(socket_, payload.data(), length, deadline);
  return payload;
}

void StoreClient::set(const std::string& key, const std::string& value) {
  ask(Writer().put(Request::set).put(key).put(value));
}

std::string StoreClient::get(const std::string& key, Milliseconds patience) {
  std::optional<std::string> found = find(key, patience);
  if (found) return *std::move(found);
  throw Error("DS_COMM", "store", text("the key \"", key, "\" within ", patience.count(), " ms"),
              "no such key", "Another rank should have set it: look at that rank's output.");
}

std::optional<std::string> StoreClient::find(const std::string& key, Milliseconds patience) {
  // The wire format limits the wait to 32 bits of milliseconds, 49 days.
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  const auto limit = static_cast<uint32_t>(std::min<int64_t>(patience.count(), kMost));
  return ask(Writer().put(Request::get).put(key).put(limit), patience);
}

int64_t StoreClient::add(const std::string& key, int64_t step) {
  return std::stoll(*ask(Writer().put(Request::add).put(key).put(step)));
}

std::string StoreClient::compare_set(const std::string& key, const std::string& expected,
                                     const std::string& desired) {
  Writer request;
  request.put(Request::compare_set).put(key).put(expected).put(desired);
  return *ask(request);
}

bool StoreClient::remove(const std::string& key) {
  return *ask(Writer().put(Request::remove).put(key)) == "1";
}

std::vector<std::string> StoreClient::keys(const std::string& prefix) {
  const std::string list = *ask(Writer().put(Request::keys).put(prefix));
  std::vector<std::string> out;
  for (size_t at = 0; at < list.size();) {
    const size_t end = list.find('\n', at);
    out.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

int64_t StoreClient::waiters(const std::string& key) {
  return std::stoll(*ask(Writer().put(Request::waiters).put(key)));
}

}  // namespace ds::comm
