// The job's key-value store and progress board: a thread that serves authenticated TCP clients.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "progress_board.h"
#include "socket.h"
#include "wakeup.h"
#include "wire.h"

namespace ds::comm {

constexpr size_t kNonceBytes = 32;

/// Return the signatures that prove the job's secret: the client's and the server's. They sign
/// different texts, so one signature cannot serve as the other.
std::string client_proof(const std::string& secret, std::string_view server_nonce,
                         std::string_view client_nonce);
std::string server_proof(const std::string& secret, std::string_view server_nonce,
                         std::string_view client_nonce);
/// Returns unpredictable bytes of the kernel.
std::string random_bytes(size_t count);

/// Listens on one address. Within kProofTime, a client must prove the secret by signing a new
/// nonce. The secret is never sent; the traffic is not encrypted. If there are more than
/// kMaxUnauthenticated clients, the server drops the oldest unauthenticated one, so idle clients
/// cannot block others.
class StoreServer {
 public:
  static constexpr Milliseconds kProofTime{5000};
  static constexpr size_t kMaxUnauthenticated = 128;
  static constexpr size_t kMaxAuthenticated = 4096;
  /// A rank that sends no report for this long counts as lost.
  static constexpr Milliseconds kSilence{15000};

  /// Starts the server. Port 0 selects a free port. Throws DS_COMM if it cannot listen.
  StoreServer(const std::string& host, uint16_t port, std::string secret);
  /// Notifies the clients and ends the thread.
  ~StoreServer();
  uint16_t port() const { return port_; }

 private:
  struct Client {
    Socket socket;
    bool authenticated = false, broken = false, failure_sent = false;
    bool write_closed = false;   // the connection no longer accepts data
    bool finished = false;       // its rank issues no more collectives
    Clock::time_point deadline;  // of the proof; later, of a waiting get
    std::string nonce, in, out, awaited_key;
    bool waiting = false;
    int rank = -1;  // the client's rank, if it reports progress
    Clock::time_point last_report;
    std::unordered_map<uint32_t, std::string> texts, channels;  // abbreviations in its reports
  };
  using Clients = std::list<Client>;

  void serve();
  void serve_all();
  void accept_all();
  void drop_oldest_unauthenticated();
  void receive(Client& client);
  /// Answers all requests that have arrived completely.
  void answer_all(Client& client);
  void authenticate(Client& client);
  void answer(Client& client, Reader request);
  void answer_report(Client& client, Reader& request);
  void send(Client& client, const std::string& bytes);
  /// Adds `step` to a decimal number (0 if absent) and returns the sum.
  const std::string& add(const std::string& key, int64_t step);
  void wake_waiters(const std::string& key);
  void expire(Clock::time_point now);
  void send_failure();
  void remove_client(Clients::iterator client);
  int next_wait(Clock::time_point now) const;
  /// Extends the deadlines of all ranks by `late`, a delay of this thread. (If the whole job was
  /// stopped, its ranks were not silent.)
  void extend_deadlines(Clock::duration late);

  const std::string secret_;
  Socket listener_;
  uint16_t port_;
  Wakeup wake_;  // becomes readable when the thread must end
  std::atomic<bool> ending_{false};
  Clients clients_;
  std::unordered_map<std::string, std::string> values_;
  ProgressBoard board_;
  std::thread thread_;
};

}  // namespace ds::comm
