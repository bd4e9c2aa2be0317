// Attention on the CPU in blocks of queries and keys. Products are small OpenBLAS calls; the
// softmax between them runs on a block of scores that stays in cache.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "../core/exponential.h"
#include "../cpu/blas.h"
#include "../cpu/rows.h"
#include "attention_filter_cpu.h"

namespace ds::cpu {
namespace {

constexpr int64_t kQueries = 64, kKeys = 128;  // a block of scores: 32 KiB of f32

/// The sizes of one call.
struct Sizes {
  int64_t b, h, hk, t, s, d;
};

template <class Op>
Sizes sizes_of(const Op& op) {
  return {op.q.shape[0], op.q.shape[1], op.k.shape[1], op.q.shape[2], op.k.shape[2], op.q.shape[3]};
}

/// A head of a [B, H, T, D] view.
template <class T>
struct Head {
  T* data;
  int64_t ld, width;

  Head(const View& v, int64_t b, int64_t h)
      : data(v.as<T>() + b * v.strides[0] + h * v.strides[1]),
        ld(v.strides[2]),
        width(v.shape[3]) {}

  T* row(int64_t i) const { return data + i * ld; }

  /// Returns the rows from `first` on for OpenBLAS: the view itself if OpenBLAS can read it,
  /// otherwise a copy in `panel` in the compute type.
  Matrix<compute_t<T>> block(int64_t first, int64_t rows, compute_t<T>* panel) const {
    if constexpr (std::is_same_v<T, compute_t<T>>) {
      if (ld >= std::max<int64_t>(1, width) && ld <= std::numeric_limits<int>::max())
        return {row(first), ld};
    }
    for (int64_t i = 0; i < rows; ++i) widen(row(first + i), panel + i * width, width);
    return {panel, std::max<int64_t>(1, width)};
  }

  void store(int64_t first, int64_t rows, const compute_t<T>* from) const {
    for (int64_t i = 0; i < rows; ++i) narrow(from + i * width, row(first + i), width);
  }
};

/// Scratch of a thread for a block of queries.
template <class C>
struct ForwardScratch {
  std::vector<C> q, k, v, scores, sum;
  C largest[kQueries], total[kQueries];

  explicit ForwardScratch(int64_t d)
      : q(static_cast<size_t>(kQueries * d)),
        k(static_cast<size_t>(kKeys * d)),
        v(k.size()),
        scores(kQueries * kKeys),
        sum(q.size()) {}
};

/// Replaces the first `seen` scores of row i by exp(score - largest) and the others by 0. Rescales
/// the row's earlier sums to the new maximum.
template <class C>
void online_softmax(ForwardScratch<C>& x, int64_t i, int64_t seen, int64_t keys, int64_t d) {
  C* const scores = x.scores.data() + i * kKeys;
  C* const sum = x.sum.data() + i * d;
  C& largest = x.largest[i];
  const C before = largest;
  largest = std::max(before, max_of(scores, seen));
  const C shift = largest == -std::numeric_limits<C>::infinity() ? C(0) : largest;
  for (int64_t j = 0; j < seen; ++j) scores[j] = exp_of(scores[j] - shift);
  std::fill(scores + seen, scores + keys, C(0));
  const C correction = exp_of(before - shift);
  x.total[i] = x.total[i] * correction + sum_of<C>(seen, [&](int64_t j) { return scores[j]; });
  if (correction != C(1))
    for (int64_t j = 0; j < d; ++j) sum[j] *= correction;
}

/// Applies dropout to the weights of n keys from `key` on.
template <class C, class Filter>
void drop(const Filter& filter, C* weights, int64_t query, int64_t key, int64_t n) {
  if (!filter.drops()) return;
  C factors[kKeys];
  filter.factors(factors, query, key, n);
  for (int64_t j = 0; j < n; ++j) weights[j] *= factors[j];
}

template <class T>
void forward_block(const Attention& op, const Sizes& s, int64_t b, int64_t h, int64_t first) {
  using C = compute_t<T>;
  const Head<T> q(op.q, b, h), out(op.out, b, h);
  const Head<T> k(op.k, b, h / (s.h / s.hk)), v(op.v, b, h / (s.h / s.hk));
  const HeadFilter<C, Attention> filter(op, b, h);
  ForwardScratch<C> x(s.d);
  const int64_t rows = std::min(kQueries, s.t - first);
  const auto queries = q.block(first, rows, x.q.data());
  std::fill_n(x.largest, rows, -std::numeric_limits<C>::infinity());
  std::fill_n(x.total, rows, C(0));
  for (int64_t key = 0; key < filter.keys(); key += kKeys) {
    const int64_t keys = std::min(kKeys, filter.keys() - key);
    if (!filter.meet(first, rows, key, keys)) continue;
    auto block = k.block(key, keys, x.k.data());
    block.transposed = true;
    gemm<C>(rows, keys, s.d, static_cast<C>(op.scale), queries, block, C(0), x.scores.data(),
            kKeys);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t seen = filter.seen(first + i, key, keys);
      cap_scores(x.scores.data() + i * kKeys, seen, static_cast<C>(op.cap));
      filter.mask(x.scores.data() + i * kKeys, first + i, key, seen);
      online_softmax(x, i, seen, keys, s.d);
      drop(filter, x.scores.data() + i * kKeys, first + i, key, seen);
    }
    gemm<C>(rows, s.d, keys, C(1), {x.scores.data(), kKeys}, v.block(key, keys, x.v.data()), C(1),
            x.sum.data(), std::max<int64_t>(1, s.d));
  }
  C* const lse = op.lse.as<C>() + (b * s.h + h) * s.t + first;
  for (int64_t i = 0; i < rows; ++i) {
    lse[i] = x.largest[i] + std::log(x.total[i]);
    const C inverse = x.total[i] == C(0) ? C(0) : C(1) / x.total[i];
    for (int64_t j = 0; j < s.d; ++j) x.sum[static_cast<size_t>(i * s.d + j)] *= inverse;
  }
  out.store(first, rows, x.sum.data());
}

/// Scratch of a thread for the gradients of a key head. dq belongs to one query head.
template <class C>
struct BackwardScratch {
  std::vector<C> dq, dk, dv, delta;
  std::vector<C> q, k, v, dout, out, scores, dscores;

