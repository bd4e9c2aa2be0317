// SampleTokens on the CPU, row by row with a sort. Tests compare the GPU with it.
#include "sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "../cpu/index_check.h"
#include "../cpu/map.h"
#include "sample_math.h"

namespace ds::cpu {
namespace {

constexpr const char* kOp = "sample_tokens";
constexpr float kOut = -std::numeric_limits<float>::infinity();

using Scores = std::vector<float>;

int64_t argmax(const Scores& x) { return std::max_element(x.begin(), x.end()) - x.begin(); }

/// Returns the row of `table` for a slot, or null if the slot has none. Throws DS_INDEX for a row
/// outside of the table.
template <class T>
T* row_of(const OptionalView& table, int32_t row, const char* what) {
  if (!table || row < 0) return nullptr;
  require_index(kOp, row, table.shape[0], what);
  return table.as<T>() + row * table.shape[1];
}

void keep_top_k(Scores& y, int64_t k) {
  if (k <= 0 || k >= static_cast<int64_t>(y.size())) return;
  Scores sorted = y;
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  const float least = sorted[static_cast<size_t>(k - 1)];
  for (float& one : y)
    if (one < least) one = kOut;
}

void keep_top_p(Scores& y, float top_p) {
  if (top_p >= 1.0f) return;
  std::vector<size_t> order(y.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return y[a] > y[b] || (y[a] == y[b] && a > b); });
  uint64_t total = 0, above = 0;
  for (const float one : y) total += sample_weight(one);
  const uint64_t kept = kept_weight(total, top_p);
  for (const size_t c : order) {
    const uint64_t weight = sample_weight(y[c]);
    if (above >= kept) y[c] = kOut;
    above += weight;
  }
}

/// Turns the scores of a row into candidates, then draws one.
int32_t draw(Scores& y, const SampleRules& rules) {
  const float largest = *std::max_element(y.begin(), y.end());
  for (float& one : y) one = div_rn(sub_rn(one, largest), rules.temperature);
  keep_top_k(y, rules.top_k);
  keep_top_p(y, rules.top_p);
  for (float& one : y)
    if (exact_exp(one) < rules.min_p) one = kOut;
  for (size_t c = 0; c < y.size(); ++c) {
    if (y[c] == kOut) continue;
    const Philox4 words = philox(rules.seed, static_cast<uint64_t>(rules.position), c / 4);
    y[c] = draw_key(y[c], words.v[c % 4]);
  }
  return static_cast<int32_t>(argmax(y));
}

/// Returns the scores after steps 1 to 5.
Scores processed(const SampleTokens& op, int32_t slot, Scores x, const SampleRules& rules) {
  const int32_t* const numbers = op.numbers.as<int32_t>() + slot * kSampleNumbers;
  const auto* counts = row_of<const int32_t>(op.counts, numbers[kCountsRow], "rows of counts");
  const auto* bias = row_of<const float>(op.bias, numbers[kBiasRow], "rows of bias");
  const auto* mask = row_of<const int32_t>(op.masks, numbers[kMaskRow], "rows of masks");
  for (size_t c = 0; c < x.size(); ++c) {
    if (bias) x[c] = add_rn(x[c], bias[c]);
    if (counts) x[c] = penalized(x[c], counts[c], rules);
    if (mask) x[c] = masked(x[c], mask, static_cast<uint32_t>(c));
  }
  const int64_t bans = op.bans ? op.bans.shape[0] : 0;
  const int32_t* const recent = op.recent.as<int32_t>() + slot * kSampleRecent;
  for (int64_t b = 0; b < bans; ++b) {
    const int32_t* const ban = op.bans.as<int32_t>() + b * op.bans.shape[1];
    if (ban[kBanSlot] != slot || !ban_applies(ban, recent, rules)) continue;
    const int32_t last = ban[kBanTokens + ban[kBanLength] - 1];
    require_index(kOp, last, static_cast<int64_t>(x.size()), "the vocabulary");
    float& score = x[static_cast<size_t>(last)];
    // NaN and +infinity are kept, so that the row is rejected.
    score = score < std::numeric_limits<float>::infinity() ? kOut : score;
  }
  return x;
}

int32_t choose(const SampleTokens& op, int32_t slot, const Scores& scores) {
  const SampleRules rules = SampleRules::of(op.settings.as<float>() + slot * kSampleSettings,
                                            op.numbers.as<int32_t>() + slot * kSampleNumbers);
  Scores y = processed(op, slot, scores, rules);
  const auto is_bad = [](float one) { return !(one < std::numeric_limits<float>::infinity()); };
  if (std::any_of(y.begin(), y.end(), is_bad)) return kNotANumber;
  const int64_t best = argmax(y);
  if (y[static_cast<size_t>(best)] == kOut) return kNothingLeft;
  return rules.temperature == 0.0f ? static_cast<int32_t>(best) : draw(y, rules);
}

void write_logprobs(const Scores& scores, int32_t token, float* out) {
  if (token < 0) {
    out[0] = out[1] = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const float largest = *std::max_element(scores.begin(), scores.end());
  uint64_t total = 0;
  for (const float x : scores) total += sample_weight(sub_rn(x, largest));
  out[1] = log_sum_exp(largest, total);
  out[0] = sub_rn(scores[static_cast<size_t>(token)], out[1]);
}

/// Appends the token to the slot's sequence.
void append(const SampleTokens& op, int32_t slot, int32_t token) {
  int32_t* const numbers = op.numbers.as<int32_t>() + slot * kSampleNumbers;
  op.recent.as<int32_t>()[slot * kSampleRecent + numbers[kPosition] % kSampleRecent] = token;
  ++numbers[kPosition];
  ++numbers[kGenerated];
  if (auto* counts = row_of<int32_t>(op.counts, numbers[kCountsRow], "rows of counts"))
    counts[token] += 2;
}

}  // namespace

void run(const SampleTokens& op, CpuContext& ctx) {
  const int64_t rows = op.scores.shape[0], vocabulary = op.scores.shape[1];
  for (int64_t r = 0; r < rows; ++r)
    require_index(kOp, op.slots.as<int32_t>()[r], op.settings.shape[0], "slots");
  for_floating(kOp, op.scores.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t grain = std::max<int64_t>(1, kElementGrain / 16 / vocabulary);
    ctx.pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
      Scores scores(static_cast<size_t>(vocabulary));
      for (int64_t r = begin; r < end; ++r) {
        const T* const row = op.scores.as<T>() + r * op.scores.strides[0];
        for (int64_t c = 0; c < vocabulary; ++c)
          scores[static_cast<size_t>(c)] = static_cast<float>(static_cast<compute_t<T>>(row[c]));
        const int32_t slot = op.slots.as<int32_t>()[r], token = choose(op, slot, scores);
        op.tokens.as<int32_t>()[r] = token;
        if (op.logprobs) write_logprobs(scores, token, op.logprobs.as<float>() + 2 * r);
        if (token >= 0) append(op, slot, token);
      }
    });
  });
}

}  // namespace ds::cpu
