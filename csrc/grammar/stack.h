// The parses of a text, as frames on persistent stacks. Nodes never change, so that earlier frames
// stay valid.
#pragma once

#include <unordered_map>
#include <vector>

#include "expression.h"

namespace ds::grammar {

using NodeId = int32_t;
constexpr NodeId kBottom = 0;   // below the first frame: the end of the text
constexpr NodeId kOutside = 1;  // an unknown caller, for masks that hold for all callers

/// The rest of a rule. After it, `parent` continues.
struct Frame {
  ExprId expr;
  NodeId parent;
  bool operator==(const Frame&) const = default;
};

/// All parses of a text.
struct Frames {
  std::vector<Frame> list;
  bool complete = false;  // the text may end here
  bool exited = false;    // a parse may return to an unknown caller here
};

/// The nodes of all stacks. Equal nodes have equal ids.
class Arena {
 public:
  Arena() : nodes_{{kEpsilon, kBottom}, {kEpsilon, kOutside}} {}

  const Frame& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
  NodeId push(Frame frame);
  size_t size() const { return nodes_.size(); }
  /// Removes the nodes from `size` on.
  void truncate(size_t size);

 private:
  static uint64_t key(Frame frame) {
    return uint64_t{static_cast<uint32_t>(frame.expr)} << 32 | static_cast<uint32_t>(frame.parent);
  }

  std::vector<Frame> nodes_;
  std::unordered_map<uint64_t, NodeId> ids_;
};

/// Adds a frame, the rules that it may call, and its callers if it may return at once.
void enter(Expressions& expressions, Arena& arena, Frame frame, Frames& into);

/// Replaces `into` by the parses after one more byte. Returns false if there are none.
bool advance(Expressions& expressions, Arena& arena, const Frame* frames, size_t count,
             int byte_class, Frames& into);

}  // namespace ds::grammar
