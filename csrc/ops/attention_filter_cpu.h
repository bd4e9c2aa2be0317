// Decides on the CPU which keys each query of a head sees: by bands, documents, block layouts,
// lengths, masks and dropout.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "../cpu/cpu_context.h"
#include "attention.h"

namespace ds::cpu {

/// The documents of a row of the batch. If absent, all tokens belong to one document.
class DocumentRow {
 public:
  DocumentRow(const View& documents, int64_t b) {
    if (!documents) return;
    first = documents.as<int32_t>() + b * documents.strides[0];
    stride = documents.strides[1];
  }

  bool given() const { return first != nullptr; }
  int32_t operator[](int64_t i) const { return first[i * stride]; }

  /// Returns the smallest and largest document of n tokens from `begin` on, without padding.
  std::pair<int32_t, int32_t> span(int64_t begin, int64_t n) const {
    std::pair<int32_t, int32_t> span{std::numeric_limits<int32_t>::max(), -1};
    for (int64_t i = begin; i < begin + n; ++i) {
      const int32_t document = (*this)[i];
      if (document < 0) continue;
      span = {std::min(span.first, document), std::max(span.second, document)};
    }
    return span;
  }

 private:
  const int32_t* first = nullptr;
  int64_t stride = 0;
};

/// Decides which keys the queries of head `h` in row `b` of the batch see. C is the type of scores.
template <class C, class Op>
class HeadFilter {
 public:
  HeadFilter(const Op& op, int64_t b, int64_t h)
      : op(op),
        b(b),
        h(h),
        offset(op.k.shape[2] - op.q.shape[2]),
        length(op.k.shape[2]),
        band(band_of(op)),
        queries(op.query_documents, b),
        others(op.key_documents, b),
        layout(layout_of(op)),
        draw(weight_draw(op.dropout, b, h, op.q.shape[1], op.q.shape[2], length)) {
    if (op.key_lengths)
      length = std::clamp<int64_t>(op.key_lengths.template as<int32_t>()[b], 0, length);
  }

  /// Returns the number of keys in this row of the batch.
  int64_t keys() const { return length; }

  /// Returns how many of the `keys` keys from `key` on precede the end of the query's band.
  int64_t seen(int64_t query, int64_t key, int64_t keys) const {
    return std::clamp<int64_t>(query + offset + band.after + 1 - key, 0, keys);
  }

  /// Returns true if any of `rows` queries may see any of `keys` keys by bands, layouts and
  /// documents.
  bool meet(int64_t query, int64_t rows, int64_t key, int64_t keys) const {
    if (seen(query + rows - 1, key, keys) == 0) return false;
    if (query + offset - band.before >= key + keys) return false;
    if (!layout.meet(h, query, rows, key, keys)) return false;
    if (!queries.given()) return true;
    const auto mine = queries.span(query, rows), theirs = others.span(key, keys);
    return mine.first <= theirs.second && theirs.first <= mine.second;
  }

  /// Adds masks to the scores of n keys from `key` on. Scores of hidden keys become -infinity.
  void mask(C* scores, int64_t query, int64_t key, int64_t n) const {
    constexpr C kHidden = -std::numeric_limits<C>::infinity();
    std::fill_n(scores, std::clamp<int64_t>(query + offset - band.before - key, 0, n), kHidden);
    if (queries.given()) {
      const int32_t mine = queries[query];
      for (int64_t i = 0; i < n; ++i)
        if (mine < 0 || others[key + i] != mine) scores[i] = kHidden;
    }
    if (layout.words) {
      const int64_t block = op.block;
      for (int64_t i = 0; i < n; i += block - (key + i) % block) {
        if (layout.word(h, query, key + i) >> layout.bit(key + i) & 1) continue;
        std::fill_n(scores + i, std::min(block - (key + i) % block, n - i), kHidden);
      }
    }
    if (const View& m = op.mask) {
      const int64_t* const s = m.strides;
      add(m, b * s[0] + h * s[1] + query * s[2] + key * s[3], s[3], scores, n);
    }
    if (const View& m = op.key_mask)
      add(m, b * m.strides[0] + key * m.strides[1], m.strides[1], scores, n);
  }

  bool drops() const { return draw.p > 0; }

  /// Writes the dropout factors, 0 or 1 / (1 - p), of n keys from `key` on. `key` is even.
  void factors(C* out, int64_t query, int64_t key, int64_t n) const {
    const C kept = C(1) / (C(1) - static_cast<C>(op.dropout.p));
    for (int64_t i = 0; i < n; i += 2) {
      const Philox4 words = draw.block(query, key + i);
      for (int64_t j = i; j < std::min(i + 2, n); ++j)
        out[j] = draw.keeps(words.v[query % 2 * 2 + j % 2]) ? kept : C(0);
    }
  }

 private:
  const Op& op;
  int64_t b, h, offset, length;
  AttentionBand band;
  DocumentRow queries, others;
  BlockLayout layout;
  WeightDraw draw;

  static void add(const View& mask, int64_t first, int64_t stride, C* scores, int64_t n) {
    for_all("attention", mask.dtype, [&](auto tag) {
      using M = typename decltype(tag)::type;
      const M* const from = mask.as<M>() + first;
      for (int64_t i = 0; i < n; ++i) {
        const M value = from[i * stride];
        bool hides;
        if constexpr (std::is_same_v<M, bool>) hides = !value;
        else hides = static_cast<C>(value) < static_cast<C>(kHidingNumber);
        if (hides) scores[i] = -std::numeric_limits<C>::infinity();
        else if constexpr (!std::is_same_v<M, bool>) scores[i] += static_cast<C>(value);
      }
    });
  }
};

}  // namespace ds::cpu
