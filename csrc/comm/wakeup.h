// A pipe that wakes a thread in poll().
#pragma once

#include "socket.h"

namespace ds::comm {

/// Wakes a thread that polls get() along with other descriptors.
class Wakeup {
 public:
  /// Throws DS_COMM if the process has no more descriptors.
  Wakeup();
  /// Returns the descriptor to poll for POLLIN.
  int get() const { return out_.get(); }
  /// Makes the descriptor readable. Thread-safe.
  void ring() const;
  /// Makes it unreadable until the next ring().
  void clear() const;

 private:
  Socket out_, in_;
};

}  // namespace ds::comm
