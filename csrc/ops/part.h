// Which elements of a larger tensor those of a part are, for draws that depend on an element's
// place.
#pragma once

#include "../core/philox.h"
#include "../core/preconditions.h"

namespace ds {

/// Element i of the part is number first + i / row * stride + i % row of the whole; with a row of
/// 0, first + i. A cut along one dim of a contiguous tensor is one: `row` elements of each
/// `stride`.
struct Part {
  int64_t first, row, stride;

  DS_HOST_DEVICE int64_t place(int64_t i) const {
    return row == 0 ? first + i : first + i / row * stride + i % row;
  }
  /// How many elements from i on, of `count`, follow each other in the whole.
  DS_HOST_DEVICE int64_t run(int64_t i, int64_t count) const {
    if (row == 0) return count;
    const int64_t left = row - i % row;
    return left < count ? left : count;
  }
  /// Whether four elements from a multiple of four on lie so in the whole as well.
  bool keeps_fours() const { return first % 4 == 0 && row % 4 == 0 && stride % 4 == 0; }
};

template <class Op>
Part part_of(const Op& op) {
  return {op.first, op.row, op.stride};
}

inline void check_part(const char* name, const Part& part) {
  if (part.first >= 0 && part.row >= 0 && part.stride >= part.row) return;
  throw Error("DS_ARGUMENT", name,
              "a first element and rows of at most their stride, none negative",
              text("first ", part.first, ", row ", part.row, ", stride ", part.stride));
}

}  // namespace ds
