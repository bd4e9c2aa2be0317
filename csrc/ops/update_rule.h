// Element-wise optimizer rules: what one is, and what every op that runs one requires of its
// operands.
#pragma once

#include <array>
#include <type_traits>

#include "../core/exact_math.h"
#include "../core/preconditions.h"

namespace ds {

/// The scalars of one update of one group, each computed in double and rounded to float once, on
/// the host, and
///   static constexpr const char* kName;  // the op, as errors call it
///   static constexpr int kStates;        // f32 values kept per parameter beside the master weight
///   DS_HOST_DEVICE void update(float factor, float grad, float& p, float& state...) const;
/// update changes one parameter and its states in place from the gradient and the factor
/// control[0], by a fixed sequence of the operations of exact_math.h, so that every back end gives
/// the same bits. The caller's floating-point mode reads denormal operands as 0 and writes denormal
/// results as 0 (FTZ and DAZ in MXCSR on the CPU, the ftz mode of the compiler on the GPU).
///
/// An op that runs a rule over a flat range has the fields master, grad, weight and control beside
/// its states. When control[1] is 0, master and states stay as they are and `weight` is written
/// from the unchanged master. weight may be grad itself, which is read before it is written.
template <class Rule>
concept UpdateRule = std::is_trivially_copyable_v<Rule> && Rule::kName !=
nullptr&& Rule::kStates >= 0;

/// A rule's states, in the order of its update().
template <UpdateRule Rule>
using UpdateStates = std::array<View, Rule::kStates>;

}  // namespace ds
