// Sums over segments on the CPU, in the order of core/segments.h.
#pragma once

#include "../core/segments.h"
#include "cpu_context.h"

namespace ds::cpu {

/// Elements of a block: each belongs to a different accumulator.
constexpr int64_t kSegmentBlock = kSegmentLanes * kSegmentWidth;

/// Adds the lanes in the order of core/segments.h. Overwrites its argument.
inline double lane_sum(double (&lane)[kSegmentLanes]) {
  double total = 0;
  for (int warp = 0; warp < kSegmentLanes; warp += kSegmentWarp) {
    for (int width = kSegmentWarp / 2; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) lane[warp + i] += lane[warp + i + width];
    total = warp == 0 ? lane[0] : total + lane[warp];
  }
  return total;
}

/// Returns the sum of a chunk's accumulators.
inline double chunk_sum(const double (&a)[kSegmentBlock]) {
  static_assert(kSegmentWidth == 4);
  double lane[kSegmentLanes];
  for (int i = 0; i < kSegmentLanes; ++i)
    lane[i] = (a[4 * i] + a[4 * i + 1]) + (a[4 * i + 2] + a[4 * i + 3]);
  return lane_sum(lane);
}

/// Returns the sum of a segment. partials[slot * stride] is the sum of the chunk in `slot`.
inline double segment_sum(const double* partials, int stride, const int64_t* starts,
                          int64_t segment) {
  double lane[kSegmentLanes] = {};
  const double* const first = partials + first_slot(starts, segment) * stride;
  const int64_t chunks = chunk_count(starts, segment);
  for (int64_t i = 0; i < chunks; ++i) lane[i % kSegmentLanes] += first[i * stride];
  return lane_sum(lane);
}

/// Throws DS_ARGUMENT unless `starts` (i64, [segments + 1]) ascends from 0 to n.
inline void check_ascending(const char* op, const View& starts, int64_t n) {
  const int64_t* const at = starts.as<int64_t>();
  const int64_t segments = starts.numel() - 1;
  for (int64_t i = 0; i <= segments; ++i) {
    const bool fits = i == 0 ? at[i] == 0 : at[i] >= at[i - 1];
    if (fits && (i < segments || at[i] == n)) continue;
    throw Error("DS_ARGUMENT", op, text("starts that ascend from 0 to ", n),
                text(at[i], " as start ", i));
  }
}

}  // namespace ds::cpu
