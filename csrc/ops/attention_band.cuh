// Visibility for Hiding::tiles: windows, documents and lengths. Kernels skip tiles that are hidden
// and test single elements only in tiles at an edge.
#pragma once

#include "attention_filter.cuh"

namespace ds::cuda {

/// Sizes of a row of the batch that sees only its first `keys` keys. Query t sees the keys s with t
/// + offset() - before <= s <= t + offset() + after.
struct BandSizes : AttentionSizes {
  int all_keys, before, after;

  __device__ int offset() const { return all_keys - rows; }
};

/// Returns the first key that query `row` sees. May be negative.
__device__ __forceinline__ int first_key(const BandSizes& sizes, int row) {
  return row + sizes.offset() - sizes.before;
}
__device__ __forceinline__ int last_key(const BandSizes& sizes, int row) {
  return min(sizes.keys - 1, row + sizes.offset() + sizes.after);
}

/// Windows, documents and lengths. A query may see no key.
template <class T>
struct Visibility<T, Hiding::tiles> {
  BandSizes sizes;
  const ScoreFilter& filter;
  int batch;

  __device__ Visibility(const AttentionSizes& all, const ScoreFilter& filter, int batch, int)
      : sizes{all, all.keys, filter.before, filter.after}, filter(filter), batch(batch) {
    if (filter.key_lengths) sizes.keys = max(0, min(sizes.keys, filter.key_lengths[batch]));
  }

  __device__ void go_to(int) {}

  template <int kRows, int kKeys>
  __device__ MetTiles<kKeys> key_tiles(int row) const {
    const int end = last_key(sizes, min(row + kRows, sizes.rows) - 1) + 1;
    const int begin = max(0, first_key(sizes, row)) / kKeys;
    return tiles<kKeys, kRows>(filter.keys, filter.queries, row, begin, end);
  }
  template <int kRows, int kKeys>
  __device__ MetTiles<kRows> row_tiles(int key) const {
    const int last = min(key + kKeys, sizes.keys) - 1;
    const int begin = max(0, key - sizes.offset() - sizes.after) / kRows;
    const int end = key <= last ? min(sizes.rows, last - sizes.offset() + sizes.before + 1) : 0;
    return tiles<kRows, kKeys>(filter.queries, filter.keys, key, begin, end);
  }

  template <int kRows, int kKeys>
  __device__ __forceinline__ bool hidden(int row, int key) const {
    if (key > last_key(sizes, row + kRows - 1) || key + kKeys <= first_key(sizes, row)) return true;
    return filter.queries.ids && !meet(span_of<kRows>(filter.queries.spans_of(batch), row),
                                       span_of<kKeys>(filter.keys.spans_of(batch), key));
  }

  template <int kRows, int kKeys>
  __device__ __forceinline__ bool mixed(int row, int key) const {
    return filter.queries.ids && !are_one(span_of<kRows>(filter.queries.spans_of(batch), row),
                                          span_of<kKeys>(filter.keys.spans_of(batch), key));
  }

  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_query(float (&scores)[kTiles][kColumns][4], int row,
                                                int key) const {
    hide_by_query(scores, row, key, mixed<16 * kTiles, 8 * kColumns>(row, key));
  }
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_query(float (&scores)[kTiles][kColumns][4], int row,
                                                int key, bool is_mixed) const {
    constexpr int rows = 16 * kTiles, keys = 8 * kColumns;
    if (is_mixed) hide_other_documents<false>(scores, row, key);
    if (key + keys - 1 > last_key(sizes, row) || key < first_key(sizes, row + rows - 1))
      hide_outside<false>(scores, row, key);
  }
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_key(float (&scores)[kTiles][kColumns][4], int key,
                                              int query) const {
    hide_by_key(scores, key, query, mixed<8 * kColumns, 16 * kTiles>(query, key));
  }
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_key(float (&scores)[kTiles][kColumns][4], int key,
                                              int query, bool is_mixed) const {
    constexpr int rows = 8 * kColumns, keys = 16 * kTiles;
    if (is_mixed) hide_other_documents<true>(scores, key, query);
    if (key + keys - 1 > last_key(sizes, query) || key < first_key(sizes, query + rows - 1))
      hide_outside<true>(scores, key, query);
  }
  __device__ float score(float score_log2, int query, int key, int last) const {
    if (query >= sizes.rows || key > last || key < first_key(sizes, query)) return -INFINITY;
    if (!filter.queries.ids) return score_log2;
    const int mine = filter.queries.ids_of(batch)[query];
    return mine == filter.keys.ids_of(batch)[key] ? score_log2 : -INFINITY;
  }
  __device__ bool caps() const { return false; }
  __device__ float slope(float) const { return 1.f; }
  template <bool kByKey, int kTiles, int kColumns, class F>
  __device__ __forceinline__ void drop(int, int, F&&) const {}
  __device__ float factor(int, int) const { return 1.f; }

 private:
  /// Returns the tiles of `side`, from tile `begin` to token `end` - 1, that may share a document
  /// with the kBlock tokens of `other` from `first` on.
  template <int kTile, int kBlock>
  __device__ MetTiles<kTile> tiles(const DocumentSide& side, const DocumentSide& other, int first,
                                   int begin, int end) const {
    MetTiles<kTile> met{nullptr, {}, begin, (end + kTile - 1) / kTile};
    if (side.ids) {
      met.spans = side.spans_of(batch);
      met.block = span_of<kBlock>(other.spans_of(batch), first);
    }
    return met;
  }

  /// Hides keys of other documents. Rows are queries, or keys if kByKey.
  template <bool kByKey, int kTiles, int kColumns>
  __device__ __forceinline__ void hide_other_documents(float (&scores)[kTiles][kColumns][4],
                                                       int row, int column) const {
    const int* const rows = (kByKey ? filter.keys : filter.queries).ids_of(batch);
    const int* const columns = (kByKey ? filter.queries : filter.keys).ids_of(batch);
    const int first_row = row + threadIdx.x % 32 / 4, first = column + threadIdx.x % 4 * 2;
    int mine[kTiles][2];
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        mine[m][half] = __ldg(rows + first_row + m * 16 + half * 8);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int2 two = __ldg(reinterpret_cast<const int2*>(columns + first + n * 8));
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (mine[m][e / 2] != (e % 2 ? two.y : two.x)) scores[m][n][e] = -INFINITY;
    }
  }

  /// Hides elements outside of the band or beyond the length. Rows are queries, or keys if kByKey.
  template <bool kByKey, int kTiles, int kColumns>
  __device__ __forceinline__ void hide_outside(float (&scores)[kTiles][kColumns][4], int row,
                                               int column) const {
    const int first_row = row + threadIdx.x % 32 / 4, first = column + threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = first_row + m * 16 + half * 8, middle = r - sizes.offset();
        const int begin = kByKey ? middle - sizes.after : first_key(sizes, r);
        int end = kByKey ? middle + sizes.before : last_key(sizes, r);
        if (kByKey && r >= sizes.keys) end = begin - 1;
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int c = first + n * 8 + e;
            if (c < begin || c > end) scores[m][n][half * 2 + e] = -INFINITY;
          }
      }
  }
};

}  // namespace ds::cuda
