// Messages of the job's store: frames with a length, made of integers and strings. Reads check
// bounds.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "../core/error.h"

namespace ds::comm {

/// The largest payload that both sides accept, in bytes.
constexpr uint32_t kMaxFrame = 4u << 20;

/// The store's counter of ranks that have reached the end of the job.
constexpr const char* kAtTheEnd = "job/leaving";

/// A client's request, the first byte of its frame.
enum class Request : uint8_t { set = 1, get, add, compare_set, remove, keys, waiters, report };
/// The first byte of an answer.
enum class Answer : uint8_t { ok = 0, timeout = 1, refused = 2, failure = 3, closing = 4 };

/// Notes of a progress report, which begins with the rank. A text or channel is sent once with an
/// id, which later notes use.
enum class Note : uint8_t {
  text = 1,  // id, text
  channel,   // id, name, ranks
  started,   // channel id, sequence, text id
  stalled,   // channel id, sequence, limit in milliseconds
  failed,    // channel id, sequence, reason
  finished,  // no payload; the rank issues no more collectives
  leaving    // no payload; the last note
};

/// Builds a frame. Integers are little-endian, as on all supported machines.
class Writer {
 public:
  Writer() : bytes_(sizeof(uint32_t), '\0') {}
  template <class T>
    requires(std::is_integral_v<T> || std::is_enum_v<T>)
  Writer& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Writer& put(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  /// Returns the frame, which begins with the payload's length.
  const std::string& frame() {
    const auto length = static_cast<uint32_t>(bytes_.size() - sizeof(uint32_t));
    std::memcpy(bytes_.data(), &length, sizeof(length));
    return bytes_;
  }

 private:
  std::string bytes_;
};

/// Reads a frame's payload. Throws DS_COMM if it ends too early.
class Reader {
 public:
  explicit Reader(std::string_view payload) : rest_(payload) {}
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text() {
    const auto length = get<uint32_t>();
    return std::string(take(length));
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view take(size_t count) {
    if (count > rest_.size()) {
      throw Error("DS_COMM", "store", text_of(count), text_of(rest_.size()));
    }
    const std::string_view out = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return out;
  }
  static std::string text_of(size_t count) { return std::to_string(count) + " bytes in a message"; }

  std::string_view rest_;
};

}  // namespace ds::comm
