// What stands between queries and keys of one head on the CPU: causality, lengths, masks and dropout.
#pragma once

#include <algorithm>
#include <limits>

#include "../cpu/cpu_context.h"
#include "attention.h"

namespace ds::cpu {

/// Which keys the queries of head `h` in row `b` of the batch see; C is the type of scores.
template <class C, class Op>
class HeadFilter {
 public:
  HeadFilter(const Op& op, int64_t b, int64_t h)
      : op(op), b(b), h(h), offset(op.k.shape[2] - op.q.shape[2]), length(op.k.shape[2]),
        draw(weight_draw(op.dropout, b, h, op.q.shape[1], op.q.shape[2], length)) {
    if (op.key_lengths)
      length = std::clamp<int64_t>(op.key_lengths.template as<int32_t>()[b], 0, length);
  }

  /// How many keys a query of this row of the batch may see.
  int64_t keys() const { return length; }

  /// How many of `keys` keys from `key` on causality lets the query see.
  int64_t seen(int64_t query, int64_t key, int64_t keys) const {
    return op.causal ? std::clamp<int64_t>(query + offset + 1 - key, 0, keys) : keys;
  }

  /// Adds the masks to the scores of n keys from `key` on; -infinity where they hide one.
  void mask(C* scores, int64_t query, int64_t key, int64_t n) const {
    if (const View& m = op.mask) {
      const int64_t* const s = m.strides;
      add(m, b * s[0] + h * s[1] + query * s[2] + key * s[3], s[3], scores, n);
    }
    if (const View& m = op.key_mask)
      add(m, b * m.strides[0] + key * m.strides[1], m.strides[1], scores, n);
  }

  bool drops() const { return draw.p > 0; }

  /// 0 or 1 / (1 - p) for the weights of n keys from `key` on, which is even.
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
