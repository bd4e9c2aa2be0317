// The tokens of a tokenizer as a trie of bytes. Threads share it; it does not change.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "limits.h"

namespace ds::grammar {

/// A trie in preorder. The tokens of a node, and of a subtree, are consecutive in `tokens`.
struct Trie {
  std::vector<uint8_t> byte;
  std::vector<uint16_t> depth;   // 1 for a first byte
  std::vector<uint32_t> after;   // the node behind the subtree
  std::vector<uint32_t> first;   // [nodes + 1]: the node's first token in `tokens`
  std::vector<uint32_t> tokens;  // ids

  uint32_t size() const { return static_cast<uint32_t>(byte.size()); }
};

class Vocabulary {
 public:
  /// Token i has the bytes from offsets[i] to offsets[i + 1]; without bytes it is never allowed.
  /// Throws DS_ARGUMENT for offsets that do not ascend inside `bytes`.
  Vocabulary(const char* bytes, size_t byte_count, const int32_t* offsets, size_t offset_count);

  int32_t size() const { return static_cast<int32_t>(offsets_.size()) - 1; }
  /// Words of a mask.
  size_t words() const { return (static_cast<size_t>(size()) + 31) / 32; }
  std::string_view bytes_of(int32_t token) const {
    const auto at = static_cast<size_t>(token);
    const auto begin = static_cast<size_t>(offsets_[at]);
    return {bytes_.data() + begin, static_cast<size_t>(offsets_[at + 1]) - begin};
  }

  const Trie& trie() const { return whole_; }
  /// The tokens that are in no plain mask.
  const Trie& other() const { return other_; }
  /// Mask of tokens that are at most `characters` characters of a string: valid UTF-8 without
  /// quote, backslash and control characters. -1 for any number.
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
