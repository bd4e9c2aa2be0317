// A log of timed work outside of streams, kept while a profiler records.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace ds {

/// Logs disk transfers and CPU collectives, which run on threads of their own without stream
/// events. While the log is on, each of them adds a line. Otherwise it costs one relaxed load.
/// Thread-safe.
class WorkLog {
 public:
  /// Returns the time in nanoseconds, of the clock of process.hrtime().
  static int64_t now();
  /// Turns the log on or off, and clears it.
  static void keep(bool on);
  static bool kept();
  using Name = std::initializer_list<std::string_view>;
  /// Adds a line for work that ends now and began at `began`, a result of now(). `kind` is one
  /// word; the parts of `name` are joined. Drops the line if memory is exhausted, because the work
  /// itself has succeeded.
  static void add(const char* kind, Name name, uint64_t bytes, int64_t began) noexcept;
  /// Returns lines of "kind began ended bytes name" in the order in which work ended, and clears
  /// the log.
  static std::string take();
};

}  // namespace ds
