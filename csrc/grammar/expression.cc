// Constructors of expressions. Each returns the simplest form that it recognizes.
#include "expression.h"

#include <algorithm>
#include <functional>

namespace ds::grammar {
namespace {

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdu;
}

uint64_t hash_of(const Expr& expr) {
  uint64_t hash = mixed(static_cast<uint64_t>(expr.kind), static_cast<uint32_t>(expr.a));
  hash = mixed(hash, static_cast<uint32_t>(expr.b));
  hash = mixed(hash, static_cast<uint32_t>(expr.c));
  for (const ExprId id : expr.operands) hash = mixed(hash, static_cast<uint32_t>(id));
  return hash;
}

bool equal(const Expr& x, const Expr& y) {
  return x.kind == y.kind && x.a == y.a && x.b == y.b && x.c == y.c && x.operands == y.operands;
}

void sort_unique(std::vector<ExprId>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

Expressions::Expressions(int classes, size_t rules) : classes_(classes), bodies_(rules, kEmpty) {
  const size_t count = kMaxExpressions / kChunk + 1;
  chunks_ = std::make_unique<std::atomic<State*>[]>(count);
  for (size_t i = 0; i < count; ++i) chunks_[i].store(nullptr, std::memory_order_relaxed);
  intern({Kind::empty, false, false, false, 0, 0, 0, {}});
  intern({Kind::epsilon, true, false, false, 0, 0, 0, {}});
}

ExprId Expressions::intern(Expr expr) {
  const uint64_t hash = hash_of(expr);
  const auto [first, last] = ids_.equal_range(hash);
  for (auto at = first; at != last; ++at)
    if (equal(exprs_[static_cast<size_t>(at->second)], expr)) return at->second;
  if (exprs_.size() >= kMaxExpressions) over_limit("states", kMaxExpressions);
  operands_ += expr.operands.size();
  if (operands_ > kMaxOperands) over_limit("alternatives in its states", kMaxOperands);
  const auto id = static_cast<ExprId>(exprs_.size());
  if (static_cast<size_t>(id) % kChunk == 0) {
    owned_.push_back(std::make_unique<State[]>(kChunk));
    chunks_[static_cast<size_t>(id) / kChunk].store(owned_.back().get(), std::memory_order_release);
  }
  exprs_.push_back(std::move(expr));
  ids_.emplace(hash, id);
  return id;
}

ExprId Expressions::bytes(const ByteSet& set) {
  if (set.none()) return kEmpty;
  const auto found = std::find(sets_.begin(), sets_.end(), set);
  const auto index = static_cast<int32_t>(found - sets_.begin());
  if (found == sets_.end()) sets_.push_back(set);
  return intern({Kind::bytes, false, true, false, index, 0, 0, {}});
}

ExprId Expressions::seq(ExprId a, ExprId b) {
  if (a == kEmpty || b == kEmpty) return kEmpty;
  if (a == kEpsilon) return b;
  if (b == kEpsilon) return a;
  std::vector<ExprId> heads;
  while (exprs_[static_cast<size_t>(a)].kind == Kind::seq) {
    heads.push_back(exprs_[static_cast<size_t>(a)].a);
    a = exprs_[static_cast<size_t>(a)].b;
  }
  heads.push_back(a);
  for (auto head = heads.rbegin(); head != heads.rend(); ++head) {
    const Expr& x = exprs_[static_cast<size_t>(*head)];
    const Expr& y = exprs_[static_cast<size_t>(b)];
    const bool nullable = x.nullable && y.nullable;
    const bool has_bytes = x.has_bytes || (x.nullable && y.has_bytes);
    b = intern({Kind::seq, nullable, has_bytes, x.checked, *head, b, 0, {}});
  }
  return b;
}

ExprId Expressions::any(std::vector<ExprId> operands) {
  std::vector<ExprId> flat;
  ByteSet set;
  const std::function<void(ExprId)> add = [&](ExprId id) {
    const Expr& expr = exprs_[static_cast<size_t>(id)];
    if (expr.kind == Kind::any) {
      for (const ExprId one : std::vector<ExprId>(expr.operands)) add(one);
    } else if (expr.kind == Kind::bytes) {
      set |= sets_[static_cast<size_t>(expr.a)];
    } else if (id != kEmpty) {
      flat.push_back(id);
    }
  };
  for (const ExprId id : operands) add(id);
  if (set.any()) flat.push_back(bytes(set));
  sort_unique(flat);
  if (flat.empty()) return kEmpty;
  if (flat.size() == 1) return flat[0];
  // The empty text is redundant if another alternative matches it.
  const auto matches_empty = [&](ExprId id) { return id != kEpsilon && nullable(id); };
  if (flat[0] == kEpsilon && std::any_of(flat.begin(), flat.end(), matches_empty)) {
    flat.erase(flat.begin());
    if (flat.size() == 1) return flat[0];
  }
  bool empty_text = false, has_bytes = false, checked = false;
  for (const ExprId id : flat) {
    const Expr& expr = exprs_[static_cast<size_t>(id)];
    empty_text |= expr.nullable;
    has_bytes |= expr.has_bytes;
    checked |= expr.checked;
  }
  return intern({Kind::any, empty_text, has_bytes, checked, 0, 0, 0, std::move(flat)});
}

ExprId Expressions::all(std::vector<ExprId> operands) {
  std::vector<ExprId> flat;
  ByteSet set;
  bool has_set = false;
  const ExprId everything = without(kEmpty);
  const std::function<void(ExprId)> add = [&](ExprId id) {
    const Expr& expr = exprs_[static_cast<size_t>(id)];
    if (expr.kind == Kind::all) {
      for (const ExprId one : std::vector<ExprId>(expr.operands)) add(one);
    } else if (expr.kind == Kind::bytes) {
      const ByteSet& own = sets_[static_cast<size_t>(expr.a)];
      set = has_set ? set & own : own;
      has_set = true;
    } else if (id != everything) {
      flat.push_back(id);
    }
  };
  for (const ExprId id : operands) add(id);
  if (has_set) flat.push_back(bytes(set));
  sort_unique(flat);
  if (flat.empty()) return everything;
  if (flat[0] == kEmpty) return kEmpty;
  const auto matches_empty = [&](ExprId id) { return nullable(id); };
  const bool empty_text = std::all_of(flat.begin(), flat.end(), matches_empty);
  if (std::find(flat.begin(), flat.end(), kEpsilon) != flat.end()) {
    return empty_text ? kEpsilon : kEmpty;
  }
  if (flat.size() == 1) return flat[0];
  return intern({Kind::all, empty_text, true, true, 0, 0, 0, std::move(flat)});
}

ExprId Expressions::without(ExprId a) {
  const Expr& expr = exprs_[static_cast<size_t>(a)];
  if (expr.kind == Kind::without) return expr.a;
  return intern({Kind::without, !expr.nullable, true, true, a, 0, 0, {}});
}

ExprId Expressions::repeat(ExprId a, int32_t least, int32_t most) {
  if (a == kEmpty) return least == 0 ? kEpsilon : kEmpty;
  if (a == kEpsilon || most == 0) return kEpsilon;
  if (least == 1 && most == 1) return a;
  const Expr& expr = exprs_[static_cast<size_t>(a)];
  if (expr.nullable) least = 0;
  if (expr.kind == Kind::repeat && expr.b == 0 && expr.c == kUnbounded) return a;
  return intern({Kind::repeat, least == 0, expr.has_bytes, expr.checked, a, least, most, {}});
}

ExprId Expressions::call(int32_t rule) {
  return intern({Kind::call, false, false, false, rule, 0, 0, {}});
}

ExprId Expressions::ref(int32_t rule, bool nullable) {
  return intern({Kind::ref, nullable, true, true, rule, 0, 0, {}});
}

size_t Expressions::memory() {
  std::lock_guard lock(mutex_);
  return exprs_.size() * (sizeof(Expr) + sizeof(State) + 48) + operands_ * sizeof(ExprId) +
         tables_.load() * static_cast<size_t>(classes_) * sizeof(ExprId);
}

}  // namespace ds::grammar
