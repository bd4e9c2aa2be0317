// Documents in the layout of the attention kernels: ids padded to whole tiles, and the span of each
// 32 ids. Each call computes both in one pass. Kernels use the spans to skip or accept whole tiles.
#pragma once

#include <climits>

#include "../cuda/mma.cuh"

namespace ds::cuda {

constexpr int kSpan = 32;              // tokens of a span
constexpr int kDocumentPadding = 128;  // rows of ids are padded to it, the largest tile

/// The smallest and largest document of a range of tokens. Padding belongs to no document: a span
/// with padding never counts as a single document. Tokens beyond the last are ignored.
using DocumentSpan = int2;

/// The documents of the queries or of the keys of a batch, in scratch memory.
struct DocumentSide {
  int* ids;             // [B, padded]; null without documents
  DocumentSpan* spans;  // [B, padded / kSpan]
  int padded;

  __device__ const int* ids_of(int batch) const {
    return ids + static_cast<int64_t>(batch) * padded;
  }
  __device__ const DocumentSpan* spans_of(int batch) const {
    return spans + static_cast<int64_t>(batch) * (padded / kSpan);
  }
};

/// Returns true if the two ranges may share a document.
__device__ __forceinline__ bool meet(DocumentSpan a, DocumentSpan b) {
  return a.x <= b.y && b.x <= a.y;
}

/// Returns true if all tokens of both ranges belong to one document.
__device__ __forceinline__ bool are_one(DocumentSpan a, DocumentSpan b) {
  return a.x == a.y && b.x == b.y && a.x == b.x;
}

/// Returns the span of kCount tokens from `first`, a multiple of kCount. If kCount is below kSpan,
/// it is the span of the surrounding kSpan tokens.
template <int kCount>
__device__ __forceinline__ DocumentSpan span_of(const DocumentSpan* spans, int first) {
  const DocumentSpan* const from = spans + first / kSpan;
  DocumentSpan all = __ldg(from);
#pragma unroll
  for (int i = 1; i < kCount / kSpan; ++i) {
    const DocumentSpan next = __ldg(from + i);
    all = {min(all.x, next.x), max(all.y, next.y)};
  }
  return all;
}

/// Iterates over tiles of keys before `end`. start() returns the first tile, or `end`; at() returns
/// the tile of a step. In each step, call look_ahead(), then after(), which returns the next tile,
/// then go_on().
struct FirstTiles {
  static constexpr int begin = 0;
  int end;

  __device__ int start() const { return 0; }
  __device__ int at(int step) const { return step; }
  __device__ int after(int step) const { return step + 1; }
  __device__ void look_ahead() const {}
  __device__ void go_on() const {}
};

/// Iterates over tiles of queries from `begin` to `end`, for each head. turn() moves `tile` to the
/// next tile. After the last tile, it moves to the first one and returns true.
struct LastTiles {
  static constexpr bool every = true;
  int begin, end;

  __device__ int start() const { return begin; }
  __device__ int count() const { return max(0, end - begin); }
  __device__ bool turn(int& tile) const {
    if (++tile != end) return false;
    tile = begin;
    return true;
  }
};

/// A layout that accepts all tiles.
struct AnyTile {
  __device__ bool meets(int) const { return true; }
};

/// Like FirstTiles and LastTiles, over the tiles of kTile tokens in [begin, end) that may share a
/// document with `block` and that `layout` accepts. Without documents, only `layout` counts. A warp
/// tests 32 tiles at a time, so all its threads must call.
template <int kTile, class Layout = AnyTile>
struct MetTiles {
  static constexpr bool every = false;
  const DocumentSpan* spans;  // spans of this row of the batch, or null
  DocumentSpan block;
  int begin, end;
  Layout layout = {};
  int first = 0, current = 0, upcoming = 0;
  unsigned word = 0;  // bits of the remaining tiles from `first` on

  __device__ int start() {
    first = begin - 32;
    word = 0;
    return current = next();
  }
  __device__ int at(int) const { return current; }
  __device__ int after(int) const { return upcoming; }
  __device__ void look_ahead() { upcoming = next(); }
  __device__ void go_on() { current = upcoming; }
  __device__ bool turn(int& tile) {
    tile = next();
    if (tile < end) return false;
    tile = start();
    return true;
  }

  /// Returns the number of tiles.
  __device__ int count() const {
    int total = 0;
    for (int tile = begin; tile < end; tile += 32) total += __popc(met(tile));
    return total;
  }

 private:
  __device__ int next() {
    while (word == 0) {
      first += 32;
      if (first >= end) return end;
      word = met(first);
    }
    const int bit = __ffs(static_cast<int>(word)) - 1;
    word &= word - 1;
    return first + bit;
  }
  __device__ unsigned met(int from) const {
    const int tile = from + static_cast<int>(threadIdx.x % 32);
    const bool is_met = tile < end &&
                        (spans == nullptr || meet(block, span_of<kTile>(spans, tile * kTile))) &&
                        layout.meets(tile * kTile);
    return __ballot_sync(0xffffffffu, is_met);
  }
};

}  // namespace ds::cuda
