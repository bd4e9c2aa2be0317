// Sums over rows of logits on the CPU: rows in parallel, read in blocks that stay in cache.
#include "logit_sums.h"

#include <algorithm>

#include "../core/exponential.h"
#include "../cpu/rows.h"

namespace ds::cpu {
namespace {

constexpr int64_t kBlock = 1024;             // logits converted at a time
constexpr int64_t kGrainElements = 1 << 14;  // logits per task

template <class T, class I>
void sum_rows(const LogitSums& op, int64_t begin, int64_t end) {
  using C = compute_t<T>;
  const int64_t columns = op.logits.shape[1];
  C block[kBlock];
  for (int64_t row = begin; row < end; ++row) {
    op.expected.as<C>()[row] = op.total.as<C>()[row] = C(0);
    if (static_cast<int64_t>(op.target.as<I>()[row]) == op.ignore_index) continue;
    const T* const logits = op.logits.as<T>() + row * op.logits.strides[0];
    const C lse = op.lse.as<C>()[row];
    double expected = 0, total = 0;
    for (int64_t i = 0; i < columns; i += kBlock) {
      const int64_t count = std::min(kBlock, columns - i);
      widen(logits + i, block, count);
      const auto weighted = [&](int64_t j) {
        const C p = exp_of(block[j] - lse);
        return p == C(0) ? C(0) : p * block[j];
      };
      expected += static_cast<double>(sum_of<C>(count, weighted));
      total += static_cast<double>(sum_of<C>(count, [&](int64_t j) { return block[j]; }));
    }
    op.expected.as<C>()[row] = static_cast<C>(expected);
    op.total.as<C>()[row] = static_cast<C>(total);
  }
}

}  // namespace

void run(const LogitSums& op, CpuContext& ctx) {
  constexpr const char* name = "logit_sums";
  const int64_t rows = op.logits.shape[0], columns = op.logits.shape[1];
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, columns));
  for_floating(name, op.logits.dtype, [&]<class T>(TypeTag<T>) {
    dispatch_index(name, op.target.dtype, [&]<class I>(TypeTag<I>) {
      ctx.pool.parallel_for(rows, grain,
                            [&](int64_t begin, int64_t end) { sum_rows<T, I>(op, begin, end); });
    });
  });
}

}  // namespace ds::cpu
