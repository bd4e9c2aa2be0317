// The recurrence of state space layers on the CPU, token by token, for each head of a row or
// sequence.
#include "state_space.h"

#include "recurrence_cpu.h"

namespace ds::cpu {
namespace {

/// Runs the recurrence on `state`, with c, b, x and step as q, k, v and beta of the sequence. Calls
/// `each` with the token after its update.
template <class T, class F>
void forward(const Sequence<T>& s, compute_t<T>* state, bool keeps, F each) {
  using C = compute_t<T>;
  Row<C> b(s.d), x(s.e);
  for (int64_t t = 0; t < s.count; ++t) {
    if (s.starts(t) && !(t == 0 && keeps)) std::fill_n(state, s.d * s.e, C(0));
    else scale(state, s.factor(t), s.d * s.e);
    write(state, b.of(s.k, t), x.of(s.v, t), *s.beta.at(t), s.d, s.e);
    each(t);
  }
}

/// Runs the recurrence and writes the results at `out`, `stride` elements apart.
template <class T>
void forward(const Sequence<T>& s, compute_t<T>* state, bool keeps, T* out, int64_t stride) {
  using C = compute_t<T>;
  Row<C> c(s.d);
  std::vector<C> sums(static_cast<size_t>(s.e));
  forward<T>(s, state, keeps, [&](int64_t t) {
    read(state, c.of(s.q, t), sums.data(), s.d, s.e);
    narrow(sums.data(), out + t * stride, s.e);
  });
}

/// Computes the gradients of a head. dc and db, [T, N], belong to this head: the caller sums them
/// over the heads of a group.
template <class T>
void backward(const StateSpaceBackward& op, int64_t batch, int64_t head, compute_t<T>* dc,
              compute_t<T>* db) {
  using C = compute_t<T>;
  const Sequence<T> s = row_of<T>(op.c, op.b, op.x, op.decay, op.step, op.documents, batch, head);
  const int64_t n = s.count, d = s.d, e = s.e, h = op.x.shape[2];
  const Tokens<T> dout = tokens_of<T>(op.dout, batch, 0, head);
  std::vector<C> state(static_cast<size_t>(d * e)), dx(static_cast<size_t>(e));
  Row<C> c(d), b(d), x(e), grad(e);
  forward<T>(s, state.data(), false,
             [&](int64_t t) { read_rows(state.data(), grad.of(dout, t), dc + t * d, d, e); });
  // From here on, `state` is the gradient of the state.
  std::fill(state.begin(), state.end(), C(0));
  double later = 0;
  for (int64_t t = n - 1; t >= 0; --t) {
    const C *const ct = c.of(s.q, t), *const bt = b.of(s.k, t), step = *s.beta.at(t);
    C *const dct = dc + t * d, *const dbt = db + t * d;
    write(state.data(), ct, grad.of(dout, t), C(1), d, e);
    read(state.data(), bt, dx.data(), d, e);
    scale(dx.data(), step, e);
    narrow(dx.data(), op.dx.as<T>() + ((batch * n + t) * h + head) * e, e);
    read_rows(state.data(), x.of(s.v, t), dbt, d, e);
    const C asked = sum_of<C>(d, [&](int64_t i) { return ct[i] * dct[i]; });
    const C written = sum_of<C>(d, [&](int64_t i) { return bt[i] * dbt[i]; });
    scale(dbt, step, d);
    later += static_cast<double>(asked) - static_cast<double>(step) * written;
    const bool starts = s.starts(t);
    const int64_t at = (batch * n + t) * h + head;
    op.dstep.as<C>()[at] = written;
    op.ddecay.as<C>()[at] = starts ? C(0) : static_cast<C>(later);
    if (starts) later = 0;
    scale(state.data(), starts ? C(0) : s.factor(t), d * e);
  }
}

}  // namespace

void run(const StateSpace& op, CpuContext& ctx) {
  const int64_t t = op.x.shape[1], heads = op.x.shape[2], e = op.x.shape[3];
  if (op.out.numel() == 0) return;
  for_floating("state_space", op.c.dtype, [&]<class T>(TypeTag<T>) {
    using C = compute_t<T>;
    ctx.pool.parallel_for(op.x.shape[0] * heads, 1, [&](int64_t begin, int64_t end) {
      std::vector<C> state(static_cast<size_t>(op.c.shape[3] * e));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t batch = i / heads, head = i % heads;
        const Sequence<T> s =
            row_of<T>(op.c, op.b, op.x, op.decay, op.step, op.documents, batch, head);
        forward<T>(s, state.data(), false, op.out.as<T>() + (batch * t * heads + head) * e,
                   heads * e);
      }
    });
  });
}

void run(const StateSpaceBackward& op, CpuContext& ctx) {
  // Without states or channels, the gradients of decays and steps are zeros.
  if (op.x.numel() == 0 && op.c.numel() == 0 && op.decay.numel() == 0) return;
  for_floating("state_space_backward", op.c.dtype, [&]<class T>(TypeTag<T>) {
    for_key_heads<T>(op.c, op.x.shape[2], op.dc, op.db, ctx,
                     [&](int64_t batch, int64_t head, compute_t<T>* dc, compute_t<T>* db) {
                       backward<T>(op, batch, head, dc, db);
                     });
  });
}

void run(const StateSpaceStep& op, CpuContext& ctx) {
  constexpr const char* kOp = "state_space_step";
  if (op.lengths.numel() == 0) return;
  require_sequences(kOp, op, op.x.shape[0]);
  if (op.out.numel() == 0) return;
  const int64_t stride = op.x.shape[1] * op.x.shape[2];
  for_floating(kOp, op.c.dtype, [&]<class T>(TypeTag<T>) {
    for_sequences<T>(op, op.c, op.b, op.x, op.decay, op.step, ctx,
                     [&](const Sequence<T>& s, compute_t<T>* state, bool keeps, T* out) {
                       forward<T>(s, state, keeps, out, stride);
                     });
  });
}

}  // namespace ds::cpu
