// The one exception type of the native side: errors are data, carried unchanged to JavaScript.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace ds {

/// Thrown by everything below the addon; the addon turns it into a DsError with the same fields.
/// The visibility attribute lets one module catch what another (libds_cuda.so) throws.
class __attribute__((visibility("default"))) Error : public std::runtime_error {
 public:
  Error(std::string code, std::string op, std::string expected, std::string got,
        std::string hint = "")
      : std::runtime_error(op + ": expected " + expected + ", got " + got),
        code(std::move(code)),
        op(std::move(op)),
        expected(std::move(expected)),
        got(std::move(got)),
        hint(std::move(hint)) {}

  std::string code;      // stable, e.g. "DS_SHAPE", "DS_OUT_OF_MEMORY"
  std::string op;        // the operation or place, e.g. "matmul"
  std::string expected;  // what would have been right
  std::string got;       // what was there
  std::string hint;      // what to do; may be empty
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
