// Element-wise optimizer rules: the concept of a rule, and the preconditions of ops that run one.
#pragma once

#include <array>
#include <type_traits>

#include "../core/exact_math.h"
#include "../core/preconditions.h"

namespace ds {

/// A rule holds the scalars of one update of one group, each computed in double and rounded to
/// float once, on the host. Members:
///   static constexpr const char* kName;  // the op's name in errors
///   static constexpr int kStates;        // f32 values per parameter in addition to the master
///     DS_HOST_DEVICE void update(float factor, float grad, float& p, float& state...) const;
/// update changes one parameter and its states in place from the gradient and the factor
/// control[0]. It uses a fixed sequence of the operations of exact_math.h, so all back ends give
/// the same bits. The caller's floating-point mode reads denormal operands as 0 and writes denormal
/// results as 0 (FTZ and DAZ in MXCSR on the CPU, the ftz mode of the compiler on the GPU).
///
/// An op that runs a rule over a flat range has the fields master, grad, weight and control, and
/// its states. When control[1] is 0, master and states are unchanged and `weight` is written from
/// the unchanged master. `weight` may be `grad`: a thread reads the gradient before it writes the
/// weight.
template <class Rule>
concept UpdateRule = std::is_trivially_copyable_v<Rule> && Rule::kName !=
nullptr&& Rule::kStates >= 0;

/// A rule's states, in the order of its update().
template <UpdateRule Rule>
using UpdateStates = std::array<View, Rule::kStates>;

}  // namespace ds
