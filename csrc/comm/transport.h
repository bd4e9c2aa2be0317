// Bytes between the ranks of one group: what the CPU engine needs of a network library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rendezvous.h"

namespace ds::comm {

/// One message. It meets the peer's transfer of the same tag in the other direction, which has the
/// same size.
struct Transfer {
  int peer;
  uint64_t tag;
  void* data;  // of a sending transfer: only read
  size_t bytes;
  bool sending;
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// Carries out all of them, in any order, and returns when each is complete. Throws DS_COMM when
  /// a peer is gone, or after interrupt().
  virtual void exchange(const std::vector<Transfer>& transfers) = 0;
  /// Ends a running exchange and refuses later ones. Any thread; idempotent.
  virtual void interrupt() noexcept = 0;
};

/// Connects the ranks of a group over Gloo, from libds_gloo.so beside the addon. Blocks. Throws
/// DS_COMM; DS_LIBRARY where that library or libgloo is missing.
std::unique_ptr<Transport> open_gloo(const Rendezvous& request);

}  // namespace ds::comm
