// Maps the elements of a part to their indices in the whole tensor, because random numbers depend
// on that index.
#pragma once

#include "../core/philox.h"
#include "../core/preconditions.h"

namespace ds {

/// Element i of the part has index first + i / row * stride + i % row in the whole, or first + i if
/// `row` is 0. A slice along one dim of a contiguous tensor is a Part: `row` elements of each
/// `stride`.
struct Part {
  int64_t first, row, stride;

  DS_HOST_DEVICE int64_t place(int64_t i) const {
    return row == 0 ? first + i : first + i / row * stride + i % row;
  }
  /// Returns how many elements from i on, at most `count`, are contiguous in the whole.
  DS_HOST_DEVICE int64_t run(int64_t i, int64_t count) const {
    if (row == 0) return count;
    const int64_t left = row - i % row;
    return left < count ? left : count;
  }
  /// Returns true if four aligned elements of the part are contiguous and aligned in the whole.
  bool keeps_fours() const { return first % 4 == 0 && row % 4 == 0 && stride % 4 == 0; }
};

template <class Op>
Part part_of(const Op& op) {
  return {op.first, op.row, op.stride};
}

inline void check_part(const char* name, const Part& part) {
  if (part.first >= 0 && part.row >= 0 && part.stride >= part.row) return;
  throw Error("DS_ARGUMENT", name, "first and row of 0 or more, and a stride of at least row",
              text("first ", part.first, ", row ", part.row, ", stride ", part.stride));
}

}  // namespace ds
