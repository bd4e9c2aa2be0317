// Filters between queries and keys. All attention kernels support causality. Bands, documents,
// layouts, masks and dropout cost time only in kernels that are compiled for them.
#pragma once

#include "attention.h"
#include "attention_documents.cuh"
#include "attention_tile.cuh"
#include "score_cap.cuh"

namespace ds::cuda {

/// The filters that a kernel is compiled for.
///
///     causal     causality
///     tiles      also windows, documents and lengths, which hide whole tiles
///     elements   also layouts (which hide tiles of one head), and masks, dropout and caps (single
///                elements)
enum class Hiding : int { causal, tiles, elements };

/// Dtype of a mask. `operand` is the dtype of q.
enum class MaskKind : int { none, flags, f32, operand };

/// A mask as [B, H, T, S]. Strides are in elements, 0 in repeated dims.
struct MaskView {
  const void* data;
  MaskKind kind;
  int64_t batch_stride, head_stride, row_stride, key_stride;

  template <class E>
  __device__ const E* at(int batch, int head, int64_t query, int64_t key) const {
    return static_cast<const E*>(data) + batch * batch_stride + head * head_stride +
           query * row_stride + key * key_stride;
  }
};
constexpr int kMasks = 2;

/// All filters except causality.
struct ScoreFilter {
  MaskView masks[kMasks];  // one for scores, one for keys
  const int* key_lengths;  // [B] or null
  AttentionDropout dropout;
  float kept;         // 1 / (1 - p)
  Hiding hiding;      // the kernels that are needed
  int before, after;  // as in AttentionBand
  DocumentSide queries, keys;
  BlockLayout layout;
  ScoreCap cap;
};

/// Sets scores beyond a row's last visible key to -infinity. `row` is the warp's first query,
/// `first_key` the key of column 0.
template <int kTiles, int kColumns>
__device__ __forceinline__ void mask_scores(float (&scores)[kTiles][kColumns][4],
                                            const AttentionSizes& sizes, int row, int first_key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int last = last_key(sizes, row + m * 16 + half * 8 + lane / 4);
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (first_key + n * 8 + lane % 4 * 2 + e > last) scores[m][n][half * 2 + e] = -INFINITY;
    }
}

/// Sets scores of queries that do not see a key to -infinity. Rows are keys and columns are
/// queries. Row 0 is `key`, and column 0 is `query`.
template <int kTiles, int kColumns>
__device__ __forceinline__ void mask_by_key(float (&scores)[kTiles][kColumns][4],
                                            const AttentionSizes& sizes, int key, int query) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first = key + m * 16 + half * 8 + lane / 4 - sizes.offset();  // query that sees it
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (query + n * 8 + lane % 4 * 2 + e < first) scores[m][n][half * 2 + e] = -INFINITY;
    }
}

/// Which keys the queries of a head see, and which weights dropout keeps.
/// 1. key_tiles() and row_tiles() return the tiles to load.
/// 2. hidden() returns true if all scores of a warp in a tile are hidden. mixed() returns true if
///    they may belong to different documents.
/// 3. hide_by_query() and hide_by_key() set hidden scores of a warp, which are not yet scaled, to
///    -infinity. A caller that has called mixed() passes the result.
/// 4. score() returns a score as a power of 2.
/// 5. slope() returns the derivative of a capped score, which is given as a power of 2, by the
///    score; 1 without a cap.
/// 6. drop() calls f(m, n, e, factor) with the dropout factor, 0 or 1 / (1 - p), of each weight of
///    this thread, or does nothing without dropout. factor() returns the factor of one weight.
template <class T, Hiding kHiding>
struct Visibility;

/// Multiplies dp by Visibility's slope() of the scores, which are not yet scaled.
template <int kTiles, int kColumns, class Seen>
__device__ __forceinline__ void multiply_by_slopes(float (&dp)[kTiles][kColumns][4],
                                                   const float (&scores)[kTiles][kColumns][4],
                                                   const Seen& seen) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        dp[m][n][e] *= seen.slope(scores[m][n][e] * seen.sizes.scale_log2);
}

/// Causality only. Tiles below the diagonal need no test.
template <class T>
struct Visibility<T, Hiding::causal> {
  const AttentionSizes& sizes;

  __device__ Visibility(const AttentionSizes& all, const ScoreFilter&, int, int) : sizes(all) {}

  __device__ void go_to(int) {}

  /// Returns the tiles of kKeys keys for the kRows queries from `row` on.
  template <int kRows, int kKeys>
  __device__ FirstTiles key_tiles(int row) const {
    return {key_blocks<kKeys>(sizes, min(row + kRows, sizes.rows))};
  }
  /// Returns the tiles of kRows queries for the kKeys keys from `key` on.
  template <int kRows, int kKeys>
  __device__ LastTiles row_tiles(int key) const {
    return {sizes.causal ? max(0, key - sizes.offset()) / kRows : 0,
            (sizes.rows + kRows - 1) / kRows};
  }
  template <int kRows, int kKeys>
  __device__ __forceinline__ bool hidden(int row, int key) const {
    return key > last_key(sizes, row + kRows - 1);
  }

  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_query(float (&scores)[kTiles][kColumns][4], int row,
                                                int first_key) const {
    if (first_key + 8 * kColumns - 1 > last_key(sizes, row))
      mask_scores(scores, sizes, row, first_key);
  }
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_query(float (&scores)[kTiles][kColumns][4], int row,
                                                int first_key, bool) const {
    hide_by_query(scores, row, first_key);
  }
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_key(float (&scores)[kTiles][kColumns][4], int key,
                                              int query) const {
    if (sizes.causal && key + 16 * kTiles - 1 > query + sizes.offset())
      mask_by_key(scores, sizes, key, query);
  }
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_key(float (&scores)[kTiles][kColumns][4], int key,
                                              int query, bool) const {
    hide_by_key(scores, key, query);
  }
  __device__ float score(float score_log2, int, int key, int last) const {
    return key <= last ? score_log2 : -INFINITY;
  }
  __device__ bool caps() const { return false; }
  __device__ float slope(float) const { return 1.f; }
  template <bool kByKey, int kTiles, int kColumns, class F>
  __device__ __forceinline__ void drop(int, int, F&&) const {}
  __device__ float factor(int, int) const { return 1.f; }
};

}  // namespace ds::cuda
