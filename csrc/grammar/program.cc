// Reads the rules of a description: checks each word, then removes alternatives that match no text.
#include "program.h"

#include <algorithm>
#include <map>
#include <vector>

namespace ds::grammar {
namespace {

constexpr size_t kSetWords = 8;

[[noreturn]] void refuse(const std::string& expected, const std::string& got) {
  throw Error("DS_ARGUMENT", "format", expected, got);
}

/// A node of the description. Arguments that are nodes are indices of earlier nodes.
struct Node {
  Kind kind;
  std::vector<int32_t> arguments;
};

class Description {
 public:
  Description(const int32_t* words, size_t count) : words_(words), end_(count) {
    if (count > static_cast<size_t>(kMaxWords)) over_limit("words", static_cast<size_t>(kMaxWords));
    if (take(kVersion + 1) != kVersion)
      refuse(text("a description of version ", kVersion), "another version");
    const int64_t rules = take(INT32_MAX), sets = take(INT32_MAX), nodes = take(INT32_MAX);
    const auto most = static_cast<int64_t>(count);
    if (rules < 1 || std::max({rules, sets, nodes}) > most)
      refuse("a complete description", "fewer words than its counts state");
    start = take(rules);
    const int64_t characters_count = take(most + 1);
    for (int64_t i = 0; i < sets; ++i) this->sets.push_back(take_set());
    for (int64_t i = 0; i < nodes; ++i) this->nodes.push_back(take_node(i, sets, rules));
    for (int64_t i = 0; i < rules; ++i) bodies.push_back(take(nodes));
    for (int64_t i = 0; i < characters_count; ++i) characters.push_back(take(nodes));
    if (at_ != end_) refuse(text("a description of ", at_, " words"), text(end_));
  }

  std::vector<ByteSet> sets;  // sets of bytes
  std::vector<Node> nodes;
  std::vector<int32_t> bodies, characters;
  int32_t start;

 private:
  int32_t word() {
    if (at_ == end_) refuse("a complete description", text("only ", end_, " words"));
    return words_[at_++];
  }
  int32_t take(int64_t below) {
    const int32_t found = word();
    if (found < 0 || found >= below) refuse(text("a word below ", below), text(found));
    return found;
  }
  ByteSet take_set() {
    ByteSet set;
    for (size_t w = 0; w < kSetWords; ++w) {
      const auto bits = static_cast<uint32_t>(word());
      for (size_t b = 0; b < 32; ++b) set[32 * w + b] = bits >> b & 1;
    }
    return set;
  }
  Node take_node(int64_t index, int64_t sets, int64_t rules) {
    Node node{static_cast<Kind>(take(static_cast<int64_t>(Kind::ref) + 1)), {}};
    const int32_t count = take(static_cast<int64_t>(end_));
    const auto expect = [&](int32_t wanted) {
      if (count != wanted) refuse(text(wanted, " arguments of a node"), text(count));
    };
    switch (node.kind) {
      case Kind::empty:
      case Kind::epsilon: expect(0); break;
      case Kind::bytes:
        expect(1);
        node.arguments.push_back(take(sets));
        break;
      case Kind::call:
      case Kind::ref:
        expect(1);
        node.arguments.push_back(take(rules));
        break;
      case Kind::without:
        expect(1);
        node.arguments.push_back(take(index));
        break;
      case Kind::repeat: {
        expect(3);
        node.arguments.push_back(take(index));
        const int32_t least = take(INT32_MAX), most = word();
        if (most != kUnbounded && most < least) {
          refuse(text("a maximum count of ", least, " (the minimum) or more"), text(most));
        }
        node.arguments.insert(node.arguments.end(), {least, most});
        break;
      }
      default:
        for (int32_t i = 0; i < count; ++i) node.arguments.push_back(take(index));
    }
    return node;
  }

