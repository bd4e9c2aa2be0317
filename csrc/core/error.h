// The one exception type of the native side. Errors are data, passed unchanged to JavaScript.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "error_codes.generated.h"

namespace ds {

/// Never defined: the compiler names it if a literal is not an error code.
void not_a_code_of_lib_errors_ts();

/// A code of lib/errors.ts, from its literal; another literal does not compile. It owns its text,
/// so it outlives the module that created it.
class __attribute__((visibility("default"))) ErrorCode {
 public:
  /// Implicit, so that "DS_SHAPE" converts to a code.
  consteval ErrorCode(const char* name) {
    for (const std::string_view known : kErrorCodes) {
      if (known != name) continue;
      known.copy(text_, known.size());
      text_[known.size()] = '\0';
      return;
    }
    not_a_code_of_lib_errors_ts();
  }

  std::string name() const { return text_; }

  bool operator==(const ErrorCode& other) const { return name() == other.name(); }

 private:
  char text_[24] = {};
};

/// Thrown by all code below the addon, which converts it into a DsError with the same fields. The
/// visibility attribute lets one module catch exceptions of another (libds_cuda.so).
class __attribute__((visibility("default"))) Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string op, std::string expected, std::string got,
        std::string hint = "")
      : std::runtime_error(op + ": expected " + expected + ", got " + got),
        code(code),
        op(std::move(op)),
        expected(std::move(expected)),
        got(std::move(got)),
        hint(std::move(hint)) {}

  ErrorCode code;        // stable: programs branch on it
  std::string op;        // the operation or place, e.g. "matmul"
  std::string expected;  // the valid value
  std::string got;       // the actual value
  std::string hint;      // the fix; may be empty
};

/// Concatenates anything streamable: text("shape [", n, "]").
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Checks a shape precondition of an op; `expected` and `got` are only evaluated on failure.
#define DS_CHECK_SHAPE(condition, op, expected, got)                    \
  do {                                                                  \
    if (!(condition)) throw ::ds::Error("DS_SHAPE", op, expected, got); \
  } while (false)

}  // namespace ds
