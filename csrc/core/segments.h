// Sums over the segments of a flat range, in an order that every back end follows.
#pragma once

#include <cstdint>

#include "exact_math.h"

namespace ds {

// A segment is cut into chunks of kSegmentChunk elements from its own start.
// 1. Within a chunk, element e goes to accumulator e % (kSegmentLanes * kSegmentWidth), in order.
// 2. The kSegmentWidth accumulators of a lane are added as (a0 + a1) + (a2 + a3). Then the lanes
//    are added by halving within each 32, then these sums in order.
// 3. A segment's chunks go to lane `chunk % kSegmentLanes`, in order, and the lanes are added in
//    the same way.
//
// All sums are f64, where the square of a float is exact: a fused multiply-add gives the same bits.
constexpr int64_t kSegmentChunk = 4096;
constexpr int kSegmentLanes = 256, kSegmentWidth = 4, kSegmentWarp = 32;

/// Elements [begin, end) of a range, all of one segment; empty if the slot has no chunk.
struct SegmentChunk {
  int64_t segment, begin, end;
};

/// Returns the first slot of a segment in the list of all chunks. Slots of two segments never
/// overlap, for any lengths; some slots between them stay empty.
DS_HOST_DEVICE int64_t first_slot(const int64_t* starts, int64_t segment) {
  return starts[segment] / kSegmentChunk + segment;
}

/// Returns the number of slots for a range of n elements: an upper bound of first_slot() + chunk.
DS_HOST_DEVICE int64_t slot_count(int64_t n, int64_t segments) {
  return n / kSegmentChunk + segments;
}

DS_HOST_DEVICE int64_t chunk_count(const int64_t* starts, int64_t segment) {
  return (starts[segment + 1] - starts[segment] + kSegmentChunk - 1) / kSegmentChunk;
}

/// Returns the chunk of a slot below slot_count(); needs at least one segment.
DS_HOST_DEVICE SegmentChunk chunk_of(const int64_t* starts, int64_t segments, int64_t slot) {
  int64_t low = 0, high = segments;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (first_slot(starts, middle) <= slot) low = middle;
    else high = middle;
  }
  const int64_t length = starts[low + 1] - starts[low];
  const int64_t offset = (slot - first_slot(starts, low)) * kSegmentChunk;
  const int64_t begin = offset < length ? offset : length;
  const int64_t end = offset + kSegmentChunk < length ? offset + kSegmentChunk : length;
  return {low, starts[low] + begin, starts[low] + end};
}

}  // namespace ds
