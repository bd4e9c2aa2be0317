// Derivatives of expressions, and the search for expressions that match no text.
#include <algorithm>
#include <deque>

#include "expression.h"

namespace ds::grammar {
namespace {

/// Counts nested calls and throws DS_LIMIT before a deep expression exhausts the thread's stack.
class Nesting {
 public:
  explicit Nesting(size_t& depth) : depth_(depth) {
    if (++depth_ <= kMaxDepth) return;
    --depth_;
    over_limit("nested expressions", kMaxDepth);
  }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  size_t& depth_;
};

int32_t less(int32_t count) { return count > 0 ? count - 1 : count; }

}  // namespace

/// Appends the alternatives of a derivative to `into`.
void Expressions::begin(ExprId id, int byte_class, std::vector<ExprId>& into) {
  const Nesting nesting(depth_);
  // A copy, because interning may move `exprs_`.
  const Expr expr = exprs_[static_cast<size_t>(id)];
  switch (expr.kind) {
    case Kind::empty:
    case Kind::epsilon:
    case Kind::call: return;
    case Kind::bytes:
      if (sets_[static_cast<size_t>(expr.a)][static_cast<size_t>(byte_class)]) {
        into.push_back(kEpsilon);
      }
      return;
    case Kind::seq: {
      ExprId head = expr.a, tail = expr.b;
      while (true) {
        const ExprId first = derivative(head, byte_class);
        if (first != kEmpty) into.push_back(seq(first, tail));
        if (!nullable(head)) return;
        const Expr& rest = exprs_[static_cast<size_t>(tail)];
        if (rest.kind != Kind::seq) return begin(tail, byte_class, into);
        head = rest.a;
        tail = rest.b;
      }
    }
    case Kind::any:
      for (const ExprId one : expr.operands) begin(one, byte_class, into);
      return;
    case Kind::all: {
      std::vector<ExprId> parts;
      for (const ExprId one : expr.operands) {
        parts.push_back(derivative(one, byte_class));
        if (parts.back() == kEmpty) return;
      }
      into.push_back(all(std::move(parts)));
      return;
    }
    case Kind::without: into.push_back(without(derivative(expr.a, byte_class))); return;
    case Kind::repeat: {
      const ExprId first = derivative(expr.a, byte_class);
      if (first != kEmpty) into.push_back(seq(first, repeat(expr.a, less(expr.b), less(expr.c))));
      return;
    }
    case Kind::ref: begin(body(expr.a), byte_class, into); return;
  }
}

ExprId Expressions::derivative(ExprId id, int byte_class) {
  std::vector<ExprId> found;
  begin(id, byte_class, found);
  return any(std::move(found));
}

bool Expressions::is_possible(ExprId expr) {
  std::lock_guard lock(mutex_);
  if (expr == kEmpty) return false;
  if (const auto known = possible_.find(expr); known != possible_.end()) return known->second;
  std::unordered_map<ExprId, ExprId> origin{{expr, kEmpty}};
  std::deque<ExprId> queue{expr};
  ExprId found = kEmpty;
  size_t steps = 0;
  while (!queue.empty() && found == kEmpty) {
    const ExprId id = queue.front();
    queue.pop_front();
    if (nullable(id)) found = id;
    for (int c = 0; c < classes_ && found == kEmpty; ++c) {
      if (++steps > kMaxSearchWork) over_limit("steps to intersect patterns", kMaxSearchWork);
      const ExprId next = derivative(id, c);
      if (next == kEmpty || !origin.emplace(next, id).second) continue;
      const auto known = possible_.find(next);
      if (known == possible_.end()) {
        queue.push_back(next);
      } else if (known->second) {
        found = next;
      }
    }
  }
  // Without a match, no visited expression matches a text. With a match, its origins match one too.
  if (found == kEmpty) {
    for (const auto& [id, _] : origin) possible_.emplace(id, false);
    return false;
  }
  for (ExprId id = found; id != kEmpty; id = origin[id]) possible_[id] = true;
  return true;
}

/// Returns the expression without alternatives that match no text.
ExprId Expressions::pruned(ExprId id) {
  const Nesting nesting(depth_);
  const Expr expr = exprs_[static_cast<size_t>(id)];
  if (!expr.checked) return id;
  switch (expr.kind) {
    case Kind::any: {
      std::vector<ExprId> kept;
      for (const ExprId one : expr.operands) kept.push_back(pruned(one));
      return any(std::move(kept));
    }
    case Kind::seq: return seq(pruned(expr.a), expr.b);
    case Kind::all:
    case Kind::without: return is_possible(id) ? id : kEmpty;
    default: return id;
  }
}

void Expressions::collect_calls(ExprId id, std::vector<Call>& into) {
  const Nesting nesting(depth_);
  const Expr expr = exprs_[static_cast<size_t>(id)];
  switch (expr.kind) {
    case Kind::call: into.push_back({expr.a, kEpsilon}); return;
    case Kind::seq: {
      ExprId head = expr.a, tail = expr.b;
      while (true) {
        std::vector<Call> own;
        collect_calls(head, own);
        for (const Call& one : own) into.push_back({one.rule, seq(one.after, tail)});
        if (!nullable(head)) return;
        const Expr& rest = exprs_[static_cast<size_t>(tail)];
        if (rest.kind != Kind::seq) return collect_calls(tail, into);
        head = rest.a;
        tail = rest.b;
      }
    }
    case Kind::any:
      for (const ExprId one : expr.operands) collect_calls(one, into);
      return;
    case Kind::repeat: {
      std::vector<Call> own;
      collect_calls(expr.a, own);
      for (const Call& one : own) {
        const ExprId more = repeat(expr.a, less(expr.b), less(expr.c));
        into.push_back({one.rule, seq(one.after, more)});
      }
      return;
    }
    case Kind::ref: return collect_calls(body(expr.a), into);
    default: return;
  }
}

/// Returns how many plain characters may follow before any other byte except a quote: -1 for any
/// number, 0 if the expression has another form.
int32_t Expressions::plain_room(ExprId id) const {
  const Expr& expr = exprs_[static_cast<size_t>(id)];
  if (expr.kind != Kind::seq) return 0;
  const Expr& head = exprs_[static_cast<size_t>(expr.a)];
  const Expr& tail = exprs_[static_cast<size_t>(expr.b)];
  if (head.kind != Kind::repeat || tail.kind != Kind::bytes) return 0;
  const bool is_text =
      std::find(characters_.begin(), characters_.end(), head.a) != characters_.end();
  return is_text && sets_[static_cast<size_t>(tail.a)] == quote_ ? head.c : 0;
}

void Expressions::prepare(ExprId id, State& state) {
  std::lock_guard lock(mutex_);
  if (state.ready.load(std::memory_order_relaxed)) return;
  std::vector<Call> calls;
  collect_calls(id, calls);
  if (calls.size() > kMaxFrames) over_limit("alternatives", kMaxFrames);
  const Expr& expr = exprs_[static_cast<size_t>(id)];
  state.nullable = expr.nullable;
  state.has_bytes = expr.has_bytes;
  state.calls = std::move(calls);
  state.plain_room = plain_room(id);
  const auto classes = static_cast<size_t>(classes_);
  state.next = std::make_unique<std::atomic<ExprId>[]>(classes);
  for (size_t c = 0; c < classes; ++c) state.next[c].store(kUnknown, std::memory_order_relaxed);
  tables_.fetch_add(1);
  state.ready.store(true, std::memory_order_release);
}

ExprId Expressions::find_next(const State& state, ExprId id, int byte_class) {
  std::lock_guard lock(mutex_);
  const ExprId next = pruned(derivative(id, byte_class));
  state.next[static_cast<size_t>(byte_class)].store(next, std::memory_order_release);
  return next;
}

}  // namespace ds::grammar
