// Messages of the job's store: length-prefixed frames of integers and strings, read with bounds
// checks.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "../core/error.h"

namespace ds::comm {

/// The longest message that either side accepts.
constexpr uint32_t kMaxFrame = 4u << 20;

/// The store's counter of ranks that have reached the end of the job.
constexpr const char* kAtTheEnd = "job/leaving";

/// Requests of a client to the store; the first byte of a frame.
enum class Request : uint8_t { set = 1, get, add, compare_set, remove, keys, waiters, report };
/// The first byte of the answer.
enum class Answer : uint8_t { ok = 0, timeout = 1, refused = 2, verdict = 3, closing = 4 };

/// The notes of a progress report, which begins with the reporter's rank. Texts and channels are
/// defined once, then referenced by number.
enum class Note : uint8_t {
  text = 1,  // id, text
  channel,   // id, name, ranks
  started,   // channel id, sequence, text id
  stalled,   // channel id, sequence, limit in milliseconds
  failed,    // channel id, sequence, reason
  finished,  // no payload; no collective of the rank follows
  leaving    // nothing; the last note
};

/// Builds one frame. Integers are little-endian, as on all supported machines.
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
  /// The frame with its length in front.
  const std::string& frame() {
    const auto length = static_cast<uint32_t>(bytes_.size() - sizeof(uint32_t));
    std::memcpy(bytes_.data(), &length, sizeof(length));
    return bytes_;
  }

 private:
  std::string bytes_;
};

/// Reads the payload of one frame. Throws DS_COMM if it is shorter than its lengths require.
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
