// Follows the text of one sequence through a grammar, token by token.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mask.h"

namespace ds::grammar {

/// The state of one sequence. Thread-safe: calls run one at a time.
class Matcher {
 public:
  /// `ends` are the end tokens, which are allowed only if the text is complete.
  Matcher(std::shared_ptr<Grammar> grammar, std::vector<int32_t> ends);

  /// Writes the mask of the next token, `Vocabulary::words` words. After an end token, all bits are
  /// 0.
  void fill(uint32_t* words);
  /// Appends a token. Returns false, without effect, if the grammar does not allow it. Throws
  /// DS_LIMIT.
  bool accept(int32_t token);
  /// Removes the last `count` tokens. Throws DS_ARGUMENT if there are fewer.
  void rollback(size_t count);

  /// Returns true if the grammar matches the text so far.
  bool is_complete();
  /// Returns true if only end tokens are allowed.
  bool is_done();
  /// Returns the bytes that every continuation begins with, up to kMaxForced bytes.
  std::string forced();

  const Grammar& grammar() const { return *grammar_; }

 private:
  struct Head {
    Frames frames;
    bool ended = false;
  };

  bool is_end(int32_t token) const;

  std::mutex mutex_;
  std::shared_ptr<Grammar> grammar_;
  std::vector<int32_t> ends_;
  Arena arena_;
  std::vector<Head> heads_;  // one after each token; the first is the start
};

/// Calls fill() of all matchers on the thread pool. Mask i is written to words[i].
void fill_all(const std::vector<std::shared_ptr<Matcher>>& matchers,
              const std::vector<uint32_t*>& words);

}  // namespace ds::grammar
