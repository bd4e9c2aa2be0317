// In place of libstdc++'s header for glibc, which names the bits of glibc's tables.
#pragma once
namespace std _GLIBCXX_VISIBILITY(default) {
_GLIBCXX_BEGIN_NAMESPACE_VERSION
struct ctype_base {
  using __to_type = const int*;
  using mask = unsigned short;
  static const mask upper = 1, lower = 2, alpha = 4, digit = 8, xdigit = 16, space = 32, print = 64,
                    graph = 4 | 8 | 128, cntrl = 256, punct = 128, alnum = 4 | 8, blank = 512;
};
_GLIBCXX_END_NAMESPACE_VERSION
}  // namespace std
