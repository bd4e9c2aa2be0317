// Reads a grammar's description, an array of int32 words written by lib/inference/grammar.
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

/// Reads a description. Throws DS_ARGUMENT if it is damaged or matches no text, and DS_LIMIT.
Rules read_rules(const int32_t* words, size_t count);

}  // namespace ds::grammar
