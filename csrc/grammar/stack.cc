// Advances the parses of a text by one byte.
#include "stack.h"

#include <algorithm>

namespace ds::grammar {

NodeId Arena::push(Frame frame) {
  const auto [found, is_new] = ids_.emplace(key(frame), static_cast<NodeId>(nodes_.size()));
  if (!is_new) return found->second;
  if (nodes_.size() >= kMaxNodes) {
    ids_.erase(found);
    over_limit("nested values", kMaxNodes);
  }
  nodes_.push_back(frame);
  return found->second;
}

void Arena::truncate(size_t size) {
  for (; nodes_.size() > size; nodes_.pop_back()) ids_.erase(key(nodes_.back()));
}

void enter(Expressions& expressions, Arena& arena, Frame frame, Frames& into) {
  if (frame.expr == kEmpty) return;
  std::vector<Frame>& list = into.list;
  const auto add = [&](Frame one) {
    if (std::find(list.begin(), list.end(), one) != list.end()) return;
    if (list.size() >= kMaxFrames) over_limit("parses of one text", kMaxFrames);
    list.push_back(one);
  };
  size_t next = list.size();
  add(frame);
  for (; next < list.size(); ++next) {
    const Frame one = list[next];
    const State& state = expressions.at(one.expr);
    if (state.nullable) {
      if (one.parent == kBottom) into.complete = true;
      else if (one.parent == kOutside) into.exited = true;
      else add(arena.node(one.parent));
    }
    for (const Call& call : state.calls) {
      const NodeId parent =
          call.after == kEpsilon ? one.parent : arena.push({call.after, one.parent});
      add({expressions.body(call.rule), parent});
    }
  }
}

bool advance(Expressions& expressions, Arena& arena, const Frame* frames, size_t count,
             int byte_class, Frames& into) {
  into.list.clear();
  into.complete = into.exited = false;
  for (size_t i = 0; i < count; ++i) {
    const State& state = expressions.at(frames[i].expr);
    if (!state.has_bytes) continue;
    const ExprId next = expressions.next(state, frames[i].expr, byte_class);
    enter(expressions, arena, {next, frames[i].parent}, into);
  }
  // Frames that only call or return consume no byte.
  std::erase_if(into.list, [&](const Frame& one) { return !expressions.at(one.expr).has_bytes; });
  return !into.list.empty() || into.complete || into.exited;
}

}  // namespace ds::grammar
