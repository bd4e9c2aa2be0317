// Regular expressions over bytes that may call rules. Equal expressions have equal ids, so that
// derivatives are the states of a lazily built DFA. Source: Owens, Reppy and Turon 2009.
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
using ByteSet = std::bitset<256>;  // byte classes, inside a store

constexpr ExprId kEmpty = 0;    // matches no text
constexpr ExprId kEpsilon = 1;  // matches the empty text
constexpr int32_t kUnbounded = -1;

/// The kinds of expressions, with the meanings of a, b and c.
enum class Kind : uint8_t {
  empty,
  epsilon,
  bytes,    // one byte of the set a
  seq,      // a, then b; a itself is not a seq
  any,      // one of the operands
  all,      // all operands (intersection)
  without,  // all texts that a does not match
  repeat,   // a, from b to c times; c may be kUnbounded
  call,     // rule a in a new frame of the stack
  ref,      // rule a in the same frame
};

/// An expression. Its operands have smaller ids.
struct Expr {
  Kind kind;
  bool nullable;   // matches the empty text; false for calls
  bool has_bytes;  // may begin with a byte in its own frame
  bool checked;    // begins with an intersection or complement, which may be an empty language
  int32_t a, b, c;
  std::vector<ExprId> operands;
};

/// A rule that may be called here, and the expression after the call.
struct Call {
  int32_t rule;
  ExprId after;
};

/// An expression as a state of the automaton.
struct State {
  std::unique_ptr<std::atomic<ExprId>[]> next;  // by byte class; kUnknown until first used
  std::vector<Call> calls;
  int32_t plain_room = 0;  // see Expressions::plain_room
  bool nullable = false, has_bytes = false;
  std::atomic<bool> ready{false};

  /// True if the state neither calls a rule nor may return.
  bool is_plain() const { return !nullable && calls.empty(); }
};

/// The expressions of a grammar. next() and at() are thread-safe. All other functions must have
/// returned before threads share the grammar.
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

  /// Sets the body of a rule. All bodies must be set before the first derivative.
  void define(int32_t rule, ExprId body) { bodies_[static_cast<size_t>(rule)] = body; }
  ExprId body(int32_t rule) const { return bodies_[static_cast<size_t>(rule)]; }
  /// Marks an expression that matches one character of a JSON string, except quotes, backslashes
  /// and control characters.
  void mark_character(ExprId expr) { characters_.push_back(expr); }
  /// Sets the byte class that contains only the quote.
  void set_quote(int byte_class) { quote_.set(static_cast<size_t>(byte_class)); }

  /// Returns true if the expression matches any text. It must not call rules. Throws DS_LIMIT.
  bool is_possible(ExprId expr);
  bool nullable(ExprId expr) const { return exprs_[static_cast<size_t>(expr)].nullable; }

  /// Returns the state of an expression.
  const State& at(ExprId id) {
    State& state = slot(id);
    if (!state.ready.load(std::memory_order_acquire)) prepare(id, state);
    return state;
  }
  /// Returns the derivative by a byte class, or kEmpty if no text continues with such a byte.
  ExprId next(const State& state, ExprId id, int byte_class) {
    const std::atomic<ExprId>& stored = state.next[static_cast<size_t>(byte_class)];
    const ExprId known = stored.load(std::memory_order_acquire);
    return known >= 0 ? known : find_next(state, id, byte_class);
  }
  int classes() const { return classes_; }
  /// Returns the approximate memory in bytes.
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
