// The gated delta rule on the CPU, token by token, for each value head of a row or sequence.
#include "gated_delta.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/rows.h"

namespace ds::cpu {
namespace {

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

/// Computes a head of a sequence.
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

/// Runs the recurrence on `state`. Calls `each` with the token, v - S'k and S'q.
template <class T, class F>
void forward(const Sequence<T>& s, compute_t<T>* state, bool keeps, F each) {
  using C = compute_t<T>;
  const int64_t d = s.d, e = s.e;
  Row<C> q(d), k(d), v(e);
  std::vector<C> missing(static_cast<size_t>(e)), u(missing), out(missing);
  for (int64_t t = 0; t < s.count; ++t) {
    const bool resets = s.starts(t) && !(t == 0 && keeps);
    if (resets) std::fill_n(state, d * e, C(0));
    else scale(state, s.factor(t), d * e);
    const C *const kt = k.of(s.k, t), *const vt = v.of(s.v, t), beta = *s.beta.at(t);
    read(state, kt, missing.data(), d, e);
    for (int64_t j = 0; j < e; ++j) {
      missing[j] = vt[j] - missing[j];
      u[j] = beta * missing[j];
    }
    write(state, kt, u.data(), C(1), d, e);
    read(state, q.of(s.q, t), out.data(), d, e);
    each(t, missing.data(), out.data());
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

/// Computes the gradients of a head. Those of queries and keys, [T, D], are later summed over the
/// heads that share a key head.
template <class T>
void backward(const GatedDeltaBackward& op, int64_t batch, int64_t head, compute_t<T>* dq,
              compute_t<T>* dk) {
  using C = compute_t<T>;
  const Sequence<T> s = row_of<T>(op.q, op.k, op.v, op.decay, op.beta, op.documents, batch, head);
  const int64_t n = s.count, d = s.d, e = s.e, h = op.v.shape[2];
  const auto tokens = [&](int64_t width) { return std::vector<C>(static_cast<size_t>(n * width)); };
  std::vector<C> state(static_cast<size_t>(d * e)), missing = tokens(e), w = tokens(e);
  std::vector<C> writes = tokens(d);  // k u' before the factor beta
  forward<T>(s, state.data(), false,
             [&](int64_t t, const C* m, const C*) { std::copy_n(m, e, missing.data() + t * e); });
  const Tokens<T> dout = tokens_of<T>(op.dout, batch, 0, head);
  Row<C> q(d), k(d), grad(e);
  std::fill(state.begin(), state.end(), C(0));
  T* const dv = op.dv.as<T>() + (batch * n * h + head) * e;
  for (int64_t t = n - 1; t >= 0; --t) {
    const C* const kt = k.of(s.k, t);
    const C beta = *s.beta.at(t);
    write(state.data(), q.of(s.q, t), grad.of(dout, t), C(1), d, e);
    C* const wt = w.data() + t * e;
    read(state.data(), kt, wt, d, e);
    scale(wt, beta, e);
    narrow(wt, dv + t * h * e, e);
    read_rows(state.data(), missing.data() + t * e, writes.data() + t * d, d, e);
    write(state.data(), kt, wt, C(-1), d, e);
    scale(state.data(), s.starts(t) ? C(0) : s.factor(t), d * e);
  }
  std::vector<C> u(static_cast<size_t>(e));
  for (int64_t t = 0; t < n; ++t) {
    scale(state.data(), s.starts(t) ? C(0) : s.factor(t), d * e);
    C* const dkt = dk + t * d;
    read_rows(state.data(), w.data() + t * e, dkt, d, e);
    for (int64_t j = 0; j < e; ++j) u[j] = *s.beta.at(t) * missing[t * e + j];
    write(state.data(), k.of(s.k, t), u.data(), C(1), d, e);
    read_rows(state.data(), grad.of(dout, t), dq + t * d, d, e);
  }
  double later = 0;
  for (int64_t t = n - 1; t >= 0; --t) {
    const C *const qt = q.of(s.q, t), *const kt = k.of(s.k, t), beta = *s.beta.at(t);
    C *const dqt = dq + t * d, *const dkt = dk + t * d, *const y = writes.data() + t * d;
    const C asked = sum_of<C>(d, [&](int64_t i) { return qt[i] * dqt[i]; });
    const C was_read = sum_of<C>(d, [&](int64_t i) { return kt[i] * dkt[i]; });
    const C written = sum_of<C>(d, [&](int64_t i) { return kt[i] * y[i]; });
    later += static_cast<double>(asked) - was_read - static_cast<double>(beta) * written;
    const int64_t at = (batch * n + t) * h + head;
    op.dbeta.as<C>()[at] = written;
    op.ddecay.as<C>()[at] = s.starts(t) ? C(0) : static_cast<C>(later);
    if (s.starts(t)) later = 0;
    for (int64_t i = 0; i < d; ++i) dkt[i] = beta * y[i] - dkt[i];
  }
}

}  // namespace

void run(const GatedDelta& op, CpuContext& ctx) {
  const int64_t heads = op.v.shape[2], e = op.v.shape[3];
  if (op.out.numel() == 0) return;
  for_floating("gated_delta", op.q.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    ctx.pool.parallel_for(op.v.shape[0] * heads, 1, [&](int64_t begin, int64_t end) {
      std::vector<C> state(static_cast<size_t>(op.q.shape[3] * e));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / heads, head = i % heads;
        const Sequence<T> s =
            row_of<T>(op.q, op.k, op.v, op.decay, op.beta, op.documents, batch, head);
        T* const out = op.out.as<T>() + (batch * s.count * heads + head) * e;
        forward<T>(s, state.data(), false,
                   [&](int64_t t, const C*, const C* o) { narrow(o, out + t * heads * e, e); });
      }
    });
  });
}

void run(const GatedDeltaBackward& op, CpuContext& ctx) {
  const int64_t key_heads = op.q.shape[2], d = op.q.shape[3], t = op.q.shape[1];
  if (op.v.numel() == 0 && op.q.numel() == 0) return;
  const int64_t group = key_heads > 0 ? op.v.shape[2] / key_heads : 0;
  for_floating("gated_delta_backward", op.q.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    ctx.pool.parallel_for(op.q.shape[0] * key_heads, 1, [&](int64_t begin, int64_t end) {
      std::vector<C> dq(static_cast<size_t>(t * d)), dk(dq), all_q(dq), all_k(dq);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / key_heads, key = i % key_heads;
        std::fill(all_q.begin(), all_q.end(), C(0));
        std::fill(all_k.begin(), all_k.end(), C(0));
        for (int64_t head = key * group; head < (key + 1) * group; ++head) {
          backward<T>(op, batch, head, dq.data(), dk.data());
          for (size_t j = 0; j < dq.size(); ++j) {
            all_q[j] += dq[j];
            all_k[j] += dk[j];
          }
        }
        for (int64_t n = 0; n < t; ++n) {
          const int64_t at = ((batch * t + n) * key_heads + key) * d;
          narrow(all_q.data() + n * d, op.dq.as<T>() + at, d);
          narrow(all_k.data() + n * d, op.dk.as<T>() + at, d);
        }
      }
    });
  });
}

