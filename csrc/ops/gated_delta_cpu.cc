// The gated delta rule on the CPU, token by token, for each value head of a row or sequence.
#include "gated_delta.h"

#include "recurrence_cpu.h"

namespace ds::cpu {
namespace {

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
  // Without channels, the gradients of decays and betas are zeros.
  if (op.v.numel() == 0 && op.q.numel() == 0 && op.decay.numel() == 0) return;
  for_floating("gated_delta_backward", op.q.dtype, [&]<class T>(TypeTag<T>) {
    for_key_heads<T>(op.q, op.v.shape[2], op.dq, op.dk, ctx,
                     [&](int64_t batch, int64_t head, compute_t<T>* dq, compute_t<T>* dk) {
                       backward<T>(op, batch, head, dq, dk);
                     });
  });
}

void run(const GatedDeltaStep& op, CpuContext& ctx) {
  constexpr const char* kOp = "gated_delta_step";
  if (op.lengths.numel() == 0) return;
  require_sequences(kOp, op, op.v.shape[0]);
  if (op.out.numel() == 0) return;
  const int64_t e = op.v.shape[2], stride = op.v.shape[1] * e;
  for_floating(kOp, op.q.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    for_sequences<T>(op, op.q, op.k, op.v, op.decay, op.beta, ctx,
                     [&](const Sequence<T>& s, C* state, bool keeps, T* out) {
                       forward<T>(s, state, keeps, [&](int64_t t, const C*, const C* o) {
                         narrow(o, out + t * stride, e);
                       });
                     });
  });
}

}  // namespace ds::cpu
