// Fills masks by a depth-first walk over the trie, with the parses at each depth.
#include "mask.h"

#include <algorithm>

namespace ds::grammar {
namespace {

constexpr size_t kWorthKeeping = 200;  // a mask that visits fewer nodes is not cached
constexpr int kCachedCallers = 4;      // largest number of callers of a cached mask

size_t bytes_of(const FrameMask& mask) {
  return (mask.words.size() + mask.exits.size()) * sizeof(uint32_t) + 128;
}

/// Walks over subtrees of a trie. A level holds the parses of the bytes up to its depth. With a
/// single frame and a state without calls and returns, the walk only follows a DFA.
class Walk {
 public:
  Walk(Grammar& grammar, Arena& arena, const Trie& trie, uint32_t* words,
       std::vector<uint32_t>* exits)
      : grammar_(grammar), arena_(arena), trie_(trie), words_(words), exits_(exits) {}

  size_t visited() const { return visited_; }

  /// Walks from the parses `start` and marks the tokens of nodes [begin, end), siblings, and below
  /// them.
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
    uint32_t begin, end;  // range of the level's frames in the pool
    const State* only;    // state of the only frame; null if there are several frames
  };

  Level level(uint32_t begin) {
    const auto end = static_cast<uint32_t>(pool_.size());
    if (end - begin != 1) return {begin, end, nullptr};
    // With calls or returns, a callee or caller would be another frame.
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

Grammar::SharedMask Grammar::find(const MaskKey& key) {
  std::lock_guard lock(mutex_);
  const auto found = masks_.find(key);
  return found == masks_.end() ? nullptr : found->second;
}

Grammar::SharedMask Grammar::kept(const MaskKey& key, SharedMask mask, size_t visited) {
  // A mask with exits is always cached, because masks of longer chains refer to its id.
  if (visited < kWorthKeeping && mask->exits.empty()) return mask;
  const size_t mask_bytes = bytes_of(*mask);
  std::lock_guard lock(mutex_);
  if (mask_bytes_ + mask_bytes > kCacheBytes) {
    masks_.clear();
    mask_bytes_ = 0;
  }
  const auto [place, is_new] = masks_.emplace(key, std::move(mask));
  if (is_new) mask_bytes_ += mask_bytes;
  return place->second;
}

Grammar::SharedMask Grammar::mask_of(ExprId expr) {
  const MaskKey key{0, expr};
  if (SharedMask found = find(key)) return found;
  auto result = std::make_shared<FrameMask>();
  const int32_t room = expressions().at(expr).plain_room;
  result->id = ++ids_;
  result->is_other = room != 0;
  result->words = vocabulary_->plain(room);
  if (room == 0) std::fill(result->words.begin(), result->words.end(), 0u);
  const Trie& trie = trie_of(*result);
  Arena arena;
  Walk walk(*this, arena, trie, result->words.data(), &result->exits);
  walk.run(0, trie.size(), {{{expr, kOutside}}});
  return kept(key, result, walk.visited());
}

Grammar::SharedMask Grammar::extended(const SharedMask& mask, ExprId caller) {
  const MaskKey key{mask->id, caller};
  if (SharedMask found = find(key)) return found;
  auto result = std::make_shared<FrameMask>();
  result->id = ++ids_;
  result->is_other = mask->is_other;
  result->words = mask->words;
  Arena arena;
  Frames start;
  enter(expressions(), arena, {caller, kOutside}, start);
  // If the caller may return at once, its own caller continues at the same nodes.
  if (start.exited) result->exits = mask->exits;
  const Trie& trie = trie_of(*result);
  Walk walk(*this, arena, trie, result->words.data(), &result->exits);
  for (const uint32_t node : mask->exits) walk.run(node + 1, trie.after[node], start);
  std::sort(result->exits.begin(), result->exits.end());
  result->exits.erase(std::unique(result->exits.begin(), result->exits.end()), result->exits.end());
  return kept(key, result, walk.visited());
}

void Grammar::fill(Arena& arena, const Frames& frames, uint32_t* words) {
  const size_t size = arena.size(), count = vocabulary_->words();
  std::fill(words, words + count, 0u);
  try {
    for (const Frame& frame : frames.list) {
      SharedMask mask = mask_of(frame.expr);
      NodeId parent = frame.parent;
      for (int i = 0; i < kCachedCallers && parent != kBottom && !mask->exits.empty(); ++i) {
        const Frame caller = arena.node(parent);
        mask = extended(mask, caller.expr);
        parent = caller.parent;
      }
      for (size_t w = 0; w < count; ++w) words[w] |= mask->words[w];
      if (parent == kBottom || mask->exits.empty()) continue;
      Frames caller;
      enter(expressions(), arena, arena.node(parent), caller);
      const Trie& trie = trie_of(*mask);
      Walk walk(*this, arena, trie, words, nullptr);
      for (const uint32_t node : mask->exits) walk.run(node + 1, trie.after[node], caller);
    }
  } catch (...) {
    arena.truncate(size);
    throw;
  }
  arena.truncate(size);
}

size_t Grammar::memory() {
  const size_t bytes = expressions().memory();
  std::lock_guard lock(mutex_);
  return bytes + mask_bytes_;
}

}  // namespace ds::grammar
