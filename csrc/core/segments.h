// Sums over segments of a flat range, in the same order on all back ends.
#pragma once

#include <cstdint>

#include "exact_math.h"

namespace ds {

// The sum of a segment:
// 1. The segment is cut into chunks of kSegmentChunk elements, from its start.
// 2. Element e of a chunk is added to accumulator e % (kSegmentLanes * kSegmentWidth), in order.
// 3. The kSegmentWidth accumulators of a lane are added as (a0 + a1) + (a2 + a3). The lanes of each
//    32 are added by halving, then these sums in order.
// 4. The sum of a chunk goes to lane `chunk % kSegmentLanes`, in order. Lanes are added as in 3.
//
// All sums are f64. The square of an f32 is exact in f64, so a fused multiply-add changes no bit.
constexpr int64_t kSegmentChunk = 4096;
constexpr int kSegmentLanes = 256, kSegmentWidth = 4, kSegmentWarp = 32;

/// Elements [begin, end), all in one segment. Empty if the slot holds no chunk.
struct SegmentChunk {
  int64_t segment, begin, end;
};

/// Returns the first slot of a segment in the list of all chunks. The slots of two segments never
/// overlap; some slots between them stay empty.
DS_HOST_DEVICE int64_t first_slot(const int64_t* starts, int64_t segment) {
  return starts[segment] / kSegmentChunk + segment;
}

/// Returns the number of slots for a range of n elements. Every chunk has a smaller slot.
DS_HOST_DEVICE int64_t slot_count(int64_t n, int64_t segments) {
  return n / kSegmentChunk + segments;
}

/// Returns the number of chunks of a segment.
DS_HOST_DEVICE int64_t chunk_count(const int64_t* starts, int64_t segment) {
  return (starts[segment + 1] - starts[segment] + kSegmentChunk - 1) / kSegmentChunk;
}

/// Returns the chunk of `slot`, which must be less than slot_count(). Needs at least one segment.
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
