// Tokens and states of a recurrence on the CPU: GatedDelta and StateSpace.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "../core/view.h"
#include "../cpu/index_check.h"
#include "../cpu/rows.h"

namespace ds::cpu {

/// Consecutive tokens of a value head. `stride` is the distance between tokens, in elements.
template <class T>
struct Tokens {
  const T* data;
  int64_t stride;
  const T* at(int64_t t) const { return data + t * stride; }
};

/// Returns the tokens of head `head` in [.., T, heads, width], from token `first` on.
template <class T>
Tokens<T> tokens_of(const View& x, int64_t batch, int64_t first, int64_t head) {
  const int token = x.ndim - 3;
  const int64_t before = token > 0 ? batch * x.strides[0] : 0;
  return {x.as<T>() + before + first * x.strides[token] + head * x.strides[token + 1],
          x.strides[token]};
}

/// The inputs of a head of a sequence.
template <class T>
struct Sequence {
  using C = compute_t<T>;
  Tokens<T> q, k, v;
  Tokens<C> decay, beta;
  const int32_t* documents;  // documents of its tokens, or null
  int64_t count, d, e;

  /// Returns true if the state is reset at token t.
  bool starts(int64_t t) const { return t == 0 || (documents && documents[t] != documents[t - 1]); }
  C factor(int64_t t) const { return std::exp(*decay.at(t)); }
};

/// Rows of a sequence in the compute type.
template <class C>
struct Row {
  std::vector<C> values;
  explicit Row(int64_t n) : values(static_cast<size_t>(n)) {}
  template <class T>
  const C* of(const Tokens<T>& x, int64_t t) {
    widen(x.at(t), values.data(), static_cast<int64_t>(values.size()));
    return values.data();
  }
};

/// Multiplies x by `factor`.
template <class C>
void scale(C* x, C factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

/// Computes out = state' row, with state [D, E] and row [D].
template <class C>
void read(const C* state, const C* row, C* out, int64_t d, int64_t e) {
  std::fill_n(out, e, C(0));
  for (int64_t i = 0; i < d; ++i) {
    const C factor = row[i];
    const C* const from = state + i * e;
#pragma GCC ivdep
    for (int64_t j = 0; j < e; ++j) out[j] += factor * from[j];
  }
}

/// Computes out = state row, with state [D, E] and row [E].
template <class C>
void read_rows(const C* state, const C* row, C* out, int64_t d, int64_t e) {
  for (int64_t i = 0; i < d; ++i) {
    const C* const from = state + i * e;
    out[i] = sum_of<C>(e, [&](int64_t j) { return from[j] * row[j]; });
  }
}

/// Adds sign left right' to the state.
template <class C>
void write(C* state, const C* left, const C* right, C sign, int64_t d, int64_t e) {
  for (int64_t i = 0; i < d; ++i) {
    const C factor = left[i] * sign;
    C* const to = state + i * e;
#pragma GCC ivdep
    for (int64_t j = 0; j < e; ++j) to[j] += factor * right[j];
  }
}

template <class T>
Sequence<T> row_of(const View& q, const View& k, const View& v, const View& decay, const View& beta,
                   const View& documents, int64_t batch, int64_t head) {
  using C = compute_t<T>;
  const int64_t t = v.shape[1], h = v.shape[2], key = head / (h / q.shape[2]);
  const int64_t first = batch * t * h + head;
  return {tokens_of<T>(q, batch, 0, key),
          tokens_of<T>(k, batch, 0, key),
          tokens_of<T>(v, batch, 0, head),
          {decay.as<C>() + first, h},
          {beta.as<C>() + first, h},
          documents ? documents.as<int32_t>() + batch * t : nullptr,
          t,
          q.shape[3],
          v.shape[3]};
}

/// Checks the packed sequences of a step with `rows` tokens and `slots` states. Throws DS_INDEX.
template <class Op>
void require_sequences(const char* op_name, const Op& op, int64_t rows) {
  const auto *starts = op.starts.template as<int32_t>(), *slots = op.slots.template as<int32_t>();
  for (int64_t s = 0; s < op.lengths.numel(); ++s) {
    require_index(op_name, starts[s] - starts[0], rows + 1, "the tokens");
    require_index(op_name, starts[s + 1] - starts[s], rows + 1 - (starts[s] - starts[0]),
                  "the tokens");
    if (slots[s] >= 0) require_index(op_name, slots[s], op.pool.shape[0], "the slots");
  }
}

/// Calls `each` with every sequence of a step and head: its tokens, its state [D, E], whether the
/// state continues, and its rows of `out`.
template <class T, class Op, class F>
void for_sequences(const Op& op, const View& q, const View& k, const View& v, const View& decay,
                   const View& beta, CpuContext& ctx, F each) {
  using C = compute_t<T>;
  const int64_t heads = v.shape[1], d = q.shape[2], e = v.shape[2];
  const auto *starts = op.starts.template as<int32_t>(),
             *lengths = op.lengths.template as<int32_t>(), *slots = op.slots.template as<int32_t>();
  ctx.pool.parallel_for(op.lengths.numel() * heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<C> spare(static_cast<size_t>(d * e));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t s = i / heads, head = i % heads, key = head / (heads / q.shape[1]);
      const int64_t first = starts[s] - starts[0], count = starts[s + 1] - starts[s];
      const int64_t at = first * heads + head;
      const Sequence<T> sequence{tokens_of<T>(q, 0, first, key),
                                 tokens_of<T>(k, 0, first, key),
                                 tokens_of<T>(v, 0, first, head),
                                 {decay.as<C>() + at, heads},
                                 {beta.as<C>() + at, heads},
                                 nullptr,
                                 count,
                                 d,
                                 e};
      const bool is_kept = slots[s] >= 0;
      C* const state =
          is_kept ? op.pool.template as<C>() + (slots[s] * heads + head) * d * e : spare.data();
      each(sequence, state, is_kept && lengths[s] > count, op.out.template as<T>() + at * e);
    }
  });
}

/// Computes the gradients dq and dk, like q [B, T, Hk, D]. `each` computes the gradients [T, D] of
/// one value head of `heads`. A key head gets the sum over its value heads.
template <class T, class F>
void for_key_heads(const View& q, int64_t heads, const View& dq, const View& dk, CpuContext& ctx,
                   F each) {
  using C = compute_t<T>;
  const int64_t t = q.shape[1], key_heads = q.shape[2], d = q.shape[3];
  const int64_t group = key_heads > 0 ? heads / key_heads : 0;
  ctx.pool.parallel_for(q.shape[0] * key_heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<C> own_q(static_cast<size_t>(t * d)), own_k(own_q), all_q(own_q), all_k(own_q);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / key_heads, key = i % key_heads;
      std::fill(all_q.begin(), all_q.end(), C(0));
      std::fill(all_k.begin(), all_k.end(), C(0));
      for (int64_t head = key * group; head < (key + 1) * group; ++head) {
        each(batch, head, own_q.data(), own_k.data());
        for (size_t j = 0; j < own_q.size(); ++j) {
          all_q[j] += own_q[j];
          all_k[j] += own_k[j];
        }
      }
      for (int64_t n = 0; n < t; ++n) {
        const int64_t at = ((batch * t + n) * key_heads + key) * d;
        narrow(all_q.data() + n * d, dq.as<T>() + at, d);
        narrow(all_k.data() + n * d, dk.as<T>() + at, d);
      }
    }
  });
}

}  // namespace ds::cpu
