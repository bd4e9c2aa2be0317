// Checks the values of an index operand. Only the CPU can check them before it reads.
#pragma once

#include <cstdint>

#include "../core/error.h"

namespace ds::cpu {

/// Throws DS_INDEX unless 0 <= index < size. `name` is the op, `what` the indexed dim.
inline void require_index(const char* name, int64_t index, int64_t size, const char* what) {
  if (index >= 0 && index < size) return;
  throw Error("DS_INDEX", name, text("an index in [0, ", size, ") of ", what), text(index),
              "Check the indices, for example token ids or labels, against this size.");
}

}  // namespace ds::cpu
