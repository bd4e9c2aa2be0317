// Dropout with a mask that depends only on (seed, offset, index of the element), so that a repeated
// forward drops the same elements.
#pragma once

#include "part.h"

namespace ds {

/// Computes out = in / (1 - p) where the element's random number (unit_float of its Philox word) is
/// at least p, else 0. The backward is the same op on the gradient. The elements are a Part of a
/// tensor: all of it, or the channels or tokens of one rank. If the samples of the tensor are split
/// over `ranks` ranks round-robin, the s-th sample here has the number s * ranks + rank, and its
/// mask is that of this sample on a single rank.
struct Dropout {
  View in;   // contiguous, floating
  View out;  // same shape and dtype; may be in itself
  double p;  // [0, 1)
  int64_t seed;
  int64_t offset;
  int64_t sample;  // elements of a sample of the whole tensor, at least 1
  int64_t rank;    // [0, ranks)
  int64_t ranks;
  int64_t first;  // as in Part
  int64_t row;
  int64_t stride;
  bool accumulate;
};

/// Checks p, sample, rank and ranks.
template <class Draw>
void check_dropout(const char* name, const Draw& draw) {
  if (!(draw.p >= 0 && draw.p < 1)) throw Error("DS_ARGUMENT", name, "p in [0, 1)", text(draw.p));
  if (draw.sample < 1)
    throw Error("DS_ARGUMENT", name, "samples of at least 1 element", text(draw.sample));
  if (draw.rank < 0 || draw.rank >= draw.ranks)
    throw Error("DS_ARGUMENT", name, text("a rank in [0, ", draw.ranks, ")"), text(draw.rank));
}

inline void check(const Dropout& op) {
  constexpr const char* kOp = "dropout";
  require_like(kOp, op.in, op.out);
  require_floating(kOp, op.in);
  require_contiguous(kOp, op.in, "in");
  require_contiguous(kOp, op.out, "out");
  check_dropout(kOp, op);
  check_part(kOp, part_of(op));
}

/// Returns the index, among the samples of all ranks, of element i of this rank's samples.
DS_HOST_DEVICE int64_t dropout_place(int64_t i, int64_t sample, int64_t rank, int64_t ranks) {
  return ranks == 1 ? i : i + (i / sample * (ranks - 1) + rank) * sample;
}

}  // namespace ds
