// The exception type of all native code. Its fields reach JavaScript unchanged.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "error_codes.generated.h"

namespace ds {

/// Declared but not defined: a compiler error names it if a literal is not an error code.
void not_a_code_of_lib_errors_ts();

/// An error code of lib/errors.ts, made from a literal. Any other literal does not compile. It
/// stores its text, so it outlives the module that created it.
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

/// The exception of all code below the addon, which converts it to a DsError with the same fields.
/// The visibility attribute lets the addon catch exceptions of libds_cuda.so.
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

/// Returns its arguments, each written to a stream, as one string: text("shape [", n, "]").
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Throws DS_SHAPE if `condition` is false. It evaluates `expected` and `got` only then.
#define DS_CHECK_SHAPE(condition, op, expected, got)                    \
  do {                                                                  \
    if (!(condition)) throw ::ds::Error("DS_SHAPE", op, expected, got); \
  } while (false)

}  // namespace ds
