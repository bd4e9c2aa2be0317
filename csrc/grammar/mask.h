// Masks of allowed tokens: walks over the trie of the vocabulary.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "program.h"
#include "stack.h"
#include "vocabulary.h"

namespace ds::grammar {

/// The tokens that one frame allows, whatever its caller is.
struct FrameMask {
  std::vector<uint32_t> words;
  /// Trie nodes where the frame may return; their children depend on the caller.
  std::vector<uint32_t> exits;
  bool is_other = false;  // the exits are nodes of Vocabulary::other
};

/// A grammar over a vocabulary. Threads share it.
class Grammar {
 public:
  Grammar(std::shared_ptr<const Vocabulary> vocabulary, Rules rules)
      : vocabulary_(std::move(vocabulary)), rules_(std::move(rules)) {}

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  Expressions& expressions() { return *rules_.expressions; }
  ExprId start() const { return rules_.start; }
  int class_of(uint8_t byte) const { return rules_.class_of[byte]; }
  const std::array<uint8_t, 256>& classes() const { return rules_.class_of; }

  /// Writes the mask of all tokens that continue `frames`. Throws DS_LIMIT.
  void fill(Arena& arena, const Frames& frames, uint32_t* words);
  size_t memory();

 private:
  std::shared_ptr<const FrameMask> mask_of(ExprId expr);

  std::shared_ptr<const Vocabulary> vocabulary_;
  Rules rules_;
  std::mutex mutex_;
  std::unordered_map<ExprId, std::shared_ptr<const FrameMask>> masks_;
};

}  // namespace ds::grammar