  const int32_t* words_;
  size_t at_ = 0, end_;
};

/// Assigns a class to each byte. Bytes in exactly the same sets share a class. Returns the number
/// of classes.
int classify(const std::vector<ByteSet>& sets, std::array<uint8_t, 256>& class_of) {
  int count = 1;
  class_of.fill(0);
  for (const ByteSet& set : sets) {
    std::map<std::pair<uint8_t, bool>, uint8_t> split;
    std::array<uint8_t, 256> next{};
    int made = 0;
    for (size_t b = 0; b < 256; ++b) {
      const auto [found, is_new] =
          split.emplace(std::pair{class_of[b], set[b]}, static_cast<uint8_t>(made));
      made += is_new;
      next[b] = found->second;
    }
    class_of = next;
    count = made;
    if (count == 256) break;
  }
  return count;
}

/// A boolean for each node, computed as a fixed point over the rules. It starts as false.
using Property = std::vector<char>;

template <class Rule>
Property fixed_point(const Description& from, Rule rule) {
  Property holds(from.nodes.size(), 0);
  for (size_t round = 0; round <= from.bodies.size() + 2; ++round) {
    bool changed = false;
    for (size_t i = 0; i < from.nodes.size(); ++i) {
      const char now = rule(from.nodes[i], i, holds);
      changed |= now != holds[i];
      holds[i] = now;
    }
    if (!changed) return holds;
  }
  refuse("rules that do not contradict themselves", "a rule that excludes its own texts");
}

template <class Holds>
bool every(const Node& node, Holds holds) {
  return std::all_of(node.arguments.begin(), node.arguments.end(), holds);
}
template <class Holds>
bool some(const Node& node, Holds holds) {
  return std::any_of(node.arguments.begin(), node.arguments.end(), holds);
}

class Builder {
 public:
  Builder(const Description& from, Rules& into) : from_(from), into_(into) {
    const auto body = [&](const Node& node) {
      return static_cast<size_t>(from_.bodies[static_cast<size_t>(node.arguments[0])]);
    };
    nullable_ = fixed_point(from, [&](const Node& node, size_t, const Property& known) -> char {
      const auto is = [&](int32_t i) { return known[static_cast<size_t>(i)] != 0; };
      switch (node.kind) {
        case Kind::epsilon: return 1;
        case Kind::seq:
        case Kind::all: return every(node, is);
        case Kind::any: return some(node, is);
        case Kind::without: return !is(node.arguments[0]);
        case Kind::repeat: return node.arguments[1] == 0 || is(node.arguments[0]);
        case Kind::ref: return known[body(node)];
        default: return 0;
      }
    });
    has_call_ = fixed_point(from, [&](const Node& node, size_t, const Property& known) -> char {
      const auto is = [&](int32_t i) { return known[static_cast<size_t>(i)] != 0; };
      switch (node.kind) {
        case Kind::call: return 1;
        case Kind::ref: return known[body(node)];
        case Kind::bytes: return 0;
        case Kind::repeat: return is(node.arguments[0]);
        default: return some(node, is);
      }
    });
    Property all_live(from.nodes.size(), 1);
    const std::vector<ExprId> whole = build(all_live);
    Property checked(from.nodes.size(), 0), possible(from.nodes.size(), 1);
    const Property live =
        fixed_point(from, [&](const Node& node, size_t i, const Property& known) -> char {
          const auto is = [&](int32_t one) { return known[static_cast<size_t>(one)] != 0; };
          switch (node.kind) {
            case Kind::empty: return 0;
            case Kind::seq: return every(node, is);
            case Kind::any: return some(node, is);
            case Kind::repeat: return node.arguments[1] == 0 || is(node.arguments[0]);
            case Kind::call:
            case Kind::ref: return known[body(node)];
            case Kind::all:
            case Kind::without:
              if (!checked[i]) possible[i] = into_.expressions->is_possible(whole[i]);
              checked[i] = 1;
              return possible[i];
            default: return 1;
          }
        });
    const std::vector<ExprId> built = build(live);
    for (const int32_t one : from.characters) {
      into.expressions->mark_character(built[static_cast<size_t>(one)]);
    }
    into.start = into.expressions->body(from.start);
    if (into.start == kEmpty) refuse("a format that matches some text", "one that matches none");
  }

 private:
  std::vector<ExprId> build(const Property& live) {
    std::vector<ExprId> built;
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      built.push_back(live[i] ? expression(i, built) : kEmpty);
    }
    for (size_t rule = 0; rule < from_.bodies.size(); ++rule) {
      into_.expressions->define(static_cast<int32_t>(rule),
                                built[static_cast<size_t>(from_.bodies[rule])]);
    }
    return built;
  }

  ExprId expression(size_t index, const std::vector<ExprId>& built) {
    const Node& node = from_.nodes[index];
    Expressions& out = *into_.expressions;
    std::vector<ExprId> parts;
    if (node.kind == Kind::seq || node.kind == Kind::any || node.kind == Kind::all) {
      for (const int32_t one : node.arguments) parts.push_back(built[static_cast<size_t>(one)]);
    }
    const int32_t first = node.arguments.empty() ? 0 : node.arguments[0];
    switch (node.kind) {
      case Kind::empty: return kEmpty;
      case Kind::epsilon: return kEpsilon;
      case Kind::bytes: return out.bytes(classes_in(from_.sets[static_cast<size_t>(first)]));
      case Kind::seq: {
        ExprId joined = kEpsilon;
        for (auto part = parts.rbegin(); part != parts.rend(); ++part)
          joined = out.seq(*part, joined);
        return joined;
      }
      case Kind::any: return out.any(std::move(parts));
      case Kind::all: require_pure(index); return out.all(std::move(parts));
      case Kind::without:
        require_pure(index);
        return out.without(built[static_cast<size_t>(first)]);
      case Kind::repeat:
        return out.repeat(built[static_cast<size_t>(first)], node.arguments[1], node.arguments[2]);
      case Kind::call: return out.call(first);
      case Kind::ref: {
        const auto body = static_cast<size_t>(from_.bodies[static_cast<size_t>(first)]);
        return out.ref(first, nullable_[body] != 0);
      }
    }
    return kEmpty;
  }

  void require_pure(size_t index) {
    if (has_call_[index]) {
      refuse("intersections and complements without recursive rules", "one that calls a rule");
    }
  }

  ByteSet classes_in(const ByteSet& bytes) const {
    ByteSet classes;
    for (size_t b = 0; b < 256; ++b)
      if (bytes[b]) classes.set(into_.class_of[b]);
    return classes;
  }

  const Description& from_;
  Rules& into_;
  Property nullable_, has_call_;
};

}  // namespace

Rules read_rules(const int32_t* words, size_t count) {
  Description description(words, count);
  ByteSet quote;
  quote.set('"');
  description.sets.push_back(quote);
  Rules rules;
  const int classes = classify(description.sets, rules.class_of);
  rules.expressions = std::make_unique<Expressions>(classes, description.bodies.size());
  rules.expressions->set_quote(rules.class_of['"']);
  Builder(description, rules);
  return rules;
}

}  // namespace ds::grammar
