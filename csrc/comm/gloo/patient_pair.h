// Gloo's TCP pair over a connection of the core. Its event handler waits for the pair's lock
// instead of spinning.
#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>

#include <atomic>

namespace ds::comm {

/// Gloo makes a pair listen for its peer and accepts the first connection. This pair listens on
/// loopback only during its constructor. Then an authenticated connection replaces the listening
/// socket.
///
/// Gloo's loop thread polls level-triggered events and skips a pair with a taken lock. So it
/// spins while another thread sends; with few cores it keeps that thread from running. This pair
/// sleeps instead. An exception of Gloo on its loop thread has no handler and would end the
/// process; here it breaks the pair.
class PatientPair final : public ::gloo::transport::tcp::Pair {
 public:
  /// Copies `connection`, a connected socket.
  PatientPair(::gloo::transport::tcp::Context* context, ::gloo::transport::tcp::Device* device,
              int peer, int connection);
  ~PatientPair() override;

  void handleEvents(int events) override;

  /// Returns when the loop thread is outside this pair: it has finished all reads and writes of
  /// released buffers.
  void await_loop();

 private:
  std::atomic<bool> connected_{false};
};

}  // namespace ds::comm
