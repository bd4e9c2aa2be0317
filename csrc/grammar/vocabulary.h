// The tokens of a tokenizer as a trie of bytes. Immutable, so threads share it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "limits.h"

namespace ds::grammar {

/// A trie in preorder. The tokens of a node or a subtree are consecutive in `tokens`.
struct Trie {
  std::vector<uint8_t> byte;
  std::vector<uint16_t> depth;   // 1 for the first byte of a token
  std::vector<uint32_t> after;   // the first node after the subtree
  std::vector<uint32_t> first;   // [nodes + 1]: index of the node's first token in `tokens`
  std::vector<uint32_t> tokens;  // ids

  uint32_t size() const { return static_cast<uint32_t>(byte.size()); }
};

class Vocabulary {
 public:
  /// Token i has the bytes from offsets[i] to offsets[i + 1]. A token without bytes is never
  /// allowed. Throws DS_ARGUMENT if the offsets do not ascend or exceed `bytes`.
  Vocabulary(const char* bytes, size_t byte_count, const int32_t* offsets, size_t offset_count);

  int32_t size() const { return static_cast<int32_t>(offsets_.size()) - 1; }
  /// Returns the number of 32-bit words of a mask.
  size_t words() const { return (static_cast<size_t>(size()) + 31) / 32; }
  std::string_view bytes_of(int32_t token) const {
    const auto at = static_cast<size_t>(token);
    const auto begin = static_cast<size_t>(offsets_[at]);
    return {bytes_.data() + begin, static_cast<size_t>(offsets_[at + 1]) - begin};
  }

  const Trie& trie() const { return whole_; }
  /// Returns the trie of tokens that are in no plain mask.
  const Trie& other() const { return other_; }
  /// Returns the mask of tokens with at most `characters` characters of a JSON string: valid UTF-8
  /// without quotes, backslashes and control characters. -1 means any number.
  const std::vector<uint32_t>& plain(int32_t characters) const {
    const bool is_whole = characters < 0 || characters > kMostCharacters;
    return plain_[static_cast<size_t>(is_whole ? kMostCharacters : characters)];
  }

 private:
  static constexpr int32_t kMostCharacters = 32;

  std::vector<char> bytes_;
  std::vector<int32_t> offsets_;
  Trie whole_, other_;
  std::vector<std::vector<uint32_t>> plain_;
};

}  // namespace ds::grammar
