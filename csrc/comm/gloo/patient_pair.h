// Gloo's TCP pair over a connection that the core has made, with an event handler that waits for
// the pair's lock instead of spinning.
#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>

#include <atomic>

namespace ds::comm {

/// Gloo makes a pair listen for its peer and takes whoever connects first. This one listens on
/// loopback for the length of its constructor only; then a connection whose other end has proven
/// itself takes the listening socket's place.
///
/// Gloo's loop thread polls level-triggered events and skips a pair whose lock is taken, so it
/// spins while another thread sends, and where cores are scarce it keeps that very thread from
/// running. Here it sleeps meanwhile. And what Gloo raises on its loop thread, where nobody
/// catches, breaks the pair instead of ending the process.
class PatientPair final : public ::gloo::transport::tcp::Pair {
 public:
  /// Copies `connection`, a connected socket.
  PatientPair(::gloo::transport::tcp::Context* context, ::gloo::transport::tcp::Device* device,
              int peer, int connection);
  ~PatientPair() override;

  void handleEvents(int events) override;

  /// Returns when the loop thread is not inside this pair: all that it has read and written for
  /// buffers that are gone was before.
  void await_loop();

 private:
  std::atomic<bool> connected_{false};
};

}  // namespace ds::comm
