// A log of work on threads outside of streams, with times, kept while a profiler records.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace ds {

/// Disk transfers and CPU collectives have their own threads, which no stream event times. While
/// the log is kept, each of them adds a line; otherwise it costs one relaxed load. Any thread may
/// add.
class WorkLog {
 public:
  /// Nanoseconds of the clock that process.hrtime() reads.
  static int64_t now();
  /// Starts or stops keeping lines. Clears the log.
  static void keep(bool on);
  static bool kept();
  using Name = std::initializer_list<std::string_view>;
  /// `kind` is one word, the parts of `name` are joined, `began` is the result of now() before the
  /// work. The work ends with this call. Without memory the line is dropped: the work has succeeded
  /// in any case.
  static void add(const char* kind, Name name, uint64_t bytes, int64_t began) noexcept;
  /// Returns lines of "kind began ended bytes name", in the order of their ends, and clears the
  /// log.
  static std::string take();
};

}  // namespace ds
