// Visibility for Hiding::elements: block layouts, masks, dropout and caps, in addition to bands.
#pragma once

#include "attention_band.cuh"

namespace ds::cuda {

/// Returns the number that a mask element adds to a score; -infinity hides the key.
__device__ __forceinline__ float mask_bias(uint8_t flag) { return flag ? 0.f : -INFINITY; }
__device__ __forceinline__ float mask_bias(float number) {
  return number < static_cast<float>(kHidingNumber) ? -INFINITY : number;
}
__device__ __forceinline__ float mask_bias(__half number) { return mask_bias(to_float(number)); }
__device__ __forceinline__ float mask_bias(__nv_bfloat16 number) {
  return mask_bias(to_float(number));
}

/// Finds the tiles of keys that a head's block layout shows to kRows queries from `row` on.
template <int kRows, int kKeys>
struct LaidKeys {
  BlockLayout layout;
  int head, row;

  __device__ bool meets(int key) const { return layout.meet(head, row, kRows, key, kKeys); }
};

/// Finds the tiles of queries that see at least one of kKeys keys from `key` on, in the layout of
/// at least one of `heads` heads.
template <int kRows, int kKeys>
struct LaidRows {
  BlockLayout layout;
  int head, heads, key;

  __device__ bool meets(int row) const {
    for (int h = head; h < head + heads; ++h)
      if (layout.meet(h, row, kRows, key, kKeys)) return true;
    return false;
  }
};

/// Applies all filters: bands, documents, lengths, block layouts, masks, dropout and caps.
template <class T>
struct Visibility<T, Hiding::elements> : Visibility<T, Hiding::tiles> {
  using Tiles = Visibility<T, Hiding::tiles>;
  using Tiles::batch;
  using Tiles::filter;
  using Tiles::sizes;
  int head;

  __device__ Visibility(const AttentionSizes& all, const ScoreFilter& filter, int batch, int head)
      : Tiles(all, filter, batch, head), head(head) {}

  /// Continues with another query head of the same row of the batch.
  __device__ void go_to(int query_head) { head = query_head; }

  template <int kRows, int kKeys>
  __device__ MetTiles<kKeys, LaidKeys<kRows, kKeys>> key_tiles(int row) const {
    const auto band = Tiles::template key_tiles<kRows, kKeys>(row);
    return {band.spans, band.block, band.begin, band.end, {filter.layout, head, row}};
  }
  /// Returns the tiles for this head and the next heads that share its keys.
  template <int kRows, int kKeys>
  __device__ MetTiles<kRows, LaidRows<kRows, kKeys>> row_tiles(int key) const {
    const auto band = Tiles::template row_tiles<kRows, kKeys>(key);
    return {
        band.spans, band.block, band.begin, band.end, {filter.layout, head, sizes.group(), key}};
  }
  template <int kRows, int kKeys>
  __device__ __forceinline__ bool hidden(int row, int key) const {
    return Tiles::template hidden<kRows, kKeys>(row, key) ||
           !filter.layout.meet(head, row, kRows, key, kKeys);
  }

  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_query(float (&scores)[kTiles][kColumns][4], int row,
                                                int first_key) const {
    hide_by_query(scores, row, first_key,
                  Tiles::template mixed<16 * kTiles, 8 * kColumns>(row, first_key));
  }
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_query(float (&scores)[kTiles][kColumns][4], int row,
                                                int first_key, bool is_mixed) const {
    if (filter.cap.is_set()) filter.cap.apply(scores);
    hide<false>(scores, row, first_key);
    if (filter.layout.words) hide_blocks<false>(scores, row, first_key);
    Tiles::hide_by_query(scores, row, first_key, is_mixed);
  }
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_key(float (&scores)[kTiles][kColumns][4], int key,
                                              int query) const {
    hide_by_key(scores, key, query, Tiles::template mixed<8 * kColumns, 16 * kTiles>(query, key));
  }
  template <int kTiles, int kColumns>
  __device__ __forceinline__ void hide_by_key(float (&scores)[kTiles][kColumns][4], int key,
                                              int query, bool is_mixed) const {
    if (filter.cap.is_set()) filter.cap.apply(scores);
    hide<true>(scores, key, query);
    if (filter.layout.words) hide_blocks<true>(scores, key, query);
    Tiles::hide_by_key(scores, key, query, is_mixed);
  }
  __device__ float score(float score_log2, int query, int key, int last) const {
    if (Tiles::score(score_log2, query, key, last) == -INFINITY) return -INFINITY;
    if (!filter.layout.meet(head, query, 1, key, 1)) return -INFINITY;
    float bias = 0.f;
    for (const MaskView& mask : filter.masks) bias += bias_of(mask, query, key);
    if (bias == -INFINITY) return -INFINITY;
    if (filter.cap.is_set()) score_log2 = ScoreCap::bounded(score_log2, filter.cap.powers);
    return fmaf(bias, 1.4426950408889634f, score_log2);
  }
  __device__ bool caps() const { return filter.cap.is_set(); }
  __device__ float slope(float score_log2) const { return filter.cap.slope(score_log2); }

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

  /// Hides keys of blocks that the query's block does not see. 16 x 16 scores belong to one block.
  /// Rows are queries, or keys if kByKey.
  template <bool kByKey, int kTiles, int kColumns>
  __device__ __forceinline__ void hide_blocks(float (&scores)[kTiles][kColumns][4], int row,
                                              int column) const {
    static_assert(kColumns % 2 == 0 && kLeastBlock == 16);
    const BlockLayout& layout = filter.layout;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        const int r = row + m * 16, c = column + n * 8;
        const int query = kByKey ? c : r, key = kByKey ? r : c;
        if (layout.word(head, query, key) >> layout.bit(key) & 1) continue;
#pragma unroll
        for (int e = 0; e < 8; ++e) scores[m][n + e / 4][e % 4] = -INFINITY;
      }
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

  /// Adds a mask to a warp's scores. Rows are queries, or keys if kByKey.
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
