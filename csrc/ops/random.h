// Random tensors from Philox counters: element i depends on (seed, offset, i) alone.
#pragma once

#include "../core/preconditions.h"

namespace ds {

/// out ~ U[low, high): low + u * (high - low) in f32, one rounding to out's dtype. Element i uses
/// word i % 4 of block i / 4.
struct RandomUniform {
  View out;  // contiguous, floating
  double low;
  double high;
  int64_t seed;
  int64_t offset;
};

/// out ~ N(mean, stddev^2) by Box-Muller on word pairs (0,1) and (2,3) of each block, with logarithm,
/// sine and cosine written as fixed fma polynomials (core/random_math.h): the same bits everywhere.
struct RandomNormal {
  View out;  // contiguous, floating
  double mean;
  double stddev;
  int64_t seed;
  int64_t offset;
};

inline void check_random(const char* name, const View& out) {
  require_contiguous(name, out, "out");
  require_floating(name, out);
}

inline void check(const RandomUniform& op) { check_random("random_uniform", op.out); }
inline void check(const RandomNormal& op) { check_random("random_normal", op.out); }

}  // namespace ds
