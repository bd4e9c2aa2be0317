// Element-wise optimizer rules: what a rule is, and the preconditions of ops that run one.
#pragma once

#include <array>
#include <type_traits>

#include "../core/exact_math.h"
#include "../core/preconditions.h"

namespace ds {

/// A rule holds the scalars of an update of a group, computed in double on the host and rounded
/// once to float. Its members are:
///   static constexpr const char* kName;  // the op's name in errors
///   static constexpr int kStates;        // f32 values per parameter in addition to the master
///     DS_HOST_DEVICE void update(float factor, float grad, float& p, float& state...) const;
/// update() changes one parameter and its states from the gradient and the factor control[0], by a
/// fixed sequence of operations of exact_math.h. So all back ends give the same bits. The caller
/// sets a floating-point mode in which denormal operands and results are 0 (FTZ and DAZ in MXCSR on
/// the CPU, the compiler's ftz mode on the GPU).
///
/// An op that runs a rule over a flat range has the fields master, grad, weight and control, and
/// the rule's states. If control[1] is 0, master and states are unchanged and `weight` is written
/// from the unchanged master. `weight` may be `grad`: a thread reads the gradient before it writes
/// the weight.
template <class Rule>
concept UpdateRule = std::is_trivially_copyable_v<Rule> && Rule::kName !=
nullptr&& Rule::kStates >= 0;

/// A rule's states, in the order of the parameters of update().
template <UpdateRule Rule>
using UpdateStates = std::array<View, Rule::kStates>;

}  // namespace ds
