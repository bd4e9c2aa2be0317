// A pipe that wakes a thread out of poll().
#pragma once

#include "socket.h"

namespace ds::comm {

class Wakeup {
 public:
  /// Throws DS_COMM if the process has no more descriptors.
  Wakeup();
  /// The descriptor to poll for POLLIN.
  int get() const { return out_.get(); }
  /// Makes the descriptor readable. Any thread may call it.
  void ring() const;
  /// Makes it unreadable until the next ring().
  void clear() const;

 private:
  Socket out_, in_;
};

}  // namespace ds::comm
