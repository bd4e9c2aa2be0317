// Regular expressions over bytes with calls of rules. Equal expressions have equal ids, so a
// derivative is a state of a lazily built DFA. Source: Owens, Reppy and Turon 2009 (derivatives).
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "limits.h"

namespace ds::grammar {

using ExprId = int32_t;
using ByteSet = std::bitset<256>;  // of byte classes inside a store

constexpr ExprId kEmpty = 0;    // no text
constexpr ExprId kEpsilon = 1;  // the empty text
constexpr int32_t kUnbounded = -1;

enum class Kind : uint8_t {
  empty,
  epsilon,
  bytes,    // a: set
  seq,      // a, then b; a is no seq
  any,      // one of the operands
  all,      // the intersection of the operands
  without,  // texts that a does not match
  repeat,   // a, from b to c times; c may be kUnbounded
  call,     // rule a on a new frame of the stack
  ref,      // rule a in the same frame
};

struct Expr {
  Kind kind;
  bool nullable;   // matches the empty text; false for calls
  bool has_bytes;  // may begin with a byte in its own frame
  bool checked;    // begins with an intersection or complement, which may be an empty language
  int32_t a, b, c;
  std::vector<ExprId> operands;
};

/// A rule that may begin here, and the expression after it.
struct Call {
  int32_t rule;
  ExprId after;
};

/// An expression as the state of an automaton.
struct State {
  std::unique_ptr<std::atomic<ExprId>[]> next;  // by byte class; kUnknown before its first use
  std::vector<Call> calls;
  int32_t plain_room = 0;  // see Expressions::plain_room
  bool nullable = false, has_bytes = false;
  std::atomic<bool> ready{false};

  /// True if the state has no calls and no return.
  bool is_plain() const { return !nullable && calls.empty(); }
};

/// Expressions of one grammar. Threads may call next() and at() at the same time; other functions
/// run before the grammar is shared.
class Expressions {
 public:
  Expressions(int classes, size_t rules);

  ExprId bytes(const ByteSet& set);
  ExprId seq(ExprId a, ExprId b);
  ExprId any(std::vector<ExprId> operands);
  ExprId all(std::vector<ExprId> operands);
  ExprId without(ExprId a);
  ExprId repeat(ExprId a, int32_t least, int32_t most);
  ExprId call(int32_t rule);
  ExprId ref(int32_t rule, bool nullable);

  /// Sets the body of a rule. All bodies are set before the first derivative.
  void define(int32_t rule, ExprId body) { bodies_[static_cast<size_t>(rule)] = body; }
  ExprId body(int32_t rule) const { return bodies_[static_cast<size_t>(rule)]; }
  /// Marks an expression that matches each character of a string except quote, backslash and
  /// control characters.
  void mark_character(ExprId expr) { characters_.push_back(expr); }
  /// Sets the class that holds only the quote.
  void set_quote(int byte_class) { quote_.set(static_cast<size_t>(byte_class)); }

  /// Returns whether some text matches. `expr` has no calls. Throws DS_LIMIT.
  bool is_possible(ExprId expr);
  bool nullable(ExprId expr) const { return exprs_[static_cast<size_t>(expr)].nullable; }

  /// The state of an expression.
  const State& at(ExprId id) {
    State& state = slot(id);
    if (!state.ready.load(std::memory_order_acquire)) prepare(id, state);
    return state;
  }
  /// The derivative by a byte class: kEmpty if no text continues so.
  ExprId next(const State& state, ExprId id, int byte_class) {
    const std::atomic<ExprId>& stored = state.next[static_cast<size_t>(byte_class)];
    const ExprId known = stored.load(std::memory_order_acquire);
    return known >= 0 ? known : find_next(state, id, byte_class);
  }
  int classes() const { return classes_; }
  /// Bytes of memory, roughly.
  size_t memory();

 private:
  static constexpr ExprId kUnknown = -1;
  static constexpr size_t kChunk = 1024;

  ExprId intern(Expr expr);
  ExprId derivative(ExprId id, int byte_class);
  void begin(ExprId id, int byte_class, std::vector<ExprId>& into);
  ExprId pruned(ExprId id);
  void collect_calls(ExprId id, std::vector<Call>& into);
  int32_t plain_room(ExprId id) const;
  ExprId find_next(const State& state, ExprId id, int byte_class);
  void prepare(ExprId id, State& state);
  State& slot(ExprId id) {
    return chunks_[static_cast<size_t>(id) / kChunk].load(
        std::memory_order_acquire)[static_cast<size_t>(id) % kChunk];
  }

  const int classes_;
  std::recursive_mutex mutex_;
  std::vector<Expr> exprs_;
  std::unordered_multimap<uint64_t, ExprId> ids_;
  std::vector<ExprId> bodies_;
  std::vector<ExprId> characters_;
  ByteSet quote_;
  std::unordered_map<ExprId, bool> possible_;
  std::vector<ByteSet> sets_;
  size_t operands_ = 0, depth_ = 0;
  std::atomic<size_t> tables_{0};
  std::vector<std::unique_ptr<State[]>> owned_;
  std::unique_ptr<std::atomic<State*>[]> chunks_;
};

}  // namespace ds::grammar
