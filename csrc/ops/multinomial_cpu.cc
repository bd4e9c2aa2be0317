// Draws categories on the CPU, row by row.
#include "multinomial.h"

#include <numeric>
#include <vector>

#include "../cpu/map.h"
#include "multinomial_math.h"

namespace ds::cpu {
namespace {

constexpr const char* kOp = "multinomial";

Philox4 words_of(const Multinomial& op, int64_t block) {
  return philox(static_cast<uint64_t>(op.seed), static_cast<uint64_t>(op.offset),
                static_cast<uint64_t>(block));
}

/// Throws DS_ARGUMENT if `draws` categories cannot be drawn from a row.
void require_row(const std::vector<float>& row, int64_t number, int64_t draws, bool replacement) {
  int64_t positive = 0;
  for (const float p : row) {
    if (!is_probability(p)) {
      throw Error("DS_ARGUMENT", kOp, "probabilities that are finite and not negative",
                  text(p, " in row ", number), "softmax() makes probabilities of scores.");
    }
    positive += p >= 0x1p-126f;
  }
  const int64_t needed = replacement ? 1 : draws;
  if (positive >= needed) return;
  throw Error(
      "DS_ARGUMENT", kOp, text("at least ", needed, " positive probabilities in a row"),
      text(positive, " in row ", number),
      replacement ? "A row of zeros leaves nothing to draw." : "Draw with replacement, or fewer.");
}

void draw_with_replacement(const Multinomial& op, int64_t number, const std::vector<float>& row,
                           std::vector<int64_t>& sums) {
  const float max = *std::max_element(row.begin(), row.end());
  int64_t total = 0;
  for (size_t i = 0; i < row.size(); ++i) sums[i] = total += weight_of(row[i], max);
  const int64_t draws = op.index.shape[1];
  for (int64_t k = 0; k < draws; ++k) {
    const int64_t at = number * draws + k;
    const Philox4 words = words_of(op, at);
    const int64_t target = below(total, words.v[0], words.v[1]);
    op.index.as<int64_t>()[at] = std::upper_bound(sums.begin(), sums.end(), target) - sums.begin();
  }
}

void draw_without_replacement(const Multinomial& op, int64_t number, std::vector<float>& row,
                              std::vector<int64_t>& order) {
  const int64_t draws = op.index.shape[1], first = number * op.in.shape[1];
  for (size_t i = 0; i < row.size(); ++i) {
    const int64_t element = first + static_cast<int64_t>(i);
    row[i] = race_key(row[i], words_of(op, element / 4).v[element % 4]);
  }
  std::iota(order.begin(), order.end(), int64_t{0});
  std::partial_sort(order.begin(), order.begin() + draws, order.end(), [&](int64_t i, int64_t j) {
    const float a = row[static_cast<size_t>(i)], b = row[static_cast<size_t>(j)];
    return a > b || (a == b && i < j);
  });
  std::copy_n(order.begin(), draws, op.index.as<int64_t>() + number * draws);
}

}  // namespace

void run(const Multinomial& op, CpuContext& ctx) {
  if (op.index.numel() == 0) return;
  const int64_t columns = op.in.shape[1], draws = op.index.shape[1];
  for_floating(kOp, op.in.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t grain = std::max<int64_t>(1, kElementGrain / columns);
    ctx.pool.parallel_for(op.in.shape[0], grain, [&](int64_t begin, int64_t end) {
      std::vector<float> row(static_cast<size_t>(columns));
      std::vector<int64_t> places(static_cast<size_t>(columns));
      for (int64_t number = begin; number < end; ++number) {
        for (int64_t i = 0; i < columns; ++i)
          row[static_cast<size_t>(i)] =
              static_cast<float>(static_cast<compute_t<T>>(op.in.as<T>()[number * columns + i]));
        require_row(row, number, draws, op.replacement);
        if (op.replacement) draw_with_replacement(op, number, row, places);
        else draw_without_replacement(op, number, row, places);
      }
    });
  });
}

}  // namespace ds::cpu
