// Signals that ask a run to stop, noticed by the process even while its JavaScript never yields.
#pragma once

namespace ds {

/// Where a signal is watched, its first arrival is only noted; another one, more than kSamePress
/// later, has the signal's default effect at once: that is how a person, or a scheduler, says that
/// it cannot wait. Earlier ones are the same request, which often comes twice (from the terminal to
/// the whole group, and passed on by npm or by a launcher). Whoever handled the signal before is
/// called as before. Calls are balanced by the caller, from one thread.
class StopSignals {
 public:
  /// From now on. Throws DS_ARGUMENT where the system does not let `signal` be handled.
  static void watch(int signal);
  /// Gives the signal back to whoever had it. Forgets what was noted once none is watched any more.
  static void unwatch(int signal);
  /// The first signal noted; 0 before one.
  static int noted();
};

}  // namespace ds
