// The job's key-value store and progress board: one thread that serves authenticated TCP clients.
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

/// The texts that client and server sign with the job's secret. They differ, so neither answer can
/// replace the other.
std::string client_proof(const std::string& secret, std::string_view server_nonce,
                         std::string_view client_nonce);
std::string server_proof(const std::string& secret, std::string_view server_nonce,
                         std::string_view client_nonce);
/// Unpredictable bytes from the kernel.
std::string random_bytes(size_t count);

/// Listens on exactly one address. A client must prove the secret within kProofTime by answering a
/// fresh challenge. The secret never crosses the wire; the traffic is not encrypted. Above
/// kMaxUnauthenticated clients, the server drops the oldest unauthenticated one, so idle clients
/// block no others.
class StoreServer {
 public:
  static constexpr Milliseconds kProofTime{5000};
  static constexpr size_t kMaxUnauthenticated = 128;
  static constexpr size_t kMaxAuthenticated = 4096;
  /// A rank that is silent for this long counts as lost.
  static constexpr Milliseconds kSilence{15000};

  /// Port 0 selects a free port. Throws DS_COMM if it cannot listen.
  StoreServer(const std::string& host, uint16_t port, std::string secret);
  /// Notifies the clients and ends the thread.
  ~StoreServer();
  uint16_t port() const { return port_; }

 private:
  struct Client {
    Socket socket;
    bool authenticated = false, broken = false, verdict_sent = false;
    bool write_closed = false;   // its connection no longer accepts data
    bool finished = false;       // no collective of its rank follows
    Clock::time_point deadline;  // of the proof; later, of a waiting get
    std::string nonce, in, out, awaited_key;
    bool waiting = false;
    int rank = -1;  // of a client that reports progress
    Clock::time_point last_report;
    std::unordered_map<uint32_t, std::string> texts, channels;  // abbreviations of its reports
  };
  using Clients = std::list<Client>;

  void serve();
  void serve_all();
  void accept_all();
  void drop_oldest_unauthenticated();
  void receive(Client& client);
  /// Answers the requests that have arrived completely.
  void answer_all(Client& client);
  void authenticate(Client& client);
  void answer(Client& client, Reader request);
  void answer_report(Client& client, Reader& request);
  void send(Client& client, const std::string& bytes);
  /// Adds to a decimal number (absent: 0) and returns the sum.
  const std::string& add(const std::string& key, int64_t step);
  void wake_waiters(const std::string& key);
  void expire(Clock::time_point now);
  void send_verdict();
  void remove_client(Clients::iterator client);
  int next_wait(Clock::time_point now) const;
  /// Subtracts the delay of this thread (for example after a stop of the whole job) from the
  /// silence of all ranks.
  void extend_deadlines(Clock::duration late);

  const std::string secret_;
  Socket listener_;
  uint16_t port_;
  Wakeup wake_;  // readable when the thread must end
  std::atomic<bool> ending_{false};
  Clients clients_;
  std::unordered_map<std::string, std::string> values_;
  ProgressBoard board_;
  std::thread thread_;
};

}  // namespace ds::comm
