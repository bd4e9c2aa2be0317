// Implements Wakeup by a pipe, which Linux and macOS have.
#include "wakeup.h"

#include <cerrno>
#include <cstring>
#include <unistd.h>

#include "../core/error.h"
#include "../core/system.h"

namespace ds::comm {

Wakeup::Wakeup() {
  int ends[2];
  if (!system::open_pipe(ends)) {
    throw Error("DS_COMM", "store", "a pipe", std::strerror(errno),
                "Too many files are open: raise `ulimit -n`.");
  }
  out_ = Socket(ends[0]);
  in_ = Socket(ends[1]);
}

void Wakeup::ring() const {
  // If the pipe is full, it is already readable.
  static_cast<void>(!::write(in_.get(), "", 1));
}

void Wakeup::clear() const {
  char block[64];
  while (::read(out_.get(), block, sizeof(block)) == static_cast<ssize_t>(sizeof(block))) {
  }
}

}  // namespace ds::comm
