// Cross-entropy on the CPU: rows in parallel. Each row is read twice, in blocks that stay in cache.
#include "cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../core/exponential.h"
#include "../cpu/rows.h"

namespace ds::cpu {
namespace {

constexpr int64_t kBlock = 1024;             // logits converted at a time
constexpr int64_t kGrainElements = 1 << 14;  // logits per task

int64_t rows_per_task(int64_t width) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, width));
}

/// The column of rows that are not counted. No column has this number.
constexpr int64_t kIgnored = std::numeric_limits<int64_t>::min();

/// Returns the column of a row's target. It is outside of the columns if another rank has it, and
/// kIgnored if the row is not counted.
template <class I, class Op>
int64_t column_of(const char* name, const Op& op, int64_t row) {
  const int64_t t = static_cast<int64_t>(op.target.template as<I>()[row]);
  if (t == op.ignore_index) return kIgnored;
  const int64_t classes = all_classes(op);
  if (t >= 0 && t < classes) return t - op.first;
  throw Error("DS_INDEX", name, text("a target in [0, ", classes, ") or ", op.ignore_index),
              text(t, " at row ", row), "Check the tokens against the vocabulary size.");
}

/// Results of the first pass over a row of logits.
template <class C>
struct RowFacts {
  C largest = -std::numeric_limits<C>::infinity();
  double sum = 0;          // sum of all logits, if `whole`
  bool is_beaten = false;  // another class beats the target, if `whole`
};

/// Returns the largest of n logits. If `whole`, also computes the other members, for the target's
/// column `t` with logit `own`.
template <class T, class C>
RowFacts<C> facts_of(const T* x, int64_t n, int64_t t, C own, bool whole) {
  C block[kBlock];
  RowFacts<C> facts;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = std::min(kBlock, n - i);
    widen(x + i, block, count);
    facts.largest = std::max(facts.largest, max_of(block, count));
    if (!whole) continue;
    facts.sum += static_cast<double>(sum_of<C>(count, [&](int64_t j) { return block[j]; }));
    for (int64_t j = 0; j < count; ++j)
      facts.is_beaten |= block[j] > own || (block[j] == own && i + j < t);
  }
  return facts;
}

/// Returns log(sum(exp(x))) of n logits with maximum `largest`. Sums of blocks are added in f64.
template <class T>
compute_t<T> log_sum_exp(const T* x, int64_t n, compute_t<T> largest) {
  using C = compute_t<T>;
  C block[kBlock];
  double sum = 0;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = std::min(kBlock, n - i);
    widen(x + i, block, count);
    const auto term = [&](int64_t j) { return exp_of(block[j] - largest); };
    sum += static_cast<double>(sum_of<C>(count, term));
  }
  return static_cast<C>(static_cast<double>(largest) + std::log(sum));
}

template <class T, class I>
void forward_rows(const CrossEntropy& op, int64_t begin, int64_t end) {
  using C = compute_t<T>;
  const int64_t columns = op.logits.shape[1];
  int64_t* const correct = op.correct ? op.correct.as<int64_t>() : nullptr;
  const bool whole = correct || op.smoothing > 0;
  for (int64_t row = begin; row < end; ++row) {
    const T* const logits = op.logits.as<T>() + row * op.logits.strides[0];
    const int64_t t = column_of<I>("cross_entropy", op, row);
    op.lse.as<C>()[row] = op.losses.as<C>()[row] = C(0);
    if (correct) correct[row] = 0;
    if (t == kIgnored) continue;
    const bool is_here = t >= 0 && t < columns;
    const C own = is_here ? static_cast<C>(logits[t]) : C(0);
    const RowFacts<C> facts = facts_of(logits, columns, t, own, whole);
    const C lse = log_sum_exp(logits, columns, facts.largest);
    C loss = lse - own;
    if (op.smoothing > 0) {
      const double mean = facts.sum / static_cast<double>(all_classes(op));
      loss += static_cast<C>(op.smoothing * (static_cast<double>(own) - mean));
    }
    op.lse.as<C>()[row] = lse;
    op.losses.as<C>()[row] = loss;
    if (correct) correct[row] = is_here && lse == lse && !facts.is_beaten;
  }
}

template <class T, class I>
void backward_rows(const CrossEntropyBackward& op, int64_t begin, int64_t end) {
  using C = compute_t<T>;
  const int64_t columns = op.logits.shape[1];
  const C scale = *op.scale.as<C>();
  const C even = static_cast<C>(op.smoothing / static_cast<double>(all_classes(op)));
  const C share = static_cast<C>(1 - op.smoothing);
  constexpr const char* name = "cross_entropy_backward";
  C block[kBlock];
  for (int64_t row = begin; row < end; ++row) {
    const T* const logits = op.logits.as<T>() + row * op.logits.strides[0];
    T* const out = op.dlogits.as<T>() + row * op.dlogits.strides[0];
    const int64_t t = column_of<I>(name, op, row);
    if (t == kIgnored) {
      std::fill_n(out, columns, static_cast<T>(C(0)));
      continue;
    }
    const C lse = op.lse.as<C>()[row];
    for (int64_t i = 0; i < columns; i += kBlock) {
      const int64_t count = std::min(kBlock, columns - i);
      widen(logits + i, block, count);
      for (int64_t j = 0; j < count; ++j) block[j] = exp_of(block[j] - lse);
      if (even > 0)
        for (int64_t j = 0; j < count; ++j) block[j] -= even;
      if (t >= i && t < i + count) block[t - i] -= share;
      for (int64_t j = 0; j < count; ++j) block[j] *= scale;
      narrow(block, out + i, count);
    }
  }
}

}  // namespace

void run(const CrossEntropy& op, CpuContext& ctx) {
  constexpr const char* name = "cross_entropy";
  const int64_t rows = op.logits.shape[0], columns = op.logits.shape[1];
  for_floating(name, op.logits.dtype, [&]<class T>(TypeTag<T>) {
    dispatch_index(name, op.target.dtype, [&]<class I>(TypeTag<I>) {
      ctx.pool.parallel_for(rows, rows_per_task(columns), [&](int64_t begin, int64_t end) {
        forward_rows<T, I>(op, begin, end);
      });
    });
  });
}

void run(const CrossEntropyBackward& op, CpuContext& ctx) {
  constexpr const char* name = "cross_entropy_backward";
  const int64_t rows = op.logits.shape[0], columns = op.logits.shape[1];
  for_floating(name, op.logits.dtype, [&]<class T>(TypeTag<T>) {
    dispatch_index(name, op.target.dtype, [&]<class I>(TypeTag<I>) {
      ctx.pool.parallel_for(rows, rows_per_task(columns), [&](int64_t begin, int64_t end) {
        backward_rows<T, I>(op, begin, end);
      });
    });
  });
}

}  // namespace ds::cpu
