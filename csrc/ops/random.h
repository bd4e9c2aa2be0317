// Random tensors by Philox. Element i depends only on (seed, offset, i), so that a part of a tensor
// can be drawn without the rest.
#pragma once

#include "../core/preconditions.h"
#include "part.h"

namespace ds {

/// Draws out ~ U[low, high) as low + u * (high - low) in f32, rounded once to out's dtype. A result
/// that would round to high becomes the largest number below it. The element with index i (see
/// Part) uses word i % 4 of block i / 4.
struct RandomUniform {
  View out;  // contiguous, floating
  double low;
  double high;
  int64_t seed;
  int64_t offset;
  int64_t first;  // as in Part
  int64_t row;
  int64_t stride;
};

/// Draws out ~ N(mean, stddev^2) by Box-Muller from the word pairs (0, 1) and (2, 3) of each block.
/// Logarithm, sine and cosine are fixed fma polynomials (core/random_math.h), so all back ends give
/// the same bits.
struct RandomNormal {
  View out;  // contiguous, floating
  double mean;
  double stddev;
  int64_t seed;
  int64_t offset;
  int64_t first;  // as in Part
  int64_t row;
  int64_t stride;
};

template <class Op>
void check_random(const char* name, const Op& op) {
  require_contiguous(name, op.out, "out");
  require_floating(name, op.out);
  check_part(name, part_of(op));
}

inline void check(const RandomUniform& op) { check_random("random_uniform", op); }
inline void check(const RandomNormal& op) { check_random("random_normal", op); }

}  // namespace ds
