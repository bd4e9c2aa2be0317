// Sends bytes between the ranks of a group: the network interface of the CPU engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rendezvous.h"

namespace ds::comm {

/// One message. It matches a transfer of the peer with equal tag and size in the other direction.
struct Transfer {
  int peer;
  uint64_t tag;
  void* data;  // not changed by a sending transfer
  size_t bytes;
  bool sending;
};

/// The connections of a rank to the other ranks of a group.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Runs all transfers, in any order, and returns when they are complete. Throws DS_COMM if a peer
  /// is gone, or after interrupt().
  virtual void exchange(const std::vector<Transfer>& transfers) = 0;
  /// Ends a running exchange and rejects later ones. Thread-safe; may be called again.
  virtual void interrupt() noexcept = 0;
};

/// Connects the ranks of a group by Gloo, with libds_gloo.so of the addon's folder. Blocks. Throws
/// DS_COMM, or DS_LIBRARY if that library or libgloo is missing.
std::unique_ptr<Transport> open_gloo(const Rendezvous& request);

}  // namespace ds::comm