  explicit BackwardScratch(const Sizes& s)
      : dq(static_cast<size_t>(s.t * s.d)),
        dk(static_cast<size_t>(s.s * s.d)),
        dv(dk.size()),
        delta(static_cast<size_t>(s.t)),
        q(static_cast<size_t>(kQueries * s.d)),
        k(static_cast<size_t>(kKeys * s.d)),
        v(k.size()),
        dout(q.size()),
        out(static_cast<size_t>(2 * s.d)),
        scores(kQueries * kKeys),
        dscores(scores.size()) {}
};

/// Writes delta[t] = sum(out[t] * dout[t]).
template <class T>
void row_products(const Head<T>& out, const Head<T>& dout, int64_t rows,
                  BackwardScratch<compute_t<T>>& x) {
  using C = compute_t<T>;
  C* const left = x.out.data();
  C* const right = left + out.width;
  for (int64_t i = 0; i < rows; ++i) {
    widen(out.row(i), left, out.width);
    widen(dout.row(i), right, out.width);
    x.delta[static_cast<size_t>(i)] =
        sum_of<C>(out.width, [&](int64_t j) { return left[j] * right[j]; });
  }
}

/// Computes p = exp(s - lse) and ds = p (dp - delta) of a row from the scores s and dp = dout v^T,
/// and 0 for hidden keys. A row that sees no key has lse = -infinity and becomes 0. With dropout,
/// the caller has applied it to dp before and applies it to p afterwards. With a cap, ds is the
/// gradient of the score before the cap.
template <class C>
void score_gradient(C* scores, C* dscores, int64_t seen, int64_t keys, C lse, C delta, C cap) {
  if (lse == -std::numeric_limits<C>::infinity()) seen = 0;
  for (int64_t j = 0; j < seen; ++j) {
    const C p = exp_of(scores[j] - lse);
    dscores[j] = p * (dscores[j] - delta);
    const C t = cap == C(0) || p == C(0) ? C(0) : scores[j] / cap;
    dscores[j] *= C(1) - t * t;
    scores[j] = p;
  }
  std::fill(scores + seen, scores + keys, C(0));
  std::fill(dscores + seen, dscores + keys, C(0));
}

/// Adds the contributions of a query head to dk and dv, and writes its dq.
template <class T>
void backward_head(const AttentionBackward& op, const Sizes& s, int64_t b, int64_t h,
                   BackwardScratch<compute_t<T>>& x) {
  using C = compute_t<T>;
  const int64_t hk = h / (s.h / s.hk), ld = std::max<int64_t>(1, s.d);
  const Head<T> q(op.q, b, h), k(op.k, b, hk), v(op.v, b, hk), dout(op.dout, b, h);
  const HeadFilter<C, AttentionBackward> filter(op, b, h);
  const C* const lse = op.lse.as<C>() + (b * s.h + h) * s.t;
  const C scale = static_cast<C>(op.scale);
  std::fill(x.dq.begin(), x.dq.end(), C(0));
  row_products(Head<T>(op.out, b, h), dout, s.t, x);
  for (int64_t key = 0; key < filter.keys(); key += kKeys) {
    const int64_t keys = std::min(kKeys, filter.keys() - key);
    const auto k_rows = k.block(key, keys, x.k.data()), v_rows = v.block(key, keys, x.v.data());
    const Matrix<C> k_columns{k_rows.data, k_rows.ld, true};
    const Matrix<C> v_columns{v_rows.data, v_rows.ld, true};
    C* const dk = x.dk.data() + key * s.d;
    C* const dv = x.dv.data() + key * s.d;
    for (int64_t first = 0; first < s.t; first += kQueries) {
      const int64_t rows = std::min(kQueries, s.t - first);
      if (!filter.meet(first, rows, key, keys)) continue;
      const auto q_rows = q.block(first, rows, x.q.data());
      const auto dout_rows = dout.block(first, rows, x.dout.data());
      gemm<C>(rows, keys, s.d, scale, q_rows, k_columns, C(0), x.scores.data(), kKeys);
      gemm<C>(rows, keys, s.d, C(1), dout_rows, v_columns, C(0), x.dscores.data(), kKeys);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t query = first + i, seen = filter.seen(query, key, keys);
        C* const scores = x.scores.data() + i * kKeys;
        C* const dscores = x.dscores.data() + i * kKeys;
        cap_scores(scores, seen, static_cast<C>(op.cap));
        filter.mask(scores, query, key, seen);
        drop(filter, dscores, query, key, seen);
        score_gradient(scores, dscores, seen, keys, lse[query], x.delta[static_cast<size_t>(query)],
                       static_cast<C>(op.cap));
        drop(filter, scores, query, key, seen);
      }
      const Matrix<C> ds{x.dscores.data(), kKeys};
      gemm<C>(keys, s.d, rows, C(1), {x.scores.data(), kKeys, true}, dout_rows, C(1), dv, ld);
      gemm<C>(keys, s.d, rows, scale, {ds.data, kKeys, true}, q_rows, C(1), dk, ld);
      gemm<C>(rows, s.d, keys, scale, ds, k_rows, C(1), x.dq.data() + first * s.d, ld);
    }
  }
  Head<T>(op.dq, b, h).store(0, s.t, x.dq.data());
}

}  // namespace

