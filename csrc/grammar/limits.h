// Limits of grammars, so that a hostile schema or pattern causes DS_LIMIT before it exhausts
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "../core/error.h"

namespace ds::grammar {

constexpr int64_t kMaxWords = int64_t{1} << 22;      // words of a description
constexpr size_t kMaxExpressions = size_t{1} << 19;  // per grammar, with lazily built ones
constexpr size_t kMaxOperands = size_t{1} << 23;     // operands of all unions and intersections
constexpr size_t kMaxDepth = 4000;                   // nested expressions of a derivative
constexpr size_t kMaxFrames = 2048;                  // simultaneous parses of one text
constexpr size_t kMaxNodes = size_t{1} << 20;        // stack nodes of a matcher
constexpr size_t kMaxFillWork = size_t{1} << 24;     // frames visited for one mask
constexpr size_t kMaxSearchWork = size_t{1} << 18;   // derivatives of a search for any text
constexpr size_t kMaxForced = 4096;                  // bytes of forced text
constexpr size_t kCacheBytes = size_t{64} << 20;     // bytes of the masks that a grammar caches
constexpr size_t kMaxTokenBytes = 1024;              // longer tokens are never allowed

/// Throws DS_LIMIT: the format needs more than `limit` of `noun`.
[[noreturn]] inline void over_limit(const std::string& noun, size_t limit) {
  throw Error("DS_LIMIT", "format",
              "a format that needs at most " + std::to_string(limit) + " " + noun, "more",
              "Use fewer alternatives, or smaller repetition counts.");
}

}  // namespace ds::grammar
