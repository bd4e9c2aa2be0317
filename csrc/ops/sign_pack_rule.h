// Levels and elements of sign compression: the sequence of IEEE operations that all back ends run.
#pragma once

#include <cmath>

#include "../core/segments.h"
#include "sign_pack.h"

namespace ds {

/// Number of sums over a segment from which its levels are computed.
template <SignLevels kKind>
constexpr int kSignSums = kKind == SignLevels::rms ? 1 : 3;

/// Returns the terms of element x. With rms: its square. With means: x if it is not negative, x if
/// it is negative, and 1 if it is not negative, otherwise zeros.
template <SignLevels kKind>
DS_HOST_DEVICE void sign_terms(float x, double (&term)[kSignSums<kKind>]) {
  const double wide = x;
  if constexpr (kKind == SignLevels::rms) {
    term[0] = wide * wide;
  } else {
    const bool negative = x < 0.0f;
    term[0] = negative ? 0.0 : wide;
    term[1] = negative ? wide : 0.0;
    term[2] = negative ? 0.0 : 1.0;
  }
}

/// Computes the two levels of a segment of `count` elements.
template <SignLevels kKind>
DS_HOST_DEVICE void sign_levels(const double (&sum)[kSignSums<kKind>], int64_t count,
                                float* levels) {
  const double n = static_cast<double>(count);
  if constexpr (kKind == SignLevels::rms) {
    const float scale = count > 0 ? static_cast<float>(sqrt(sum[0] / n)) : 0.0f;
    levels[0] = -scale;
    levels[1] = scale;
  } else {
    const double high = sum[2], low = n - sum[2];
    levels[0] = low > 0 ? static_cast<float>(sum[1] / low) : 0.0f;
    levels[1] = high > 0 ? static_cast<float>(sum[0] / high) : 0.0f;
  }
}

/// Returns the last of the segments [low, high) that begins at or before element `at`.
DS_HOST_DEVICE int64_t segment_at(const int64_t* starts, int64_t low, int64_t high, int64_t at) {
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (starts[middle] <= at) low = middle;
    else high = middle;
  }
  return low;
}

/// Returns the chunk of a slot, limited to the elements of its segment.
DS_HOST_DEVICE SegmentChunk counted_chunk(const int64_t* starts, const int64_t* counts,
                                          int64_t segments, int64_t slot) {
  SegmentChunk chunk = chunk_of(starts, segments, slot);
  const int64_t end = starts[chunk.segment] + counts[chunk.segment];
  if (chunk.end > end) chunk.end = chunk.begin < end ? end : chunk.begin;
  return chunk;
}

}  // namespace ds