void run(const Attention& op, CpuContext& ctx) {
  constexpr const char* name = "attention";
  const Sizes s = sizes_of(op);
  const int64_t blocks = (s.t + kQueries - 1) / kQueries;
  for_floating(name, op.q.dtype, [&]<class T>(TypeTag<T>) {
    ctx.pool.parallel_for(s.b * s.h * blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / blocks;
        forward_block<T>(op, s, head / s.h, head % s.h, i % blocks * kQueries);
      }
    });
  });
}

void run(const AttentionBackward& op, CpuContext& ctx) {
  constexpr const char* name = "attention_backward";
  const Sizes s = sizes_of(op);
  for_floating(name, op.q.dtype, [&]<class T>(TypeTag<T>) {
    ctx.pool.parallel_for(s.b * s.hk, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        BackwardScratch<compute_t<T>> scratch(s);
        const int64_t b = i / s.hk, hk = i % s.hk, group = s.h / s.hk;
        for (int64_t h = hk * group; h < (hk + 1) * group; ++h)
          backward_head<T>(op, s, b, h, scratch);
        Head<T>(op.dk, b, hk).store(0, s.s, scratch.dk.data());
        Head<T>(op.dv, b, hk).store(0, s.s, scratch.dv.data());
      }
    });
  });
}

}  // namespace ds::cpu
