// The signal handler. It uses lock-free data and async-signal-safe functions only.
#include "stop_signals.h"

#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "error.h"

namespace ds {
namespace {

constexpr int kSignals = 65;
constexpr int64_t kSamePress = 500'000'000;  // in ns; arrivals within it are one request

std::atomic<int> g_noted{0};
std::atomic<int64_t> g_since{0};  // time of the first arrival in ns, or 0
int g_watched = 0;
/// The previous handler of each signal. It changes only while our handler is not installed.
struct sigaction g_before[kSignals];
bool g_is_watched[kSignals];

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// Raises `signal` with its default action, which happens when our handler returns and unblocks it.
void end_by(int signal) {
  struct sigaction fallback {};
  fallback.sa_handler = SIG_DFL;
  sigaction(signal, &fallback, nullptr);
  raise(signal);
}

void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction& before = g_before[signal];
  if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(signal, info, context);
  else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(signal);
}

void note(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  int64_t since = 0;
  // The time decides, because two threads may handle arrivals at once.
  if (g_since.compare_exchange_strong(since, now())) g_noted = signal;
  else if (now() - since > kSamePress) return end_by(signal);
  pass_on(signal, info, context);
  errno = error;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) && action.sa_sigaction == note;
}

}  // namespace

void StopSignals::watch(int signal) {
  struct sigaction ours {};
  ours.sa_sigaction = note;
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&ours.sa_mask);
  const bool known = signal > 0 && signal < kSignals;
  // Saves the previous handler first, because ours may run at once. For a watched signal the saved
  // handler would be ours, which would then call itself.
  if (!known || g_is_watched[signal] || sigaction(signal, nullptr, &g_before[signal]) != 0 ||
      sigaction(signal, &ours, nullptr) != 0) {
    throw Error("DS_ARGUMENT", "stop signals", "a signal that can be handled, once",
                text("number ", signal), "SIGKILL and SIGSTOP cannot be handled.");
  }
  g_is_watched[signal] = true;
  g_watched++;
}

void StopSignals::unwatch(int signal) {
  if (signal <= 0 || signal >= kSignals || !g_is_watched[signal]) return;
  struct sigaction present;
  if (sigaction(signal, nullptr, &present) == 0 && is_ours(present)) {
    sigaction(signal, &g_before[signal], nullptr);
  }
  g_is_watched[signal] = false;
  if (--g_watched > 0) return;
  g_noted = 0;
  g_since = 0;
}

int StopSignals::noted() { return g_noted; }

}  // namespace ds
