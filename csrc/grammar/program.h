// Reads the description of a grammar, as lib/inference/grammar writes it.
//
//   words   version, rules, sets, nodes, start rule, characters
//           sets: 8 words each, bit b of word b / 32 for byte b
//           nodes: operation, number of arguments, arguments; arguments are earlier nodes
//           bodies: a node for each rule
//           characters: nodes, see Expressions::mark_character
#pragma once

#include <array>
#include <memory>

#include "expression.h"

namespace ds::grammar {

constexpr int32_t kVersion = 1;

/// The expressions of a grammar, with the class of each byte.
struct Rules {
  std::array<uint8_t, 256> class_of{};
  std::unique_ptr<Expressions> expressions;
  ExprId start = kEmpty;
};

/// Throws DS_ARGUMENT for a damaged description and for a grammar that matches no text; DS_LIMIT.
Rules read_rules(const int32_t* words, size_t count);

}  // namespace ds::grammar
