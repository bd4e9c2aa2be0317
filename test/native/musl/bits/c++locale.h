// In place of libstdc++'s header for glibc: musl's build of libstdc++ has the C locale alone.
#pragma once
#include <clocale>
#include <cstdarg>
#include <cstdio>
#define _GLIBCXX_NUM_CATEGORIES 0
namespace std _GLIBCXX_VISIBILITY(default) {
_GLIBCXX_BEGIN_NAMESPACE_VERSION
using __c_locale = int*;
inline int __convert_from_v(const __c_locale&, char* out, const int bytes, const char* format,
                            ...) {
  va_list arguments;
  va_start(arguments, format);
  const int written = __builtin_vsnprintf(out, bytes, format, arguments);
  va_end(arguments);
  return written;
}
_GLIBCXX_END_NAMESPACE_VERSION
}  // namespace std
