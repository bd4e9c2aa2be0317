// What stands between queries and keys: causality in every attention kernel; masks, lengths and
// dropout in those compiled for them, so that the others do not pay.
#pragma once

#include "attention.h"
#include "attention_tile.cuh"

namespace ds::cuda {

/// How a mask's elements are read: `operand` is the type of q.
enum class MaskKind : int { none, flags, f32, operand };

/// One mask, seen as [B, H, T, S]; strides in elements, 0 where it repeats.
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

/// All that stands between queries and keys beside causality.
struct ScoreFilter {
  MaskView masks[kMasks];  // of scores, and of keys
  const int* key_lengths;  // [B] or null
  AttentionDropout dropout;
  float kept;  // 1 / (1 - p)
  bool any;    // whether the kernels with all this are needed
};

/// What an element of a mask adds to a score; -infinity hides.
__device__ __forceinline__ float mask_bias(uint8_t flag) { return flag ? 0.f : -INFINITY; }
__device__ __forceinline__ float mask_bias(float number) {
  return number < static_cast<float>(kHidingNumber) ? -INFINITY : number;
}
__device__ __forceinline__ float mask_bias(__half number) { return mask_bias(to_float(number)); }
__device__ __forceinline__ float mask_bias(__nv_bfloat16 number) {
  return mask_bias(to_float(number));
}

/// Sets scores of keys after a row's last visible key to -infinity. `row` is the warp's first
/// query, `first_key` the key of column 0.
template <class Sizes, int kTiles, int kColumns>
__device__ __forceinline__ void mask_scores(float (&scores)[kTiles][kColumns][4],
                                            const Sizes& sizes, int row, int first_key) {
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

/// Sets scores of queries that do not see a key to -infinity. Rows are keys, columns queries; `key`
/// and `query` are those of row 0 and column 0.
template <class Sizes, int kTiles, int kColumns>
__device__ __forceinline__ void mask_by_key(float (&scores)[kTiles][kColumns][4],
                                            const Sizes& sizes, int key, int query) {
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

/// Which keys the queries of one head see, and which weights are dropped. hide_by_query() and
/// hide_by_key() take a warp's scores before the scale and leave -infinity where a key is hidden;
/// score() takes one score in powers of 2. drop() calls f(m, n, e, factor) with the factor of each
/// of this thread's weights, 0 or 1 / (1 - p), unless none are dropped; factor() gives that of one.
template <class T, bool kFiltered>
struct Visibility;

/// Without masks: tiles on which causality has no bearing are left alone.
template <class T>
struct Visibility<T, false> {
  const AttentionSizes& sizes;

  __device__ Visibility(const AttentionSizes& all, const ScoreFilter&, int, int) : sizes(all) {}

  __device__ void go_to(int) {}
  __device__ bool reaches(int) const { return true; }

  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_query(float (&scores)[kTiles][kColumns][4], int row,
                                                int first_key) const {
    if (first_key + 8 * kColumns - 1 > last_key(sizes, row))
      mask_scores(scores, sizes, row, first_key);
  }
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_key(float (&scores)[kTiles][kColumns][4], int key,
                                              int query) const {
    if (sizes.causal && key + 16 * kTiles - 1 > query + sizes.offset())
      mask_by_key(scores, sizes, key, query);
  }
  __device__ float score(float score_log2, int, int key, int last) const {
    return key <= last ? score_log2 : -INFINITY;
  }
  template <bool kByKey, int kTiles, int kColumns, class F>
  __device__ __forceinline__ void drop(int, int, F&&) const {}
  __device__ float factor(int, int) const { return 1.f; }
};

/// With masks, lengths and dropout. A query may see no key at all.
template <class T>
struct Visibility<T, true> {
  LimitedSizes sizes;
  const ScoreFilter& filter;
  int batch, head;

  __device__ Visibility(const AttentionSizes& all, const ScoreFilter& filter, int batch, int head)
      : sizes{all, all.keys}, filter(filter), batch(batch), head(head) {
    if (filter.key_lengths) sizes.keys = max(0, min(sizes.keys, filter.key_lengths[batch]));
  }

  /// Another query head of the same row of the batch.
  __device__ void go_to(int query_head) { head = query_head; }
  /// Whether the keys from `key` on are within the length.
  __device__ bool reaches(int key) const { return key < sizes.keys; }

  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_query(float (&scores)[kTiles][kColumns][4], int row,
                                                int first_key) const {
    hide<false>(scores, row, first_key);
    if (first_key + 8 * kColumns - 1 > last_key(sizes, row))
      mask_scores(scores, sizes, row, first_key);
  }
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_key(float (&scores)[kTiles][kColumns][4], int key,
                                              int query) const {
    hide<true>(scores, key, query);
    if (sizes.causal && key + 16 * kTiles - 1 > query + sizes.offset())
      mask_by_key(scores, sizes, key, query);
    if (key + 16 * kTiles > sizes.keys) hide_rows(scores, sizes.keys - key);
  }
  __device__ float score(float score_log2, int query, int key, int last) const {
    if (query >= sizes.rows || key > last) return -INFINITY;
    float bias = 0.f;
    for (const MaskView& mask : filter.masks) bias += bias_of(mask, query, key);
    return bias == -INFINITY ? -INFINITY : fmaf(bias, 1.4426950408889634f, score_log2);
  }

  template <bool kByKey, int kTiles, int kColumns, class F>
  __device__ __forceinline__ void drop(int row, int column, F&& f) const {
    if (filter.dropout.p == 0) return;
    const WeightDraw drawn = draw();
    const int first_row = row + threadIdx.x % 32 / 4, first = column + threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int r = first_row + m * 16 + half * 8, c = first + n * 8;
          const Philox4 words = drawn.block(kByKey ? c : r, kByKey ? r : c);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const uint32_t word = kByKey ? (r % 2 ? words.v[e * 2 + 1] : words.v[e * 2])
                                         : (r % 2 ? words.v[2 + e] : words.v[e]);
            f(m, n, half * 2 + e, drawn.keeps(word) ? filter.kept : 0.f);
          }
        }
  }
  __device__ float factor(int query, int key) const {
    if (filter.dropout.p == 0) return 1.f;
    const WeightDraw drawn = draw();
    const Philox4 words = drawn.block(query, key);
    const uint32_t of_even = query % 2 ? words.v[2] : words.v[0];
    const uint32_t of_odd = query % 2 ? words.v[3] : words.v[1];
    return drawn.keeps(key % 2 ? of_odd : of_even) ? filter.kept : 0.f;
  }

 private:
  __device__ WeightDraw draw() const {
    return weight_draw(filter.dropout, batch, head, sizes.heads, sizes.rows, sizes.all_keys);
  }

  /// Hides the warp's rows from `end` on, which may be negative.
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_rows(float (&scores)[kTiles][kColumns][4], int end) const {
    const int row = threadIdx.x % 32 / 4;  // Signed, as `end` is: all rows may lie after it.
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (m * 16 + e / 2 * 8 + row >= end) scores[m][n][e] = -INFINITY;
  }

  template <bool kByKey, int kTiles, int kColumns>
  __device__ __forceinline__ void hide(float (&scores)[kTiles][kColumns][4], int row,
                                       int column) const {
#pragma unroll 1
    for (const MaskView& mask : filter.masks) {
      if (mask.kind == MaskKind::flags) add<kByKey, uint8_t>(scores, mask, row, column);
      if (mask.kind == MaskKind::f32) add<kByKey, float>(scores, mask, row, column);
      if (mask.kind == MaskKind::operand) add<kByKey, T>(scores, mask, row, column);
    }
  }

  /// Adds one mask to a warp's scores. Rows are queries, or keys when kByKey.
  template <bool kByKey, class E, int kTiles, int kColumns>
  __device__ __forceinline__ void add(float (&scores)[kTiles][kColumns][4], const MaskView& mask,
                                      int row, int column) const {
    const int first_row = row + threadIdx.x % 32 / 4, first = column + threadIdx.x % 4 * 2;
    const int rows = kByKey ? sizes.keys : sizes.rows, columns = kByKey ? sizes.rows : sizes.keys;
    const int64_t step = kByKey ? mask.row_stride : mask.key_stride;
    const float unit = 1.f / sizes.scale;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = first_row + m * 16 + half * 8, end = r < rows ? columns : 0;
        const E* from = mask.at<E>(batch, head, kByKey ? first : r, kByKey ? r : first);
#pragma unroll
        for (int n = 0; n < kColumns; ++n, from += 8 * step)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[m][n][half * 2 + e];
            if (first + n * 8 + e >= end) continue;
            const float bias = mask_bias(from[e * step]);
            score = bias == -INFINITY ? -INFINITY : fmaf(bias, unit, score);
          }
      }
  }

  __device__ float bias_of(const MaskView& mask, int query, int key) const {
    switch (mask.kind) {
      case MaskKind::flags: return mask_bias(*mask.at<uint8_t>(batch, head, query, key));
      case MaskKind::f32: return mask_bias(*mask.at<float>(batch, head, query, key));
      case MaskKind::operand: return mask_bias(*mask.at<T>(batch, head, query, key));
      default: return 0.f;
    }
  }
};

}  // namespace ds::cuda