void run(const GatedDeltaStep& op, CpuContext& ctx) {
  constexpr const char* kOp = "gated_delta_step";
  const int64_t sequences = op.lengths.numel(), heads = op.v.shape[1], rows = op.v.shape[0];
  const int64_t d = op.q.shape[2], e = op.v.shape[2], slots = op.pool.shape[0];
  if (sequences == 0) return;
  const auto *starts = op.starts.as<int32_t>(), *lengths = op.lengths.as<int32_t>();
  const auto* slot_of = op.slots.as<int32_t>();
  for (int64_t s = 0; s < sequences; ++s) {
    require_index(kOp, starts[s] - starts[0], rows + 1, "the tokens");
    require_index(kOp, starts[s + 1] - starts[s], rows + 1 - (starts[s] - starts[0]), "the tokens");
    if (slot_of[s] >= 0) require_index(kOp, slot_of[s], slots, "the slots");
  }
  if (op.out.numel() == 0) return;
  for_floating(kOp, op.q.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    ctx.pool.parallel_for(sequences * heads, 1, [&](int64_t begin, int64_t end) {
      std::vector<C> spare(static_cast<size_t>(d * e));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t s = i / heads, head = i % heads, key = head / (heads / op.q.shape[1]);
        const int64_t first = starts[s] - starts[0], count = starts[s + 1] - starts[s];
        const Sequence<T> sequence{tokens_of<T>(op.q, 0, first, key),
                                   tokens_of<T>(op.k, 0, first, key),
                                   tokens_of<T>(op.v, 0, first, head),
                                   {op.decay.as<C>() + first * heads + head, heads},
                                   {op.beta.as<C>() + first * heads + head, heads},
                                   nullptr,
                                   count,
                                   d,
                                   e};
        const bool is_kept = slot_of[s] >= 0;
        C* const state =
            is_kept ? op.pool.as<C>() + (slot_of[s] * heads + head) * d * e : spare.data();
        T* const out = op.out.as<T>() + (first * heads + head) * e;
        forward<T>(sequence, state, is_kept && lengths[s] > count,
                   [&](int64_t t, const C*, const C* o) { narrow(o, out + t * heads * e, e); });
      }
    });
  });
}

}  // namespace ds::cpu
