// A Gloo TCP pair over an existing connection. Its event handler sleeps while the pair is locked.
#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>

#include <atomic>

namespace ds::comm {

/// A Gloo pair listens for its peer and accepts the first connection. This pair listens only on the
/// loopback and only during its constructor. Then an authenticated connection replaces the
/// listening socket.
///
/// Gloo's loop thread polls level-triggered events and skips a pair that is locked. While another
/// thread sends, the loop therefore spins, and with few cores it delays that thread. This pair
/// sleeps instead. Gloo has no handler for exceptions on its loop thread, so they would end the
/// process. This pair catches them and closes.
class PatientPair final : public ::gloo::transport::tcp::Pair {
 public:
  /// Duplicates `connection`, a connected socket.
  PatientPair(::gloo::transport::tcp::Context* context, ::gloo::transport::tcp::Device* device,
              int peer, int connection);
  ~PatientPair() override;

  void handleEvents(int events) override;

  /// Blocks until the loop thread has left this pair, after which it no longer accesses released
  /// buffers.
  void await_loop();

 private:
  std::atomic<bool> connected_{false};
};

}  // namespace ds::comm
