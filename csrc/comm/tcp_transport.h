// Transport over one TCP connection per pair of ranks, driven by the thread that exchanges: no
// thread of its own.
#pragma once

#include <atomic>
#include <vector>

#include "rendezvous.h"
#include "socket.h"
#include "transport.h"

namespace ds::comm {

/// Messages of a pair arrive in the order they were sent; each names its tag and size, so that
/// ranks that issue different collectives notice at once instead of mixing up their data. A
/// connection is admitted by a token that its target put into the job's store; the traffic is not
/// encrypted.
class TcpTransport final : public Transport {
 public:
  /// Blocks until every pair is connected. Throws DS_COMM.
  explicit TcpTransport(const Rendezvous& rendezvous);
  void exchange(const std::vector<Transfer>& transfers) override;
  void interrupt() noexcept override;

 private:
  struct Header {
    uint64_t tag, bytes;
  };
  /// The transfers of one direction of one pair, in order, and how far the first has come.
  struct Lane {
    std::vector<const Transfer*> transfers;
    size_t next = 0, moved = 0;  // of the header and data of transfers[next]
    Header header{};
    bool busy() const { return next < transfers.size(); }
  };
  struct Peer {
    Socket socket;
    Lane out, in;
  };

  void connect_lower(const Rendezvous& rendezvous, Clock::time_point deadline);
  void accept_higher(const Rendezvous& rendezvous, const Socket& listener, const std::string& token,
                     Clock::time_point deadline);
  bool advance(int rank, bool sending);
  void check_header(int rank, const Lane& lane) const;
  void wait_for_any() const;

  const int rank_;
  std::vector<Peer> peers_;  // by rank; one's own is unused
  Socket wake_;              // readable once interrupted
  std::atomic<bool> interrupted_{false};
};

}  // namespace ds::comm
