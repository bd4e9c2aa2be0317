// What threads beside every stream have done, and when, while somebody wants to know.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace ds {

/// Transfers with a disk and collectives of the CPU have threads of their own, which no event of a
/// stream times. While the log is kept each of them is a line; otherwise it costs one relaxed load.
/// Any thread may add.
class WorkLog {
 public:
  /// Nanoseconds of the clock that process.hrtime() reads.
  static int64_t now();
  /// Lines are kept from now on, or no longer. What there was is gone.
  static void keep(bool on);
  static bool kept();
  using Name = std::initializer_list<std::string_view>;
  /// `kind` is one word, `name` what its pieces say together, `began` what now() said before the
  /// work; it ends with this call. The work has succeeded whether or not there is memory to tell of
  /// it: without any, there is no line.
  static void add(const char* kind, Name name, uint64_t bytes, int64_t began) noexcept;
  /// Lines of "kind began ended bytes name", in the order of their ends, which are then forgotten.
  static std::string take();
};

}  // namespace ds
