// Follows one text through a grammar, token by token.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mask.h"

namespace ds::grammar {

/// The state of one sequence. Calls from several threads are serialized.
class Matcher {
 public:
  /// `ends` are end tokens: allowed at a complete text only.
  Matcher(std::shared_ptr<Grammar> grammar, std::vector<int32_t> ends);

  /// Writes the mask of the next token, `Vocabulary::words` words. All 0 after an end token.
  void fill(uint32_t* words);
  /// Appends a token. Returns false, without an effect, for a token that the grammar does not
  /// allow.
  bool accept(int32_t token);
  /// Removes the last `count` tokens. Throws DS_ARGUMENT if there are fewer.
  void rollback(size_t count);

  /// True if the text so far is a whole text.
  bool is_complete();
  /// True if nothing but an end token may follow.
  bool is_done();
  /// The bytes that follow in every continuation, up to a limit.
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
  std::vector<Head> heads_;  // after each token; the first is the start
};

/// Runs fill() of several matchers on the threads of the process. Mask i goes to words[i].
void fill_all(const std::vector<std::shared_ptr<Matcher>>& matchers,
              const std::vector<uint32_t*>& words);

}  // namespace ds::grammar
