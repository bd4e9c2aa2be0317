// Keeps a head per token, with frames in the arena. A rollback removes heads.
#include "matcher.h"

#include <algorithm>

#include "../core/thread_pool.h"

namespace ds::grammar {

Matcher::Matcher(std::shared_ptr<Grammar> grammar, std::vector<int32_t> ends)
    : grammar_(std::move(grammar)), ends_(std::move(ends)), heads_(1) {
  std::sort(ends_.begin(), ends_.end());
  Expressions& expressions = grammar_->expressions();
  Frames& frames = heads_[0].frames;
  enter(expressions, arena_, {grammar_->start(), kBottom}, frames);
  std::erase_if(frames.list, [&](const Frame& one) { return !expressions.at(one.expr).has_bytes; });
}

bool Matcher::is_end(int32_t token) const {
  return std::binary_search(ends_.begin(), ends_.end(), token);
}

void Matcher::fill(uint32_t* words) {
  std::lock_guard lock(mutex_);
  const Head& head = heads_.back();
  const Vocabulary& vocabulary = grammar_->vocabulary();
  if (head.ended) {
    std::fill(words, words + vocabulary.words(), 0u);
    return;
  }
  grammar_->fill(arena_, head.frames, words);
  for (const int32_t end : ends_) {
    if (end < 0 || end >= vocabulary.size()) continue;
    const auto at = static_cast<uint32_t>(end);
    const uint32_t bit = 1u << at % 32;
    words[at / 32] = head.frames.complete ? words[at / 32] | bit : words[at / 32] & ~bit;
  }
}

bool Matcher::accept(int32_t token) {
  std::lock_guard lock(mutex_);
  const Head& head = heads_.back();
  if (head.ended || token < 0 || token >= grammar_->vocabulary().size()) return false;
  if (is_end(token)) {
    if (!head.frames.complete) return false;
    heads_.push_back({head.frames, true});
    return true;
  }
  const std::string_view bytes = grammar_->vocabulary().bytes_of(token);
  if (bytes.empty() || bytes.size() > kMaxTokenBytes) return false;
  const size_t size = arena_.size();
  Frames now = head.frames, next;
  for (const char byte : bytes) {
    const int byte_class = grammar_->class_of(static_cast<uint8_t>(byte));
    if (!advance(grammar_->expressions(), arena_, now.list.data(), now.list.size(), byte_class,
                 next)) {
      arena_.truncate(size);
      return false;
    }
    std::swap(now, next);
  }
  heads_.push_back({std::move(now), false});
  return true;
}

void Matcher::rollback(size_t count) {
  std::lock_guard lock(mutex_);
  if (count >= heads_.size()) {
    throw Error("DS_ARGUMENT", "rollback", text("at most ", heads_.size() - 1, " tokens"),
                text(count));
  }
  heads_.resize(heads_.size() - count);
}

bool Matcher::is_complete() {
  std::lock_guard lock(mutex_);
  return heads_.back().frames.complete;
}

bool Matcher::is_done() {
  std::lock_guard lock(mutex_);
  const Head& head = heads_.back();
  return head.ended || (head.frames.complete && head.frames.list.empty());
}

std::string Matcher::forced() {
  std::lock_guard lock(mutex_);
  std::string out;
  if (heads_.back().ended) return out;
  const size_t size = arena_.size();
  Frames now = heads_.back().frames, next;
  Expressions& expressions = grammar_->expressions();
  while (!now.complete && out.size() < kMaxForced) {
    int only = -1;
    for (int byte = 0; byte < 256 && only > -2; ++byte) {
      const int byte_class = grammar_->class_of(static_cast<uint8_t>(byte));
      const auto moves = [&](const Frame& frame) {
        return expressions.next(expressions.at(frame.expr), frame.expr, byte_class) != kEmpty;
      };
      if (!std::any_of(now.list.begin(), now.list.end(), moves)) continue;
      only = only == -1 ? byte : -2;
    }
    if (only < 0) break;
    advance(expressions, arena_, now.list.data(), now.list.size(),
            grammar_->class_of(static_cast<uint8_t>(only)), next);
    std::swap(now, next);
    out.push_back(static_cast<char>(only));
  }
  arena_.truncate(size);
  return out;
}

void fill_all(const std::vector<std::shared_ptr<Matcher>>& matchers,
              const std::vector<uint32_t*>& words) {
  thread_pool().parallel_for(
      static_cast<int64_t>(matchers.size()), 1, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          matchers[i]->fill(words[i]);
        }
      });
}

}  // namespace ds::grammar
