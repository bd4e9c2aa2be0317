// Masks of allowed tokens, computed on the trie of a vocabulary.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "program.h"
#include "stack.h"
#include "vocabulary.h"

namespace ds::grammar {

/// The tokens that a frame and some of its callers allow, for any further callers.
struct FrameMask {
  std::vector<uint32_t> words;
  /// Trie nodes at which the outermost frame may return. Its caller decides on their children.
  std::vector<uint32_t> exits;
  bool is_other = false;  // the exits are nodes of Vocabulary::other
  uint64_t id = 0;        // key in the grammar's cache
};

/// A grammar for a vocabulary. Thread-safe.
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
  using SharedMask = std::shared_ptr<const FrameMask>;
  struct MaskKey {
    uint64_t before;  // id of the mask that `expr` extends; 0 for one frame
    ExprId expr;
    bool operator==(const MaskKey&) const = default;
  };
  struct HashKey {
    size_t operator()(const MaskKey& key) const {
      return (key.before * 0x9e3779b97f4a7c15u) ^ static_cast<uint32_t>(key.expr);
    }
  };

  SharedMask mask_of(ExprId expr);
  /// Returns `mask` extended by one more caller, which continues with `caller`.
  SharedMask extended(const SharedMask& mask, ExprId caller);
  SharedMask find(const MaskKey& key);
  /// Adds the mask to the cache and returns the cached one, which another thread may have added
  /// first.
  SharedMask kept(const MaskKey& key, SharedMask mask, size_t visited);
  const Trie& trie_of(const FrameMask& mask) const {
    return mask.is_other ? vocabulary_->other() : vocabulary_->trie();
  }

  std::shared_ptr<const Vocabulary> vocabulary_;
  Rules rules_;
  std::mutex mutex_;
  std::unordered_map<MaskKey, SharedMask, HashKey> masks_;
  size_t mask_bytes_ = 0;
  std::atomic<uint64_t> ids_{0};
};

}  // namespace ds::grammar
