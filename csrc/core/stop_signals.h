// Records stop signals (SIGINT, SIGTERM), even while JavaScript code runs without a pause.
#pragma once

namespace ds {

/// Records the first arrival of a watched signal and does nothing else. A second arrival after more
/// than kSamePress has the signal's default action at once, because a user or scheduler repeats a
/// signal to force the end. An earlier one is ignored: a signal often arrives twice, from the
/// terminal to the process group and from npm or a launcher. Each arrival also calls the previous
/// handler. The caller balances watch() and unwatch() on one thread.
class StopSignals {
 public:
  /// Watches `signal`. Throws DS_ARGUMENT if it is already watched or cannot be handled.
  static void watch(int signal);
  /// Restores the previous handler. Clears the record when no signal is watched any more.
  static void unwatch(int signal);
  /// Returns the first recorded signal, or 0.
  static int noted();
};

}  // namespace ds
