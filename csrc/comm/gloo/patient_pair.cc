// PatientPair: takes over a connection and handles its events on Gloo's loop thread.
#include "patient_pair.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace ds::comm {
namespace {

namespace tcp = ::gloo::transport::tcp;

/// How long the loop thread sleeps if another thread holds the pair's lock.
constexpr std::chrono::microseconds kPause{20};
constexpr int kYields = 4;

}  // namespace

PatientPair::PatientPair(tcp::Context* context, tcp::Device* device, int peer, int connection)
    : Pair(context, device, peer, ::gloo::kNoTimeout) {
  std::lock_guard lock(m_);
  // Replaces the listening socket, which closes it and removes it from the loop's poll set.
  if (dup3(connection, fd_, O_CLOEXEC) < 0) {
    signalAndThrowException(GLOO_ERROR_MSG("dup3: ", std::strerror(errno)));
  }
  handleConnected();
  connected_.store(true);
}

/// Closes the pair in this class: until then, the loop may call this class's handleEvents().
PatientPair::~PatientPair() {
  std::lock_guard lock(m_);
  if (state_ != CLOSED) changeState(CLOSED);
}

void PatientPair::handleEvents(int events) {
  if (!connected_.load()) return std::this_thread::sleep_for(kPause);
  for (int i = 0; !m_.try_lock(); ++i) {
    if (i == kYields) return std::this_thread::sleep_for(kPause);
    std::this_thread::yield();
  }
  std::lock_guard lock(m_, std::adopt_lock);
  if (state_ != CONNECTED) return;
  try {
    handleReadWrite(events);
  } catch (...) {
    if (!ex_) signalException(std::current_exception());
  }
}

void PatientPair::await_loop() { std::lock_guard lock(m_); }

}  // namespace ds::comm
