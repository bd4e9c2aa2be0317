// The walk: a depth-first pass over the trie that keeps the parses at each depth.
#include "mask.h"

#include <algorithm>

namespace ds::grammar {
namespace {

constexpr size_t kWorthKeeping = 1500;  // visited nodes; cheaper masks are not cached

/// Walks over subtrees. A level holds the parses after the bytes up to its depth. The fast path is
/// one frame in a state without calls and returns: the walk then is a walk of a DFA.
class Walk {
 public:
  Walk(Grammar& grammar, Arena& arena, const Trie& trie, uint32_t* words,
       std::vector<uint32_t>* exits)
      : grammar_(grammar), arena_(arena), trie_(trie), words_(words), exits_(exits) {}

  size_t visited() const { return visited_; }

  /// Marks the tokens below nodes [begin, end), the children of one node, from `start`.
  void run(uint32_t begin, uint32_t end, const Frames& start) {
    if (begin >= end || start.list.empty()) return;
    const uint32_t base = trie_.depth[begin] - 1u;
    pool_.assign(start.list.begin(), start.list.end());
    levels_.clear();
    levels_.push_back(level(0));
    Expressions& expressions = grammar_.expressions();
    for (uint32_t i = begin; i < end;) {
      const uint32_t depth = trie_.depth[i] - base;
      levels_.resize(depth);
      const Level from = levels_.back();
      pool_.resize(from.end);
      const int byte_class = grammar_.class_of(trie_.byte[i]);
      ++visited_;
      if (from.only) {
        const Frame frame = pool_[from.begin];
        const ExprId next = expressions.next(*from.only, frame.expr, byte_class);
        if (next == kEmpty) {
          i = trie_.after[i];
          continue;
        }
        const State& state = expressions.at(next);
        if (state.is_plain()) {
          allow(i);
          pool_.push_back({next, frame.parent});
          levels_.push_back({from.end, from.end + 1, &state});
          ++i;
          continue;
        }
      }
      work_ += from.end - from.begin;
      if (work_ > kMaxFillWork) over_limit("steps for a mask", kMaxFillWork);
      scratch_.assign(pool_.begin() + from.begin, pool_.begin() + from.end);
      if (!advance(expressions, arena_, scratch_.data(), scratch_.size(), byte_class, moved_)) {
        i = trie_.after[i];
        continue;
      }
      allow(i);
      if (moved_.exited && exits_ && trie_.after[i] > i + 1) exits_->push_back(i);
      if (moved_.list.empty()) {
        i = trie_.after[i];
        continue;
      }
      pool_.insert(pool_.end(), moved_.list.begin(), moved_.list.end());
      levels_.push_back(level(from.end));
      ++i;
    }
  }

 private:
  struct Level {
    uint32_t begin, end;  // frames in the pool
    const State* only;    // of the only frame; null if there are several
  };

  Level level(uint32_t begin) {
    const auto end = static_cast<uint32_t>(pool_.size());
    if (end - begin != 1) return {begin, end, nullptr};
    // Callees and callers are frames of their own.
    return {begin, end, &grammar_.expressions().at(pool_[begin].expr)};
  }

  void allow(uint32_t node) {
    for (uint32_t at = trie_.first[node]; at < trie_.first[node + 1]; ++at) {
      const uint32_t token = trie_.tokens[at];
      words_[token / 32] |= 1u << token % 32;
    }
  }

  Grammar& grammar_;
  Arena& arena_;
  const Trie& trie_;
  uint32_t* words_;
  std::vector<uint32_t>* exits_;
  std::vector<Level> levels_;
  std::vector<Frame> pool_, scratch_;
  Frames moved_;
  size_t visited_ = 0, work_ = 0;
};

}  // namespace

std::shared_ptr<const FrameMask> Grammar::mask_of(ExprId expr) {
  {
    std::lock_guard lock(mutex_);
    const auto found = masks_.find(expr);
    if (found != masks_.end()) return found->second;
  }
  auto made = std::make_shared<FrameMask>();
  const int32_t room = expressions().at(expr).plain_room;
  made->is_other = room != 0;
  made->words = vocabulary_->plain(room);
  if (room == 0) std::fill(made->words.begin(), made->words.end(), 0u);
  const Trie& trie = made->is_other ? vocabulary_->other() : vocabulary_->trie();
  Arena arena;
  Walk walk(*this, arena, trie, made->words.data(), &made->exits);
  walk.run(0, trie.size(), {{{expr, kOutside}}});
  if (walk.visited() < kWorthKeeping) return made;
  std::lock_guard lock(mutex_);
  const size_t each = made->words.size() * sizeof(uint32_t) + made->exits.size() * 4 + 64;
  if ((masks_.size() + 1) * each > kCacheBytes) masks_.clear();
  masks_.emplace(expr, made);
  return made;
}

void Grammar::fill(Arena& arena, const Frames& frames, uint32_t* words) {
  const size_t size = arena.size(), count = vocabulary_->words();
  std::fill(words, words + count, 0u);
  try {
    for (const Frame& frame : frames.list) {
      const std::shared_ptr<const FrameMask> own = mask_of(frame.expr);
      for (size_t w = 0; w < count; ++w) words[w] |= own->words[w];
      if (frame.parent == kBottom || own->exits.empty()) continue;
      Frames caller;
      enter(expressions(), arena, arena.node(frame.parent), caller);
      const Trie& trie = own->is_other ? vocabulary_->other() : vocabulary_->trie();
      Walk walk(*this, arena, trie, words, nullptr);
      for (const uint32_t node : own->exits) walk.run(node + 1, trie.after[node], caller);
    }
  } catch (...) {
    arena.truncate(size);
    throw;
  }
  arena.truncate(size);
}

size_t Grammar::memory() {
  size_t bytes = expressions().memory();
  std::lock_guard lock(mutex_);
  for (const auto& [_, mask] : masks_) {
    bytes += mask->words.size() * sizeof(uint32_t) + mask->exits.size() * sizeof(uint32_t);
  }
  return bytes;
}

}  // namespace ds::grammar
