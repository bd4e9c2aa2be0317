// Sorts tokens by their bytes and stores their trie in preorder.
#include "vocabulary.h"

#include <algorithm>

namespace ds::grammar {
namespace {

/// Returns the number of characters if the token is plain text of a string, else 0.
int32_t plain_characters(std::string_view token) {
  int32_t count = 0;
  for (size_t i = 0; i < token.size(); ++count) {
    const auto at = [&](size_t k) { return static_cast<uint8_t>(k < token.size() ? token[k] : 0); };
    const uint8_t lead = at(i);
    if (lead < 0x80) {
      if (lead < 0x20 || lead == '"' || lead == '\\') return 0;
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    for (size_t k = 1; k < length; ++k)
      if ((at(i + k) & 0xc0) != 0x80) return 0;
    const uint8_t second = at(i + 1);
    const bool is_overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
    if (is_overlong || (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f)) return 0;
    i += length;
  }
  return count;
}

Trie trie_of(const Vocabulary& vocabulary, std::vector<uint32_t> tokens) {
  const auto text = [&](uint32_t id) { return vocabulary.bytes_of(static_cast<int32_t>(id)); };
  std::sort(tokens.begin(), tokens.end(), [&](uint32_t a, uint32_t b) {
    const int order = text(a).compare(text(b));
    return order < 0 || (order == 0 && a < b);
  });
  Trie out;
  std::vector<uint32_t> path;  // open nodes
  std::string_view before;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) out.after[path.back()] = out.size();
  };
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    const std::string_view now = text(tokens[i]);
    size_t common = 0;
    while (common < before.size() && common < now.size() && before[common] == now[common]) ++common;
    close(common);
    for (size_t d = common; d < now.size(); ++d) {
      path.push_back(out.size());
      out.byte.push_back(static_cast<uint8_t>(now[d]));
      out.depth.push_back(static_cast<uint16_t>(d + 1));
      out.after.push_back(0);
      out.first.push_back(i);
    }
    before = now;
  }
  close(0);
  out.first.push_back(static_cast<uint32_t>(tokens.size()));
  out.tokens = std::move(tokens);
  return out;
}

}  // namespace

Vocabulary::Vocabulary(const char* bytes, size_t byte_count, const int32_t* offsets,
                       size_t offset_count)
    : bytes_(bytes, bytes + byte_count), offsets_(offsets, offsets + offset_count) {
  const bool ascend = std::is_sorted(offsets_.begin(), offsets_.end());
  if (offset_count < 2 || !ascend || offsets_.front() != 0 ||
      static_cast<size_t>(offsets_.back()) != byte_count) {
    throw Error("DS_ARGUMENT", "vocabulary",
                text("offsets that ascend from 0 to the ", byte_count, " bytes"),
                offset_count < 2 ? text(offset_count, " offsets")
                : !ascend        ? "offsets that do not ascend"
                                 : text(offsets_.front(), " to ", offsets_.back()));
  }
  std::vector<uint32_t> all, other;
  plain_.assign(kMostCharacters + 1, std::vector<uint32_t>(words()));
  for (int32_t token = 0; token < size(); ++token) {
    const std::string_view text = bytes_of(token);
    if (text.empty() || text.size() > kMaxTokenBytes) continue;
    const auto id = static_cast<uint32_t>(token);
    all.push_back(id);
    const int32_t characters = plain_characters(text);
    if (characters == 0 || characters > kMostCharacters) {
      other.push_back(id);
    } else {
      for (int32_t c = characters; c <= kMostCharacters; ++c)
        plain_[static_cast<size_t>(c)][id / 32] |= 1u << id % 32;
    }
  }
  whole_ = trie_of(*this, std::move(all));
  other_ = trie_of(*this, std::move(other));
}

}  // namespace ds::grammar
