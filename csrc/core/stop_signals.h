// Stop signals (SIGINT, SIGTERM), noticed even while JavaScript does not yield.
#pragma once

namespace ds {

/// The first arrival of a watched signal is only recorded. Another arrival more than kSamePress
/// later has the signal's default effect at once: a user or a scheduler repeats a signal to force
/// the end. An earlier arrival is the same request. It often arrives twice: from the terminal to
/// the whole group, and again from npm or a launcher. The previous handler is called as before. The
/// caller balances watch() and unwatch() from one thread.
class StopSignals {
 public:
  /// Watches `signal` from now on. Throws DS_ARGUMENT if the system does not allow a handler for
  /// it.
  static void watch(int signal);
  /// Restores the previous handler. Clears the record once no signal is watched.
  static void unwatch(int signal);
  /// The first signal noted; 0 before one.
  static int noted();
};

}  // namespace ds
